"""Layouts: the order of axes in memory and of the NumPy shape.

A layout is named by the axes of x: ``n`` image, ``d h w`` space, ``g`` group, ``c`` channel within the group. Weights use ``k``
(output channel within the group) and ``z y x`` (filter positions), outputs ``k`` in place of ``c``. A fused name has no
``g``: its channel axis runs over all groups. Fused and split forms of one order are the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import error

__all__ = ["LAYOUTS", "Layout", "default_layout", "layout"]


@dataclass(frozen=True)
class Layout:
    """One layout. ``x``, ``w`` and ``y`` are the axes of the split shapes; see `fused` for those of the fused ones."""

    name: str
    ndim: int
    split: bool
    channels_first: bool

    @property
    def spatial(self) -> str:
        """The letters of the spatial axes, outermost first."""
        return "dhw"[3 - self.ndim:]

    @property
    def taps(self) -> str:
        """The letters of the filter axes, outermost first."""
        return "zyx"[3 - self.ndim:]

    def axes(self, tensor: str) -> str:
        """The axes of the split shape of ``"x"``, ``"w"`` or ``"y"``, outermost first."""
        rows = {"x": ("n", "c", self.spatial), "w": ("k", "c", self.taps), "y": ("n", "k", self.spatial)}
        if tensor not in rows:
            raise error("usage.option", what="The tensor", value=tensor,
                        hint="Use x, w or y; gradients have the shapes of what they are of.")
        outer, inner, space = rows[tensor]
        if tensor == "w":
            return f"gk{inner}{space}" if self.channels_first else f"gk{space}{inner}"
        return f"{outer}g{inner}{space}" if self.channels_first else f"{outer}{space}g{inner}"

    def fused_axes(self, tensor: str) -> str:
        """The axes of the fused shape: without ``g``; the axis after it runs over all groups."""
        return self.axes(tensor).replace("g", "")


def _make(ndim: int, split: bool, channels_first: bool) -> Layout:
    shape = Layout("", ndim, split, channels_first)
    return Layout(shape.axes("x") if split else shape.fused_axes("x"), ndim, split, channels_first)


LAYOUTS: dict[str, Layout] = {
    made.name: made
    for made in (_make(ndim, split, first) for ndim in (1, 2, 3) for first in (False, True) for split in (True, False))
}


def default_layout(ndim: int) -> Layout:
    """Split channels-last: nwgc, nhwgc, ndhwgc."""
    return next(each for each in LAYOUTS.values() if each.ndim == ndim)


def layout(name: object, ndim: int) -> Layout:
    """The layout of this name (in either case) for ``ndim`` spatial axes; ``problem.layout`` if there is none."""
    found = LAYOUTS.get(str(name).lower())
    if found is None or found.ndim != ndim:
        allowed = ", ".join(each.name for each in LAYOUTS.values() if each.ndim == ndim)
        raise error("problem.layout", value=name, ndim=ndim, allowed=allowed)
    return found
