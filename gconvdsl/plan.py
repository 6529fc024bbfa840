"""What a lowering hands to a backend: launches, the argument block, and the workspace.

The argument block is the C struct ``gconv::ConvArgs`` of backends/include/gconv/args.hpp, packed here with the same layout.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Mapping, Sequence

if TYPE_CHECKING:
    from .tensor_map import TensorMap

__all__ = ["ArgumentBlock", "ConvArgs", "GRID_THREADS", "GRID_X", "GRID_YZ", "Launch", "Lowered", "MAX_OPERANDS", "POINTERS", "Plan",
           "TensorView", "addresses", "fast_divisor", "three"]

GRID_X, GRID_THREADS, GRID_YZ = 2 ** 31, 2 ** 32, 2 ** 16
"""Blocks and threads along a grid's x, and blocks along y and z, stay below these: the launch interfaces count in these widths."""

MAX_OPERANDS = 8
_VIEW = "6q"
POINTERS = ("x", "w", "y", "workspace", *range(MAX_OPERANDS))
"""What the pointers at the beginning of the block belong to; operands by index."""
_LAYOUT = struct.Struct(f"<{len(POINTERS)}Q{_VIEW}{_VIEW}{_VIEW}{MAX_OPERANDS}f2i3i3i3ii8I")
_ADDRESSES, _SCALARS = struct.Struct(f"<{len(POINTERS)}Q"), struct.Struct(f"<{MAX_OPERANDS}f")
_SCALARS_AT = struct.calcsize(f"<{len(POINTERS)}Q{_VIEW}{_VIEW}{_VIEW}")


@dataclass(frozen=True)
class TensorView:
    """Element strides of a tensor: ``n`` image or output channel, ``g`` group, ``s`` spatial (d, h, w), ``c`` channel."""

    n: int
    g: int
    s: tuple[int, int, int]
    c: int

    def flat(self) -> tuple[int, ...]:
        return self.n, self.g, *self.s, self.c


def three(values: Sequence[int], missing: int) -> tuple[int, int, int]:
    """1 to 3 per-axis values as (d, h, w), absent leading axes filled with ``missing``."""
    return tuple([missing] * (3 - len(values)) + list(values))  # type: ignore[return-value]


def fast_divisor(d: int) -> tuple[int, int]:
    """(mul, shift) with ``n // d == (n * mul >> 32) >> shift`` for 0 <= n < 2**31; (0, 0) stands for d = 1.

    Round-up method of Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994), for 31-bit n.
    Divisors of 2**31 and more are given as d = 2**31 (n // d is 0 for every n in range).
    """
    d = min(d, 1 << 31)
    if d == 1:
        return 0, 0
    bits = (d - 1).bit_length()
    return -(-(1 << (31 + bits)) // d), bits - 1


@dataclass(frozen=True)
class ConvArgs:
    """The argument block without its pointers; `pack` adds them."""

    xv: TensorView
    wv: TensorView
    yv: TensorView
    N: int
    G: int
    input: tuple[int, int, int]
    output: tuple[int, int, int]
    pad: tuple[int, int, int]
    splits: int = 1

    def pack(self, x: int, w: int, y: int, workspace: int = 0, operands: Mapping[int, int] | None = None,
             scalars: Mapping[int, float] | None = None) -> bytes:
        """The bytes of ``gconv::ConvArgs``; addresses are ints, ``operands`` and ``scalars`` are keyed by operand index."""
        pointers = [(operands or {}).get(i, 0) for i in range(MAX_OPERANDS)]
        numbers = [(scalars or {}).get(i, 0.0) for i in range(MAX_OPERANDS)]
        return _LAYOUT.pack(x, w, y, workspace, *pointers, *self.xv.flat(), *self.wv.flat(), *self.yv.flat(), *numbers,
                            self.N, self.G, *self.input, *self.output, *self.pad, self.splits, *self._divisors())

    def _divisors(self) -> list[int]:
        image = self.output[0] * self.output[1] * self.output[2]
        return [part for d in (*self.output, image) for part in fast_divisor(d)]

    def with_views(self, **views: TensorView) -> ConvArgs:
        """A copy with other strides, for arrays that are not contiguous."""
        changes: dict[str, Any] = {name: view for name, view in views.items() if view != getattr(self, name)}
        return replace(self, **changes) if changes else self


def addresses(args: bytes) -> dict[str, int]:
    """The addresses in a packed argument block, by the operand names of tensor maps."""
    return dict(zip(POINTERS[:4], struct.unpack_from("<4Q", args)))


class ArgumentBlock:
    """The bytes of an argument block, to be copied and filled for each call."""

    def __init__(self, args: ConvArgs) -> None:
        self._bytes = args.pack(0, 0, 0)

    def filled(self, pointers: Sequence[int], scalars: Sequence[float] = ()) -> bytearray:
        """A copy with addresses in the order of `POINTERS`, and all scalars if there are any."""
        block = bytearray(self._bytes)
        _ADDRESSES.pack_into(block, 0, *pointers)
        if scalars:
            _SCALARS.pack_into(block, _SCALARS_AT, *scalars)
        return block


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``grid`` and ``block`` count blocks and threads (GPU-like targets); ``tasks`` counts calls (cpu).

    ``maps``: tensor maps that the kernel gets behind the argument block; their plan is ``dense``. ``overlaps``: its blocks
    may start before the launch in front of it has ended, where the target can do so; the kernel itself waits
    (``hw::wait_for_launches``).
    """

    kernel: str
    grid: tuple[int, int, int] = (1, 1, 1)
    block: int = 1
    shared: int = 0
    tasks: int = 0
    maps: tuple[TensorMap, ...] = ()
    overlaps: bool = False

    @property
    def fits(self) -> bool:
        """Whether the grid can be launched."""
        x, y, z = self.grid
        return x < GRID_X and x * self.block < GRID_THREADS and max(y, z) < GRID_YZ


@dataclass(frozen=True)
class Plan:
    """Launches in order on one stream, the argument block they share, and the bytes of scratch memory they need.

    What the kernels take for granted of the arrays: ``alignment`` in bytes of the addresses and strides of each tensor they move
    in vectors, ``offset_bits`` (32: no block reaches further than with contiguous arrays), and ``dense``: no other strides than
    those of contiguous arrays.
    """

    launches: tuple[Launch, ...]
    args: ConvArgs
    workspace: int = 0
    alignment: tuple[tuple[str, int], ...] = ()
    offset_bits: int = 64
    dense: bool = False


@dataclass(frozen=True)
class Lowered:
    """What a lowering returns: the source text, the plan that launches its kernels, and the configuration in full.

    ``notes`` are sentences for `explain`.
    """

    source: str
    plan: Plan
    config: Any
    notes: tuple[str, ...] = ()

    def with_shared(self, resources: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """A compiler's resources by kernel; ``lds_bytes`` then counts what the launch asks for as well."""
        asked = {launch.kernel: launch.shared for launch in self.plan.launches}
        return {kernel: {**row, "lds_bytes": row.get("lds_bytes", 0) + asked.get(kernel, 0)}
                for kernel, row in resources.items()}
