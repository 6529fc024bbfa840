"""`KernelSpec`: the frozen declaration of a kernel that the decorators and ``.gconv`` files both build."""

from __future__ import annotations

import hashlib
import numbers
import re
from dataclasses import dataclass, field, replace
from typing import Any, Mapping, NoReturn

from .config import KernelConfig
from .errors import error
from .expr import Expr
from .plan import MAX_OPERANDS
from .problem import DIRECTIONS

__all__ = ["ConvParams", "KINDS", "KernelSpec", "Operand", "PLACES", "check_place"]

KINDS: dict[str, str] = {
    "per_k": "one value per output channel (gconv.PerK)",
    "per_c": "one value per input channel (gconv.PerC)",
    "like_y": "an array shaped like the result (gconv.LikeY)",
    "scalar": "a number (gconv.Scalar)",
}
"""Operand kind -> what it is. K output channels and C input channels count over all groups."""

PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "forward": {"prologue": ("per_c", "scalar"), "epilogue": ("per_k", "like_y", "scalar")},
    "bwd_data": {"prologue": (), "epilogue": ("per_c", "like_y", "scalar")},
    "bwd_weight": {"prologue": (), "epilogue": ("like_y", "scalar")},
}
"""Which kinds of operands may stand where. Only a forward kernel has a prologue; the result of bwd_data has C channels."""

_RESERVED = ("x", "w", "y", "dy", "acc", "out", "out_dtype", "problem", "target")
_LEAF = {"prologue": "x", "epilogue": "acc"}


# --- checking the numbers of ConvParams

def _whole(name: str, value: Any, least: int, whole: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise error("trace.params", field=name, value=whole, expected=f"a whole number of at least {least}",
                    hint="One number serves every axis; a tuple gives one per axis." if name != "groups" else "")
    return int(value)


def _axes(name: str, value: Any) -> tuple[Any, ...]:
    if not 1 <= len(value) <= 3:
        raise error("trace.params", field=name, value=value, expected="a value for each of 1 to 3 axes",
                    hint="Leave it out to take it from the problem.")
    return tuple(value)


def _per_axis(name: str, value: Any) -> int | tuple[int, ...] | None:
    if isinstance(value, (tuple, list)):
        return tuple(_whole(name, one, 1, value) for one in _axes(name, value))
    return None if value is None else _whole(name, value, 1, value)


def _pad(value: Any) -> int | tuple[int | tuple[int, int], ...] | None:
    if isinstance(value, (tuple, list)):
        return tuple(_pad_axis(one, value) for one in _axes("pad", value))
    return None if value is None else _whole("pad", value, 0, value)


def _pad_axis(one: Any, whole: Any) -> int | tuple[int, int]:
    if not isinstance(one, (tuple, list)):
        return _whole("pad", one, 0, whole)
    if len(one) != 2:
        raise error("trace.params", field="pad", value=whole, expected="a number or a (low, high) pair for each axis",
                    hint="Write pad=((0, 1), (2, 2)).")
    return _whole("pad", one[0], 0, whole), _whole("pad", one[1], 0, whole)


# --- the declaration

@dataclass(frozen=True)
class Operand:
    """A further argument of a kernel: its name and one of `KINDS`."""

    name: str
    kind: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z_]\w*", self.name, re.ASCII):
            raise error("trace.name", name=self.name, what="an operand", reason="it is not an ASCII identifier")
        if self.name in _RESERVED:
            raise error("trace.name", name=self.name, what="an operand", reason="every kernel has it already")
        if self.kind not in KINDS:
            raise error("trace.operand", name=self.name)


