"""Lowering of wide groups and dense convolution to the warpgroup matrix instructions (wgmma) of sm_90, in all three directions.

Taken when nothing of pipeline and tile is asked for, for 16-bit channels-last tensors of one or two axes with stride 1, on the
target ``cuda`` alone: these instructions have no counterpart elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .archs import arch as find_arch
from .config import KernelConfig
from .dtypes import DTYPES
from .lower_exprs import epilogue_struct
from .lower_source import CPP, DIRECTION, entry, int3
from .plan import ConvArgs, Launch, Lowered, Plan, three
from .problem import ConvProblem
from .spec import KernelSpec
from .tensor_map import TensorMap
from .wgmma_shape import CHUNK, LINE, ConvShape, conv_shape, flat_pixels, source_sizes
from .wgmma_weight_shape import IMAGES, WeightShape, positions, weight_shape

__all__ = ["TARGETS", "is_wgmma", "lower_shape", "lower_wgmma"]

TARGETS = ("cuda",)
"""Where the family is taken. The simulator runs it as well, slowly: tests add it here."""
_ARCHS = ("sm_90",)
_TYPES = {"fp16": "f16", "bf16": "bf16"}
_WIDE = 48                          # channels of a group, in or out; narrower ones leave most of an instruction empty
_NARROWEST = 16
_REDUCE_THREADS = 256
_MOST_PIXELS = 1 << 30              # of all images: they are counted in 32 bits
_MOST_WORKSPACE = 1 << 29           # bytes


def is_wgmma(problem: ConvProblem, arch: str) -> bool:
    """Whether the family serves the problem on this arch."""
    narrow, wide = sorted((problem.Cg, problem.Kg))
    views = problem.views()
    plain = math.prod(problem.stride) == 1 and problem.ndim <= 2 and problem.dtype in _TYPES and problem.N > 0
    if find_arch(arch).name not in _ARCHS or not plain or narrow % 8 or narrow < _NARROWEST or wide < _WIDE:
        return False
    if any(views[t].c != 1 for t in "xwy") or views["w"].n != math.prod(problem.filter) * problem.Cg:
        return False
    if max(problem.N * math.prod(problem.input), problem.N * math.prod(problem.output)) > _MOST_PIXELS:
        return False
    shape = _shape(problem, arch)
    return shape is not None and not any(one.fault() for one in _maps(problem, shape))


def _shape(problem: ConvProblem, arch: str) -> ConvShape | WeightShape | None:
    return (weight_shape if problem.direction == "bwd_weight" else conv_shape)(problem, find_arch(arch))


def lower_wgmma(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, arch: str) -> Lowered:
    """The source and plan; the problem must satisfy `is_wgmma`, and the kernel have no prologue."""
    shape = _shape(problem, arch)
    assert shape is not None, "is_wgmma has been asked"
    return lower_shape(spec, problem, config, arch, shape)


def lower_shape(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, arch: str,
                shape: ConvShape | WeightShape) -> Lowered:
    """The same for a shape that is given."""
    if isinstance(shape, WeightShape):
        plan = _weight_plan(problem, shape)
    else:
        plan = _conv_plan(problem, shape, find_arch(arch).compute_units)
    return Lowered(_source(spec, problem, shape), plan, config, _notes(problem, shape))


def _notes(problem: ConvProblem, shape: ConvShape | WeightShape) -> tuple[str, ...]:
    if isinstance(shape, WeightShape):
        box, k, c = "x".join(map(str, shape.box)), *shape.block[:2]
        notes = [f"wgmma m64n{shape.columns}k16: {k * CHUNK} output by {c * CHUNK} input channels and "
                 f"{shape.block[2] * shape.block[3] * shape.taps} taps a block, boxes of {box} pixels in {IMAGES} images"]
        if shape.splits > 1:
            notes.append(f"{shape.splits} pieces of the reduction, added up in a fixed order from an fp32 workspace")
        return tuple(notes)
    n, h, w = shape.block
    kept = "the weights stay in LDS" if shape.resident else f"weights in {shape.weights} stages"
    source = "x" if problem.direction == "forward" else "dy"
    return (f"wgmma m64n{shape.columns}k16: windows of {source} for {h}x{w} pixels in {n} images, once for all taps; {kept}",)


# --- source text

def _source(spec: KernelSpec, problem: ConvProblem, shape: ConvShape | WeightShape) -> str:
    weight = isinstance(shape, WeightShape)
    facts = [f"static constexpr gconv::Direction kDirection = {DIRECTION[problem.direction]};",
             *(f"using {name} = {int3(getattr(problem, name.lower()))};" for name in ("Filter", "Dilation")),
             *(_weight_facts(problem, shape) if isinstance(shape, WeightShape) else _conv_facts(spec, problem, shape)),
             f"using In = {CPP[problem.dtype]};", f"using Out = {CPP[problem.out_dtype]};", "using Mma = ::Mma;",
             "using Epilogue = ::Epilogue;"]
    body = ['#include "gconv/wgmma_weight.hpp"\n#include "gconv/reduce_pieces.hpp"' if weight else '#include "gconv/wgmma.hpp"']
    if not spec.is_bare:
        body.append('#include "gconv/math.hpp"')
    instruction = _instruction(shape.columns, problem.dtype, weight, problem.direction != "forward")
    body.append(f"\nnamespace {{\n{instruction}\n{epilogue_struct(spec, CPP[problem.out_dtype])}\n")
    body.append("struct Facts {\n" + "\n".join(f"  {line}" for line in facts) + "\n};\n}  // namespace\n")
    body.append(f"using Kernel = gconv::{'WgmmaWeight' if weight else 'WgmmaConv'}<Facts>;")
    body.append(entry("gconv_main", "Kernel::kThreads", 1, "Kernel", maps=2))
    if isinstance(shape, WeightShape) and shape.splits > 1:
        body.append(entry("gconv_reduce", str(_REDUCE_THREADS), 1, "gconv::ReducePieces<Facts>"))
    return "\n".join(body) + "\n"


def _constants(numbers: dict[str, int], flags: dict[str, bool]) -> list[str]:
    return [*(f"static constexpr int {name} = {value};" for name, value in numbers.items()),
            *(f"static constexpr bool {name} = {str(on).lower()};" for name, on in flags.items())]


def _conv_facts(spec: KernelSpec, problem: ConvProblem, shape: ConvShape) -> list[str]:
    numbers = {"kCg": problem.Cg, "kKg": problem.Kg, "kWarpgroups": shape.warpgroups,
               "kTiles": shape.own_tiles, "kPiece": shape.piece(problem), "kWindows": shape.windows,
               "kWeights": shape.weights, "kLds": shape.lds(problem)}
    return [f"using Tile = {int3(shape.tile)};", f"using Count = {int3(shape.count)};",
            *_constants(numbers, {"kImagesFirst": shape.images_first, "kResident": shape.resident,
                                  "kLikeY": any(spec.kind(name) == "like_y" for name in spec.epilogue.operands)})]


def _weight_facts(problem: ConvProblem, shape: WeightShape) -> list[str]:
    names = "kBlockK", "kBlockC", "kBlockRows", "kBlockRuns", "kBoxH", "kBoxW"
    numbers = {"kCg": problem.Cg, "kKg": problem.Kg, "kTaps": shape.taps, "kWarpgroups": shape.warpgroups, "kUnits": shape.units,
               **dict(zip(names, (*shape.block, *shape.box))), "kStages": shape.stages, "kLanes": shape.lanes,
               "kLds": shape.lds(problem)}
    return _constants(numbers, {"kPartial": shape.splits > 1})


def _instruction(columns: int, dtype: str, across_a: bool, across_b: bool) -> str:
    """``struct Mma``: one m64 x ``columns`` x k16 product; ``across``: whether an operand's lines lie across the reduction.

    PTX ISA, wgmma.mma_async: the sums are columns / 2 registers of each thread.
    """
    count, kind = columns // 2, _TYPES[dtype]
    sums, names = ", ".join(f'"+f"(d[{i}])' for i in range(count)), ",".join(f"%{i}" for i in range(count))
    body = (f'    asm volatile("{{\\n.reg .pred p;\\n.reg .b64 a, b;\\nsetp.ne.b32 p, %{count + 4}, 0;\\n"\n'
            f'                 "mov.b64 a, {{%{count}, %{count + 1}}};\\nmov.b64 b, {{%{count + 2}, %{count + 3}}};\\n"\n'
            f'                 "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{names}}}, '
            f'a, b, p, 1, 1, {int(across_a)}, {int(across_b)};\\n}}"\n'
            f'                 : {sums}\n                 : "r"(a), "r"(a_high), "r"(b), "r"(b_high), "r"(accumulate));')
    here = f"gconv::hw::wgmma<{CPP[dtype]}, {columns}, {str(across_a).lower()}, {str(across_b).lower()}>"
    return (f"struct Mma {{\n  static constexpr int N = {columns};\n"
            f"  static GCONV_DEVICE void run(float (&d)[{count}], unsigned a, unsigned a_high, unsigned b, unsigned b_high, "
            f"int accumulate) {{\n"
            f"#if defined(GCONV_PLATFORM_CUDA)\n{body}\n#else\n    {here}(d, a, a_high, b, b_high, accumulate);\n#endif\n"
            "  }\n};")


# --- tensor maps

def _maps(problem: ConvProblem, shape: ConvShape | WeightShape) -> tuple[TensorMap, TensorMap]:
    if isinstance(shape, WeightShape):
        return _position_map(problem, "x", shape.window(problem)), _position_map(problem, "y", shape.box)
    rows = shape.weight_rows(problem)
    return _window_map(problem, shape), _weight_map(problem, rows if problem.direction == "forward" else CHUNK)


def _image_map(problem: ConvProblem, tensor: str, axes: list[tuple[int, int, int]]) -> TensorMap:
    """The map with these axes (size, stride in elements, elements of the box) between a group's channels and groups."""
    size, view = DTYPES[problem.dtype].bytes, problem.views()[tensor]
    channels = problem.Cg if tensor == "x" else problem.Kg
    axes = [*axes, (problem.G, view.g, 1)]
    strides = tuple((stride if count > 1 else channels) * size for count, stride, _ in axes)
    dims, box = (channels, *(one[0] for one in axes)), (CHUNK, *(one[2] for one in axes))
    return TensorMap(tensor, problem.dtype, dims, strides, box, swizzle=LINE)


