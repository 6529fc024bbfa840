"""A stand-in for a device: gathers the operands of the implicit matrix product, sums in float32, rounds once.

It shares no arithmetic with the package's reference: every direction becomes ``A (g, m, r) . B (g, r, n)`` through index tables.
A wrong kernel is this one with a piece replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable

import numpy as np

from gconvdsl.problem import ConvProblem

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Geometry:
    """What the kernel believes about one axis."""

    size: int
    out: int
    taps: int
    stride: int
    low: int
    dilation: int

    def inputs(self) -> Array:
        """(output, tap) -> input index, -1 on padding."""
        at = np.arange(self.out)[:, None] * self.stride - self.low + np.arange(self.taps)[None] * self.dilation
        return np.where((at >= 0) & (at < self.size), at, -1)

    def outputs(self) -> Array:
        """(input, tap) -> output index, -1 where there is none."""
        at = np.arange(self.size)[:, None] + self.low - np.arange(self.taps)[None] * self.dilation
        met = (at >= 0) & (at % self.stride == 0) & (at // self.stride < self.out)
        return np.where(met, at // self.stride, -1)


def geometry(problem: ConvProblem) -> list[Geometry]:
    return [Geometry(*row) for row in zip(problem.input, problem.output, problem.filter, problem.stride,
                                          [low for low, _ in problem.pad], problem.dilation)]


def ordered(problem: ConvProblem, tensor: str, array: Array) -> Array:
    """Split shape with axes g, (n | k), space or taps, channel."""
    axes = problem.axes(tensor)
    rest = [letter for letter in axes if letter in "dhwzyx"]
    order = ["g", "k" if tensor == "w" else "n", *rest, "k" if tensor == "y" else "c"]
    return array.reshape(problem.shape(tensor)).transpose([axes.index(letter) for letter in order])


def gather(array: Array, tables: list[Array]) -> Array:
    """(g, n, space, c) at the tables' indices as (g, n * positions, taps * c); index -1 reads zero."""
    for axis, table in enumerate(tables):
        at = 2 + 2 * axis
        zero = np.zeros_like(np.take(array, [0], at))
        array = np.take(np.concatenate([array, zero], at), table, at)
    ndim = len(tables)
    order = [0, 1, *range(2, 2 + 2 * ndim, 2), *range(3, 3 + 2 * ndim, 2), 2 + 2 * ndim]
    rows = array.shape[1] * int(np.prod([table.shape[0] for table in tables]))
    columns = array.shape[-1] * int(np.prod([table.shape[1] for table in tables]))
    return np.ascontiguousarray(array.transpose(order)).reshape(array.shape[0], rows, columns)


def matrices(problem: ConvProblem, a: Array, b: Array, axes: list[Geometry] | None = None) -> tuple[Array, Array]:
    """The operands of the implicit matrix product in float32."""
    axes = axes or geometry(problem)
    first, second = problem.operands
    a, b = ordered(problem, first, a.astype(np.float32)), ordered(problem, second, b.astype(np.float32))
    if problem.direction == "bwd_weight":
        rows = b.reshape(problem.G, int(np.prod(b.shape[1:-1])), problem.Kg)
        return rows.transpose(0, 2, 1), gather(a, [axis.inputs() for axis in axes])
    if problem.direction == "forward":
        return gather(a, [axis.inputs() for axis in axes]), b.reshape(problem.G, problem.Kg, -1).transpose(0, 2, 1)
    by_tap = b.reshape(problem.G, problem.Kg, problem.taps, problem.Cg).transpose(0, 2, 1, 3)
    return gather(a, [axis.outputs() for axis in axes]), by_tap.reshape(problem.G, -1, problem.Cg)


# --- orders of summation, all in float32


def blas(a: Array, b: Array) -> Array:
    product: Array = np.matmul(a, b)
    return product


def sequential(a: Array, b: Array) -> Array:
    """One product after the other, one rounding for each product and each sum."""
    total = np.zeros((a.shape[0], a.shape[1], b.shape[2]), np.float32)
    for r in range(a.shape[2]):
        total += a[:, :, r, None] * b[:, r, None, :]
    return total


def backwards(a: Array, b: Array) -> Array:
    return sequential(a[:, :, ::-1], b[:, ::-1])


def chunks(a: Array, b: Array, count: int = 7) -> list[Array]:
    """The partial sums of a split reduction; trailing chunks may be empty."""
    edges = np.linspace(0, a.shape[2], count + 1).astype(int)
    return [np.matmul(a[:, :, lo:hi], b[:, lo:hi]) for lo, hi in zip(edges, edges[1:])]


def split(a: Array, b: Array) -> Array:
    return np.asarray(np.sum(np.stack(chunks(a, b)), axis=0, dtype=np.float32))


def tiles(a: Array, b: Array, width: int = 16) -> Array:
    """A sum of inner products over tiles, as matrix instructions do."""
    total = np.zeros((a.shape[0], a.shape[1], b.shape[2]), np.float32)
    for lo in range(0, a.shape[2], width):
        total += np.matmul(a[:, :, lo:lo + width], b[:, lo:lo + width])
    return total


# --- the whole


def scatter(problem: ConvProblem, product: Array, dtype: Any) -> Array:
    """(g, m, n) as the result's array in split shape, rounded once."""
    t = problem.result
    sizes, axes = problem.sizes(t), problem.axes(t)
    rest = [letter for letter in axes if letter in "dhwzyx"]
    order = ["g", "k" if t == "w" else "n", *rest, "k" if t == "y" else "c"]
    shaped = product.reshape([sizes[letter] for letter in order])
    with np.errstate(all="ignore"):
        return shaped.transpose([order.index(letter) for letter in axes]).astype(dtype)


def run(problem: ConvProblem, a: Array, b: Array, out: Array, *, total: Callable[[Array, Array], Array] = blas,
        axes: list[Geometry] | None = None, change: Callable[[Array, Array], tuple[Array, Array]] | None = None,
        finish: Callable[[Array], Array] | None = None) -> None:
    """Compute into ``out``: ``axes`` is the believed geometry, ``change`` alters A and B, ``finish`` the float32 sums."""
    with np.errstate(all="ignore"):
        left, right = matrices(problem, a, b, axes)
        if change:
            left, right = change(left, right)
        product = total(left, right)
        if finish:
            product = finish(product)
    out[...] = scatter(problem, product, out.dtype).reshape(out.shape)


def believing(problem: ConvProblem, **columns: Any) -> list[Geometry]:
    """The geometry with some columns replaced, one value per axis."""
    return [replace(axis, **{name: values[i] for name, values in columns.items()}) for i, axis in enumerate(geometry(problem))]
