"""The float64 reference: the convolution as its definition says, one filter position at a time, NumPy only.

Arrays are brought into one order, group first and channel last: x (g, n, space, c), w (g, k, taps, c), y (g, n, space, k).
Padding takes no part in any product, so that it contributes nothing even where the other factor is NaN or Inf.
"""

from __future__ import annotations

import itertools
from typing import Any, Iterator, Mapping

import numpy as np

from .dtypes import dtype_of
from .errors import error
from .problem import ConvProblem

__all__ = ["Array", "applies", "canonical", "contract", "operand_values", "reached", "reference", "restore", "tap_slices"]

Array = np.ndarray[Any, Any]


def reference(problem: ConvProblem, a: Any, b: Any, spec: Any = None, operands: Mapping[str, Any] | None = None) -> Array:
    """The result in float64, in the layout of the result; split if ``a`` is split, fused if ``a`` is fused.

    ``a, b`` are (X, W) for forward, (dY, W) for bwd_data, (X, dY) for bwd_weight, each in its split or fused shape. A ``spec``
    (KernelSpec) adds its prologue on x (the padding stays zero) and its epilogue on the sums; ``operands`` holds the values of
    its operands by name. A spec declared for another direction does not apply: its gradients are those of the bare convolution.
    Raises `ArrayError` for arrays that do not fit the problem.
    """
    first, second = (canonical(problem, tensor, array) for tensor, array in zip(problem.operands, (a, b)))
    env = operand_values(problem, spec, operands)
    with np.errstate(all="ignore"):
        if applies(problem, spec) and problem.operands[0] == "x":
            first = _full(spec.prologue.evaluate({**env, "x": first}), first)
        result = contract(problem, first, second)
        if applies(problem, spec):
            result = _full(spec.epilogue.evaluate({**env, "acc": result}), result)
    return restore(problem, problem.result, result, fused=np.ndim(a) == len(problem.fused_shape(problem.operands[0])))


def applies(problem: ConvProblem, spec: Any) -> bool:
    """Whether a spec's prologue and epilogue are part of this problem's direction."""
    return spec is not None and spec.conv.direction == problem.direction


def _full(value: Any, like: Array) -> Array:
    """An expression's value in full shape: a constant expression gives a scalar."""
    full: Array = np.broadcast_to(np.asarray(value, dtype=np.float64), like.shape)
    return full


# --- arrays in and out


def _order(tensor: str, axes: str) -> str:
    outer, inner = ("k", "c") if tensor == "w" else ("n", "c" if tensor == "x" else "k")
    return "g" + outer + "".join(letter for letter in axes if letter not in "gnkc") + inner


def canonical(problem: ConvProblem, tensor: str, array: Any, name: str = "") -> Array:
    """``array`` (split or fused shape of "x", "w" or "y") as float64 with group first and channel last."""
    array = np.asarray(array)
    name = name or tensor
    if array.dtype.kind not in "fiub" and dtype_of(array.dtype) is None:
        raise error("array.dtype", name=name, got=array.dtype, expected=problem.dtype)
    split, fused = problem.shape(tensor), problem.fused_shape(tensor)
    if array.shape not in (split, fused):
        if array.ndim not in (len(split), len(fused)):
            raise error("array.rank", name=name, got=array.ndim, expected=f"the problem needs {fused} or {split}", hint="")
        raise error("array.shape", name=name, got=array.shape, expected=f"{fused} or {split}", hint="")
    axes = problem.axes(tensor)
    moved = array.reshape(split).transpose([axes.index(letter) for letter in _order(tensor, axes)])
    converted: Array = moved.astype(np.float64)
    return converted


def restore(problem: ConvProblem, tensor: str, array: Array, fused: bool) -> Array:
    """The inverse of `canonical`: the split or fused shape of the problem's layout, contiguous."""
    axes = problem.axes(tensor)
    order = _order(tensor, axes)
    moved = np.ascontiguousarray(array.transpose([order.index(letter) for letter in axes]))
    return moved.reshape(problem.fused_shape(tensor)) if fused else moved


