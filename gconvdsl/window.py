"""Window staging: whether a tile's rows can be a box of output positions whose window of the input is staged once for all taps.

A K step is then all taps of a chunk of channels: ``block.k = taps x chunk``. The device side: backends/include/gconv/window.hpp,
which computes the same geometry at compile time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from .archs import Instruction
from .config import Tile
from .dtypes import DTYPES
from .problem import ConvProblem

__all__ = ["Window", "find_window"]

_PAD_BYTES = 16
_RUN = 8                            # rows that one phase of an LDS read takes
_ONE_ROW_A_LANE = ("mfma", "wmma", "mma_m16n8k16")


@dataclass(frozen=True)
class Window:
    """``box``: output positions (d, h, w) of a block in each of ``images`` images; ``pixels``: of their windows; ``chunk``:
    channels a step."""

    box: tuple[int, int, int]
    images: int
    pixels: int
    chunk: int
    pack: int = 1

    def bytes(self, dtype: str, merge: int) -> int:
        """LDS of the window: each pixel holds the chunk of every merged group and 16 bytes of padding."""
        return self.pixels * (merge // self.pack * self.chunk * DTYPES[dtype].bytes + _PAD_BYTES)

    def blocks(self, problem: ConvProblem) -> int:
        """Boxes that cover all images."""
        return -(-problem.N // self.images) * math.prod(-(-size // part) for size, part in zip(_target(problem), self.box))


def find_window(problem: ConvProblem, tile: Tile, instruction: Instruction, merge: int, room: int) -> Window | None:
    """The window staging of a tile, or None where the tile is staged row by row.

    ``room``: bytes of LDS that the window may take.
    """
    chunk, pack = _chunk(problem, tile, instruction, merge)
    if not chunk or not problem.N:
        return None
    boxes = [_window(problem, box, tile.m, chunk, pack) for box in _boxes(problem, tile.m)]
    fitting = [one for one in boxes if one.bytes(problem.dtype, merge) <= room]
    return min(fitting, key=lambda one: _cost(problem, one, tile.m), default=None)


def _chunk(problem: ConvProblem, tile: Tile, instruction: Instruction, merge: int) -> tuple[int, int]:
    """Channels a K step, 0 where the tile does not ask for a window, and groups packed together."""
    forward = problem.direction == "forward"
    if not forward and (problem.direction != "bwd_data" or math.prod(problem.stride) != 1):
        return 0, 1
    channels, tensor = (problem.Cg, "x") if forward else (problem.Kg, "y")
    chunk, rest = divmod(tile.k, problem.taps)
    pack = chunk // channels if chunk > channels and chunk % channels == 0 else 1
    others = (problem.Kg if forward else problem.Cg) * pack
    fits = problem.taps > 1 and not rest and chunk and chunk % instruction.k == 0 and channels * pack % chunk == 0
    fits = fits and (pack == 1 or (merge % pack == 0 and others <= tile.n and _neighbours(problem)))
    one_row = instruction.name.startswith(_ONE_ROW_A_LANE)
    return (chunk, pack) if fits and one_row and (problem.views()[tensor].c == 1 or channels == 1) else (0, 1)


def _neighbours(problem: ConvProblem) -> bool:
    """Whether the channels of neighbouring groups follow each other in memory, in x and in y."""
    views = problem.views()
    return views["x"].g == problem.Cg and views["y"].g == problem.Kg


def _target(problem: ConvProblem) -> tuple[int, int, int]:
    sizes = problem.output if problem.direction == "forward" else problem.input
    padded = (1,) * (3 - len(sizes)) + tuple(sizes)
    return padded[0], padded[1], padded[2]


def _cuts(size: int, limit: int) -> list[int]:
    """Box sizes worth trying along an axis: the axis in equal parts, and powers of two."""
    parts = {-(-size // n) for n in (1, 2, 3, 4, 6, 8)} | {1 << n for n in range(9)}
    return sorted(one for one in parts if one <= min(size, limit))


def _widths(size: int, limit: int) -> list[int]:
    """The same for w, also rounded up to whole runs: a box that is wider than the image has rows that are never stored."""
    cuts = _cuts(size, limit)
    return sorted({*cuts, *(-(-one // _RUN) * _RUN for one in cuts if -(-one // _RUN) * _RUN <= limit)})


def _boxes(problem: ConvProblem, rows: int) -> list[tuple[int, int, int]]:
    d_size, h_size, w_size = _target(problem)
    boxes = product(_cuts(d_size, rows), _cuts(h_size, rows), _widths(w_size, rows))
    return [(d, h, w) for d, h, w in boxes if d * h * w <= rows]


def _window(problem: ConvProblem, box: tuple[int, int, int], rows: int, chunk: int, pack: int) -> Window:
    images = max(1, min(problem.N, rows // math.prod(box)))
    return Window(box, images, images * math.prod(_reach(problem, box)), chunk, pack)


def _reach(problem: ConvProblem, box: tuple[int, int, int]) -> list[int]:
    """Window sizes along d, h, w."""
    pad = 3 - problem.ndim
    stride = [1] * pad + list(problem.stride)
    span = [0] * pad + [(f - 1) * d for f, d in zip(problem.filter, problem.dilation)]
    return [(size - 1) * step + more + 1 for size, step, more in zip(box, stride, span)]


def _cost(problem: ConvProblem, window: Window, rows: int) -> float:
    """Pixels that all blocks load, with half a pixel for each row that they compute.

    Where runs of 8 rows are not neighbours along w, reading them from LDS meets bank conflicts.
    """
    return window.blocks(problem) * (window.pixels + (0.5 if window.box[2] % _RUN == 0 else 0.8) * rows)
