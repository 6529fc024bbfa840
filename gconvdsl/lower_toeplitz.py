"""Lowering of depthwise convolution with long rows of taps as Toeplitz products on the matrix units, for NVIDIA GPUs.

Forward and bwd_data, one or two axes, stride and dilation 1, fp16 and bf16 with channels last, channels that are a multiple of 8.
Taken when nothing of pipeline and tile is asked for, where it is expected to be faster than the other families.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .archs import Arch, arch as find_arch
from .config import KernelConfig
from .lower_exprs import epilogue_struct, prologue_struct
from .lower_ring import is_ring
from .lower_source import CPP, DIRECTION, entry, int3
from .plan import Launch, Lowered, Plan, three
from .problem import ConvProblem
from .spec import KernelSpec

__all__ = ["ToeplitzShape", "is_toeplitz", "lower_toeplitz", "toeplitz_shape"]

_TAPS = range(9, 128)               # in a row; shorter ones leave most of a product of 16 columns to zeros
_CHANNELS, _THREADS = 8, 256        # of a block: a wave a channel
_RING_PRODUCTS = 8                  # of the row ring for 128 results, which take as long as transposing them
_MOST_SUMS = 16                     # tiles of 16 x 8 results whose sums a wave keeps (4 registers each), so that two blocks fit
_MOST_SEGMENT_TILES = 8             # of 128 results, which a block of one axis computes
_OTHER_REGISTERS = {1: 28, 2: 36}   # by axes, as compiled
_RESERVED_LDS = 1024                # bytes that the driver takes of every block's shared memory (CUDA programming guide)


@dataclass(frozen=True)
class ToeplitzShape:
    """A launch's shape, by the names of toeplitz_place.hpp: ``tiles`` of 16 rows at once and ``columns`` of 8 results, ``passes``;
    ``steps`` of 16 source columns, the first of which is number ``first``, with ``shift`` columns in front of the first tap;
    ``plane_rows`` source rows of a strip; ``strips`` side by side, ``bands`` of them above each other.
    """

    tiles: int
    columns: int
    passes: int
    first: int
    steps: int
    shift: int
    plane_rows: int
    strips: int
    bands: int

    def products(self, taps: int) -> int:
        """Matrix products that a row of so many taps takes of ``columns`` tiles."""
        low, high = _pieces(taps, self.shift)
        steps = range(self.first, self.first + self.steps)
        return sum(low <= 16 * step - 8 * tile <= high for step in steps for tile in range(self.columns))

    def shared(self, filter: tuple[int, int], segments: bool) -> int:
        """Bytes of shared memory of a block, as toeplitz_place.hpp lays it out."""
        low, high = _pieces(filter[1], self.shift)
        lead = (8 + self.shift - low) // 2 * 2
        line = _up(max(lead + filter[1], lead + high + 18 - self.shift), 8)
        rows, step = 16 * self.tiles * self.passes, 16 * self.steps
        source = rows * 8 - 8 + step if segments else self.plane_rows * (step + 8)
        plane = _up(max(source, rows * (8 if segments else 8 * (self.columns | 1))), 8)
        return (_CHANNELS * plane + step + _CHANNELS * filter[0] * line) * 2 + 4 * _CHANNELS

    def blocks(self, taps: int, shared: int, axes: int, target: Arch) -> int:
        """Blocks that a compute unit holds, by an estimate of the registers."""
        low, high = _pieces(taps, self.shift)
        registers = 4 * self.tiles * self.columns + (high - low) // 8 + 2 + 4 * self.steps + _OTHER_REGISTERS[axes]
        by_registers = target.register_file // (_THREADS * min(target.registers, _up(registers, 8)))
        return max(1, min(by_registers, (target.lds + _RESERVED_LDS) // (shared + _RESERVED_LDS), 6))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _pieces(taps: int, shift: int) -> tuple[int, int]:
    """The first and the last piece of the Toeplitz matrix that is not zero: columns from a tile of results to a step of sources."""
    return 0 if shift >= 8 else -8, (taps + 6 + shift) // 8 * 8


@lru_cache(maxsize=256)
def is_toeplitz(problem: ConvProblem, arch: str) -> bool:
    """Whether the family serves the problem on this arch and is expected to be the fastest. A kernel with a prologue it never serves.

    The row ring multiplies two taps of 128 results at once and reads them in place; this family takes a row of taps in a few products, but
    transposes. Measured on an H200 (bf16, N=16, 512 channels of 1000 pixels): 15 us of the ring against 29 with 9 taps, 57 against 29
    with 31. Sliding windows run outside of the matrix units: 82 us against 33 with 9x9 taps (128 channels of 56x56).
    """
    if toeplitz_shape(problem, arch) is None:
        return False
    _, height, width = three(problem.filter, 1)
    return not is_ring(problem, arch) or height * -(-width // 2) > _RING_PRODUCTS


@lru_cache(maxsize=256)
def toeplitz_shape(problem: ConvProblem, arch: str) -> ToeplitzShape | None:
    """The shape of the launch; None if the family does not serve the problem on this arch."""
    target = find_arch(arch)
    if target.family != "nvidia" or problem.direction == "bwd_weight" or problem.ndim > 2 or not problem.N or not _fits(problem):
        return None
    shape = _segments(problem) if problem.ndim == 1 else _rows(problem)
    return shape if shape.shared(three(problem.filter, 1)[1:], problem.ndim == 1) <= target.lds else None


def _fits(problem: ConvProblem) -> bool:
    """Whether types, channels, taps and strides are among those that the kernel is written for."""
    _, height, width = three(problem.filter, 1)
    views = problem.views()
    contiguous = views["x"].g == views["y"].g == 1 and views["w"].g == height * width and views["w"].s[2] == 1
    types = problem.dtype in ("fp16", "bf16") and problem.out_dtype == problem.dtype
    steps = set(problem.stride) == set(problem.dilation) == {1}
    return types and contiguous and steps and problem.G == problem.C == problem.K and problem.C % _CHANNELS == 0 and width in _TAPS


def _extent(problem: ConvProblem) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Rows and columns of result and source, and how far in front of a result its first tap is."""
    out, into = three(problem.output, 1)[1:], three(problem.input, 1)[1:]
    pads, taps = three([low for low, _ in problem.pad], 0)[1:], three(problem.filter, 1)[1:]
    if problem.direction == "forward":
        return out, into, pads
    return into, out, (taps[0] - 1 - pads[0], taps[1] - 1 - pads[1])


