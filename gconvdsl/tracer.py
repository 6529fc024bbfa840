"""`Tracer`: the value that stands for a tensor while a kernel body runs.

Operators on it build an `Expr`; everything else a tensor might do is an error at the user's line. The marker classes that
annotate operands are tracers too, so that ``bias: gconv.PerK`` is true for type checkers.
"""

from __future__ import annotations

import numbers
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, NoReturn, Union

import numpy as np

from . import frames
from .errors import GconvError, error
from .expr import OPS, Expr, apply, const
from .spec import ConvParams, check_place

__all__ = ["Condition", "LikeY", "MARKERS", "PerC", "PerK", "Scalar", "Trace", "Tracer", "Value", "fail", "function"]


def fail(code: str, /, **values: Any) -> NoReturn:
    """Raise the error at the user's line."""
    raise error(code, loc=frames.of_user(), **values)


@dataclass(eq=False)
class Trace:
    """The state of one running kernel body."""

    kinds: dict[str, str]                                   # operand name -> kind
    conv: ConvParams | None = None                          # set by the convolution
    prologue: Expr = Expr("x")
    active: bool = True
    thread: int = field(default_factory=threading.get_ident)

    def check(self, expr: Expr) -> Expr:
        """``expr``, if what it reads may be combined at this point of the body."""
        if expr.uses("acc") and self.conv is not None:
            check_place("epilogue", expr, self.conv.direction, self.kinds)
        elif expr.uses("x"):
            if self.conv is not None:
                raise error("trace.operand_place", name="x", kind="the input of the convolution", place="the epilogue",
                            hint="What is applied to x must come before the convolution.")
            check_place("prologue", expr, "forward", self.kinds)
        return expr


class Tracer:
    """A traced tensor or operand.

    Supports + - * / abs, small integer powers, comparisons inside where, and the gconv functions.
    """

    __slots__ = ("_trace", "_expr", "_role")
    _trace: Trace
    _expr: Expr
    _role: str                                              # "input", "weights" or "value"
    __hash__ = object.__hash__                              # == is traced, identity still hashes

    def __init__(self, trace: Trace, expr: Expr, role: str = "value") -> None:
        self._trace, self._expr, self._role = trace, expr, role

    def __repr__(self) -> str:
        return f"<traced {'weights' if self._role == 'weights' else self._expr!r}>"

    # --- what is traced

    def __add__(self, other: Value) -> Tracer:
        return function("add", self, other)

    def __radd__(self, other: Value) -> Tracer:
        return function("add", other, self)

    def __sub__(self, other: Value) -> Tracer:
        return function("sub", self, other)

    def __rsub__(self, other: Value) -> Tracer:
        return function("sub", other, self)

    def __mul__(self, other: Value) -> Tracer:
        return function("mul", self, other)

    def __rmul__(self, other: Value) -> Tracer:
        return function("mul", other, self)

    def __truediv__(self, other: Value) -> Tracer:
        return function("div", self, other)

    def __rtruediv__(self, other: Value) -> Tracer:
        return function("div", other, self)

    def __neg__(self) -> Tracer:
        return function("neg", self)

    def __pos__(self) -> Tracer:
        return self

    def __abs__(self) -> Tracer:
        return function("abs", self)

    def __lt__(self, other: Value) -> Condition:
        return _condition("lt", self, other)

    def __le__(self, other: Value) -> Condition:
        return _condition("le", self, other)

    def __gt__(self, other: Value) -> Condition:
        return _condition("gt", self, other)

    def __ge__(self, other: Value) -> Condition:
        return _condition("ge", self, other)

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return _condition("eq", self, other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return _condition("ne", self, other)

    def __pow__(self, power: int) -> Tracer:
        """Integer powers from -8 to 8 without 0, as products."""
        if isinstance(power, Tracer) or not isinstance(power, (int, np.integer)) or not 1 <= abs(power) <= 8:
            fail("trace.op", what=f"the power {power!r} (only whole numbers from 1 to 8 and -1 to -8)")
        result = _product(self, abs(int(power)))
        return result if power > 0 else function("div", 1, result)

    # --- what is refused

    def __bool__(self) -> NoReturn:
        fail("trace.branch")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Tracer:
        """``np.float64(2) * acc`` arrives here as a ufunc call and is traced; every other ufunc is refused."""
        op = _UFUNCS.get(ufunc.__name__)
        if op is not None and method == "__call__" and len(inputs) == 2 and isinstance(inputs[0], (np.generic, np.ndarray)):
            return _condition(op, *inputs) if OPS[op].condition else function(op, *inputs)
        _refuse_numpy(f"np.{ufunc.__name__}")

    def __array_function__(self, called: Any, *_: Any) -> NoReturn:
        _refuse_numpy(f"np.{called.__name__}")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _refuse_numpy("np.asarray")

    @classmethod
    def __torch_function__(cls, called: Any, *_: Any) -> NoReturn:
        _refuse_numpy(f"torch.{getattr(called, '__name__', called)}")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):                            # protocols probe for these
            raise AttributeError(name)
        fail("trace.op", what=f"the attribute .{name}")


Value = Union[Tracer, float]
"""What the operators and functions take: a traced value or a number."""


class Condition(Tracer):
    """A traced comparison: good for nothing but the first argument of where."""

    __slots__ = ()


