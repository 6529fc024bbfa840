"""The shape of the work of warpgroup matrix kernels (wgmma, sm_90) for bwd_weight.

Device code: backends/include/gconv/wgmma_weight.hpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Iterator

from .archs import Arch
from .plan import three
from .problem import ConvProblem
from .wgmma_shape import CHUNK, LINE, flat_pixels, source_sizes

__all__ = ["IMAGES", "WeightShape", "weight_shape", "weight_shapes"]

IMAGES = 8                          # of a position: one pixel of so many images, or as many pixels of a row
_POSITION = IMAGES * LINE
_ALIGNMENT = 1024
_MOST_BOX, _MOST_STAGES, _MOST_LANES = 64, 6, 8
_SUMS = {2: 192, 3: 112}            # registers for sums that a thread has, by warpgroups
_WAVES = (1, 2, 3, 4)
# Cycles as in wgmma_shape: of a block beyond its products, of the second kernel; bytes of pieces written and read in one.
_CYCLES_A_BLOCK, _CYCLES_REDUCE, _PIECE_BYTES_A_CYCLE = 3000, 5000, 1700
_SLOWER, _BYTES_A_CYCLE = 1.17, 28


@dataclass(frozen=True)
class WeightShape:
    """``taps`` and ``columns`` of an instruction; ``warpgroups`` that multiply; what a block covers; how the pixels are walked.

    ``block``: chunks of output and of input channels, rows of the filter, runs of taps. ``box``: rows and columns of positions of
    a stage; ``stages``; ``splits`` of the reduction.
    """

    taps: int
    columns: int
    warpgroups: int
    block: tuple[int, int, int, int]
    box: tuple[int, int]
    stages: int = 2
    splits: int = 1

    @property
    def units(self) -> int:
        """Products of one instruction each that a warpgroup keeps the sums of."""
        return math.prod(self.block) // self.warpgroups

    @property
    def lanes(self) -> int:
        """Threads that add up the pieces of one element."""
        return next(lanes for lanes in (_MOST_LANES, 4, 2, 1) if self.splits >= 2 * lanes or lanes == 1)

    def window(self, problem: ConvProblem) -> tuple[int, int]:
        """Rows and columns of the window of x around a box."""
        (h, w), (_, dh, dw) = self.box, three(problem.dilation, 1)
        return h + (self.block[2] - 1) * dh, w + (self.block[3] * self.taps - 1) * dw

    def stage_bytes(self, problem: ConvProblem) -> int:
        positions = math.prod(self.box)
        return (self.block[0] * (positions + positions % 2) + self.block[1] * math.prod(self.window(problem))) * _POSITION

    def lds(self, problem: ConvProblem) -> int:
        """Bytes of LDS, as wgmma_weight.hpp counts them."""
        return self.stages * (self.stage_bytes(problem) + 16) + _ALIGNMENT

    def blocks(self, problem: ConvProblem) -> int:
        """Blocks of one split."""
        k, c, rows, runs = self.block
        _, fh, fw = three(problem.filter, 1)
        across = -(-problem.Kg // (CHUNK * k)) * -(-problem.Cg // (CHUNK * c))
        all_runs = -(-fw // self.taps)
        return problem.G * across * -(-fh // rows) * -(-all_runs // runs)

    def boxes(self, problem: ConvProblem) -> int:
        """Boxes that the pixels of all images are cut into."""
        images, height, width = positions(problem)
        return images * -(-height // self.box[0]) * -(-width // self.box[1])


def positions(problem: ConvProblem) -> tuple[int, int, int]:
    """Groups of images, rows and columns of positions."""
    if flat_pixels(problem) and flat_pixels(problem) % IMAGES == 0:
        return 1, 1, flat_pixels(problem) // IMAGES
    images, (_, height, width) = source_sizes(problem, "y") if not flat_pixels(problem) else (problem.N, three(problem.output, 1))
    return -(-images // IMAGES), height, width


@lru_cache(maxsize=256)
def weight_shape(problem: ConvProblem, arch: Arch) -> WeightShape | None:
    """The shape that should be fastest, None if there is none that the arch can run."""
    return min(weight_shapes(problem, arch), key=lambda shape: _cycles(problem, shape, arch), default=None)


def weight_shapes(problem: ConvProblem, arch: Arch) -> Iterator[WeightShape]:
    """All shapes that are worth a thought, each with as many stages as fit."""
    for shape in _cuts(problem):
        for box in _boxes(problem):
            made = _with_stages(problem, replace(shape, box=box), arch)
            if made is not None:
                blocks, boxes = made.blocks(problem), made.boxes(problem)
                for splits in {max(1, min(boxes, arch.compute_units * waves // blocks)) for waves in _WAVES}:
                    yield replace(made, splits=splits)


def _cuts(problem: ConvProblem) -> Iterator[WeightShape]:
    """What blocks and instructions may cover."""
    _, fh, fw = three(problem.filter, 1)
    for taps, k, c, warpgroups in product((1, 2, 3, 4), (1, 2, 4), (1, 2, 4), (2, 3)):
        columns = CHUNK * taps if taps > 1 else min(CHUNK, -(-problem.Cg // 8) * 8)
        runs = -(-fw // taps)
        fitting = taps <= fw and k * CHUNK < problem.Kg + CHUNK and c * CHUNK < problem.Cg + CHUNK
        parts = [(1, part) for part in range(1, runs + 1) if runs % part == 0]
        parts += [(rows, runs) for rows in range(2, fh + 1) if fh % rows == 0]
        for rows, part in parts if fitting else ():
            units = k * c * rows * part
            if units % warpgroups == 0 and units // warpgroups * columns // 2 <= _SUMS[warpgroups]:
                yield WeightShape(taps, columns, warpgroups, (k, c, rows, part), (1, 1))


def _boxes(problem: ConvProblem) -> Iterator[tuple[int, int]]:
    """Boxes that divide the images, so that nothing outside is multiplied; where there are no neighbours to reach, any."""
    _, height, width = positions(problem)
    if flat_pixels(problem):
        yield from ((1, min(width, w)) for w in (4, 8, 16, 32))
        return
    yield from product(_divisors(height), _divisors(width))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, min(n, _MOST_BOX) + 1) if n % d == 0]


def _with_stages(problem: ConvProblem, shape: WeightShape, arch: Arch) -> WeightShape | None:
    stages = min(_MOST_STAGES, (arch.lds - _ALIGNMENT) // (shape.stage_bytes(problem) + 16))
    return replace(shape, stages=stages) if stages >= 2 and max(shape.window(problem)) <= 256 else None


def _cycles(problem: ConvProblem, shape: WeightShape, arch: Arch) -> float:
    """Predicted cycles of both launches."""
    pairs, stage = (math.prod(shape.box) + 1) // 2, shape.stage_bytes(problem)
    products = pairs * math.prod(shape.block) * max(shape.columns / 2, 19 + shape.columns / 4)      # the second: reading LDS
    waves = -(-shape.blocks(problem) * shape.splits // arch.compute_units)
    boxes = -(-shape.boxes(problem) // shape.splits)
    main = waves * (boxes * max(products * _SLOWER, stage / _BYTES_A_CYCLE) + stage / _BYTES_A_CYCLE + _CYCLES_A_BLOCK)
    pieces = 8 * math.prod(problem.shape("w")) * shape.splits
    return main + (_CYCLES_REDUCE + pieces / _PIECE_BYTES_A_CYCLE if shape.splits > 1 else 0)
