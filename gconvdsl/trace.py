"""Running a kernel body on traced values, and the functions that a body may call.

``trace(function, config)`` calls the body once with `Tracer` arguments. What happens to x before the convolution is the prologue,
what happens to its result the epilogue; helper functions compose, since they simply run on the tracers.
"""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any, Callable, NoReturn, Union

from . import frames
from .config import KernelConfig
from .dtypes import dtype as _dtype
from .errors import GconvError, error
from .expr import Expr, operand
from .spec import ConvParams, KernelSpec, Operand
from .tracer import MARKERS, Condition, LikeY, PerC, PerK, Scalar, Trace, Tracer, Value, described, fail, function

__all__ = [
    "LikeY", "PerC", "PerK", "Scalar", "abs", "cast", "clamp", "conv", "conv_bwd_data", "conv_bwd_weight", "erf", "exp", "gelu",
    "leaky_relu", "log", "maximum", "minimum", "neg", "operands_of", "relu", "rsqrt", "sigmoid", "silu", "sqrt", "tanh", "trace",
    "where",
]

Sizes = Union[int, "tuple[int, ...]", "list[int]", None]
Pad = Union[int, "tuple[Any, ...]", "list[Any]", None]


# --- the convolution

_ARGUMENTS = {
    "forward": ("conv", "x", "w"),
    "bwd_data": ("conv_bwd_data", "dy", "w"),
    "bwd_weight": ("conv_bwd_weight", "x", "dy"),
}


def conv(x: Any, w: Any, stride: Sizes = None, pad: Pad = None, dilation: Sizes = None, groups: int | None = None) -> Tracer:
    """The grouped convolution of a kernel body: y from x (or an expression of it, the prologue) and w.

    ``stride``, ``dilation``: an int or one per axis; ``pad``: likewise, an entry may be (low, high). What is left out is taken
    from the problem. Zero padding surrounds the result of the prologue.
    """
    return _conv("forward", x, w, stride, pad, dilation, groups)


def conv_bwd_data(dy: Any, w: Any, stride: Sizes = None, pad: Pad = None, dilation: Sizes = None,
                  groups: int | None = None) -> Tracer:
    """The gradient of `conv` with respect to x (a transposed convolution): dx from dy and w."""
    return _conv("bwd_data", dy, w, stride, pad, dilation, groups)


def conv_bwd_weight(x: Any, dy: Any, stride: Sizes = None, pad: Pad = None, dilation: Sizes = None,
                    groups: int | None = None) -> Tracer:
    """The gradient of `conv` with respect to w: dw from x and dy."""
    return _conv("bwd_weight", x, dy, stride, pad, dilation, groups)


def _conv(direction: str, a: Any, b: Any, *params: Any) -> Tracer:
    name = _ARGUMENTS[direction][0]
    trace = _conv_trace(name, a, b)
    if trace.conv is not None:
        fail("trace.conv_count", count="a second", hint="Declare two kernels, and call one after the other.")
    _check_tensors(direction, a, b)
    try:
        trace.conv = ConvParams(direction, *params)
    except GconvError as failure:
        raise failure.at(frames.of_user())
    trace.prologue = a._expr
    return Tracer(trace, Expr("acc"))


def _conv_trace(name: str, a: Any, b: Any) -> Trace:
    traced = [one for one in (a, b) if isinstance(one, Tracer)]
    if not traced:
        fail("trace.outside", function=name, got=f"{described(a)} and {described(b)}")
    if any(not one._trace.active or one._trace is not traced[0]._trace for one in traced):
        fail("trace.escaped")
    return traced[0]._trace


def _check_tensors(direction: str, a: Any, b: Any) -> None:
    name, first, second = _ARGUMENTS[direction]
    swapped = getattr(a, "_role", "") == "weights" and isinstance(b, Tracer) and b._role != "weights"
    hint = "The two arguments are swapped." if swapped else ""
    whole = direction == "forward"
    if not isinstance(a, Tracer) or a._role == "weights" or not a._expr.uses("x") or isinstance(a, Condition):
        fail("trace.conv_arg", which=first, function=f"gconv.{name}", hint=hint or f"It was given {described(a)}.",
             expected="the kernel's first tensor" + (" or an expression of it" if whole else ""))
    if not isinstance(b, Tracer) or b._role != "weights":
        fail("trace.conv_arg", which=second, function=f"gconv.{name}", expected="the kernel's second tensor, unchanged",
             hint=f"It was given {described(b)}.")
    if not whole and a._expr != Expr("x"):
        fail("trace.conv_arg", which=first, function=f"gconv.{name}", expected="the kernel's first tensor, unchanged",
             hint="Only a forward kernel has a prologue.")


