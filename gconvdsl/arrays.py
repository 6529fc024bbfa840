"""Arrays in and out: NumPy arrays, torch tensors and arrays in GPU memory, taken by shape and strides, without copies where
strides allow.

A `Bound` is an array fitted to one tensor of a `ConvProblem`. NumPy arrays have the split or the fused shape of the problem's
layout; torch and CuPy tensors are logical NC<spatial> in any strides. They are recognised by their methods, so torch is never
imported here. What is in GPU memory is a `devicearrays.DeviceArray`, whose elements this module does not touch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Sequence

import numpy as np

from . import memory
from .devicearrays import DeviceArray, adopt, dense_strides, shadow
from .dtypes import DTYPES, dtype_of
from .errors import error
from .plan import TensorView
from .problem import ConvProblem
from .spec import ConvParams

__all__ = [
    "AnyArray", "Bound", "address_of", "argument_names", "as_array", "bind", "bind_inputs", "bind_out", "check_declared",
    "compact", "copy_array", "copy_out", "infer_problem", "is_torch", "kernel_problem", "kernel_takes", "new_array", "to_caller",
]

AnyArray = np.ndarray | DeviceArray
"""An array on the host, or one in the memory of a GPU."""


_SUPPORTED = "float32, float16 or bfloat16"
_OUTER = {"x": "n", "w": "k", "y": "n"}
_CHANNEL = {"x": "c", "w": "c", "y": "k"}
_ARGUMENTS = {"forward": ("x", "w"), "bwd_data": ("dy", "w"), "bwd_weight": ("x", "dy")}


@dataclass(frozen=True)
class Bound:
    """An array fitted to a tensor: ``axes`` names its axes in order, ``view`` holds its element strides; ``torch``: of a library
    whose tensors are logical NC<spatial>."""

    array: AnyArray
    axes: str
    view: TensorView
    torch: bool = False

    @property
    def address(self) -> int:
        """The address of the element at index 0 of every axis."""
        return address_of(self.array)


def address_of(array: AnyArray) -> int:
    """The address of an array's first element, in the memory where it lies."""
    return array.address if isinstance(array, DeviceArray) else int(array.__array_interface__["data"][0])


def argument_names(direction: str) -> tuple[str, str]:
    """The names of the two arrays a direction takes: (x, w), (dy, w) or (x, dy)."""
    return _ARGUMENTS[direction]


def is_torch(value: Any) -> bool:
    """Whether ``value`` is a torch tensor, told without importing torch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "data_ptr")


def as_array(value: Any, name: str) -> tuple[AnyArray, bool]:
    """The array behind ``value`` without a copy, and whether it is logical NC<spatial>, as torch's are."""
    value = adopt(value, name)
    if isinstance(value, DeviceArray):
        return value, value.library.channels_first
    if is_torch(value):
        return _from_torch(value, name), True
    if type(value) is np.ndarray:
        return value, False
    if isinstance(value, np.ma.MaskedArray):
        raise error("array.kind", name=name, got="a masked array, whose mask would be lost")
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray), False
    raise error("array.kind", name=name, got=f"a {type(value).__qualname__}, which is not an array")


def _from_torch(tensor: Any, name: str) -> np.ndarray:
    if tensor.device.type != "cpu":
        raise error("array.device", name=name, got=str(tensor.device), target="cpu", expected="tensors on the CPU or a GPU")
    if tensor.layout != sys.modules["torch"].strided:
        raise error("array.kind", name=name, got=f"a torch tensor with layout {tensor.layout}, not a strided one")
    tensor = tensor.detach()
    if str(tensor.dtype) == "torch.bfloat16":
        bits: np.ndarray = tensor.view(sys.modules["torch"].int16).numpy()
        return bits.view(DTYPES["bf16"].numpy)
    try:
        array: np.ndarray = tensor.resolve_conj().resolve_neg().numpy()
    except TypeError:                            # NumPy has no such dtype: quantised, fp8
        raise error("array.dtype", name=name, got=str(tensor.dtype), expected=_SUPPORTED) from None
    return array


