"""The shape of a row ring's launch: how the work is cut into blocks, and what a block holds.

The same figures as in backends/include/gconv/ring_place.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .archs import Arch
from .plan import three
from .problem import ConvProblem

__all__ = ["RingShape", "ring_shape"]

_MOST_REGISTERS = 232               # of what a thread keeps, by a count that leaves out what the compiler adds
_OTHER_REGISTERS = 48
_RESERVED_LDS = 1024                # bytes that the driver takes of every block's shared memory (CUDA programming guide)


@dataclass(frozen=True)
class RingShape:
    """``channels`` of a block; a strip of ``strip`` pixels of ``images`` images, in units of ``rows``; ``ring`` stages of ``stage_rows``
    source rows; ``waves`` along the strip with ``tiles`` of 16 pixels each; ``blocks`` that a compute unit holds.

    ``segment``: source pixels of a row; ``planes``: source planes of a stage. ``pairs``: bwd_data with stride 2, where pixels and rows
    are counted in pairs.
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

    def shared(self, engine: bool) -> int:
        """Bytes of shared memory of a block: the ring, room to align it, and two barriers a stage for the copy engine."""
        stage = self.images * self.planes * self.stage_rows * self.segment * self.channels * 2
        return stage * self.ring + 16 * self.channels + (16 * self.ring if engine else 0)

    def blocks_across(self, problem: ConvProblem) -> int:
        """Blocks of channels times strips."""
        return -(-problem.C // self.channels) * -(-_extent(problem)[2] // self.strip)

    def units(self, problem: ConvProblem) -> int:
        """What blocks of the same channels and strip deal out among themselves."""
        images, rows, _, planes = _extent(problem)[0], _extent(problem)[1], 0, _extent(problem)[3]
        return -(-images // self.images) * planes * -(-rows // self.rows)


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


def registers(problem: ConvProblem, tiles: int) -> int:
    """32-bit registers of a thread for weights and live sums, and some for everything else."""
    depth, rows, columns = three(problem.filter, 1)
    weights = depth * rows * columns * (2 if problem.Cg <= 8 else 4 * max(1, problem.Cg // 16))
    if is_pairs(problem):
        live = (_taps(problem)[1] * 2 - 1) * 2
    else:
        live = -(-rows // (three(problem.stride, 1)[1] if problem.direction == "forward" else 1))
    return weights + live * tiles * 8 + _OTHER_REGISTERS


@lru_cache(maxsize=256)
def ring_shape(problem: ConvProblem, arch: Arch) -> RingShape | None:
    """The shape that is used, None if no shape fits."""
    if registers(problem, 1) > _MOST_REGISTERS:
        return None
    images, rows, width, _ = _extent(problem)
    strips = -(-width // 16)
    strip, together = -(-width // strips), min(images, 4 if width <= 8 else 1)
    waves = -(-together * -(-strip // 8) // 2)
    return fitted(problem, arch, channels=64, strip=strip, images=together, rows=rows, ring=3, stage_rows=2, waves=waves, tiles=1)


def fitted(problem: ConvProblem, arch: Arch, *, channels: int, strip: int, images: int, rows: int, ring: int, stage_rows: int, waves: int,
           tiles: int, blocks: int = 0) -> RingShape | None:
    """The shape with what follows from its figures; None if it does not fit."""
    step = three(problem.stride, 1)[2] if problem.direction == "forward" else 1
    depth, _, columns = _taps(problem)
    segment = -(-((-(-strip // 8) * 8 - 1) * step + columns) // 8) * 8
    threads = (waves * channels // 16 + 1) * arch.wave
    made = RingShape(channels, strip, images, rows, ring, stage_rows, waves, tiles, 1, segment, depth, is_pairs(problem))
    needed = made.shared(True)
    if segment > 256 or needed > arch.lds or 2 * waves * tiles < images * -(-strip // 8):
        return None
    by_registers = arch.register_file // (threads * min(255, registers(problem, tiles) + 8))
    most = max(1, min(by_registers, (arch.lds + _RESERVED_LDS) // (needed + _RESERVED_LDS), 8))
    return RingShape(channels, strip, images, rows, ring, stage_rows, waves, tiles, blocks or most, segment, depth, is_pairs(problem))