# --- functions of traced values

def exp(a: Value) -> Tracer:
    """e to the power of a."""
    return function("exp", a)


def log(a: Value) -> Tracer:
    """The natural logarithm; NaN below 0, -Inf at 0."""
    return function("log", a)


def sqrt(a: Value) -> Tracer:
    """The square root; NaN below 0."""
    return function("sqrt", a)


def rsqrt(a: Value) -> Tracer:
    """1 / sqrt(a)."""
    return function("rsqrt", a)


def tanh(a: Value) -> Tracer:
    """The hyperbolic tangent."""
    return function("tanh", a)


def erf(a: Value) -> Tracer:
    """The error function."""
    return function("erf", a)


def sigmoid(a: Value) -> Tracer:
    """1 / (1 + exp(-a))."""
    return function("sigmoid", a)


def relu(a: Value) -> Tracer:
    """max(a, 0); NaN stays NaN."""
    return function("relu", a)


def leaky_relu(a: Value, slope: Value = 0.01) -> Tracer:
    """a where a >= 0, else slope * a."""
    return function("leaky_relu", a, slope)


def gelu(a: Value, approximate: str = "none") -> Tracer:
    """a times the normal distribution function of a; ``approximate="tanh"`` is the usual approximation by tanh."""
    if approximate not in ("none", "tanh"):
        fail("trace.args", function="gelu", expected='approximate="none" or "tanh"', got=repr(approximate))
    return function("gelu_tanh" if approximate == "tanh" else "gelu", a)


def silu(a: Value) -> Tracer:
    """a * sigmoid(a)."""
    return function("silu", a)


def neg(a: Value) -> Tracer:
    """-a."""
    return function("neg", a)


def abs(a: Value) -> Tracer:
    """The absolute value."""
    return function("abs", a)


def minimum(a: Value, b: Value) -> Tracer:
    """The smaller of two values; NaN if either is."""
    return function("minimum", a, b)


def maximum(a: Value, b: Value) -> Tracer:
    """The larger of two values; NaN if either is."""
    return function("maximum", a, b)


def clamp(a: Value, low: Value, high: Value) -> Tracer:
    """min(max(a, low), high); NaN stays NaN."""
    return function("clamp", a, low, high)


def where(condition: Any, a: Value, b: Value) -> Tracer:
    """a where the comparison ``condition`` holds, else b. Both are computed."""
    if not isinstance(condition, Condition):
        fail("trace.condition", function=f"where({described(condition)}, ...)")
    return function("where", condition, a, b)


def cast(a: Value, dtype: Any) -> Tracer:
    """a rounded to "fp16", "bf16" or "fp32"."""
    try:
        name = _dtype(dtype).name
    except GconvError as failure:
        raise failure.at(frames.of_user())
    return function("cast", a, value=name)


# --- tracing a body

def trace(body: Callable[..., Any], config: KernelConfig) -> KernelSpec:
    """The `KernelSpec` of a kernel body. Raises `TraceError` at the user's file, line and columns."""
    code = _code(body)
    first, second = _tensors(body, code)
    operands = operands_of(body)
    state = Trace({one.name: one.kind for one in operands})
    arguments = {first: Tracer(state, Expr("x"), "input"), second: Tracer(state, Expr("x"), "weights")}
    arguments.update({one.name: Tracer(state, operand(one.name)) for one in operands})
    try:
        result = _run(body, arguments, code)
        return _spec(body, state, result, operands, config, code)
    finally:
        state.active = False


def _code(body: Any) -> CodeType:
    code = getattr(inspect.unwrap(body) if callable(body) else body, "__code__", None)
    if not isinstance(code, CodeType):
        fail("trace.function", got=described(body), hint="Decorate a function, or write @gconv.kernel(tile=..., ...) above one.")
    if inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise error("trace.function", loc=frames.of_code(code), got=f"the generator or coroutine {body.__name__!r}",
                    hint="A body is a plain function that returns the value to store.")
    return code


def _tensors(body: Callable[..., Any], code: CodeType) -> tuple[str, str]:
    """The names of the first two parameters, which must be plain positional ones."""
    parameters = list(inspect.signature(body).parameters.values())
    plain = [p for p in parameters[:2] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
             and _marker(p.annotation, body) is None]
    if len(plain) < 2:
        raise error("trace.tensors", loc=frames.of_code(code), name=body.__name__, got=f"({', '.join(map(str, parameters))})")
    return plain[0].name, plain[1].name