class PerK(Tracer):
    """Annotates an operand with one value per output channel (K values over all groups)."""

    __slots__ = ()
    kind = "per_k"


class PerC(Tracer):
    """Annotates an operand with one value per input channel (C values over all groups)."""

    __slots__ = ()
    kind = "per_c"


class LikeY(Tracer):
    """Annotates an operand shaped like the result."""

    __slots__ = ()
    kind = "like_y"


class Scalar(Tracer):
    """Annotates an operand that is one number."""

    __slots__ = ()
    kind = "scalar"


MARKERS: dict[str, Any] = {marker.__name__: marker for marker in (PerK, PerC, LikeY, Scalar)}


def function(op: str, /, *args: Any, value: str | None = None) -> Tracer:
    """Trace one operation of `OPS`; at least one argument must be traced."""
    trace = _common_trace(op, args)
    try:
        return Tracer(trace, trace.check(apply(op, *(_expr(arg, op) for arg in args), value=value)))
    except GconvError as failure:
        raise failure.at(frames.of_user())


def _condition(op: str, *args: Any) -> Condition:
    traced = function(op, *args)
    return Condition(traced._trace, traced._expr)


def _product(base: Tracer, power: int) -> Tracer:
    """Products by squaring."""
    if power == 1:
        return base
    half = _product(base, power // 2)
    square = function("mul", half, half)
    return function("mul", square, base) if power % 2 else square


def _common_trace(op: str, args: tuple[Any, ...]) -> Trace:
    traced = [arg for arg in args if isinstance(arg, Tracer)]
    if not traced:
        fail("trace.outside", function=op, got=", ".join(map(described, args)) or "nothing")
    trace = traced[0]._trace
    if not trace.active or trace.thread != threading.get_ident() or any(one._trace is not trace for one in traced):
        fail("trace.escaped")
    return trace


def _expr(arg: Any, op: str) -> Expr:
    if isinstance(arg, Tracer):
        if arg._role == "weights":
            fail("trace.op", what=f"{op} on the weights: they can only be handed to the convolution")
        return arg._expr
    if hasattr(arg, "__array__") and not isinstance(arg, np.generic):
        fail("trace.array", got=described(arg))
    if isinstance(arg, numbers.Real) and not isinstance(arg, (int, float, np.generic)):
        arg = float(arg)                                    # such as a Fraction
    return const(arg)


def described(value: Any) -> str:
    """A value in a few words, for messages."""
    if isinstance(value, Condition):
        return "a comparison"
    if isinstance(value, Tracer):
        return {"input": "the input x", "weights": "the weights w"}.get(value._role, f"the traced value {value._expr!r}"[:80])
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list, dict, set)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.60}"


# --- refusals that differ only in a word

_UFUNCS = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "less": "lt",
           "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne"}
_SAME_AS = {"absolute": "abs", "negative": "neg", "fabs": "abs", "clip": "clamp", "fmax": "maximum",
            "fmin": "minimum"}


def _refuse_numpy(called: str) -> NoReturn:
    name = called.partition(".")[2]
    name = _SAME_AS.get(name, name)
    known = name in OPS and not OPS[name].infix
    fail("trace.numpy", function=called, hint=f"gconv.{name}" if known else "plain operators and the gconv functions")


def _refusing(code: str, **values: Any) -> Callable[..., NoReturn]:
    def refuse(self: Tracer, *_: Any, **__: Any) -> NoReturn:
        fail(code, **values)

    return refuse


_UNSUPPORTED = {
    "__matmul__": "@", "__rmatmul__": "@", "__floordiv__": "//", "__rfloordiv__": "//", "__mod__": "%", "__rmod__": "%",
    "__divmod__": "divmod", "__rdivmod__": "divmod", "__rpow__": "a power with a traced exponent",
    "__and__": "&", "__rand__": "&",
    "__or__": "|", "__ror__": "|", "__xor__": "^", "__rxor__": "^", "__invert__": "~", "__lshift__": "<<", "__rshift__": ">>",
    "__rlshift__": "<<", "__rrshift__": ">>", "__float__": "conversion to float (which the math module asks for)",
    "__int__": "conversion to int", "__index__": "use as an index", "__complex__": "conversion to complex", "__round__": "round",
    "__trunc__": "rounding", "__floor__": "rounding", "__ceil__": "rounding", "__call__": "being called",
    "__iadd__": "in-place +=: write a = a + b", "__isub__": "in-place -=: write a = a - b",
    "__imul__": "in-place *=: write a = a * b",
    "__itruediv__": "in-place /=: write a = a / b", "__ipow__": "in-place **=: write a = a ** b",
    "__imatmul__": "in-place @=", "__ifloordiv__": "in-place //=", "__imod__": "in-place %=", "__iand__": "in-place &=",
    "__ior__": "in-place |=", "__ixor__": "in-place ^=", "__ilshift__": "in-place <<=", "__irshift__": "in-place >>=",
    "__enter__": "with", "__reduce_ex__": "pickling or copying",
}
for _name, _what in _UNSUPPORTED.items():
    setattr(Tracer, _name, _refusing("trace.op", what=_what))
for _name in ("__len__", "__iter__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__next__", "__reversed__"):
    setattr(Tracer, _name, _refusing("trace.iterate"))
