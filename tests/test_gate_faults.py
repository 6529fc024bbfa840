"""The gate: right results pass at every depth, dtype and order of summation; planted faults are refused.

Each fault is a kernel that is wrong in one way. It must be refused for every seed tried and on every problem listed for it, and
the same problem computed rightly must pass, so that a refusal is never due to the harness.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Callable

import numpy as np
import pytest
from numpy_device import (
    Array, backwards, believing, blas, chunks, geometry, matrices, run, scatter, sequential, split, tiles,
)

from gconvdsl.dtypes import DTYPES
from gconvdsl.problem import DIRECTIONS, ConvProblem
from gconvdsl.verify import verify

BF16 = DTYPES["bf16"].numpy
ALL = tuple(DTYPES)


def seeds(problem: ConvProblem) -> tuple[int, ...]:
    return (0, 1) if problem.depth < 1_000 else (0,)


# Everything differs from axis to axis and from side to side; C/g = 10 and K/g = 12 leave tails of 8.
BASE = ConvProblem(N=3, G=2, C=20, K=24, input=(9, 8), filter=(3, 2), stride=(2, 1), pad=((1, 2), (0, 1)), dilation=(1, 2))
SQUARE = ConvProblem(N=2, G=2, C=8, K=8, input=(7, 7), filter=(3, 3), pad=1)
SPARSE = ConvProblem(N=2, G=2, C=6, K=8, input=(12, 12), filter=(2, 2), stride=3)
WIDE_PAD = ConvProblem(N=2, G=2, C=6, K=8, input=(4, 4), filter=(3, 3), pad=4)


def long_sum(depth: int) -> ConvProblem:
    """dW of a 1-D pointwise convolution: few results, each a sum over all positions."""
    return ConvProblem(N=1, C=2, K=3, input=(depth,), filter=1, direction="bwd_weight")


def over(problem: ConvProblem, *directions: str, dtypes: tuple[str, ...] = ALL) -> list[ConvProblem]:
    return [problem.replace(direction=d, dtype=t) for d in directions or DIRECTIONS for t in dtypes]


def label(problem: ConvProblem) -> str:
    return f"{problem.direction}-{problem.dtype}-{problem.ndim}d-{problem.depth}"


# --- right results pass


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("depth", [1, 2, 17, 300, 4096, 200_000])
def test_right_results_pass_at_any_depth_in_any_order(depth: int, dtype: str) -> None:
    problem = long_sum(depth).replace(dtype=dtype)
    orders = [blas, split, tiles] if depth > 5000 else [blas, split, tiles, sequential, backwards]
    for total, seed in itertools.product(orders, seeds(problem)):
        report = verify(problem, lambda a, b, out: run(problem, a, b, out, total=total), seed=seed)
        assert report.ok, report.summary()


@pytest.mark.parametrize("dtype", ALL)
def test_a_plain_loop_over_200_000_terms_passes(dtype: str) -> None:
    problem = long_sum(200_000).replace(dtype=dtype)

    def cumulated(a: Array, b: Array) -> Array:
        products = a.transpose(0, 2, 1)[..., None] * b[:, :, None, :]
        return np.cumsum(products, axis=1, dtype=np.float32)[:, -1]

    report = verify(problem, lambda a, b, out: run(problem, a, b, out, total=cumulated))
    assert report.ok, report.summary()


@pytest.mark.parametrize("problem", [p for base in (BASE, SQUARE, SPARSE, WIDE_PAD) for p in over(base)], ids=label)
def test_right_results_pass_on_the_problems_of_the_faults(problem: ConvProblem) -> None:
    for seed, total in enumerate((blas, split, tiles, sequential, backwards)):
        report = verify(problem, lambda a, b, out: run(problem, a, b, out, total=total), seed=seed)
        assert report.ok, report.summary()


def test_fp32_dw_of_bf16_inputs_passes() -> None:
    problem = BASE.replace(direction="bwd_weight", dtype="bf16", out_dtype="fp32")
    assert verify(problem, lambda a, b, out: run(problem, a, b, out))


# --- the faults: (problem, a, b, out) -> None

Wrong = Callable[[ConvProblem, Array, Array, Array], None]


@dataclass(frozen=True)
class Fault:
    name: str
    compute: Wrong
    problems: tuple[ConvProblem, ...]


FAULTS: list[Fault] = []


def fault(*problems: ConvProblem) -> Callable[[Wrong], Wrong]:
    def plant(compute: Wrong) -> Wrong:
        FAULTS.append(Fault(compute.__name__, compute, problems))
        return compute
    return plant


DEEP = [long_sum(depth).replace(dtype=dtype) for depth in (300, 5000, 20_000, 200_000) for dtype in ALL]


# Precision


@fault(*over(BASE, dtypes=("fp32",)), *(p for p in DEEP if p.dtype == "fp32"))
def tf32_inputs(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, narrowed(a, 13), narrowed(b, 13), out)


@fault(*over(BASE, dtypes=("fp32",)), *(p for p in DEEP if p.dtype == "fp32"))
def tf32_second_operand_only(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, narrowed(b, 13), out)


@fault(*over(BASE, dtypes=("fp32",)), *(p for p in DEEP if p.dtype == "fp32"))
def bf16x2_inputs(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    """Two bf16 parts of each input keep 16 bits; fp32 has 24."""
    run(p, narrowed(a, 8), narrowed(b, 8), out)


@fault(*over(BASE), *DEEP)
def bf16_partials_in_split_k(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out, total=lambda x, y: np.sum([part.astype(BF16).astype(np.float32) for part in chunks(x, y)], axis=0))


@fault(*over(BASE, dtypes=("fp32", "fp16")), *(p for p in DEEP if p.dtype != "bf16"))
def fp16_partials_in_split_k(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out, total=lambda x, y: np.sum([part.astype(np.float16) for part in chunks(x, y)], axis=0, dtype=np.float16))


@fault(*over(BASE), *[p for p in DEEP if p.depth < 10_000])
def fp16_accumulator(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    def total(x: Array, y: Array) -> Array:
        acc = np.zeros((x.shape[0], x.shape[1], y.shape[2]), np.float16)
        for r in range(x.shape[2]):
            acc = (acc + x[:, :, r, None] * y[:, r, None, :]).astype(np.float16)
        return acc.astype(np.float32)
    run(p, a, b, out, total=total)


@fault(*over(BASE, "bwd_weight", dtypes=("bf16",)), *[p for p in DEEP if p.dtype == "bf16"])
def each_image_added_to_a_bf16_result(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    def total(x: Array, y: Array) -> Array:
        acc = np.zeros((x.shape[0], x.shape[1], y.shape[2]), BF16)
        for part in chunks(x, y, 3):
            acc = (acc.astype(np.float32) + part).astype(BF16)
        return acc.astype(np.float32)
    run(p, a, b, out, total=total)


@fault(*over(BASE, dtypes=("bf16", "fp16")), *[p for p in DEEP if p.dtype != "fp32"])
def rounded_twice(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    """Through the other narrow format before the right one."""
    other = np.float16 if p.dtype == "bf16" else BF16
    run(p, a, b, out, finish=lambda acc: acc.astype(other).astype(np.float32))


@fault(*over(BASE, dtypes=("fp32",)), *[p for p in DEEP if p.dtype == "fp32"])
def result_through_fp16(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out, finish=lambda acc: acc.astype(np.float16).astype(np.float32))


@fault(*over(BASE, dtypes=("bf16",)), *[p for p in DEEP if p.dtype == "bf16"])
def truncated_not_rounded(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out, finish=lambda acc: (acc.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))


@fault(*over(BASE, dtypes=("bf16",)))
def ties_rounded_up(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    def up(acc: Array) -> Array:
        moved = (acc.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(acc), moved.view(np.float32), acc)
    run(p, a, b, out, finish=up)


# The reduction


@fault(*over(BASE), *DEEP)
def last_term_dropped(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out, change=lambda x, y: (x[:, :, :-1], y[:, :-1]))


@fault(*over(BASE), *DEEP)
def tail_of_16_dropped(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    whole = (p.depth - 1) // 16 * 16
    run(p, a, b, out, change=lambda x, y: (x[:, :, :whole], y[:, :whole]))


@fault(*over(BASE), *DEEP)
def a_term_counted_twice(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out, change=lambda x, y: (np.concatenate([x, x[:, :, -1:]], 2), np.concatenate([y, y[:, -1:]], 1)))


@fault(*over(BASE), *DEEP)
def stale_tile(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    """The last 16 steps read the tile before: a missing barrier or wait."""
    def stale(x: Array, y: Array) -> tuple[Array, Array]:
        x = x.copy()
        x[:, :, -16:] = x[:, :, -32:-16]
        return x, y
    run(p, a, b, out, change=stale)


@fault(*over(BASE))
def channel_tail_of_8_dropped(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    """The channels that are summed (for dW: those of the columns) are truncated to a multiple of the vector width."""
    def cut(x: Array, y: Array) -> tuple[Array, Array]:
        inner = p.Kg if p.direction == "bwd_data" else p.Cg
        gone = np.arange(y.shape[2] if p.direction == "bwd_weight" else y.shape[1]) % inner >= inner // 8 * 8
        y = y.copy()
        y[(slice(None), slice(None), gone) if p.direction == "bwd_weight" else (slice(None), gone)] = 0
        return x, y
    run(p, a, b, out, change=cut)


@fault(*over(BASE), *DEEP)
def a_split_chunk_added_twice(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out, total=lambda x, y: np.sum((parts := chunks(x, y)) + [parts[-1]], axis=0))


# Geometry


@fault(*over(BASE))
def symmetric_pad(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    """Both sides get the larger pad, so that the low one is wrong."""
    run(p, a, b, out, axes=believing(p, low=[max(pair) for pair in p.pad]))


@fault(*over(SQUARE))
def spatial_axes_swapped(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    swapped = [v if t == "w" else v.swapaxes(1, 2) for t, v in zip(p.operands, (a, b))]
    run(p, swapped[0], swapped[1], out)


@fault(*over(BASE))
def strides_of_h_and_w_swapped(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out, axes=believing(p, stride=p.stride[::-1]))


@fault(*over(BASE))
def dilation_ignored(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out, axes=believing(p, dilation=(1, 1)))


@fault(*over(BASE, "forward", "bwd_data"), *over(SQUARE, "forward", "bwd_data"))
def filter_flipped(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    flipped = b.reshape(p.shape("w"))[:, :, ::-1, ::-1]
    run(p, a, flipped, out)


@fault(*over(BASE, "bwd_weight"), *over(SQUARE, "bwd_weight"))
def dw_flipped(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out)
    out[...] = out[:, :, ::-1, ::-1].copy()


@fault(*over(BASE), *over(SQUARE))
def right_edge_taken_for_padding(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    """The last index of an axis fails its bounds check."""
    edge = a.copy()
    axes = p.axes(p.operands[0])
    edge[(slice(None),) * axes.index("w") + (-1,)] = 0
    run(p, edge, b, out)


@fault(*over(SPARSE, "bwd_data"), *over(BASE, "bwd_data"))
def a_stride_phase_missing(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    """Only the first phase is computed; the others stay zero."""
    run(p, a, b, out)
    phase = next(q for q in p.phases if all(q.taps))
    keep = np.zeros(p.input, dtype=bool)
    keep[np.ix_(*(np.arange(c) * s + f for f, c, s in zip(phase.first, phase.count, p.stride)))] = True
    out.reshape(p.shape("x"))[:, ~keep] = 0


@fault(*over(SQUARE))
def padding_reads_the_neighbour_row(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    """No mask on the low side: index -1 reads the last element of the axis."""
    wrapped = [row.inputs() if p.direction != "bwd_data" else row.outputs() for row in geometry(p)]

    class Unmasked:
        def __init__(self, table: Array, size: int) -> None:
            self.table = np.where(table < 0, size - 1, table)

        def inputs(self) -> Array:
            return self.table

        outputs = inputs

    sizes = p.output if p.direction == "bwd_data" else p.input
    run(p, a, b, out, axes=[Unmasked(t, s) for t, s in zip(wrapped, sizes)])  # type: ignore[misc]


# Groups, images, strides


@fault(*over(BASE, "forward", "bwd_data"))
def weights_of_another_group(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, np.roll(b, 1, axis=p.axes("w").index("g")), out)


@fault(*over(BASE))
def g_forgotten_in_the_image_stride(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    a = np.ascontiguousarray(a)
    strides = (a.strides[0] // p.G, *a.strides[1:])
    run(p, np.lib.stride_tricks.as_strided(a, a.shape, strides).copy(), b, out)


@fault(*over(BASE, "forward", "bwd_data"))
def only_the_first_group(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out)
    out.reshape(p.shape(p.result))[..., 1:, :] = 0


# What is written


@fault(*over(BASE), *DEEP)
def one_element_unwritten(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out)
    out.reshape(-1)[out.size // 2] = np.nan


@fault(*over(BASE, "forward", "bwd_data"))
def last_image_unwritten(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out)
    out[-1] = np.nan


@fault(*over(BASE, "forward", "bwd_data"))
def last_image_zero(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out)
    out[-1] = 0


@fault(*over(BASE))
def only_the_first_channel_written(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    """A depthwise kernel taken for a layer with several channels per group."""
    run(p, a, b, out)
    out[..., 1:] = np.nan


@fault(*over(SPARSE, "bwd_data"), *over(WIDE_PAD, "forward"))
def unreached_elements_unwritten(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out)
    out[unreached(p, out)] = np.nan


@fault(*over(SPARSE, "bwd_data"), *over(WIDE_PAD, "forward"))
def unreached_elements_not_quite_zero(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out)
    out[unreached(p, out)] = 1e-6


@fault(*over(WIDE_PAD))
def garbage_where_only_padding_is_read(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    """Masked lanes hold leftovers instead of zeros, at one output position (dW: in one sum)."""
    def leftover(x: Array, y: Array) -> tuple[Array, Array]:
        x, y = x.copy(), y.copy()
        (y if p.direction == "bwd_weight" else x)[:, 0, 0] = 0.25
        return x, y
    run(p, a, b, out, change=leftover)


def unreached(p: ConvProblem, out: Array) -> Array:
    """Where a convolution of ones has a zero, from the device's own tables."""
    left, right = matrices(p, *(np.ones(p.shape(t)) for t in p.operands))
    return scatter(p, np.matmul(left, right), np.float64).reshape(out.shape) == 0