def _segments(problem: ConvProblem) -> ToeplitzShape:
    """One axis: the 16 rows of a product are segments of 8 results."""
    width, taps = _extent(problem)[0][1], problem.filter[0]
    tiles = -(-width // 128)
    each = -(-tiles // -(-tiles // _MOST_SEGMENT_TILES))
    passes = -(-each // 4)
    together = -(-each // passes)
    return ToeplitzShape(together, 1, passes, 0, -(-(taps + 7) // 16), 0, 1, -(-width // (128 * together * passes)), 1)


def _rows(problem: ConvProblem) -> ToeplitzShape:
    """Two axes: the strip as even as its parts can be, and the shift that needs the fewest products."""
    (height, width), (source_height, source_width), (low_h, low_w) = _extent(problem)
    rows, taps = problem.filter
    columns = -(-width // (8 * -(-width // 64)))
    strips = -(-width // (8 * columns))
    bands = -(-height // (16 * min(4, _MOST_SUMS // columns)))
    tiles = -(-height // (16 * bands))
    bands = -(-height // (16 * tiles))
    starts = range(0, bands * 16 * tiles, 16 * tiles)
    plane = max(1, *(min(at + 16 * tiles + rows - 1 - low_h, source_height) - max(0, at - low_h) for at in starts))
    made = []
    for shift in sorted({0, -low_w % 16}):
        first, last = 0, -(-(8 * columns + taps - 1 + shift) // 16) - 1
        if strips == 1:         # steps that lie outside of the image bring nothing but zeros
            first = min(last, max(0, (low_w + shift) // 16))
            last = max(first, min(last, (source_width - 1 + low_w + shift) // 16))
        made.append(ToeplitzShape(tiles, columns, 1, first, last - first + 1, shift, plane, strips, bands))
    return min(made, key=lambda one: one.products(taps))


def lower_toeplitz(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, arch: str) -> Lowered:
    """The source and plan; `toeplitz_shape` must serve the problem, and the kernel have no prologue."""
    shape = toeplitz_shape(problem, arch)
    assert shape is not None, "is_toeplitz has been asked"
    note = (f"Toeplitz products: {shape.tiles} x {shape.columns} tiles of 16 x 8 results a wave, "
            f"{shape.products(problem.filter[-1])} products for a row of taps and 16 rows")
    return Lowered(_source(spec, problem, shape, find_arch(arch)), _plan(problem, shape), config, (note,))


def _source(spec: KernelSpec, problem: ConvProblem, shape: ToeplitzShape, target: Arch) -> str:
    numbers = {"kAxes": problem.ndim, "kTiles": shape.tiles, "kColumns": shape.columns, "kPasses": shape.passes,
               "kFirst": shape.first, "kSteps": shape.steps, "kShift": shape.shift, "kPlaneRows": shape.plane_rows,
               "kStrips": shape.strips, "kBands": shape.bands, "kShared": _shared(problem, shape)}
    facts = [f"static constexpr gconv::Direction kDirection = {DIRECTION[problem.direction]};",
             f"using Filter = {int3(problem.filter)};",
             *(f"static constexpr int {name} = {value};" for name, value in numbers.items()),
             f"static constexpr bool kExpression = {str(not spec.is_bare).lower()};",
             f"using In = {CPP[problem.dtype]};", "using Epilogue = ::Epilogue;"]
    body = ['#include "gconv/toeplitz.hpp"']
    if not spec.is_bare:
        body.append('#include "gconv/math.hpp"')
    body.append(f"\nnamespace {{\n{prologue_struct(spec)}\n{epilogue_struct(spec, CPP[problem.out_dtype])}\n")
    body.append("struct Facts {\n" + "\n".join(f"  {line}" for line in facts) + "\n};\n}  // namespace\n")
    body.append("using Kernel = gconv::Toeplitz<Facts>;")
    blocks = shape.blocks(problem.filter[-1], _shared(problem, shape), problem.ndim, target)
    body.append(entry("gconv_main", "Kernel::kThreads", blocks, "Kernel"))
    return "\n".join(body) + "\n"


def _plan(problem: ConvProblem, shape: ToeplitzShape) -> Plan:
    source, result = ("x", "y") if problem.direction == "forward" else ("y", "x")
    blocks = problem.N * problem.C // _CHANNELS * shape.strips * shape.bands
    launch = Launch("gconv_main", (blocks, 1, 1), _THREADS, _shared(problem, shape))
    return Plan((launch,), problem.args(1), 0, ((source, 16), ("w", 16), (result, 16)), dense=True)


def _shared(problem: ConvProblem, shape: ToeplitzShape) -> int:
    return shape.shared(three(problem.filter, 1)[1:], problem.ndim == 1)
