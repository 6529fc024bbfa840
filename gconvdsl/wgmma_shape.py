"""The shape of the work of warpgroup matrix kernels (wgmma, sm_90) for forward and bwd_data.

Device code: backends/include/gconv/wgmma.hpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Iterator

from .archs import Arch
from .dtypes import DTYPES
from .plan import three
from .problem import ConvProblem

__all__ = ["CHUNK", "LINE", "ConvShape", "conv_shape", "conv_shapes", "depth_columns", "flat_pixels", "source_sizes"]

LINE = 128                          # bytes of a line of an operand in LDS: 64 channels of a pixel
CHUNK = 64
_ALIGNMENT = 1024                   # of operands in LDS
_MOST_BOX = 256
_MOST_STAGES = 8
_FEWEST_STAGES = 3                  # of streamed weights
_TILES = ((1, 8, 8), (1, 1, 64), (8, 1, 8))
_SUMS = {2: 176, 3: 104}            # registers for sums that a thread has, by warpgroups
# Cycles, fitted to times of an H200: of a byte to store, of a tile beyond its products, and the clock rate lost under load.
_CYCLES_A_BYTE, _CYCLES_A_TILE, _SLOWER = 1 / 25, 1900, 1.17
_BYTES_A_CYCLE = 28                 # that a multiprocessor gets from the second-level cache


@dataclass(frozen=True)
class ConvShape:
    """``tile``: images, rows and columns of the 64 pixels of an instruction; ``count``: such tiles of a block along each.

    ``columns``: channels of an instruction; ``warpgroups`` that multiply; ``windows`` and ``weights``: stages; ``resident``: all
    weights at once.
    """

    tile: tuple[int, int, int]
    count: tuple[int, int, int]
    columns: int
    warpgroups: int
    windows: int = 2
    weights: int = 1
    resident: bool = False

    @property
    def images_first(self) -> bool:
        """Whether images are the innermost axis of the window."""
        return self.tile[0] > 1

    @property
    def block(self) -> tuple[int, int, int]:
        """Images, rows and columns of a block's results."""
        n, h, w = (size * count for size, count in zip(self.tile, self.count))
        return n, h, w

    @property
    def tiles(self) -> int:
        return math.prod(self.count)

    @property
    def own_tiles(self) -> int:
        """Tiles of a block that one warpgroup multiplies."""
        return self.tiles // self.warpgroups

    def window(self, problem: ConvProblem) -> tuple[int, int, int]:
        """Images, rows and columns of the window of source pixels; columns are rounded up to whole pieces."""
        n, h, w = self.block
        (_, fh, fw), (_, dh, dw) = three(problem.filter, 1), three(problem.dilation, 1)
        width = w + (fw - 1) * dw
        piece = self.piece(problem)
        return n, h + (fh - 1) * dh, -(-width // piece) * piece

    def piece(self, problem: ConvProblem) -> int:
        """Columns that one copy brings: all of them, or equal parts in units of 8."""
        width = self.block[2] + (three(problem.filter, 1)[2] - 1) * three(problem.dilation, 1)[2]
        pieces = -(-width // _MOST_BOX)
        return width if pieces == 1 else -(-width // (8 * pieces)) * 8

    def weight_rows(self, problem: ConvProblem) -> int:
        """Lines of a stage of weights."""
        return self.columns if problem.direction == "forward" else -(-self.columns // CHUNK) * CHUNK

    def lds(self, problem: ConvProblem) -> int:
        """Bytes of LDS, as wgmma.hpp counts them."""
        window = -(-math.prod(self.window(problem)) * LINE // _ALIGNMENT) * _ALIGNMENT
        stages = _weight_stages(problem) if self.resident else self.weights
        staging = self.warpgroups * 4 * 16 * (64 * DTYPES[problem.out_dtype].bytes + 16)
        barriers = 16 * (self.windows + stages)
        return self.windows * window + stages * self.weight_rows(problem) * LINE + staging + barriers + _ALIGNMENT

    def blocks(self, problem: ConvProblem) -> int:
        """Blocks of results, of which a persistent block computes a share."""
        n, h, w = self.block
        images, (_, height, width) = source_sizes(problem, problem.result)
        columns = depth_columns(problem)[1]
        return -(-images // n) * -(-height // h) * -(-width // w) * problem.G * -(-columns // self.columns)


def depth_columns(problem: ConvProblem) -> tuple[int, int]:
    """Channels of a group that are summed over, and channels of a group of the result."""
    return (problem.Cg, problem.Kg) if problem.direction == "forward" else (problem.Kg, problem.Cg)


def flat_pixels(problem: ConvProblem) -> int:
    """All pixels, where they may be taken as one row: no filter, no stride, no padding; else 0."""
    plain = math.prod(problem.filter) == math.prod(problem.stride) == 1 and not any(map(any, problem.pad))
    return problem.N * math.prod(problem.input) if plain else 0


def source_sizes(problem: ConvProblem, tensor: str) -> tuple[int, tuple[int, int, int]]:
    """Images and (d, h, w) of x or y, as the kernels see them."""
    flat = flat_pixels(problem)
    if flat:
        return 1, (1, 1, flat)
    return problem.N, three(problem.input if tensor == "x" else problem.output, 1)


def _weight_stages(problem: ConvProblem) -> int:
    return -(-depth_columns(problem)[0] // CHUNK) * math.prod(problem.filter)


@lru_cache(maxsize=256)
def conv_shape(problem: ConvProblem, arch: Arch) -> ConvShape | None:
    """The shape that should be fastest, None if there is none that the arch can run."""
    return min(conv_shapes(problem, arch), key=lambda shape: _cycles(problem, shape, arch), default=None)


def conv_shapes(problem: ConvProblem, arch: Arch) -> Iterator[ConvShape]:
    """All shapes, each with as many stages as are useful and fit."""
    columns = depth_columns(problem)[1]
    widths = sorted({-(-columns // parts // 8) * 8 for parts in range(1, 9)} & set(range(8, 257)))
    flat, images = flat_pixels(problem), source_sizes(problem, "x")[0]
    for tile, width, warpgroups, resident, tiles in product(_TILES, widths, (2, 3), (False, True), (1, 2, 3, 4)):
        if tiles * width // 2 > _SUMS[warpgroups] or tile[0] > images or (flat and tile[2] < 64):
            continue
        for count in _counts(tile, warpgroups * tiles):
            shape = _with_stages(problem, ConvShape(tile, count, width, warpgroups, resident=resident), arch)
            if shape is not None:
                yield shape


def _counts(tile: tuple[int, int, int], tiles: int) -> Iterator[tuple[int, int, int]]:
    for n, h in product(range(1, tiles + 1), repeat=2):
        line, images = tile[2] == 64, tile[0] > 1
        if tiles % (n * h) == 0 and not (line and n * h > 1) and not (images and n > 1):
            yield n, h, tiles // (n * h)


def _with_stages(problem: ConvProblem, shape: ConvShape, arch: Arch) -> ConvShape | None:
    n, h, w = shape.window(problem)
    if max(n, h) > _MOST_BOX or (w > _MOST_BOX and n * h > 1):
        return None
    weights = 1 if shape.resident else min(_MOST_STAGES, _weight_stages(problem))
    wanted = max(2, min(_MOST_STAGES, 1 + -(-_MOST_STAGES // math.prod(problem.filter))))
    for windows in range(wanted, 1, -1):
        for stages in range(weights, min(_FEWEST_STAGES, weights) - 1, -1):
            made = replace(shape, windows=windows, weights=stages)
            if made.lds(problem) <= arch.lds:
                return made
    return None


def _cycles(problem: ConvProblem, shape: ConvShape, arch: Arch) -> float:
    """Predicted cycles of the whole launch."""
    depth, _ = depth_columns(problem)
    taps, chunks = math.prod(problem.filter), -(-depth // CHUNK)
    steps = taps * -(-depth // 16) if depth % CHUNK else taps * chunks * 4
    products = steps * shape.tiles * max(shape.columns / 2, 18 + shape.columns / 4)     # the second is what reading LDS takes
    loads = chunks * LINE * (math.prod(shape.window(problem)) + (0 if shape.resident else taps * shape.weight_rows(problem)))
    stored = shape.tiles * 64 * shape.columns * DTYPES[problem.out_dtype].bytes
    waves = -(-shape.blocks(problem) // arch.compute_units)
    main, rest = max(products * _SLOWER, loads / _BYTES_A_CYCLE), _CYCLES_A_TILE + stored * _CYCLES_A_BYTE
    return waves * (main + rest) + loads / _BYTES_A_CYCLE / (chunks * taps)
