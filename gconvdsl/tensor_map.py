"""Tensor maps: what the bulk tensor copy engine of sm_90 knows about a tensor, so that one instruction copies a box of it.

A lowering puts maps into its launches (`plan.Launch.maps`); the target encodes them when it launches. The engine's limits are those of
``cuTensorMapEncodeTiled`` in the CUDA driver API. Elements outside the tensor arrive as zeros.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence

from .dtypes import DTYPES

if TYPE_CHECKING:
    from .plan import TensorView

__all__ = ["MAP_BYTES", "TensorMap", "image_map"]

MAP_BYTES = 128
_PLAIN = struct.Struct("<Q5Q4Q5H5H3H22x")
_MOST_BOX, _MOST_STEP, _UNIT = 256, 8, 16
_SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True)
class TensorMap:
    """A tensor of up to five axes, innermost first, and the box that one copy takes out of it.

    ``operand``: "x", "w", "y" or "workspace". ``strides``: bytes between neighbours along every axis but the innermost, whose
    elements are contiguous. ``box``: elements along each axis; with ``steps`` other than 1 only every such element of the box
    arrives. ``swizzle``: bytes (0, 32, 64, 128) in which units of 16 are permuted against bank conflicts; the box's innermost
    axis is at most so long.
    """

    operand: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    swizzle: int = 0

    @property
    def box_bytes(self) -> int:
        """Bytes that arrive with one copy, those outside the tensor counted."""
        elements = 1
        for size, step in zip(self.box, self.steps or (1,) * len(self.box)):
            elements *= -(-size // step)
        return elements * DTYPES[self.dtype].bytes

    def fault(self) -> str:
        """Why the engine cannot take this map, empty if it can."""
        inner = self.box[0] * DTYPES[self.dtype].bytes
        rank = len(self.dims)
        steps = self.steps or (1,) * rank
        if not 1 <= rank <= 5 or (len(self.strides), len(self.box), len(steps)) != (rank - 1, rank, rank):
            return "it has one to five axes"
        if not all(1 <= size <= 1 << 32 for size in self.dims):
            return "axes are 1 to 2^32 long"
        if any(stride % _UNIT or not 0 < stride < 1 << 40 for stride in self.strides):
            return f"strides are multiples of {_UNIT} bytes below 2^40"
        if not all(1 <= size <= _MOST_BOX for size in self.box) or inner % _UNIT:
            return f"boxes are 1 to {_MOST_BOX} long, and whole units of {_UNIT} bytes along the innermost axis"
        if not all(1 <= step <= _MOST_STEP for step in steps):
            return f"steps are 1 to {_MOST_STEP}"
        if self.swizzle not in _SWIZZLES or (self.swizzle and inner > self.swizzle):
            return "the innermost axis of the box is longer than its swizzle"
        return ""

    def plain(self, address: int) -> bytes:
        """The map with its tensor's address as the simulator reads it (platform/sim_copy_engine.hpp)."""
        def five(values: Sequence[int], count: int = 5) -> list[int]:
            return [*values, *[1] * (count - len(values))]
        rank = len(self.dims)
        return _PLAIN.pack(address, *five(self.dims), *five(self.strides, 4), *five(self.box), *five(self.steps or (1,) * rank),
                           rank, DTYPES[self.dtype].bytes, self.swizzle)


def image_map(operand: str, view: TensorView, sizes: Sequence[int], dtype: str, box: Sequence[int], swizzle: int = 0,
              steps: Sequence[int] = ()) -> TensorMap | None:
    """The map of images, None if the engine cannot take it: axes channel (all groups together), w, h, d, n; d only of 3-D problems.

    ``view``: their strides in elements; ``sizes``: n, g, d, h, w, c as in `TensorView`. An axis h that a problem does not have,
    of size 1, keeps its place.
    """
    n, g, d, h, w, c = sizes
    if (view.c != 1 and c > 1) or (view.g != c and g > 1):
        return None
    size = DTYPES[dtype].bytes
    outer = [(w, view.s[2]), (h, view.s[1]), (d, view.s[0]), (n, view.n)]
    if view.s[0] == 0:
        del outer[2]
    # An axis of size 1 is never stepped along, but the engine asks for a stride all the same.
    strides = tuple(g * c * size if count == 1 else stride * size for count, stride in outer)
    made = TensorMap(operand, dtype, (g * c, *(count for count, _ in outer)), strides, tuple(box), tuple(steps), swizzle)
    return None if made.fault() else made
