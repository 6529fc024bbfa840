"""Lowering for targets that run blocks of threads: a short HIP C++ source file and the plan that launches it.

The source states compile-time facts as one struct (backends/include/gconv/conv.hpp says which) and instantiates one kernel from
the headers, plus one that adds up the pieces where the reduction is split. Padding, N, spatial sizes and strides stay out of it:
one binary serves them all.
"""

from __future__ import annotations

import math

from .archs import Arch, arch as find_arch, arithmetic
from .config import KernelConfig, Tile
from .dtypes import DTYPES
from .lower_source import REDUCE_THREADS, Shape, source_text
from .pipelines import PIPELINES
from .plan import Launch, Lowered, Plan
from .problem import ConvProblem
from .reach import find_pieces, offset_bits
from .spec import KernelSpec
from .tile_cost import fragment_budget, lds_bytes, prefetch_depth
from .window import find_window

__all__ = ["lower"]

_MIN_STEPS_PER_SPLIT = 8
_MAX_SPLIT_WORKSPACE = 1 << 28      # bytes


def lower(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, arch: str) -> Lowered:
    """The source and plan of ``spec`` on ``problem`` for a GPU arch; the configuration must have passed `rules.check`.

    Returns the configuration with every choice filled in: the vector widths are the widest legal ones.
    """
    target = find_arch(arch)
    shape = _shape(problem, config, target)
    resolved = config.resolved(
        tile=shape.tile, pipeline=config.pipeline[0], scheduler=config.scheduler or "intrawave", num_groups_to_merge=shape.merge,
        split_k=shape.splits, split_image=shape.pieces is not None, explicit_gemm=bool(config.explicit_gemm),
        two_stage=shape.partial if problem.direction == "bwd_weight" else config.two_stage,
        block_per_cu=config.block_per_cu or 1, epilogue=config.epilogue or "cshuffle")
    source = source_text(spec, problem, resolved, shape)
    return Lowered(source, _plan(problem, resolved, shape, target), resolved, _notes(problem, shape))


# --- cutting the work