def to_caller(bound: Bound) -> Any:
    """The array as the caller's kind: NumPy, a torch tensor that shares its memory, or an array of the first input's library."""
    if isinstance(bound.array, DeviceArray):
        return bound.array.library.to_caller(bound.array)
    if not bound.torch:
        return bound.array
    torch = sys.modules["torch"]
    if bound.array.dtype == DTYPES["bf16"].numpy:
        return torch.from_numpy(bound.array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(bound.array)


# --- fitting an array to a tensor

@lru_cache(maxsize=4096)
def _forms(problem: ConvProblem, tensor: str, torch: bool) -> dict[str, tuple[int, ...]]:
    """Axes -> shape of every form that an array for ``tensor`` may have."""
    if torch:
        sizes = {"x": (problem.N, problem.C, *problem.input), "w": (problem.K, problem.Cg, *problem.filter),
                 "y": (problem.N, problem.K, *problem.output)}
        return {_OUTER[tensor] + _CHANNEL[tensor] + _spatial(problem.axes(tensor)): sizes[tensor]}
    axes = problem.axes(tensor)
    return {axes: problem.shape(tensor), axes.replace("g", ""): problem.fused_shape(tensor)}


def _spatial(axes: str) -> str:
    return "".join(axis for axis in axes if axis in "dhwzyx")


def bind(problem: ConvProblem, tensor: str, value: Any, name: str, dtype: str | None = None) -> Bound:
    """``value`` fitted to ``tensor`` ("x", "w" or "y"); copied only where its strides are not whole elements.

    ``dtype`` is the dtype's name, by default the problem's. Raises array.kind, array.dtype, array.rank and array.shape.
    """
    array, torch = as_array(value, name)
    expected = DTYPES[dtype or problem.dtype].numpy
    if array.dtype != expected:
        raise error("array.dtype", name=name, got=str(array.dtype), expected=expected.name)
    axes = _match(_forms(problem, tensor, torch), array, name, problem, tensor)
    return _bound(array, axes, problem, tensor, torch)


def _match(forms: dict[str, tuple[int, ...]], array: AnyArray, name: str, problem: ConvProblem, tensor: str) -> str:
    """The axes of the form that the array has."""
    for axes, shape in forms.items():
        if array.shape == shape:
            return axes
    wanted = " or ".join(f"{shape} ({axes})" for axes, shape in forms.items())
    if array.ndim not in map(len, forms):
        counts = " or ".join(map(str, sorted(map(len, forms))))
        raise error("array.rank", name=name, got=array.ndim, expected=f"this {problem.ndim}-D problem needs {counts}",
                    hint=f"Give {name} the shape {wanted}.")
    raise error("array.shape", name=name, got=array.shape, expected=wanted, hint=_shape_hint(problem, tensor))


def _shape_hint(problem: ConvProblem, tensor: str) -> str:
    if tensor == "w":
        return f"Weights hold C/G input channels: C = {problem.C}, G = {problem.G}."
    return f"The problem is {problem.describe()}."


def _bound(array: AnyArray, axes: str, problem: ConvProblem, tensor: str, torch: bool) -> Bound:
    if not _whole_elements(array):
        array = _dense(array, list(range(array.ndim)))
    return Bound(array, axes, _view(array, axes, problem, tensor), torch)


def _whole_elements(array: AnyArray) -> bool:
    """Whether the address and all strides are multiples of the element's size."""
    aligned = address_of(array) % array.itemsize == 0 if isinstance(array, DeviceArray) else array.flags.aligned
    return aligned and not any(s % array.itemsize for s in array.strides)


def _dense(array: AnyArray, order: Sequence[int], filled: bool = True) -> AnyArray:
    """A copy without gaps in the same axes, ``order`` naming them from outer to inner; only the space for it unless ``filled``."""
    made = new_array(array, array.shape, order, array.dtype)
    if filled:
        copy_array(made, array)
    return made


def new_array(like: AnyArray, shape: Sequence[int], order: Sequence[int], dtype: np.dtype) -> AnyArray:
    """An uninitialised array without gaps where ``like`` lies; ``order`` names its axes from outermost to innermost in memory."""
    if isinstance(like, DeviceArray):
        return like.library.empty(like, tuple(shape), dense_strides(tuple(shape), list(order), dtype.itemsize), dtype)
    return memory.empty([shape[i] for i in order], dtype).transpose(np.argsort(order))


def copy_array(target: AnyArray, source: AnyArray) -> None:
    """Writes the elements of ``source``, converted to the dtype of ``target``; both lie in the same memory."""
    if isinstance(target, DeviceArray) and isinstance(source, DeviceArray):
        target.library.copy(target, source)
    else:
        np.copyto(target, source, casting="unsafe")  # type: ignore[arg-type]


def _view(array: AnyArray, axes: str, problem: ConvProblem, tensor: str) -> TensorView:
    return _element_strides(problem, tensor, axes, array.strides, array.itemsize)


@lru_cache(maxsize=4096)
def _element_strides(problem: ConvProblem, tensor: str, axes: str, steps: tuple[int, ...], size: int) -> TensorView:
    """From strides in bytes; where groups are not an axis, one group's step is that of its channels together."""
    strides = {axis: step // size for axis, step in zip(axes, steps)}
    if "g" not in strides:
        within, count = ("c", problem.Cg) if tensor == "x" else ("k", problem.Kg)
        strides["g"] = count * strides[within]
    return problem.view(tensor, strides)


def bind_inputs(problem: ConvProblem, a: Any, b: Any) -> tuple[Bound, Bound]:
    """The two arrays of the problem's direction: (x, w), (dy, w) or (x, dy)."""
    (ta, tb), (na, nb) = problem.operands, argument_names(problem.direction)
    return bind(problem, ta, a, na), bind(problem, tb, b, nb)


# --- outputs

def bind_out(problem: ConvProblem, out: Any, first: Bound, inputs: Sequence[Bound]) -> Bound:
    """The buffer of the result: ``out`` if given and fit to be written, else a new array of the kind and form of ``first``."""
    tensor = problem.result
    if out is None:
        return _new(problem, tensor, first)
    array, torch = as_array(out, "out")
    axes = _match(_forms(problem, tensor, torch), array, "out", problem, tensor)
    expected = DTYPES[problem.out_dtype].numpy
    reason = _unwritable(array, expected, [i.array for i in inputs])
    if reason:
        raise error("array.out", reason=reason, expected=f"{array.shape} and dtype {expected.name}")
    return Bound(array, axes, _view(array, axes, problem, tensor), torch)


def _unwritable(array: AnyArray, expected: np.dtype, inputs: Sequence[AnyArray]) -> str:
    if array.dtype != expected:
        return f"its dtype is {array.dtype}"
    if not (array.writeable if isinstance(array, DeviceArray) else array.flags.writeable):
        return "it is read-only"
    if not _whole_elements(array):
        return "its strides are not whole elements"
    if array.size and _overlaps_itself(array):
        return "several of its elements share memory"
    if any(_overlaps(array, i) for i in inputs):
        return "it shares memory with an input"
    return ""


def _overlaps(first: AnyArray, second: AnyArray) -> bool:
    a, b = (shadow(one) if isinstance(one, DeviceArray) else one for one in (first, second))
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]
    except RuntimeError:        # too hard to tell in that much work
        return True


def _overlaps_itself(array: AnyArray) -> bool:
    """Whether two indices may reach one address: axes sorted by stride must each step over everything below them."""
    reach = array.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(array.strides, array.shape) if n > 1):
        if stride < reach:
            return True
        reach = stride * size
    return False


