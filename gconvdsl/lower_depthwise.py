"""Lowering of depthwise convolution with sliding windows, for targets that run blocks of threads.

A family of its own beside implicit GEMM: taken when nothing of pipeline and tile is asked for and each group has one channel in
and out, dilation 1, and channels that are neighbours in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .archs import arch as find_arch
from .config import KernelConfig
from .dtypes import DTYPES
from .lower_exprs import epilogue_struct, prologue_struct
from .lower_source import CPP, DIRECTION, REDUCE_THREADS, entry, int3
from .plan import Launch, Lowered, Plan, three
from .problem import ConvProblem
from .spec import KernelSpec

__all__ = ["is_depthwise", "lower_depthwise"]

_MAX_WALK_TAPS = 64                 # longer filters would unroll too far for sliding down
_MAX_WIDTH = 128                    # taps along w, which are always unrolled
_MAX_THREADS = 256
_SPLIT_BLOCKS = 2                   # blocks a compute unit that bwd_weight is cut into
_MAX_SUMS = 25                      # taps whose sums a thread of bwd_weight keeps
_MAX_LDS = 61952                    # bytes of weights of a block: 16 channels of 31x31 taps


def is_depthwise(problem: ConvProblem) -> bool:
    """Whether the family serves the problem."""
    if problem.G != problem.C or problem.G != problem.K:
        return False
    views = problem.views()
    small = problem.filter[-1] <= _MAX_WIDTH and max(problem.stride) <= 4 and _lds(problem, _shape(problem)) <= _MAX_LDS
    return set(problem.dilation) == {1} and small and views["x"].g == views["y"].g == 1 and problem.N > 0


@dataclass(frozen=True)
class _Shape:
    """``vector`` channels a thread, ``run`` results along w, ``rows`` walked; ``vectors`` x ``items`` threads a block."""

    vector: int
    run: int
    rows: int
    vectors: int
    items: int

    @property
    def threads(self) -> int:
        return self.vectors * self.items


def lower_depthwise(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, arch: str) -> Lowered:
    """The source and plan; the problem must satisfy `is_depthwise`."""
    shape = _shape(problem)
    weight = problem.direction == "bwd_weight"
    splits = _splits(problem, shape, find_arch(arch).compute_units) if weight else 1
    notes = [f"depthwise with sliding windows: {shape.vector} channels and {shape.run} results a thread"]
    if weight:
        notes.append(f"{splits} pieces of the reduction, added up in order from an fp32 workspace")
    return Lowered(_source(spec, problem, shape), _plan(problem, shape, splits, find_arch(arch).family), config, tuple(notes))


def _shape(problem: ConvProblem) -> _Shape:
    """Measured on an H200 (docs/performance.md): wide vectors for short filters, few channels where many taps need registers."""
    taps, weight = math.prod(problem.filter[-2:]), problem.direction == "bwd_weight"
    rows = _filter_rows(problem)
    sums = rows * problem.filter[-1]
    vector = (4 if sums <= 25 else 2 if sums <= 31 else 1) if weight else 4 if taps <= 9 else 2
    while problem.G % vector:
        vector //= 2
    channels = -(-problem.G // vector)
    width, height = _results(problem)
    small = width * height <= 256
    threads = 128 if small and taps <= 9 and not weight else _MAX_THREADS
    fitting = max(1, _MAX_LDS // (_taps(problem) * vector * 4))
    vectors = min(channels, 32 if channels % 32 == 0 or channels > 64 else channels, fitting)
    run = 7 if width % 7 == 0 and (weight or small or 9 < taps <= 25) else 4
    return _Shape(vector, run, 1 if weight else min(height, 7 if small else 14), vectors, max(1, threads // vectors))


def _filter_rows(problem: ConvProblem) -> int:
    """Rows of the filter whose taps one block of bwd_weight sums: as many as the registers hold."""
    height, width = three(problem.filter, 1)[1:]
    return max(d for d in range(1, height + 1) if height % d == 0 and (d == 1 or d * width <= _MAX_SUMS))


def _lds(problem: ConvProblem, shape: _Shape) -> int:
    """Bytes of LDS: the weights of the block's channels, or the sums of one tap of every thread."""
    if problem.direction == "bwd_weight":
        return shape.threads * shape.vector * 4
    return _taps(problem) * shape.vectors * shape.vector * 4


