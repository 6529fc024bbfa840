"""How far the offsets of a block reach, and the pieces that images are cut into where 32 bits would not do (split_image).

Device code adds 32-bit byte offsets to 64-bit base pointers of a block's first image. Where one image is too large for that, the
result's first spatial axis is cut into pieces, each a convolution of its own (backends/include/gconv/pieces.hpp); where that is
not to be had either, offsets have 64 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .config import KernelConfig, Tile
from .dtypes import DTYPES
from .problem import ConvProblem

__all__ = ["Pieces", "find_pieces", "offset_bits"]

_LIMIT = 1 << 31            # bytes
_MOST_PIECES = 1 << 16      # of a launch


@dataclass(frozen=True)
class Pieces:
    """``rows`` of the result's first spatial axis in a piece, the last piece of an image being the rest; ``count`` pieces of all
    images; ``problem``: the convolution of one whole piece of one image."""

    rows: int
    count: int
    problem: ConvProblem


def find_pieces(problem: ConvProblem, config: KernelConfig, tile: Tile) -> Pieces | None:
    """The pieces that split_image asks for, or that it takes to stay within 32-bit offsets; None where images stay whole.

    Forced on an image that needs no cut, two pieces. bwd_weight has no image to cut, and a split reduction is not cut further.
    """
    if problem.direction == "bwd_weight" or not problem.N or config.split_image is False or (config.split_k or 1) > 1:
        return None
    size = (problem.output if problem.direction == "forward" else problem.input)[0]
    most = size
    while most > 1 and not _fits(_piece(problem, most), tile, problem):
        most = -(-most // 2)
    whole = most == size and offset_bits(problem, tile, 1) == 32
    if whole and not config.split_image:
        return None
    rows = -(-size // 2) if whole else most
    count = problem.N * -(-size // rows)
    if not _fits(_piece(problem, rows), tile, problem) or (count >= _MOST_PIECES and not config.split_image):
        return None
    return Pieces(rows, count, _piece(problem, rows))


def _piece(problem: ConvProblem, rows: int) -> ConvProblem:
    """The convolution of ``rows`` rows of the result of one image, with all the input that they see."""
    step, reach = problem.stride[0], (problem.filter[0] - 1) * problem.dilation[0]
    forward = problem.direction == "forward"
    size = (rows - 1) * step + reach + 1 if forward else rows
    pad = (0, 0) if forward else (reach, reach)
    return problem.replace(N=1, input=(size, *problem.input[1:]), pad=(pad, *problem.pad[1:]))


def _fits(piece: ConvProblem, tile: Tile, whole: ConvProblem) -> bool:
    """Whether 32 bits reach over a piece, at the strides of the whole image."""
    sizes = {tensor: whole.view(tensor, piece.sizes(tensor)).flat() for tensor in "xy"}
    spans = [sum((size - 1) * step for size, step in zip(sizes[t], whole.views()[t].flat())) for t in "xy"]
    return max(spans) * DTYPES[whole.dtype].bytes < _LIMIT and _weights_fit(whole)


def offset_bits(problem: ConvProblem, tile: Tile, splits: int) -> int:
    """32 where every byte offset inside a block fits: the images a block touches, and one group's weights."""
    size = DTYPES[problem.dtype].bytes
    pixels = max(1, math.prod(problem.output))
    rows = -(-problem.gemm.k // splits) if problem.direction == "bwd_weight" else tile.m
    images = min(problem.N, -(-rows // pixels) + 1)
    spans = [images * math.prod(problem.shape(t)[1:] if problem.N else ()) * size for t in "xy"]
    return 32 if max(spans) < _LIMIT and _weights_fit(problem) else 64


def _weights_fit(problem: ConvProblem) -> bool:
    return math.prod(problem.shape("w")) * max(DTYPES[problem.dtype].bytes, 4) < _LIMIT