def _new(problem: ConvProblem, tensor: str, first: Bound) -> Bound:
    dtype = DTYPES[problem.out_dtype].numpy
    forms = _forms(problem, tensor, first.torch)
    axes = next((a for a in forms if ("g" in a) == ("g" in first.axes)), next(iter(forms)))
    shape, order = forms[axes], _memory_order(axes, first)
    array = new_array(first.array, shape, order, dtype)
    return Bound(array, axes, _view(array, axes, problem, tensor), first.torch)


def _memory_order(axes: str, first: Bound) -> list[int]:
    """The axes from outermost to innermost in memory: torch results follow the memory format of the first input."""
    if first.torch and _channels_last(first):
        return [0, *range(2, len(axes)), 1]
    return list(range(len(axes)))


def _channels_last(bound: Bound) -> bool:
    strides = bound.array.strides
    return len(strides) > 2 and strides[1] == bound.array.itemsize and bound.array.shape[1] > 1 and min(strides[2:]) > strides[1]


# --- what a kernel needs from strides

def kernel_problem(problem: ConvProblem, first: Bound) -> ConvProblem:
    """The problem with the layout that the first array really has in memory: torch names no layout, so its strides decide."""
    if not first.torch:
        return problem
    return _with_layout(problem, _channels_last(first))