def _results(problem: ConvProblem) -> tuple[int, int]:
    """Results along w and h of the largest stride phase."""
    sizes = problem.output
    if problem.direction == "bwd_data":
        sizes = tuple(-(-size // stride) for size, stride in zip(problem.input, problem.stride))
    padded = three(sizes, 1)
    return padded[2], padded[1]


def _splits(problem: ConvProblem, shape: _Shape, units: int) -> int:
    """Pieces of a bwd_weight reduction; depends on the problem and the arch only."""
    out = three(problem.output, 1)
    runs = problem.N * out[0] * out[1] * -(-out[2] // shape.run)
    tiles = -(-problem.G // (shape.vectors * shape.vector)) * _parts(problem)
    return max(1, min(-(-units * _SPLIT_BLOCKS // tiles), runs // (4 * shape.items)))


def _parts(problem: ConvProblem) -> int:
    """Parts of the filter that bwd_weight deals to different blocks."""
    depth, height, _ = three(problem.filter, 1)
    return depth * height // _filter_rows(problem)


def _source(spec: KernelSpec, problem: ConvProblem, shape: _Shape) -> str:
    weight = problem.direction == "bwd_weight"
    sizes = {"kAxes": problem.ndim, "kCg": 1, "kKg": 1, "kV": shape.vector, "kRun": shape.run, "kRows": shape.rows,
             "kVectors": shape.vectors, "kItems": shape.items, "kFilterRows": _filter_rows(problem)}
    facts = [f"static constexpr gconv::Direction kDirection = {DIRECTION[problem.direction]};",
             *(f"using {name} = {int3(getattr(problem, name.lower()))};" for name in ("Filter", "Stride")),
             *(f"static constexpr int {name} = {value};" for name, value in sizes.items()),
             f"static constexpr bool kWalk = {str(math.prod(problem.filter) <= _MAX_WALK_TAPS).lower()};",
             f"using In = {CPP[problem.dtype]};", f"using Out = {CPP[problem.out_dtype]};",
             "using Prologue = ::Prologue;", "using Epilogue = ::Epilogue;"]
    kernel = "DepthwiseWeight" if weight else "Depthwise"
    body = [f'#include "gconv/depthwise{"_weight" if weight else ""}.hpp"']
    if weight:
        body.append('#include "gconv/reduce_splits.hpp"')
    if not spec.is_bare:
        body.append('#include "gconv/math.hpp"')
    body.append(f"\nnamespace {{\n{prologue_struct(spec)}\n{epilogue_struct(spec, CPP[problem.out_dtype])}\n")
    body.append("struct Facts {\n" + "\n".join(f"  {line}" for line in facts) + "\n};\n}  // namespace\n")
    body.append(f"using Kernel = gconv::{kernel}<Facts>;")
    body.append(entry("gconv_main", "Kernel::kThreads", 1, "Kernel"))
    if weight:
        body.append(entry("gconv_reduce", str(REDUCE_THREADS), 1, "gconv::ReduceSplits<Facts>"))
    return "\n".join(body) + "\n"


def _plan(problem: ConvProblem, shape: _Shape, splits: int, family: str) -> Plan:
    tiles = -(-problem.G // (shape.vectors * shape.vector))
    size, out = DTYPES[problem.dtype].bytes * shape.vector, DTYPES[problem.out_dtype].bytes * shape.vector
    args = problem.args(splits)
    shared = _lds(problem, shape) if family == "nvidia" else 0
    if problem.direction == "bwd_weight":
        elements = math.prod(problem.shape("w"))
        grid = (tiles * _parts(problem), splits, 1)
        blocks = -(-elements // REDUCE_THREADS)
        launches = (Launch("gconv_main", grid, shape.threads, shared),
                    Launch("gconv_reduce", (min(blocks, 65536), -(-blocks // 65536), 1), REDUCE_THREADS))
        return Plan(launches, args, elements * 4 * splits, (("x", size), ("y", size)))
    width, height = _results(problem)
    slabs = problem.N * (three(problem.output, 1)[0] if problem.direction == "forward"
                         else -(-three(problem.input, 1)[0] // three(problem.stride, 1)[0]))
    items = slabs * -(-height // shape.rows) * -(-width // shape.run)
    phases = math.prod(problem.stride) if problem.direction == "bwd_data" else 1
    launch = Launch("gconv_main", (-(-items // shape.items) * tiles, phases, 1), shape.threads, shared)
    source, result = ("x", "y") if problem.direction == "forward" else ("y", "x")
    return Plan((launch,), args, 0, ((source, size), (result, out)))


def _taps(problem: ConvProblem) -> int:
    """Taps of the largest stride phase."""
    if problem.direction == "forward":
        return math.prod(problem.filter)
    return math.prod(-(-f // s) for f, s in zip(problem.filter, problem.stride))