def _rows(problem: ConvProblem) -> int:
    if problem.direction != "bwd_data":
        return problem.gemm.m
    return problem.N * math.prod(-(-size // stride) for size, stride in zip(problem.input, problem.stride))


def _tiles(problem: ConvProblem, tile: Tile) -> tuple[int, int]:
    """Tiles along m (of the largest stride phase for bwd_data) and n."""
    return -(-_rows(problem) // tile.m), -(-problem.gemm.n // tile.n)


def _shape(problem: ConvProblem, config: KernelConfig, target: Arch) -> Shape:
    tile = config.tile_for(target.family)
    assert tile is not None, "the choice has filled in the tile"
    instruction = target.instruction(arithmetic(problem.dtype, config.precision), tile.wave_tile)
    assert instruction is not None, "rules.check has passed"
    merge = config.num_groups_to_merge or 1
    splits = config.split_k or _automatic_splits(problem, tile, merge, target)
    partial = splits > 1 or (bool(config.two_stage) and problem.direction == "bwd_weight")
    row = PIPELINES[config.pipeline[0]]
    pieces = find_pieces(problem, config, tile)
    part = pieces.problem if pieces else problem
    window = None if row.needs_direct_to_lds else find_window(part, tile, instruction, merge, target.lds)
    prefetch = prefetch_depth(tile, problem.dtype, row, target, config.block_per_cu or 1)
    bits = 32 if pieces else offset_bits(problem, tile, splits)
    vectors = _with_vectors(problem, tile, partial, window.pack if window else 1)
    budget = fragment_budget(tile, problem.dtype, target, row, instruction, merge, window)
    groups = row.needs_num_wave_groups or 1
    return Shape(vectors, instruction, merge, splits, partial, bits, window, groups, prefetch, pieces, budget)


def _automatic_splits(problem: ConvProblem, tile: Tile, merge: int, target: Arch) -> int:
    """Pieces of a bwd_weight reduction: enough blocks for twice the compute units, long enough pieces, a bounded workspace.

    The number depends on the problem, the tile and the arch only, never on the machine's load: results stay bitwise equal.
    """
    if problem.direction != "bwd_weight":
        return 1
    m, n = _tiles(problem, tile)
    blocks = m * n * (problem.G // merge)
    steps = -(-problem.gemm.k // tile.k)
    result = math.prod(problem.shape("w")) * 4
    wanted = -(-2 * target.compute_units // blocks)
    return max(1, min(wanted, steps // _MIN_STEPS_PER_SPLIT, _MAX_SPLIT_WORKSPACE // result))


# --- vector widths

def _width(limit: int, dtype: str, contiguous: bool, *sizes: int) -> int:
    """The widest power of two up to ``limit`` and 16 bytes that divides every size; 1 where neighbours are apart in memory."""
    width = min(limit, 16 // DTYPES[dtype].bytes)
    width = 1 << (width.bit_length() - 1)
    while width > 1 and any(size % width for size in sizes):
        width //= 2
    return width if contiguous else 1


def _with_vectors(problem: ConvProblem, tile: Tile, partial: bool, pack: int) -> Tile:
    """The tile with the vector widths that the problem's channels and layout admit.

    Pieces of a split reduction (``partial``) are stored densely as floats; ``pack`` groups are neighbours in x and y, not in w.
    """
    a, b, c = tile.vector
    stored = "fp32" if partial else problem.out_dtype
    x, w, y = (problem.views()[t].c == 1 for t in "xwy")
    Cg, Kg, m, n, k = problem.Cg, problem.Kg, tile.m, tile.n, tile.k
    packed_c, packed_k = Cg * pack, Kg * pack
    if problem.direction == "forward":
        widths = (_width(a, problem.dtype, x or pack > 1, packed_c, k), _width(b, problem.dtype, w, Cg, k),
                  _width(c, stored, y or partial or pack > 1, packed_k, n))
    elif problem.direction == "bwd_data":
        widths = (_width(a, problem.dtype, y or pack > 1, packed_k, k), _width(b, problem.dtype, w, Cg, n),
                  _width(c, stored, x or partial or pack > 1, packed_c, n))
    else:
        widths = _width(a, problem.dtype, y, Kg, m), _width(b, problem.dtype, x, Cg, n), _width(c, stored, w or partial, Cg, n)
    return Tile(tile.block, tile.waves, tile.wave_tile, widths, tile.name)


# --- plan

def _plan(problem: ConvProblem, config: KernelConfig, shape: Shape, target: Arch) -> Plan:
    args = problem.args(shape.splits)
    if problem.N == 0 and problem.direction != "bwd_weight":
        return Plan((), args)
    part = shape.pieces.problem if shape.pieces else problem
    m, n = _tiles(part, shape.tile)
    if shape.window:
        m = shape.window.blocks(part)
    phases = math.prod(problem.stride) if problem.direction == "bwd_data" else 1
    threads = math.prod(shape.tile.waves) * target.wave
    shared = 0
    if target.family == "nvidia":
        shared = lds_bytes(shape.tile, problem.dtype, config.pipeline[0], shape.merge, window=shape.window,
                           double_smem_buffer=config.double_smem_buffer, epilogue=config.epilogue)
    grid = m * n * (problem.G // shape.merge), phases * shape.splits, shape.pieces.count if shape.pieces else 1
    launches = [Launch("gconv_main", grid, threads, shared)]
    workspace = 0
    if shape.partial:
        elements = math.prod(problem.shape(problem.result))
        workspace = elements * 4 * shape.splits
        blocks = -(-elements // REDUCE_THREADS)
        launches.append(Launch("gconv_reduce", (min(blocks, 65536), -(-blocks // 65536), 1), REDUCE_THREADS))
    return Plan(tuple(launches), args, workspace, offset_bits=shape.offset_bits, alignment=_alignment(problem, shape),
                dense=bool(config.explicit_gemm))


def _alignment(problem: ConvProblem, shape: Shape) -> tuple[tuple[str, int], ...]:
    a, b, c = shape.tile.vector
    tensors = {"forward": "xwy", "bwd_data": "ywx", "bwd_weight": "yxw"}[problem.direction]
    size, out = DTYPES[problem.dtype].bytes, DTYPES[problem.out_dtype].bytes
    return tuple(zip(tensors, (a * size, b * size, out if shape.partial else c * out)))


def _notes(problem: ConvProblem, shape: Shape) -> tuple[str, ...]:
    gemm = problem.gemm
    notes = [f"implicit GEMM, {shape.instruction.name}, m x n x k = {gemm.m} x {gemm.n} x {gemm.k} per group"]
    if shape.window:
        window = shape.window
        notes.append(f"the input is staged by windows of {window.pixels} pixels and {window.chunk} channels, once for all taps")
    if shape.merge > 1:
        packed = f", {shape.window.pack} of them packed into one tile" if shape.window and shape.window.pack > 1 else ""
        notes.append(f"{shape.merge} groups share a block{packed}")
    if shape.splits > 1:
        notes.append(f"the reduction is cut into {shape.splits} pieces, added up in order from an fp32 workspace")
    if shape.pieces:
        notes.append(f"images are cut into pieces of {shape.pieces.rows} rows: {shape.pieces.count} in all")
    if problem.direction == "bwd_data" and math.prod(problem.stride) > 1:
        notes.append(f"{math.prod(problem.stride)} stride phases, each with its own taps")
    if shape.offset_bits == 64:
        notes.append("64-bit offsets: a block reaches over 2 GiB")
    return tuple(notes)