@lru_cache(maxsize=4096)
def _with_layout(problem: ConvProblem, channels_last: bool) -> ConvProblem:
    spatial = problem.axis_names
    return problem.replace(layout=f"n{spatial}gc" if channels_last else f"ngc{spatial}")


def kernel_takes(bound: Bound, planned: TensorView, sizes: Sequence[int], alignment: int = 1, offset_bits: int = 64) -> bool:
    """Whether a kernel planned for a contiguous array may read this one in place.

    Strides of 1 are compile-time facts. Where vectors are moved, the address and all other strides are multiples of
    ``alignment`` bytes; with 32-bit offsets nothing lies before the first element, or further than those reach.
    ``sizes`` are those of n, g, d, h, w, c; axes of size 1 are never stepped along.
    """
    steps = [(actual, plan) for actual, plan, size in zip(bound.view.flat(), planned.flat(), sizes) if size > 1]
    if any(plan == 1 and actual != 1 for actual, plan in steps):
        return False
    item = bound.array.itemsize
    if alignment > item and (bound.address % alignment or any(s * item % alignment for s, plan in steps if plan != 1)):
        return False
    return offset_bits > 32 or (min(s for s, _ in steps or [(0, 0)]) >= 0 and _reach(bound.view, sizes) * item < 2**31)


def _reach(view: TensorView, sizes: Sequence[int]) -> int:
    """The offset of the last element."""
    return sum((size - 1) * step for step, size in zip(view.flat(), sizes))


def compact(bound: Bound, problem: ConvProblem, tensor: str) -> Bound:
    """A contiguous copy in the memory order of the problem's layout, in the same axes; of the result only the space for it."""
    order = sorted(range(len(bound.axes)), key=lambda i: problem.axes(tensor).index(bound.axes[i]))
    array = _dense(bound.array, order, filled=tensor != problem.result)
    return replace(bound, array=array, view=_view(array, bound.axes, problem, tensor))


def copy_out(source: Bound, target: Bound) -> None:
    """Writes a result computed in another buffer into the caller's array."""
    copy_array(target.array, source.array)


# --- a problem from arrays