def operand_values(problem: ConvProblem, spec: Any, operands: Mapping[str, Any] | None) -> dict[str, Array]:
    """The operands of a spec as float64 that broadcasts against the canonical arrays; {} where the spec does not apply.

    per_k holds one value for each of the K output channels, per_c one for each of the C channels of x.
    """
    if not applies(problem, spec):
        return {}
    given = dict(operands or {})
    values = {}
    for operand in spec.operands:
        if operand.name not in given:
            raise error("array.missing", kernel=spec.name, name=operand.name, signature=f"operands={{{operand.name!r}: ...}}")
        values[operand.name] = _operand(problem, operand.name, operand.kind, given[operand.name])
    return values


def _operand(problem: ConvProblem, name: str, kind: str, value: Any) -> Array:
    if kind == "like_y":
        return canonical(problem, problem.result, value, name)
    array = np.asarray(value).astype(np.float64)
    if kind == "scalar":
        return array.reshape(())
    channels = problem.C if kind == "per_c" else problem.K
    if array.shape not in ((channels,), (problem.G, channels // problem.G)):
        raise error("array.shape", name=name, got=array.shape, expected=f"({channels},)", hint="One value for each channel.")
    return array.reshape(problem.G, 1, *(1,) * problem.ndim, channels // problem.G)


# --- the sums


def contract(problem: ConvProblem, a: Array, b: Array) -> Array:
    """The bare convolution of canonical float64 arrays in the problem's direction, canonical.

    Each filter position is one matrix product per group. Linear in both arguments, so it also sums magnitudes and error bounds.
    """
    sizes = problem.sizes(problem.result)
    result = np.zeros([sizes[letter] for letter in _order(problem.result, problem.axes(problem.result))])
    for tap, xs, ys in tap_slices(problem):
        if problem.direction == "forward":
            result[ys] += _product(a[xs], b[tap].transpose(0, 2, 1))
        elif problem.direction == "bwd_data":
            result[xs] += _product(a[ys], b[tap])
        else:
            result[tap] = _matmul(_rows(b[ys]).transpose(0, 2, 1), _rows(a[xs]))
    return result


def tap_slices(problem: ConvProblem) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]]:
    """For each filter position that meets the input: its index in w, and the slices of x and y that meet through it."""
    every = (slice(None), slice(None))
    for tap in itertools.product(*map(range, problem.filter)):
        outputs = [problem.tap_outputs(axis, t) for axis, t in enumerate(tap)]
        if all(outputs):
            xs = [slice(problem.tap_input(axis, tap[axis], span[0]), problem.tap_input(axis, tap[axis], span[-1]) + 1,
                        problem.stride[axis]) for axis, span in enumerate(outputs)]
            yield (*every, *tap), (*every, *xs), (*every, *(slice(span.start, span.stop) for span in outputs))


def _rows(block: Array) -> Array:
    """(g, n, space, c) as (g, rows, c), contiguous so that the matrix product is a fast one."""
    return np.ascontiguousarray(block).reshape(block.shape[0], int(np.prod(block.shape[1:-1])), block.shape[-1])


def _product(block: Array, matrix: Array) -> Array:
    return _matmul(_rows(block), matrix).reshape(*block.shape[:-1], matrix.shape[-1])


def _matmul(left: Array, right: Array) -> Array:
    """Batched matrix product; a single summed or single resulting channel is faster as a plain loop."""
    if 1 in (left.shape[2], right.shape[2]):
        looped: Array = np.einsum("gmk,gkn->gmn", left, right)
        return looped
    product: Array = np.matmul(left, right)
    return product


def reached(problem: ConvProblem) -> Array:
    """Which elements of the result any product reaches, canonical, with size-1 axes for groups, images and channels."""
    mask = np.full((1,) * (problem.ndim + 3), problem.result != "w" or problem.N > 0)
    for axis in range(problem.ndim):
        shape = [1] * (problem.ndim + 3)
        shape[axis + 2] = -1
        mask = mask & _axis_reached(problem, axis).reshape(shape)
    return mask


def _axis_reached(problem: ConvProblem, axis: int) -> Array:
    spans = [problem.tap_outputs(axis, tap) for tap in range(problem.filter[axis])]
    if problem.result == "w":
        return np.array([len(span) > 0 for span in spans])
    hit = np.zeros(problem.output[axis] if problem.result == "y" else problem.input[axis], dtype=bool)
    for tap, span in enumerate(spans):
        if problem.result == "y":
            hit[span.start:span.stop] = True
        else:
            hit[[problem.tap_input(axis, tap, output) for output in span]] = True
    return hit