def _window_map(problem: ConvProblem, shape: ConvShape) -> TensorMap:
    """The source of forward or bwd_data: channels, w, h, images, groups, or with images before w."""
    tensor = "y" if problem.direction == "bwd_data" else "x"
    view, (images, (_, height, width)) = problem.views()[tensor], source_sizes(problem, tensor)
    n, h, _ = shape.window(problem)
    pixels = [(width, view.s[2], shape.piece(problem)), (height, view.s[1], h)]
    image = (images, view.n, n)
    return _image_map(problem, tensor, [image, *pixels] if shape.images_first else [*pixels, image])


def _weight_map(problem: ConvProblem, rows: int) -> TensorMap:
    """w: input channels, taps, output channels, groups; a box is one tap of ``rows`` output channels."""
    size, view, taps = DTYPES[problem.dtype].bytes, problem.views()["w"], math.prod(problem.filter)
    strides = problem.Cg * size, view.n * size, (view.g if problem.G > 1 else view.n) * size
    return TensorMap("w", problem.dtype, (problem.Cg, taps, problem.Kg, problem.G), strides, (CHUNK, 1, rows, 1), swizzle=LINE)


def _position_map(problem: ConvProblem, tensor: str, box: tuple[int, int]) -> TensorMap:
    """x or y of bwd_weight: channels, 8 images or neighbours in a row, w, h, groups."""
    view, flat = problem.views()[tensor], flat_pixels(problem)
    h, w = box
    if flat and flat % IMAGES == 0:
        return _image_map(problem, tensor, [(IMAGES, view.s[2], IMAGES), (flat // IMAGES, IMAGES * view.s[2], w), (1, 0, h)])
    _, height, width = three(problem.input if tensor == "x" else problem.output, 1)
    return _image_map(problem, tensor, [(problem.N, view.n, IMAGES), (width, view.s[2], w), (height, view.s[1], h)])


# --- plan

def _alignment(problem: ConvProblem) -> tuple[tuple[str, int], ...]:
    return ("x", 16), ("w", 16), ("y", 16)


def _conv_plan(problem: ConvProblem, shape: ConvShape, units: int) -> Plan:
    blocks = min(units, shape.blocks(problem))
    launch = Launch("gconv_main", (blocks, 1, 1), 128 * (shape.warpgroups + 1), shape.lds(problem), maps=_maps(problem, shape))
    return Plan((launch,), _args(problem, blocks), alignment=_alignment(problem), dense=True)


def _weight_plan(problem: ConvProblem, shape: WeightShape) -> Plan:
    main = Launch("gconv_main", (shape.blocks(problem), shape.splits, 1), 128 * (shape.warpgroups + 1), shape.lds(problem),
                  maps=_maps(problem, shape))
    args = _args(problem, shape.splits)
    if shape.splits == 1:
        return Plan((main,), args, alignment=_alignment(problem), dense=True)
    elements = math.prod(problem.shape("w"))
    each = _REDUCE_THREADS // shape.lanes * 4
    reduce = Launch("gconv_reduce", (-(-elements // each), 1, 1), _REDUCE_THREADS, 16 * _REDUCE_THREADS)
    return Plan((main, reduce), args, elements * 4 * shape.splits, alignment=_alignment(problem), dense=True)


def _args(problem: ConvProblem, splits: int) -> ConvArgs:
    """The argument block; pixels in one row where they are taken so, positions where those stand for 8 of them."""
    args, flat = problem.args(splits), flat_pixels(problem)
    if problem.direction != "bwd_weight" and flat:
        return replace(args, N=1, input=(1, 1, flat), output=(1, 1, flat))
    if problem.direction == "bwd_weight" and flat and flat % IMAGES == 0:
        _, _, width = positions(problem)
        return replace(args, N=IMAGES, input=(1, 1, width), output=(1, 1, width))
    return args
