"""Choosing tiles when none is declared: a rule of thumb that ranks a small grid of tiles by a rough cost.

The cost counts what a tile wastes and what it overlaps; its constants are orders of magnitude, good for ranking only.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

from .archs import Arch, arch as find_arch, arithmetic
from .config import KernelConfig, Size, Tile
from .dtypes import DTYPES
from .errors import error
from .pipelines import PIPELINES
from .problem import ConvProblem
from .rules import check, gemms
from .tile_cost import lds_bytes, registers_per_lane
from .window import find_window

__all__ = ["candidates", "closest_tile", "default_config", "default_tile", "ranked_tiles", "ranked_windows", "window_tiles"]

_DEPTHS = (16, 32, 64)
_MULTIPLES = (1, 2, 4, 8, 16)
_LINE = 128                          # bytes of a line of memory
_LONGEST_SIDE, _LARGEST_AREA, _MOST_WAVES = 256, 128 * 128, 4
# Per compute unit and cycle: multiply-adds of a 16-bit and of an fp32 instruction, bytes from memory, bytes from LDS.
_HALF_RATE, _FLOAT_RATE, _MEMORY_RATE, _LDS_RATE = 1024, 128, 64, 128
# Cycles that one K-step and one block wait for memory; blocks that hide such waits for each other on a compute unit.
_STEP_WAIT, _BLOCK_WAIT, _MOST_RESIDENT = 600, 2000, 8


def default_tile(problem: ConvProblem, arch: str | Arch, direction: str | None = None,
                 config: KernelConfig | None = None) -> Tile:
    """The tile to use when none is declared; legal together with the options of ``config``, by default those of basic_v1.

    Raises ``kernel.none`` where the rules admit no tile. For the target cpu, which ignores tiles, it is a small one.
    """
    found = find_arch(arch)
    problem = problem.as_(direction) if direction else problem
    if found.family == "cpu":
        return Tile((64, 16, 16), wave_tile=(16, 16, 16))
    asked = config or KernelConfig(pipeline="basic_v1")
    for tile in _ranked(problem, found, asked):
        if not _tile_faults(problem, asked.resolved(tile=tile), found):
            return tile
    raise error("kernel.none", problem=problem.describe(), target=found.name)


def closest_tile(problem: ConvProblem, arch: str | Arch, config: KernelConfig) -> Tile | None:
    """The tile of the lowest cost, whether it is legal or not; None where the arch computes nothing of this dtype and precision."""
    return next(iter(_ranked(problem, find_arch(arch), config)), None)


def ranked_tiles(problem: ConvProblem, arch: str | Arch) -> Iterator[Tile]:
    """The grid of tiles, the cheapest first, without those that no pipeline can have."""
    found = find_arch(arch)
    for tile in _ranked(problem, found, KernelConfig()):
        if not _tile_faults(problem, KernelConfig(tile=tile, pipeline="basic_v1"), found):
            yield tile


def candidates(problem: ConvProblem, arch: str | Arch, limit: int = 12) -> list[KernelConfig]:
    """At most ``limit`` legal configurations to try, the best guess first: good tiles with every pipeline."""
    found = find_arch(arch)
    if found.family == "cpu":
        return [KernelConfig()]
    rows = [KernelConfig(pipeline=row.name, **{**row.implied_options, "scheduler": scheduler})
            for row in PIPELINES.values() for scheduler in row.schedulers]
    tiles = itertools.islice(_ranked(problem, found, KernelConfig()), 4 * limit)
    every = (row.resolved(tile=tile) for tile in tiles for row in rows)
    return list(itertools.islice((config for config in every if not check(problem, config, found)), limit))


def default_config(problem: ConvProblem, arch: str | Arch, config: KernelConfig) -> KernelConfig:
    """``config`` with a tile, and the number of merged groups where that is left open too.

    A window tile (window.py) with merged groups is taken where it is expected to be faster than staging row by row.
    """
    found = find_arch(arch)
    rows = config.resolved(tile=default_tile(problem, arch, config=config.resolved(tile=None)))
    if found.family == "cpu":
        return rows
    asked = [config.resolved(tile=tile, num_groups_to_merge=merge) for tile, merge in window_tiles(problem, found)
             if config.num_groups_to_merge in (None, merge)]
    legal = (one for one in asked if not _tile_faults(problem, one, found))
    best = min(legal, key=lambda one: _window_cost(problem, one, found), default=None)
    if best is None or _window_cost(problem, best, found) >= _ranked_cost(problem, rows, found):
        return rows
    return best


def _ranked_cost(problem: ConvProblem, config: KernelConfig, arch: Arch) -> float:
    parts = Counter(gemms(problem))
    tile = config.tile_for(arch.family)
    assert tile is not None
    return sum(_cost(part, tile, problem, arch, config) * count for part, count in parts.items())


def window_tiles(problem: ConvProblem, arch: Arch) -> list[tuple[Tile, int]]:
    """Tiles that ask for window staging, each with the groups to merge so that a pixel's channels fill a line of memory."""
    forward = problem.direction == "forward"
    channels, columns = (problem.Cg, problem.Kg) if forward else (problem.Kg, problem.Cg)
    size = DTYPES[problem.dtype].bytes
    found = []
    for one in arch.instructions_for(problem.dtype):
        pack = one.k // channels if channels < one.k and one.k % channels == 0 else 1
        chunk = max((c for c in (1, 2, 4) if channels * pack % (c * one.k) == 0), default=0) * one.k
        n = -(-min(columns * pack, 64) // max(one.n, 16)) * max(one.n, 16)
        if not chunk or one.name == "fma":
            continue
        if problem.G % pack:
            continue
        tiles = max(d for d in (1, 2, 4, 8) if problem.G % (d * pack) == 0 and d * chunk * size <= max(_LINE, chunk * size))
        for rows in (4, 7, 8, 14, 16):
            found += [(Tile((rows * one.m, n, problem.taps * chunk), waves, (one.m, one.n, one.k), (16 // size,) * 3), tiles * pack)
                      for waves in _window_waves(rows, tiles * n // one.n, tiles)]
    return found


def ranked_windows(problem: ConvProblem, arch: str | Arch) -> list[tuple[Tile, int]]:
    """`window_tiles` that can be had, the cheapest first."""
    found = find_arch(arch)
    costs = {(tile, merge): _window_cost(problem, KernelConfig(tile=tile, num_groups_to_merge=merge), found)
             for tile, merge in window_tiles(problem, found)}
    return sorted((one for one, cost in costs.items() if cost < math.inf), key=lambda one: costs[one])


def _window_waves(rows: int, columns: int, merge: int) -> list[Size]:
    """Ways to deal up to 8 waves over rows and the columns of merged groups."""
    return [(m, n, 1) for m in (1, 2, 4) for n in (1, 2, 4, 8) if rows % m == 0 and columns % n == 0 and 2 <= m * n <= 8
            and (n <= merge or n % merge == 0)]


def _window_cost(problem: ConvProblem, config: KernelConfig, arch: Arch) -> float:
    """Cycles like `_cost`, for a window tile: pixels are loaded once, and every tap reads them from LDS."""
    tile = config.tile_for(arch.family)
    assert tile is not None
    merge, size = config.num_groups_to_merge or 1, DTYPES[problem.dtype].bytes
    instruction = arch.instruction(problem.dtype, tile.wave_tile)
    window = find_window(problem, tile, instruction, merge, arch.lds) if instruction else None
    if window is None:
        return math.inf
    forward = problem.direction == "forward"
    channels, columns = (problem.Cg, problem.Kg) if forward else (problem.Kg, problem.Cg)
    steps = max(1, channels // window.chunk)
    blocks = window.blocks(problem) * -(-columns * window.pack // tile.n) * (problem.G // merge)
    lds = lds_bytes(tile, problem.dtype, config.pipeline[0] if config.pipeline else None, merge, window=window)
    threads = math.prod(tile.waves) * arch.wave
    registers = registers_per_lane(tile, problem.dtype, arch, None, instruction, merge, window)
    resident = max(1, min(_MOST_RESIDENT, arch.lds // lds, arch.max_threads * 2 // threads,
                          arch.register_file // (registers * threads)))
    merge //= window.pack
    loaded = (window.pixels * window.chunk + tile.n * tile.k) * merge * size
    reads = tile.m * tile.k * merge * size * max(1, tile.waves[1] // merge)
    stored = 3 * tile.m * tile.n * merge * size
    multiplied = tile.m * tile.n * tile.k * merge / (_HALF_RATE if size == 2 else _FLOAT_RATE)
    cycles = steps * (multiplied + loaded / _MEMORY_RATE + reads / _LDS_RATE)
    work = math.ceil(blocks / arch.compute_units) * (cycles + stored / _LDS_RATE)
    return work + math.ceil(blocks / (arch.compute_units * resident)) * (steps * _STEP_WAIT + _BLOCK_WAIT)


def _tile_faults(problem: ConvProblem, config: KernelConfig, arch: Arch) -> bool:
    """Whether a rule that another tile could satisfy is broken."""
    return any(one.field.startswith("tile") for one in check(problem, config, arch))


def _ranked(problem: ConvProblem, arch: Arch, config: KernelConfig) -> list[Tile]:
    """The grid of tiles, the cheapest first; equal costs keep the order of the grid, the smaller tile first."""
    parts = Counter(gemms(problem))
    dtype = arithmetic(problem.dtype, config.precision)
    grid = list(_grid(arch, dtype, DTYPES[problem.dtype].bytes))
    return sorted(grid, key=lambda tile: sum(_cost(part, tile, problem, arch, config) * count for part, count in parts.items()))


def _grid(arch: Arch, dtype: str, size: int) -> Iterator[Tile]:
    """Blocks of 1, 2, 4, 8, 16 instructions a side with K-steps of up to 64, each with the waves that suit it."""
    shapes = dict.fromkeys((one.m, one.n) for one in arch.instructions_for(dtype))
    for shape, k, i, j in itertools.product(shapes, _DEPTHS, _MULTIPLES, _MULTIPLES):
        one, m, n = arch.instruction(dtype, (*shape, k)), i * shape[0], j * shape[1]
        fits = max(m, n) <= _LONGEST_SIDE and m * n <= _LARGEST_AREA and n >= 16 and k * size <= 128
        if one is not None and fits:
            yield Tile((m, n, k), _waves(i, j), (one.m, one.n, max(one.k, 16) if one.name == "fma" else one.k), (16 // size,) * 3)


def _waves(rows: int, columns: int) -> Size:
    """Up to four waves over rows x columns instructions, halving the longer side each time."""
    m = n = 1
    while m * n < _MOST_WAVES and (rows > 1 or columns > 1):
        if rows >= columns:
            rows, m = rows // 2, m * 2
        else:
            columns, n = columns // 2, n * 2
    return m, n, 1


def _cost(gemm: tuple[int, int, int], tile: Tile, problem: ConvProblem, arch: Arch, config: KernelConfig) -> float:
    """Cycles for one matrix product of every group: the throughput of the busiest compute unit, and waits that nothing hides."""
    size, units = DTYPES[problem.dtype].bytes, arch.compute_units
    m, n, k = (-(-side // block) for side, block in zip(gemm, tile.block))
    blocks, steps = m * n * problem.G, k
    if problem.direction == "bwd_weight":  # a long reduction is cut until every compute unit has work
        cut = max(1, min(steps, 2 * units // max(1, blocks)))
        blocks, steps = blocks * cut, -(-steps // cut)
    lds = lds_bytes(tile, problem.dtype, merge=config.num_groups_to_merge or 1)
    resident = max(1, min(_MOST_RESIDENT, arch.lds // lds, arch.max_threads * 2 // (math.prod(tile.waves) * arch.wave)))
    work = math.ceil(blocks / units) * steps * _step_cycles(tile, size)
    return work + math.ceil(blocks / (units * resident)) * (steps * _STEP_WAIT + _BLOCK_WAIT)


def _step_cycles(tile: Tile, size: int) -> float:
    """Cycles of one K-step that keep a compute unit busy: matrix instructions, memory, and reads from LDS."""
    rate = _HALF_RATE if size == 2 else _FLOAT_RATE
    read_by_waves = tile.waves[1] * tile.m + tile.waves[0] * tile.n
    return tile.k * (tile.m * tile.n / rate + (tile.m + tile.n) * size / _MEMORY_RATE + read_by_waves * size / _LDS_RATE)
