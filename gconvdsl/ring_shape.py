"""The shape of a row ring's launch: how the work is cut into blocks, and what a block holds.

The same figures as in backends/include/gconv/ring_place.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Iterator

from .archs import Arch
from .plan import three
from .problem import ConvProblem

__all__ = ["RingShape", "fitted", "ring_shape"]

_MOST_REGISTERS = 224               # that a kernel is written for, by the count below
_OTHER_REGISTERS = 38
_CROWDED = 160                      # from here on waves take 8 channels instead of 16
_LONG_REGISTERS = 120               # where the weights are in shared memory
_MOST_PARTS = 16                    # into which the rows of an image are cut
_IDLE_COST = 0.35                   # of a compute unit with a single block, by which a source row takes longer
_UNIT_ROWS = 2.5                    # source rows that the start of a unit costs
_RESERVED_LDS = 1024                # bytes that the driver takes of every block's shared memory (CUDA programming guide)


@dataclass(frozen=True)
class RingShape:
    """``channels`` of a block; a strip of ``strip`` pixels of ``images`` images, in units of ``rows``; ``ring`` stages of ``stage_rows``
    source rows; ``waves`` along the strip with ``tiles`` of 16 pixels each, for ``wave_channels`` channels; ``blocks`` that a
    compute unit holds.

    ``segment``: source pixels of a row; ``planes``: source planes of a stage. ``pairs``: bwd_data with stride 2, where pixels and rows
    are counted in pairs. ``weights``: bytes of shared memory for them, 0 where they are registers.
    """

    channels: int
    strip: int
    images: int
    rows: int
    ring: int
    stage_rows: int
    waves: int
    tiles: int
    blocks: int
    segment: int
    planes: int
    pairs: bool
    wave_channels: int = 16
    weights: int = 0

    @property
    def consumers(self) -> int:
        """Waves that multiply."""
        return self.waves * self.channels // self.wave_channels

    def shared(self, engine: bool) -> int:
        """Bytes of shared memory of a block: the ring, room to align it, and two barriers a stage for the copy engine."""
        stage = self.images * self.planes * self.stage_rows * self.segment * self.channels * 2
        return stage * self.ring + 16 * self.channels + (16 * self.ring if engine else 0) + self.weights

    def blocks_across(self, problem: ConvProblem) -> int:
        """Blocks of channels times strips."""
        return -(-problem.C // self.channels) * -(-_extent(problem)[2] // self.strip)

    def units(self, problem: ConvProblem) -> int:
        """What blocks of the same channels and strip deal out among themselves."""
        images, rows, _, planes = _extent(problem)
        return -(-images // self.images) * planes * -(-rows // self.rows)

    def splits(self, problem: ConvProblem, arch: Arch) -> int:
        """How many blocks deal out the units: as many as are resident together, and no more than needed for the same rounds."""
        units = self.units(problem)
        most = max(1, min(units, arch.compute_units * self.blocks // self.blocks_across(problem)))
        return -(-units // -(-units // most))


def is_pairs(problem: ConvProblem) -> bool:
    """Whether the kernel of stride phases serves it."""
    return problem.direction == "bwd_data" and problem.stride[-1] == 2


def _extent(problem: ConvProblem) -> tuple[int, int, int, int]:
    """Images, rows and columns (pairs) of the result, and its planes."""
    from .lower_ring import merges_rows

    depth, rows, width = three(problem.output if problem.direction == "forward" else problem.input, 1)
    if is_pairs(problem):
        rows, width = -(-rows // 2), -(-width // 2)
    return (1, rows * problem.N, width, depth) if merges_rows(problem) else (problem.N, rows, width, depth)


def _taps(problem: ConvProblem) -> tuple[int, int, int]:
    """Source planes, rows and columns that a result (pair) sees."""
    depth, rows, columns = three(problem.filter, 1)
    return (depth, -(-rows // 2), -(-columns // 2)) if is_pairs(problem) else (depth, rows, columns)


def registers(problem: ConvProblem, tiles: int, wave_channels: int = 16) -> int:
    """32-bit registers that a thread needs at least: weights, live sums, and what was seen beside them in compiled kernels."""
    depth, rows, columns = three(problem.filter, 1)
    weights = depth * rows * columns * (2 if problem.Cg <= 8 else 4 * max(1, problem.Cg // 16))
    if is_pairs(problem):
        live = (_taps(problem)[1] * 2 - 1) * 2
    else:
        live = -(-rows // (three(problem.stride, 1)[1] if problem.direction == "forward" else 1))
    return (weights + live * tiles * 8) * wave_channels // 16 + _OTHER_REGISTERS + 8 * (tiles - 1)


def _resident(arch: Arch, warps: int, needed: int, shared: int) -> int:
    """Blocks that a compute unit holds: its four schedulers have a quarter of the registers each, dealt out to whole warps."""
    share = arch.register_file // 4 // arch.wave
    blocks = 1
    while -(-(blocks + 1) * warps // 4) * (-(-needed // 8) * 8) <= share:
        blocks += 1
    return max(1, min(blocks, (arch.lds + _RESERVED_LDS) // (shared + _RESERVED_LDS), 32 // (warps + 1) * 2))


@lru_cache(maxsize=256)
def ring_shape(problem: ConvProblem, arch: Arch) -> RingShape | None:
    """The shape that is used, None if no shape fits: of all cuts into units the one whose busiest compute unit has least to do."""
    images, rows, width, _ = _extent(problem)
    if registers(problem, 1) > _MOST_REGISTERS:
        return _long(problem, arch, images, width)
    best: tuple[float, RingShape] | None = None
    for cost, figures in _figures(problem, images, width):
        for parts in range(1, min(rows, _MOST_PARTS) + 1):
            made = fitted(problem, arch, rows=-(-rows // parts), **figures)
            load = cost * _load(problem, arch, made) if made is not None else 0.0
            if made is not None and (best is None or load < best[0]):
                best = load, made
    return best[1] if best else None


def _long(problem: ConvProblem, arch: Arch, images: int, width: int) -> RingShape | None:
    """The shape for depthwise filters whose weights are in shared memory: four rows at once, two tiles of 16 pixels."""
    depth, rows, columns = three(problem.filter, 1)
    if problem.Cg > 1 or depth > 1 or set(problem.stride) != {1}:
        return None
    together = min(images, 4 if width <= 8 else 2 if width <= 16 else 1)
    strip = -(-width // -(-width // 32))
    tiles = -(-together * -(-strip // 8) // 2)
    return fitted(problem, arch, channels=32, strip=strip, images=together, rows=min(4, rows), ring=4, stage_rows=1, waves=1,
                  tiles=tiles, wave_channels=8, weights=-(-rows * -(-columns // 2) * 33 * 4 // 16) * 16)


def _figures(problem: ConvProblem, images: int, width: int) -> Iterator[tuple[float, dict[str, int]]]:
    """Figures to choose from, with what a pixel costs (measured on an H200, docs/performance.md; the best of a class: 1).

    Few channels a group: one tile of 16 pixels a wave, of 8 channels where 16 would leave room for few waves (7x7: 53.7 us instead
    of 87.6). More channels: tiles of several images or wider strips, so that weights serve more.
    """
    wide = problem.Cg >= 16 and not is_pairs(problem)
    if wide and width > 16:
        strip = -(-width // -(-width // 32))
        waves = 2 if problem.Cg == 32 else 1
        yield 1.0, dict(channels=64, strip=strip, images=1, ring=3, stage_rows=2, waves=waves, tiles=2 // waves)
    if wide and width <= 16:
        halves = -(-width // 8)
        for together, cost in ((4, 1.0), (2, 1.05)):
            tiles = together * halves // 2
            waves = min(tiles, 2 if problem.Cg == 32 or together == 4 else 1)
            if together <= images:
                yield cost, dict(channels=64, strip=width, images=together, ring=5, stage_rows=1, waves=waves, tiles=tiles // waves)
    strip, together = -(-width // -(-width // 16)), min(images, 2) if width <= 8 else 1
    if problem.Cg <= 8 and not is_pairs(problem) and registers(problem, 1) > _CROWDED:
        yield 1.0, dict(channels=32, strip=strip, images=together, ring=3, stage_rows=4, waves=1, tiles=1, wave_channels=8)
        return
    yield 1.15 if wide else 1.0, dict(channels=64, strip=strip, images=together, ring=3, stage_rows=2, waves=1, tiles=1)


def _load(problem: ConvProblem, arch: Arch, shape: RingShape) -> float:
    """Source rows of half tiles that the busiest compute unit reads, each unit with something for its beginning; more for fewer blocks."""
    across, units = shape.blocks_across(problem), shape.units(problem)
    splits = shape.splits(problem, arch)
    step = three(problem.stride, 1)[1] if problem.direction == "forward" else 1
    source_rows = (shape.rows - 1) * step + _taps(problem)[1] + _UNIT_ROWS
    resident = min(shape.blocks, -(-splits * across // arch.compute_units))
    idle = 1 + _IDLE_COST * (shape.blocks - resident) / shape.blocks
    halves = shape.images * -(-shape.strip // 8)
    return -(-splits * across // arch.compute_units) * -(-units // splits) * source_rows * halves * idle


def fitted(problem: ConvProblem, arch: Arch, *, channels: int, strip: int, images: int, rows: int, ring: int, stage_rows: int, waves: int,
           tiles: int, blocks: int = 0, wave_channels: int = 16, weights: int = 0) -> RingShape | None:
    """The shape with what follows from its figures; None if it does not fit."""
    step = three(problem.stride, 1)[2] if problem.direction == "forward" else 1
    depth, _, columns = _taps(problem)
    segment = -(-((-(-strip // 8) * 8 - 1) * step + columns) // 8) * 8
    made = RingShape(channels, strip, images, rows, ring, stage_rows, waves, tiles, 1, segment, depth, is_pairs(problem),
                     wave_channels, weights)
    needed = made.shared(True)
    if segment > 256 or needed > arch.lds or 2 * waves * tiles < images * -(-strip // 8):
        return None
    least = _LONG_REGISTERS if weights else registers(problem, tiles, wave_channels)
    return replace(made, blocks=blocks or _resident(arch, made.consumers + 1, least, needed))