@dataclass(frozen=True)
class ConvParams:
    """What a kernel fixes of its convolution; None is taken from the problem.

    ``stride`` and ``dilation``: an int for all axes, or a tuple with one per axis. ``pad``: likewise, each an int or a
    (low, high) pair. A tuple of equal entries stays a tuple: it fixes the number of axes.
    """

    direction: str = "forward"
    stride: int | tuple[int, ...] | None = None
    pad: int | tuple[int | tuple[int, int], ...] | None = None
    dilation: int | tuple[int, ...] | None = None
    groups: int | None = None

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise error("problem.direction", value=self.direction)
        for name in ("stride", "dilation"):
            object.__setattr__(self, name, _per_axis(name, getattr(self, name)))
        object.__setattr__(self, "pad", _pad(self.pad))
        if self.groups is not None:
            object.__setattr__(self, "groups", _whole("groups", self.groups, 1, self.groups))

    def fields(self) -> dict[str, Any]:
        """The fixed fields as `ConvProblem` spells them (groups as G), without the direction."""
        named = {"stride": self.stride, "pad": self.pad, "dilation": self.dilation, "G": self.groups}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class KernelSpec:
    """A kernel: its convolution, operands in calling order, prologue on x, epilogue on the accumulator, and configuration.

    A bare kernel has prologue ``Expr("x")`` and epilogue ``Expr("acc")``. ``directions`` lists what it is declared for (default:
    the direction of ``conv``); a kernel with a prologue or an epilogue has exactly one. ``loc`` is where it was declared; it
    takes no part in equality.
    """

    name: str
    conv: ConvParams = ConvParams()
    operands: tuple[Operand, ...] = ()
    prologue: Expr = Expr("x")
    epilogue: Expr = Expr("acc")
    config: KernelConfig = KernelConfig()
    directions: tuple[str, ...] = ()
    loc: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[^\W\d]\w*", self.name):
            raise error("trace.name", name=self.name, what="a kernel", reason="it is not an identifier")
        object.__setattr__(self, "operands", tuple(self.operands))
        object.__setattr__(self, "directions", tuple(self.directions) or (self.conv.direction,))
        self._check_directions()
        self._check_operands()
        for place in ("prologue", "epilogue"):
            self._check_place(place, getattr(self, place))

    @property
    def direction(self) -> str:
        """The direction of its convolution."""
        return self.conv.direction

    @property
    def is_bare(self) -> bool:
        """Whether it is the convolution alone."""
        return self.prologue == Expr("x") and self.epilogue == Expr("acc")

    def kind(self, name: str) -> str:
        """The kind of the operand ``name``; KeyError if there is none."""
        return self.kinds[name]

    @property
    def kinds(self) -> Mapping[str, str]:
        """Operand name -> kind, in calling order."""
        return {one.name: one.kind for one in self.operands}

    def bare(self, direction: str | None = None) -> KernelSpec:
        """The convolution alone (default: in its own direction), with the same parameters and configuration."""
        conv = replace(self.conv, direction=direction or self.direction)
        return KernelSpec(self.name, conv, config=self.config, loc=self.loc)

    def identity(self) -> str:
        """A text that is equal for equal declarations, in every process; the name is left out, since no result depends on it."""
        operands = ", ".join(f"{one.name}: {one.kind}" for one in self.operands)
        return (f"conv {self.conv!r}; directions {self.directions}; operands ({operands}); prologue {self.prologue.digest}; "
                f"epilogue {self.epilogue.digest}; config {self.config.identity()}")

    def digest(self) -> str:
        """sha256 of `identity`, in hexadecimal."""
        return hashlib.sha256(self.identity().encode()).hexdigest()

    def _check_directions(self) -> None:
        for direction in self.directions:
            if direction not in DIRECTIONS:
                raise error("problem.direction", value=direction)
        if len(set(self.directions)) < len(self.directions) or self.direction not in self.directions:
            raise error("trace.directions", declared=f"a {self.direction} convolution", value=", ".join(self.directions),
                        hint="Name each direction once, and that of the convolution among them.")
        if len(self.directions) > 1 and not self.is_bare:
            other = next(d for d in self.directions if d != self.direction)
            raise error("trace.directions", declared="a prologue or an epilogue", value=other,
                        hint="Declare one kernel per direction.")

    def _check_operands(self) -> None:
        if len(self.operands) > MAX_OPERANDS:
            raise error("trace.args", function=self.name, expected=f"at most {MAX_OPERANDS} operands", got=len(self.operands))
        for index, one in enumerate(self.operands):
            if one.name in [earlier.name for earlier in self.operands[:index]]:
                raise error("trace.name", name=one.name, what="a second operand", reason="it is already taken")

    def _check_place(self, place: str, expr: Expr) -> None:
        if place == "prologue" and self.direction != "forward" and expr != Expr("x"):
            raise error("trace.operand_place", name="x", kind="changed before the convolution",
                        place=f"a {self.direction} kernel", hint="Only a forward kernel has a prologue.")
        check_place(place, expr, self.direction, self.kinds)


def check_place(place: str, expr: Expr, direction: str, kinds: Mapping[str, str]) -> None:
    """Raise `TraceError` unless ``expr`` reads only what may stand in the "prologue" or "epilogue" of this direction."""
    if place == "epilogue" and expr.uses("x"):
        _misplaced("x", "the input of the convolution", place, direction)
    if place == "prologue" and expr.uses("acc"):
        _misplaced("acc", "the result of the convolution", place, direction)
    for name in expr.operands:
        if name not in kinds:
            raise error("trace.operand", name=name)
        if kinds[name] not in PLACES[direction][place]:
            _misplaced(name, KINDS[kinds[name]], place, direction)


def _misplaced(name: str, kind: str, place: str, direction: str) -> NoReturn:
    allowed = PLACES[direction][place]
    words = ", ".join(allowed) if allowed else "no operands"
    raise error("trace.operand_place", name=name, kind=kind, place=f"the {place} of a {direction} kernel",
                hint=f"The {place} reads {_LEAF[place]} and operands of these kinds: {words}.")
