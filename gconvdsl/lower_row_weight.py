"""Lowering of bwd_weight row by row on the copy engine: groups of up to 32 channels, and depthwise convolution.

Taken when nothing of pipeline and tile is asked for, on archs with the engine, for 16-bit channels-last tensors; the product over
pixels is taken by matrix instructions (backends/include/gconv/row_weight.hpp).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from .archs import Arch, Instruction, arch as find_arch
from .config import KernelConfig
from .dtypes import DTYPES
from .lower_exprs import epilogue_struct
from .lower_source import CPP, DIRECTION, REDUCE_THREADS, entry, int3
from .plan import Launch, Lowered, Plan, three
from .problem import ConvProblem
from .spec import KernelSpec
from .tensor_map import TensorMap, image_map

__all__ = ["is_row_weight", "lower_row_weight"]

_GROUPS = (1, 2, 4, 8, 16, 32)      # channels of a group
_MOST_SUMS = 128                    # registers of a lane
_MOST_TAPS = 32                     # of a column of the filter, all planes
_MOST_BOX = 256                     # pixels of a row that one copy brings
_RESERVED = 1024                    # bytes of LDS that a block has for itself
_MOST_ROWS = 1 << 30
_MORE_FOR_WHOLE = 1.06              # rows of a share, so that it starts and ends with an image


@dataclass(frozen=True)
class RowShape:
    """``channels`` of a block, ``chunks`` of 8 of them a wave; ``images`` and ``halves`` (runs of 8 output pixels) of a row;
    ``pitch`` pixels of a row of x; ``ring`` stages; ``blocks`` of a compute unit; ``splits`` blocks that share the rows,
    ``cluster`` of them together; ``lanes`` of the sum of the pieces that they leave."""

    channels: int
    chunks: int
    images: int
    halves: int
    pitch: int
    ring: int
    blocks: int
    splits: int
    lanes: int
    cluster: int = 1

    @property
    def pieces(self) -> int:
        """That are left to be added up."""
        return self.splits // self.cluster


def is_row_weight(problem: ConvProblem, arch: str) -> bool:
    """Whether the family serves the problem on this arch."""
    return find_shape(problem, find_arch(arch)) is not None


@lru_cache(maxsize=256)
def find_shape(problem: ConvProblem, arch: Arch) -> RowShape | None:
    """How the family cuts the problem, None if it does not serve it."""
    instruction = _instruction(problem, arch)
    if instruction is None or not _served(problem):
        return None
    shape = _shape(problem, arch)
    if shape is None or _rows(problem, shape) >= _MOST_ROWS or None in _maps(problem, shape):
        return None
    return shape


def _instruction(problem: ConvProblem, arch: Arch) -> Instruction | None:
    return arch.instruction(problem.dtype, (16, 8, 16)) if arch.copy_engine and problem.dtype != "fp32" else None


def _served(problem: ConvProblem) -> bool:
    narrow = problem.direction == "bwd_weight" and problem.Cg == problem.Kg and problem.Cg in _GROUPS and problem.C % 8 == 0
    stride, (depth, filter_h, _) = three(problem.stride, 1), three(problem.filter, 1)
    steps = stride[0] == 1 and max(stride[1:]) <= 2 and set(problem.dilation) == {1}
    fits = _sums(problem, 1) <= _MOST_SUMS and depth * filter_h <= _MOST_TAPS
    return bool(narrow and steps and problem.N and fits)


def _tiles(problem: ConvProblem) -> int:
    """Tiles of the instruction that one chunk of input channels takes, over the taps of a column of the filter."""
    (depth, height, _), step = three(problem.filter, 1), three(problem.stride, 1)[1]
    reaches = [-(-(height - r) // step) for r in range(step)]
    if problem.Cg > 8:
        return sum(depth * reach for reach in reaches)
    return -(-depth * reaches[0] // 2) if step == 1 else sum(depth * -(-reach // 2) for reach in reaches)


def _sums(problem: ConvProblem, chunks: int) -> int:
    """Registers of a lane that hold sums."""
    return _tiles(problem) * problem.filter[-1] * 4 * (2 if problem.Cg > 8 else chunks)


def _shape(problem: ConvProblem, arch: Arch) -> RowShape | None:
    """Measured on an H200 (docs/row_weight.md): two blocks a compute unit where registers permit, and deep rings."""
    sums = _sums(problem, 1)
    channels = 32 if sums > 100 and problem.Cg <= 8 else 64
    chunks = 2 if problem.Cg > 8 or sums <= 32 else 1
    runs = -(-three(problem.output, 1)[2] // 8)
    halves = -(-runs // -(-runs // 8))
    wanted = 8 if problem.Cg > 16 or (chunks == 1 and sums <= 100) else 4
    images = 1
    while images * halves * 2 <= wanted and images * 2 <= problem.N:
        images *= 2
    pitch = -(-((halves * 8 - 1) * problem.stride[-1] + problem.filter[-1]) // 8) * 8
    if pitch > _MOST_BOX:
        return None
    part = RowShape(channels, chunks, images, halves, pitch, 1, 1, 1, 1)
    return _filled(problem, arch, replace(part, blocks=1 if _waves(problem, part) > 4 else 2))


def _filled(problem: ConvProblem, arch: Arch, part: RowShape) -> RowShape | None:
    """The ring and the shares of the rows that fill LDS and the device."""
    stage = _stage(problem, part, DTYPES[problem.dtype].bytes)
    ring = min(8, ((arch.lds + _RESERVED) // part.blocks - 3 * _RESERVED) // stage)
    if ring < 2:
        return None
    most = arch.compute_units * part.blocks // -(-problem.C // part.channels)
    splits = _shares(_rows(problem, part), most, three(problem.output, 1)[1])
    sums = _sums(problem, part.chunks) * 4 * _waves(problem, part) * arch.wave
    cluster = 2 if problem.Cg > 16 and splits % 2 == 0 and sums <= ring * stage else 1
    return replace(part, ring=ring, splits=splits, lanes=_lanes(splits // cluster), cluster=cluster)


def _shares(rows: int, most: int, image: int) -> int:
    """Blocks that share the rows: ``most``, or a little fewer where the shares are then whole images of so many rows."""
    each = -(-rows // max(1, min(most, rows)))
    whole = -(-each // image) * image
    return -(-rows // (whole if whole <= each * _MORE_FOR_WHOLE else each))


def _lanes(pieces: int) -> int:
    """Threads that share out the pieces of one sum: about four pieces each, that is one batch of loads."""
    return max(lanes for lanes in (1, 2, 4, 8, 16, 32) if lanes == 1 or lanes * 4 <= pieces)


def _rows(problem: ConvProblem, shape: RowShape) -> int:
    """Rows that the blocks share out: of planes of x, along the output."""
    columns = -(-three(problem.output, 1)[2] // (shape.halves * 8))
    return -(-problem.N // shape.images) * columns * three(problem.input, 1)[0] * three(problem.output, 1)[1]


def _stage(problem: ConvProblem, shape: RowShape, size: int) -> int:
    """Bytes of LDS of a stage: the rows of x and of dy that one step brings."""
    pixels = three(problem.stride, 1)[1] * shape.pitch + three(problem.filter, 1)[0] * shape.halves * 8
    return shape.images * pixels * shape.channels * size


def _lds(problem: ConvProblem, shape: RowShape) -> int:
    return shape.ring * (_stage(problem, shape, DTYPES[problem.dtype].bytes) + 32) + 64 + 1024


def _waves(problem: ConvProblem, shape: RowShape) -> int:
    """Those that multiply."""
    return shape.channels // (8 * shape.chunks) * max(1, problem.Cg // 16)


def _maps(problem: ConvProblem, shape: RowShape) -> tuple[TensorMap | None, TensorMap | None]:
    views, plane = problem.views(), (1,) if problem.ndim == 3 else ()
    swizzle = shape.channels * DTYPES[problem.dtype].bytes
    sizes = {"x": problem.input, "y": problem.output}
    boxes = {"x": (shape.channels, shape.pitch, three(problem.stride, 1)[1], *plane, shape.images),
             "y": (shape.channels, shape.halves * 8, 1, *plane, shape.images)}

    def made(name: str) -> TensorMap | None:
        of = problem.N, problem.G, *three(sizes[name], 1), problem.Cg
        return image_map(name, views[name], of, problem.dtype, boxes[name], swizzle)
    return made("x"), made("y")


def lower_row_weight(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, arch: str) -> Lowered:
    """The source and plan; the problem must satisfy `is_row_weight`."""
    target = find_arch(arch)
    shape = find_shape(problem, target)
    assert shape is not None, "is_row_weight has been asked"
    return lower_shape(spec, problem, config, target, shape)


def lower_shape(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, target: Arch, shape: RowShape) -> Lowered:
    """The source and plan of a shape."""
    instruction = _instruction(problem, target)
    assert instruction is not None
    packed = "" if problem.Cg > 8 else ", 8 channels and two taps a tile"
    notes = (f"by rows: {shape.halves * 8} pixels of {shape.images} images at a time through a ring of {shape.ring}, "
             f"{instruction.name}{packed}", f"{shape.splits} shares of the rows, added up in order{_how(shape)}")
    return Lowered(_source(spec, problem, shape, instruction), _plan(problem, shape, target), config, notes)


def _how(shape: RowShape) -> str:
    together = f" by clusters of {shape.cluster} blocks" if shape.cluster > 1 else ""
    return together if shape.pieces == 1 else f"{together}{', then' if together else ''} from an fp32 workspace"


def _source(spec: KernelSpec, problem: ConvProblem, shape: RowShape, instruction: Instruction) -> str:
    numbers = {"kAxes": problem.ndim, "kCg": problem.Cg, "kKg": problem.Kg, "kChannels": shape.channels, "kChunks": shape.chunks,
               "kImages": shape.images, "kHalves": shape.halves, "kPitch": shape.pitch, "kRing": shape.ring,
               "kLanes": shape.lanes, "kCluster": shape.cluster}
    facts = [f"static constexpr gconv::Direction kDirection = {DIRECTION[problem.direction]};",
             *(f"using {name} = {int3(getattr(problem, name.lower()))};" for name in ("Filter", "Stride")),
             *(f"static constexpr int {name} = {value};" for name, value in numbers.items()),
             f"static constexpr bool kFinish = {str(shape.pieces == 1).lower()};",
             f"using In = {CPP[problem.dtype]};", f"using Out = {CPP[problem.out_dtype]};",
             f"using Instruction = gconv::{instruction.name};", "using Epilogue = ::Epilogue;"]
    body = ['#include "gconv/row_weight.hpp"\n#include "gconv/reduce_taps.hpp"']
    if not spec.is_bare:
        body.append('#include "gconv/math.hpp"')
    body.append(f"\nnamespace {{\n{epilogue_struct(spec, CPP[problem.out_dtype])}\n")
    body.append("struct Facts {\n" + "\n".join(f"  {line}" for line in facts) + "\n};\n}  // namespace\n")
    body.append("using Kernel = gconv::RowWeight<Facts>;")
    body.append(entry("gconv_main", "Kernel::kThreads", shape.blocks, "Kernel", maps=2, cluster=shape.cluster))
    if shape.pieces > 1:
        body.append(entry("gconv_reduce", str(REDUCE_THREADS), 1, "gconv::ReduceTaps<Facts>"))
    return "\n".join(body) + "\n"


def _plan(problem: ConvProblem, shape: RowShape, target: Arch) -> Plan:
    elements = math.prod(problem.shape("w"))
    tiles = -(-problem.C // shape.channels)
    x, y = _maps(problem, shape)
    assert x is not None and y is not None
    threads = _waves(problem, shape) * target.wave
    vectors = REDUCE_THREADS // shape.lanes
    main = Launch("gconv_main", (tiles * shape.splits, 1, 1), threads, _lds(problem, shape), maps=(x, y))
    add = Launch("gconv_reduce", (-(-elements // (4 * vectors)), 1, 1), REDUCE_THREADS, 16 * REDUCE_THREADS, overlaps=True)
    workspace = elements * 4 * shape.pieces if shape.pieces > 1 else 0
    launches = (main, add) if shape.pieces > 1 else (main,)
    return Plan(launches, problem.args(shape.splits), workspace, (("x", 16), ("y", 16)), dense=True)
