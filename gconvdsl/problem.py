"""The convolution problem: every size, count and stride that the rest of the package needs, computed in one place.

For each spatial axis, output position ``o`` and filter position ``t`` meet the input at ``i = o * stride - low + t * dilation``.
"""

from __future__ import annotations

import difflib
import itertools
import math
import operator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Iterable, Mapping, NamedTuple, Sequence, SupportsIndex, Union

from .dtypes import DTYPES, dtype as _dtype
from .errors import error
from .layouts import LAYOUTS, Layout, default_layout, layout as _layout
from .plan import ConvArgs, TensorView, three
from .shown import Shown

__all__ = ["ConvProblem", "DIRECTIONS", "Gemm", "Pad", "Phase", "Sizes", "from_fields", "problem"]

DIRECTIONS = ("forward", "bwd_data", "bwd_weight")
Sizes = Union[SupportsIndex, Sequence[SupportsIndex]]
Pad = Union[SupportsIndex, Sequence[Union[SupportsIndex, Sequence[SupportsIndex]]]]

_RESULT = {"forward": "y", "bwd_data": "x", "bwd_weight": "w"}
_OPERANDS = {"forward": ("x", "w"), "bwd_data": ("y", "w"), "bwd_weight": ("x", "y")}
_EXAMPLES = {"C": "C=256", "K": "K=256", "input": "input=(28, 28)", "filter": "filter=(3, 3)"}


