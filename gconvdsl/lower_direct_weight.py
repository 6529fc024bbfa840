"""Lowering of bwd_weight for groups with few channels, straight from windows in LDS, for targets that run blocks of threads.

Taken when nothing of pipeline and tile is asked for, 16-bit channels-last tensors have up to 32 channels a group in and out
(packed to 16 where there are fewer), and boxes can be found that divide the images and hold whole instructions of pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from .archs import Arch, Instruction, arch as find_arch
from .config import KernelConfig
from .dtypes import DTYPES
from .lower_source import CPP, DIRECTION, REDUCE_THREADS, entry, int3
from .plan import Launch, Lowered, Plan, three
from .problem import ConvProblem
from .spec import KernelSpec
from .lower_exprs import epilogue_struct, prologue_struct

__all__ = ["is_direct_weight", "lower_direct_weight"]

_TILE = 16                          # channels of a tile, in and out
_MOST_CHANNELS = 32
_LINE = 128                         # bytes of a pixel's channels that a block takes where it can
_PAD_BYTES = 16
_MOST_LDS = 60 * 1024
_MOST_TAPS = 9                      # of one plane of the filter: their sums are registers
_SPLIT_BLOCKS = 4                   # blocks a compute unit


@dataclass(frozen=True)
class _Shape:
    """``pack`` groups as one of whole tiles, ``merge`` of those a block; the box of a step; waves of a block."""

    instruction: Instruction
    pack: int
    merge: int
    box: tuple[int, int, int]
    images: int
    waves: int
    lds: int


def is_direct_weight(problem: ConvProblem, arch: str) -> bool:
    """Whether the family serves the problem on this arch."""
    return _shape(problem, find_arch(arch)) is not None


@lru_cache(maxsize=256)
def _shape(problem: ConvProblem, arch: Arch) -> _Shape | None:
    widest, narrowest = max(problem.Cg, problem.Kg), min(problem.Cg, problem.Kg)
    instruction = arch.instruction(problem.dtype, (16, 8 if arch.family == "nvidia" else 16, 16))
    views, taps = problem.views(), math.prod(problem.filter[-2:])
    narrow = 1 < widest <= _MOST_CHANNELS and taps <= _MOST_TAPS
    fits = problem.direction == "bwd_weight" and problem.dtype != "fp32" and problem.N and narrow
    if not fits or instruction is None or views["x"].g != problem.Cg or views["y"].g != problem.Kg:
        return None
    pack = max(1, _TILE // narrowest)
    whole = all(channels * pack % _TILE == 0 for channels in (problem.Cg, problem.Kg)) and problem.G % pack == 0
    if not whole or widest * pack > _MOST_CHANNELS:
        return None
    size = DTYPES[problem.dtype].bytes
    merge = max(m for m in (1, 2, 4) if problem.G % (m * pack) == 0 and (m == 1 or m * narrowest * pack * size <= _LINE))
    found = _box(problem, pack * merge, instruction.k)
    if found is None:
        return None
    tiles = merge * (problem.Cg * pack // _TILE) * (problem.Kg * pack // _TILE)
    return _Shape(instruction, pack, merge, found[0], found[1], min(tiles, 8), found[2])


def _box(problem: ConvProblem, groups: int, rows: int) -> tuple[tuple[int, int, int], int, int] | None:
    """(box, images, LDS bytes) with the fewest window pixels for each output pixel."""
    size, out = DTYPES[problem.dtype].bytes, three(problem.output, 1)
    best = None
    for images, d, h, w in product(_divisors(problem.N), *map(_divisors, out)):
        pixels = images * d * h * w
        window = images * math.prod(_reach(problem, (d, h, w)))
        lds = window * (groups * problem.Cg * size + _PAD_BYTES) + pixels * (groups * problem.Kg * size + _PAD_BYTES)
        lds += 16  # the second array starts at a multiple of 16
        if pixels % rows == 0 and lds <= _MOST_LDS:
            cost = window / pixels + 32 / pixels
            if best is None or cost < best[0]:
                best = cost, ((d, h, w), images, lds)
    return best[1] if best else None


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, min(n, 64) + 1) if n % d == 0]


def _reach(problem: ConvProblem, box: tuple[int, int, int]) -> list[int]:
    """Window sizes along d (of one plane of the filter), h, w."""
    filter, stride, dilation = three(problem.filter, 1), three(problem.stride, 1), three(problem.dilation, 1)
    taps = (1, *filter[1:])
    return [(b - 1) * s + (f - 1) * d + 1 for b, s, f, d in zip(box, stride, taps, dilation)]


def lower_direct_weight(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, arch: str) -> Lowered:
    """The source and plan; the problem must satisfy `is_direct_weight`."""
    target = find_arch(arch)
    shape = _shape(problem, target)
    assert shape is not None, "is_direct_weight has been asked"
    splits = _splits(problem, shape, target)
    box = "x".join(map(str, shape.box))
    packed = f", {shape.pack} groups packed into each" if shape.pack > 1 else ""
    notes = (f"direct: windows of x and boxes {box} of dy in {shape.images} images, {shape.instruction.name}, "
             f"{shape.merge} tiles of groups a block{packed}",
             f"{splits} pieces of the reduction, added up in order from an fp32 workspace")
    return Lowered(_source(spec, problem, shape), _plan(problem, shape, splits, target), config, notes)


def _boxes(problem: ConvProblem, shape: _Shape) -> int:
    return problem.N // shape.images * math.prod(size // part for size, part in zip(three(problem.output, 1), shape.box))


def _tiles(problem: ConvProblem, shape: _Shape) -> int:
    return problem.G // (shape.pack * shape.merge) * three(problem.filter, 1)[0]


def _splits(problem: ConvProblem, shape: _Shape, target: Arch) -> int:
    """Pieces of the reduction; depends on the problem and the arch only."""
    return max(1, min(_boxes(problem, shape) // 2, target.compute_units * _SPLIT_BLOCKS // _tiles(problem, shape)))


def _source(spec: KernelSpec, problem: ConvProblem, shape: _Shape) -> str:
    size = DTYPES[problem.dtype].bytes
    vectors = {name: next(v for v in (8, 4, 2, 1) if channels * shape.pack % v == 0) for name, channels in
               (("kVecX", problem.Cg), ("kVecY", problem.Kg))}
    numbers = {"kAxes": problem.ndim, "kCg": problem.Cg * shape.pack, "kKg": problem.Kg * shape.pack, "kPack": shape.pack,
               "kMerge": shape.merge, "kBoxImages": shape.images, "kWaves": shape.waves, "kPad": _PAD_BYTES // size,
               "kPlanes": three(problem.filter, 1)[0], **vectors}
    plane = (1, *three(problem.filter, 1)[1:])
    facts = [f"static constexpr gconv::Direction kDirection = {DIRECTION[problem.direction]};",
             f"using Filter = {int3(plane)};",
             *(f"using {name} = {int3(getattr(problem, name.lower()))};" for name in ("Stride", "Dilation")),
             f"using Box = {int3(shape.box)};",
             *(f"static constexpr int {name} = {value};" for name, value in numbers.items()),
             f"using In = {CPP[problem.dtype]};", f"using Out = {CPP[problem.out_dtype]};", "using Offset = unsigned long long;",
             f"using Instruction = gconv::{shape.instruction.name};",
             "using Prologue = ::Prologue;", "using Epilogue = ::Epilogue;"]
    reduce = [f"using Filter = {int3(problem.filter)};", f"static constexpr int kCg = {problem.Cg}, kKg = {problem.Kg};"]
    body = ['#include "gconv/direct_weight.hpp"\n#include "gconv/reduce_splits.hpp"']
    if not spec.is_bare:
        body.append('#include "gconv/math.hpp"')
    body.append(f"\nnamespace {{\n{prologue_struct(spec)}\n{epilogue_struct(spec, CPP[problem.out_dtype])}\n")
    body.append("struct Facts {\n" + "\n".join(f"  {line}" for line in facts) + "\n};")
    body.append("struct Whole : Facts {\n" + "\n".join(f"  {line}" for line in reduce) + "\n};\n}  // namespace\n")
    body.append("using Kernel = gconv::DirectWeight<Facts>;")
    body.append(entry("gconv_main", "Kernel::kThreads", 1, "Kernel"))
    body.append(entry("gconv_reduce", str(REDUCE_THREADS), 1, "gconv::ReduceSplits<Whole>"))
    return "\n".join(body) + "\n"


def _plan(problem: ConvProblem, shape: _Shape, splits: int, target: Arch) -> Plan:
    elements = math.prod(problem.shape("w"))
    blocks = -(-elements // REDUCE_THREADS)
    size = DTYPES[problem.dtype].bytes
    shared = shape.lds if target.family == "nvidia" else 0
    launches = (Launch("gconv_main", (_tiles(problem, shape), splits, 1), shape.waves * target.wave, shared),
                Launch("gconv_reduce", (min(blocks, 65536), -(-blocks // 65536), 1), REDUCE_THREADS))
    channels = (("x", problem.Cg), ("y", problem.Kg))
    vector = {tensor: size * next(v for v in (8, 4, 2, 1) if count * shape.pack % v == 0) for tensor, count in channels}
    return Plan(launches, problem.args(splits), elements * 4 * splits, tuple(vector.items()))