def operands_of(body: Callable[..., Any]) -> tuple[Operand, ...]:
    """The operands that a body's parameters after the first two declare by their annotations."""
    code = _code(body)
    return tuple(_operand(p, body, code) for p in list(inspect.signature(body).parameters.values())[2:])


def _operand(parameter: inspect.Parameter, body: Callable[..., Any], code: CodeType) -> Operand:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise error("trace.parameter", loc=frames.of_parameter(code, name), name=str(parameter), what="a kernel's parameter",
                    hint="Name every operand.")
    marker = _marker(parameter.annotation, body)
    if marker is None:
        raise error("trace.operand", loc=frames.of_parameter(code, name), name=name)
    if parameter.default is not parameter.empty and marker.kind != "scalar":
        raise error("trace.parameter", loc=frames.of_parameter(code, name), name=name, what="optional",
                    hint="Only a gconv.Scalar may have a default.")
    try:
        return Operand(name, marker.kind)
    except GconvError as failure:
        raise failure.at(frames.of_parameter(code, name))


def _marker(annotation: Any, body: Callable[..., Any]) -> Any:
    """The marker class of an annotation, which may be text such as "gconv.PerK"; None if it is none."""
    if isinstance(annotation, str):
        return MARKERS.get(annotation.strip("'\" ").rpartition(".")[2]) or _looked_up(annotation.strip("'\" "), body)
    return annotation if annotation in MARKERS.values() else None


def _looked_up(text: str, body: Callable[..., Any]) -> Any:
    """A dotted name in the module of the body, for ``from gconvdsl import PerK as Bias``."""
    head, *rest = text.split(".")
    found = getattr(inspect.unwrap(body), "__globals__", {}).get(head)
    for part in rest:
        found = getattr(found, part, None)
    return found if isinstance(found, type) and found in MARKERS.values() else None


def _run(body: Callable[..., Any], arguments: dict[str, Tracer], code: CodeType) -> Any:
    positional, named = [], {}
    for parameter in inspect.signature(body).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = arguments[parameter.name]
        else:
            positional.append(arguments[parameter.name])
    try:
        return body(*positional, **named)
    except GconvError as failure:
        raise failure.at(frames.of_exception(failure, code))
    except Exception as failure:
        raise error("trace.source", loc=frames.of_exception(failure, code), name=body.__name__,
                    reason=f"{type(failure).__name__}: {failure}", hint=_usage(failure)) from failure


def _usage(failure: Exception) -> str:
    """The parameters of the gconv function that a TypeError says was called wrongly, such as conv() with ``padding=``."""
    name = str(failure).partition("(")[0]
    if not isinstance(failure, TypeError) or name not in __all__:
        return ""
    return f"Call it as gconv.{name}({', '.join(inspect.signature(globals()[name]).parameters)})."


def _spec(body: Callable[..., Any], state: Trace, result: Any, operands: tuple[Operand, ...], config: KernelConfig,
          code: CodeType) -> KernelSpec:
    _check_result(body, state, result, code)
    name = body.__name__ if body.__name__ != "<lambda>" else "kernel"
    try:
        return KernelSpec(name, state.conv or ConvParams(), operands, state.prologue, result._expr, config,
                          loc=frames.of_code(code))
    except GconvError as failure:
        raise failure.at(frames.of_code(code))


def _check_result(body: Callable[..., Any], state: Trace, result: Any, code: CodeType) -> None:
    def refuse(got: str, hint: str) -> NoReturn:
        raise error("trace.return", loc=frames.of_return(code), got=got, hint=hint)

    if isinstance(result, Tracer) and result._trace is not state:
        raise error("trace.escaped", loc=frames.of_return(code))
    if state.conv is None:
        raise error("trace.conv_count", loc=frames.of_code(code), count="none",
                    hint="Call gconv.conv(x, w), gconv.conv_bwd_data(dy, w) or gconv.conv_bwd_weight(x, dy).")
    if result is None:
        refuse("None", "End the body with return.")
    if not isinstance(result, Tracer):
        refuse(described(result), "Return one traced value, such as gconv.relu(acc + bias).")
    if isinstance(result, Condition) or result._role == "weights" or not result._expr.uses("acc"):
        hint = "Write gconv.where(condition, 1, 0)." if isinstance(result, Condition) else "It must depend on the convolution."
        refuse(described(result), hint)