# Non-finite values


@fault(*over(BASE), *over(SQUARE))
def infinity_turned_finite(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out)
    largest = DTYPES[p.dtype].max
    out[...] = np.clip(out.astype(np.float32), -largest, largest).astype(out.dtype)


@fault(*over(BASE), *over(SQUARE))
def nan_turned_zero(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, a, b, out)
    out[np.isnan(out.astype(np.float32))] = 0


@fault(*over(BASE), *over(SQUARE))
def inputs_sanitised(p: ConvProblem, a: Array, b: Array, out: Array) -> None:
    run(p, np.nan_to_num(a.astype(np.float32), nan=0, posinf=1, neginf=-1), b, out)


def narrowed(values: Array, bits: int) -> Array:
    """fp32 with the last ``bits`` significand bits rounded away."""
    whole = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    kept = (whole + np.uint32(1 << (bits - 1))) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)
    return np.where(np.isfinite(values), kept.view(np.float32), values).astype(np.float32)


def test_there_are_at_least_twenty_faults() -> None:
    assert len({each.name for each in FAULTS}) == len(FAULTS) >= 20


def accepted(planted: Fault, problems: list[ConvProblem]) -> list[tuple[str, int]]:
    """Where the gate takes a wrong kernel for a right one."""
    return [(label(p), seed) for p in problems for seed in seeds(p)
            if verify(p, lambda a, b, out: planted.compute(p, a, b, out), seed=seed)]


@pytest.mark.parametrize("planted", FAULTS, ids=lambda each: each.name)
def test_every_fault_is_refused(planted: Fault) -> None:
    assert accepted(planted, [p for p in planted.problems if p.depth < 100_000]) == []


@pytest.mark.nightly
@pytest.mark.parametrize("planted", [each for each in FAULTS if any(p.depth >= 100_000 for p in each.problems)],
                         ids=lambda each: each.name)
def test_faults_of_very_long_sums_are_refused(planted: Fault) -> None:
    assert accepted(planted, [p for p in planted.problems if p.depth >= 100_000]) == []