class Gemm(NamedTuple):
    """The matrix product of one group: ``(m x k) . (k x n)``."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Phase:
    """A part of a strided bwd_data whose inputs meet the same filter positions; each field has one entry per axis.

    ``residue`` is ``(i + low) % stride`` of its inputs ``i = first + j * stride``, ``0 <= j < count``; ``taps`` are the filter
    positions ``t`` with ``t * dilation % stride == residue``. Where an axis has none, the inputs' gradient is exactly zero.
    """

    residue: tuple[int, ...]
    taps: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]
    count: tuple[int, ...]


@dataclass(frozen=True, init=False, repr=False)
class ConvProblem(Shown):
    """A grouped convolution in one direction.

    ``C`` and ``K`` count channels over all ``G`` groups. ``input`` and ``filter`` are sizes per axis (1 to 3 axes, outermost
    first); one number serves every axis, and so it does for ``stride``, ``dilation`` and ``pad``. An entry of ``pad`` is a number
    or a ``(low, high)`` pair. ``layout`` names the axes of x and with them those of w and y. ``name`` takes no part in equality.

    Raises `ProblemError` naming the value for a problem that cannot exist.
    """

    N: int
    G: int
    C: int
    K: int
    input: tuple[int, ...]
    filter: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    dtype: str
    direction: str
    layout: str
    out_dtype: str
    name: str | None = field(compare=False)

    def __init__(self, *, N: int = 1, G: int = 1, C: int, K: int, input: Sizes, filter: Sizes, stride: Sizes = 1, pad: Pad = 0,
                 dilation: Sizes = 1, dtype: object = "fp32", direction: str = "forward", layout: str | None = None,
                 out_dtype: object = None, name: str | None = None) -> None:
        ndim = _ndim(input, (filter, stride, dilation), layout)
        values: dict[str, Any] = {
            "N": _whole("N", N, 0), "G": _whole("G", G, 1), "C": _whole("C", C, 1), "K": _whole("K", K, 1),
            "input": _sizes("input", input, ndim), "filter": _sizes("filter", filter, ndim),
            "stride": _sizes("stride", stride, ndim), "pad": _pads(pad, ndim), "dilation": _sizes("dilation", dilation, ndim),
            "dtype": _dtype(dtype).name, "direction": _direction(direction),
            "layout": (default_layout(ndim) if layout is None else _layout(layout, ndim)).name,
            "out_dtype": _dtype(dtype if out_dtype is None else out_dtype, "out_dtype").name, "name": name,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        self._check()

    def _check(self) -> None:
        for name in ("C", "K"):
            if getattr(self, name) % self.G:
                raise error("problem.groups", field=name, value=getattr(self, name), G=self.G)
        for axis in range(self.ndim):
            reach = self.dilation[axis] * (self.filter[axis] - 1) + 1
            padded = self.input[axis] + sum(self.pad[axis])
            if reach > padded:
                raise error("problem.filter", reach=reach, axis=self.axis_names[axis], padded=padded)

    # --- sizes

    @property
    def ndim(self) -> int:
        """The number of spatial axes, 1 to 3."""
        return len(self.input)

    @property
    def axis_names(self) -> str:
        """The letters of the spatial axes: the last ``ndim`` of ``dhw``."""
        return self._layout.spatial

    @property
    def Cg(self) -> int:
        """Input channels of one group."""
        return self.C // self.G

    @property
    def Kg(self) -> int:
        """Output channels of one group."""
        return self.K // self.G

    @cached_property
    def output(self) -> tuple[int, ...]:
        """Output sizes per axis: ``(input + low + high - dilation * (filter - 1) - 1) // stride + 1``."""
        return tuple((size + low + high - step * (taps - 1) - 1) // stride + 1 for size, (low, high), step, taps, stride
                     in zip(self.input, self.pad, self.dilation, self.filter, self.stride))

    @property
    def taps(self) -> int:
        """The number of filter positions."""
        return math.prod(self.filter)

    @property
    def flops(self) -> int:
        """Two for each multiply-add of the dense convolution, those on padding included; the same in all directions."""
        return 2 * self.N * self.K * math.prod(self.output) * self.Cg * self.taps

    @property
    def bytes(self) -> int:
        """Bytes of the three tensors, each once."""
        width = {t: DTYPES[self.out_dtype if t == self.result else self.dtype].bytes for t in "xwy"}
        return sum(math.prod(self.shape(t)) * width[t] for t in "xwy")

    # --- the direction

    @property
    def result(self) -> str:
        """The tensor that is computed: y, x (bwd_data) or w (bwd_weight)."""
        return _RESULT[self.direction]

    @property
    def operands(self) -> tuple[str, str]:
        """The tensors it is computed from, in the order of the arguments."""
        return _OPERANDS[self.direction]

    @property
    def gemm(self) -> Gemm:
        """The implicit matrix product of one group in this direction, over all images."""
        if self.direction == "forward":
            return Gemm(self.N * math.prod(self.output), self.Kg, self.Cg * self.taps)
        if self.direction == "bwd_data":
            return Gemm(self.N * math.prod(self.input), self.Cg, self.Kg * self.taps)
        return Gemm(self.Kg, self.Cg * self.taps, self.N * math.prod(self.output))

    @property
    def depth(self) -> int:
        """How many products are summed for one element of the result, at most (padding not subtracted)."""
        if self.direction == "forward":
            return self.Cg * self.taps
        if self.direction == "bwd_data":
            return self.Kg * math.prod(map(self._most_taps, range(self.ndim)))
        return self.N * math.prod(self.output)

    def _most_taps(self, axis: int) -> int:
        """The most filter positions that reach one input along an axis. Taps a period apart reach inputs of the same residue."""
        stride, low, spread = self.stride[axis], self.pad[axis][0], self.dilation[axis]
        period = stride // math.gcd(spread, stride)
        counts = (-(-(self.filter[axis] - tap) // period) for tap in range(min(self.filter[axis], period))
                  if (tap * spread - low) % stride < self.input[axis])
        return max(counts, default=0)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The parts of bwd_data, last axis fastest; together their inputs are all inputs, each once."""
        parts = itertools.product(*(self._axis_phases(axis) for axis in range(self.ndim)))
        return tuple(Phase(*zip(*part)) for part in parts)

    def _axis_phases(self, axis: int) -> list[tuple[int, tuple[int, ...], int, int]]:
        stride, low, size = self.stride[axis], self.pad[axis][0], self.input[axis]
        by_residue: dict[int, list[int]] = {}
        for tap in range(self.filter[axis]):
            by_residue.setdefault(tap * self.dilation[axis] % stride, []).append(tap)
        found = []
        for residue in range(stride):
            first = (residue - low) % stride
            if first < size:
                found.append((residue, tuple(by_residue.get(residue, ())), first, (size - first - 1) // stride + 1))
        return found

    def tap_outputs(self, axis: int, tap: int) -> range:
        """The outputs at which this filter position meets the input along an axis, not the padding; may be empty."""
        stride, offset = self.stride[axis], self.pad[axis][0] - tap * self.dilation[axis]
        start = max(0, -(-offset // stride))
        stop = min(self.output[axis], (self.input[axis] - 1 + offset) // stride + 1)
        return range(start, max(start, stop))

    def tap_input(self, axis: int, tap: int, output: int) -> int:
        """The input index that a filter position meets at an output position; out of range on padding."""
        return output * self.stride[axis] - self.pad[axis][0] + tap * self.dilation[axis]

    # --- tensors

    @property
    def _layout(self) -> Layout:
        return LAYOUTS[self.layout]

    def axes(self, tensor: str) -> str:
        """The axis letters of the split shape of "x", "w" or "y", outermost first, such as "nhwgc", "gkyxc", "nhwgk"."""
        return self._layout.axes(tensor)

    def sizes(self, tensor: str) -> dict[str, int]:
        """Axis letter -> size, in the order of `axes`."""
        space = zip(self._layout.taps, self.filter) if tensor == "w" else zip(
            self._layout.spatial, self.input if tensor == "x" else self.output)
        known = {"n": self.N, "g": self.G, "c": self.Cg, "k": self.Kg, **dict(space)}
        return {letter: known[letter] for letter in self.axes(tensor)}

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The split shape: groups are an axis of their own."""
        return tuple(self.sizes(tensor).values())

    def fused_shape(self, tensor: str) -> tuple[int, ...]:
        """The fused shape: the channel axis (for w: the output channels) runs over all groups."""
        known = {**self.sizes(tensor), ("c" if tensor == "x" else "k"): self.C if tensor == "x" else self.K}
        return tuple(known[letter] for letter in self._layout.fused_axes(tensor))

    def array_shape(self, tensor: str) -> tuple[int, ...]:
        """The shape that the layout's name says: split for names with g, else fused."""
        return self.shape(tensor) if self._layout.split else self.fused_shape(tensor)

    def strides(self, tensor: str) -> dict[str, int]:
        """Element strides of a contiguous array, axis letter -> stride."""
        strides, step = {}, 1
        for letter, size in reversed(self.sizes(tensor).items()):
            strides[letter], step = step, step * size
        return {letter: strides[letter] for letter in self.axes(tensor)}

    def view(self, tensor: str, strides: Mapping[str, int]) -> TensorView:
        """Strides by axis letter as the argument block holds them; absent leading axes have stride 0."""
        outer, channel = ("k", "c") if tensor == "w" else ("n", "c" if tensor == "x" else "k")
        letters = self._layout.taps if tensor == "w" else self._layout.spatial
        return TensorView(strides[outer], strides["g"], three([strides[letter] for letter in letters], 0), strides[channel])

    def views(self) -> dict[str, TensorView]:
        """The strides of contiguous x, w and y."""
        return {tensor: self.view(tensor, self.strides(tensor)) for tensor in "xwy"}

    def args(self, splits: int = 1) -> ConvArgs:
        """The argument block for contiguous arrays, with ``splits`` parts of a split reduction."""
        views = self.views()
        return ConvArgs(views["x"], views["w"], views["y"], self.N, self.G, three(self.input, 1), three(self.output, 1),
                        three([low for low, _ in self.pad], 0), splits)

    # --- copies and text

    def as_(self, direction: str) -> ConvProblem:
        """The same convolution in another direction."""
        return self.replace(direction=direction)

    def replace(self, **changes: Any) -> ConvProblem:
        """A changed, newly checked copy. An ``out_dtype`` that equals ``dtype`` follows a change of ``dtype``."""
        old = {each.name: getattr(self, each.name) for each in fields(self)}
        if "dtype" in changes and self.out_dtype == self.dtype:
            del old["out_dtype"]
        return from_fields({**old, **changes})

    def describe(self) -> str:
        """One line of ``.gconv`` syntax without defaults, which `parse_problem` reads back (the name is left out)."""
        return " ".join(f"{key}={value}" for key, value in self._texts() if self._told(key))

    def identity(self) -> str:
        """One line with every field, the same for equal problems and for no others: for keys."""
        return " ".join(f"{key}={value}" for key, value in self._texts())

    def _texts(self) -> Iterable[tuple[str, str]]:
        for each in fields(self):
            if each.name != "name":
                yield each.name, _text(each.name, getattr(self, each.name))

    def _told(self, key: str) -> bool:
        value = getattr(self, key)
        defaults = {"N": 1, "G": 1, "stride": (1,) * self.ndim, "pad": ((0, 0),) * self.ndim, "dilation": (1,) * self.ndim,
                    "dtype": "fp32", "direction": "forward", "layout": default_layout(self.ndim).name, "out_dtype": self.dtype,
                    "name": None}
        return key not in defaults or bool(value != defaults[key])

    def _facts(self) -> list[tuple[str, str]]:
        m, n, k = self.gemm
        return [("problem", self.name or ""), ("sizes", self.describe()), ("output", "x".join(map(str, self.output))),
                ("GEMM of a group", f"m = {m}, n = {n}, k = {k}"), ("work", f"{self.flops / 1e9:.4g} GFLOP, {self.bytes / 1e6:.4g} MB")]

    def __repr__(self) -> str:
        told = ((each.name, getattr(self, each.name)) for each in fields(self) if self._told(each.name))
        return f"ConvProblem({', '.join(f'{key}={_short(key, value)!r}' for key, value in told)})"


def from_fields(values: Mapping[str, Any], name: str | None = None) -> ConvProblem:
    """A problem from field names and values; unknown and missing fields are `ProblemError` with a hint."""
    known = [each.name for each in fields(ConvProblem)]
    for key in values:
        if key not in known:
            raise error("problem.field", field=key, hint=_hint(key, known))
    for key, example in _EXAMPLES.items():
        if key not in values:
            raise error("problem.missing", field=key, example=example)
    given = dict(values)
    given.setdefault("name", name)
    return ConvProblem(**given)


def problem(cls: type) -> ConvProblem:
    """``@gconv.problem`` on a class: its attributes are the fields, its name is the problem's name."""
    if not isinstance(cls, type):
        raise error("problem.decorator", got=f"{type(cls).__name__} {getattr(cls, '__name__', '')}".strip())
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        found.update({key: value for key, value in vars(base).items() if not key.startswith("__")})
    return from_fields(found, cls.__name__)


# --- checks and texts of single values


def _hint(word: str, known: Sequence[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, 1)
    return (f"Did you mean {by_lower[close[0]]}? " if close else "") + f"The fields are: {', '.join(known)}."


def _whole(name: str, value: object, limit: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = limit - 1
    if isinstance(value, bool) or number < limit:
        raise error("problem.size", field=name, value=value, limit=limit)
    return number


def _is_sequence(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))


def _ndim(input: Sizes, others: Sequence[Sizes], layout: str | None) -> int:
    """The rank: from the first field that has axes; else the layout's; else 1."""
    for name, value in zip(("input", "filter", "stride", "dilation"), (input, *others)):
        if _is_sequence(value):
            count = len(tuple(value))  # type: ignore[arg-type]
            if not 1 <= count <= 3:
                raise error("problem.ndim", field=name, value=tuple(value), count=count)  # type: ignore[arg-type]
            return count
    named = LAYOUTS.get(str(layout).lower())
    return named.ndim if named else 1


def _per_axis(name: str, value: Any, ndim: int) -> tuple[Any, ...]:
    """One entry for each axis; a single number serves all."""
    if not _is_sequence(value):
        return (value,) * ndim
    entries = tuple(value)
    if len(entries) != ndim:
        raise error("problem.rank", field=name, value=entries, count=len(entries), ndim=ndim)
    return entries


def _sizes(name: str, value: Sizes, ndim: int) -> tuple[int, ...]:
    return tuple(_whole(name, entry, 1) for entry in _per_axis(name, value, ndim))


def _pads(value: Pad, ndim: int) -> tuple[tuple[int, int], ...]:
    """(low, high) for each axis; a lone pair in a sequence serves every axis, as ``pad=0:1`` in text does."""
    entries = tuple(value) if _is_sequence(value) else value  # type: ignore[arg-type]
    if isinstance(entries, tuple) and len(entries) == 1 and _is_sequence(entries[0]):
        entries = entries * ndim
    return tuple(_pair(entry) for entry in _per_axis("pad", entries, ndim))


def _pair(entry: Any) -> tuple[int, int]:
    low, high = (entry, entry) if not _is_sequence(entry) or len(tuple(entry)) != 2 else entry
    return _whole("pad", low, 0), _whole("pad", high, 0)


def _direction(value: object) -> str:
    if value not in DIRECTIONS:
        raise error("problem.direction", value=value)
    return str(value)


def _short(name: str, value: Any) -> Any:
    """A per-axis value in its shortest form; sizes of tensors keep all axes."""
    if name == "pad":
        value = tuple(low if low == high else (low, high) for low, high in value)
    if name in ("stride", "pad", "dilation") and len(set(value)) == 1 and isinstance(value[0], int):
        return value[0]
    return value


def _text(name: str, value: Any) -> str:
    """A value in ``.gconv`` syntax: 28x28, 0:1x2:2, bf16."""
    value = _short(name, value)
    if not isinstance(value, tuple):
        return str(value)
    return "x".join(f"{entry[0]}:{entry[1]}" if isinstance(entry, tuple) else str(entry) for entry in value)