def infer_problem(conv: ConvParams, a: Any, b: Any, out_dtype: Any = None) -> ConvProblem:
    """The problem that two arrays and the declared parameters describe.

    NumPy arrays are fused channels-last, x (N, <spatial>, C) and w (K, <filter>, C/G); torch tensors are x (N, C, <spatial>) and
    w (K, C/G, <filter>). Groups come from the declaration, else from C and the weights. bwd_data takes the smallest input that
    gives dy, as a transposed convolution does; bwd_weight cannot tell the filter from its arrays and needs a problem.
    """
    names = argument_names(conv.direction)
    if conv.direction == "bwd_weight":
        raise error("kernel.bind", kernel="conv_bwd_weight", reason="the size of the filter does not follow from x and dy",
                    hint="Pass problem=gconv.ConvProblem(...).")
    (first, torch), (w, w_torch) = as_array(a, names[0]), as_array(b, names[1])
    if torch != w_torch:
        raise error("array.kind", name=names[1], got="of another kind than " + names[0])
    if dtype_of(first.dtype) is None or not first.dtype.isnative:
        raise error("array.dtype", name=names[0], got=str(first.dtype), expected=_SUPPORTED)
    if w.dtype != first.dtype:
        raise error("array.dtype", name=names[1], got=str(w.dtype), expected=f"{first.dtype.name} like {names[0]}")
    return _inferred(conv, first.shape, w.shape, first.dtype, torch, out_dtype)


@lru_cache(maxsize=1024)
def _inferred(conv: ConvParams, first: tuple[int, ...], w: tuple[int, ...], dtype: Any, torch: bool,
              out_dtype: Any) -> ConvProblem:
    names = argument_names(conv.direction)
    n, channels, sizes = _sizes(first, names[0], torch)
    k, per_group, taps = _sizes(w, names[1], torch)
    if len(taps) != len(sizes):
        raise error("array.rank", name=names[1], got=len(w), hint="",
                    expected=f"{names[0]} has {len(first)}, and both need the same number")
    fixed = {key: value for key, value in conv.fields().items() if key != "G"}
    common: dict[str, Any] = dict(fixed, dtype=dtype, out_dtype=out_dtype, direction=conv.direction, N=n, K=k, filter=taps)
    if conv.direction == "forward":
        return ConvProblem(G=_groups(conv.groups, channels, per_group, names), C=channels, input=sizes, **common)
    groups = conv.groups or 1
    return ConvProblem(G=groups, C=per_group * groups, input=_transposed_input(fixed, sizes, taps), **common)


def _sizes(shape: tuple[int, ...], name: str, torch: bool) -> tuple[int, int, tuple[int, ...]]:
    """(outer, channels, spatial sizes) of an array of 1 to 3 spatial axes."""
    if not 3 <= len(shape) <= 5:
        raise error("array.rank", name=name, got=len(shape), expected="a convolution without a problem needs 3, 4 or 5",
                    hint="Name a split layout by passing problem=gconv.ConvProblem(..., layout=...).")
    return (shape[0], shape[1], shape[2:]) if torch else (shape[0], shape[-1], shape[1:-1])


def _groups(declared: int | None, channels: int, per_group: int, names: tuple[str, str]) -> int:
    if declared is not None:
        return declared
    if per_group == 0 or channels % per_group:
        raise error("array.shape", name=names[1], got=f"with {per_group} input channels", expected=f"a divisor of C = {channels}",
                    hint=f"{names[0]} has {channels} channels; the weights hold C/G of them.")
    return channels // per_group


def _transposed_input(fixed: dict[str, Any], sizes: tuple[int, ...], taps: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest input with this output: (out - 1) stride - pad + dilation (filter - 1) + 1 on every axis."""
    roomy = ConvProblem(C=1, K=1, input=[2**40] * len(sizes), filter=taps, **fixed)
    rows = zip(sizes, taps, roomy.stride, roomy.pad, roomy.dilation)
    return tuple((out - 1) * step - low - high + spread * (tap - 1) + 1 for out, tap, step, (low, high), spread in rows)


def check_declared(conv: ConvParams, problem: ConvProblem, kernel: str) -> None:
    """Raises kernel.bind where a problem differs from what the kernel's declaration fixes."""
    fixed = problem.replace(**conv.fields())
    for name in conv.fields():
        if getattr(fixed, name) != getattr(problem, name):
            raise error("kernel.bind", kernel=kernel, reason=f"it fixes {name} = {getattr(fixed, name)}, but the problem has "
                        f"{getattr(problem, name)}", hint=f"Leave {name} out of the declaration to take it from the problem.")
