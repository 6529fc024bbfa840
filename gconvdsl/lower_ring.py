"""Lowering of narrow groups and depthwise as a row ring on the matrix units, forward and bwd_data, for NVIDIA GPUs.

Taken when nothing of pipeline and tile is asked for and 16-bit channels-last tensors have C/G = K/G of 1, 2, 4, 8, 16 or 32,
channels that are a multiple of 8, dilation 1, strides of 1 or 2, and a filter whose weights fit into registers (depthwise with
stride 1: into shared memory). Source rows pass through a ring of stages in shared memory, each read once for all vertical taps; on
sm_90 the bulk tensor copy engine brings them.
"""

from __future__ import annotations

import math
from functools import lru_cache

from .archs import Arch, arch as find_arch
from .config import KernelConfig
from .lower_exprs import epilogue_struct, prologue_struct
from .lower_source import CPP, DIRECTION, entry, int3
from .plan import Launch, Lowered, Plan, TensorView, three
from .problem import ConvProblem
from .ring_shape import RingShape, ring_shape
from .spec import KernelSpec
from .tensor_map import TensorMap, image_map

__all__ = ["is_ring", "lower_ring"]

_WIDTHS = (1, 2, 4, 8, 16, 32)
_ENGINE_ARCH = "sm_90"
_UNIT = 8                           # channels of a copy; with 4, without the engine, slower than `lower_depthwise` (x3d: 180 us, 112)


@lru_cache(maxsize=256)
def is_ring(problem: ConvProblem, arch: str) -> bool:
    """Whether the family serves the problem on this arch. A kernel with a prologue it never serves."""
    target = find_arch(arch)
    channels = problem.Cg == problem.Kg and problem.Cg in _WIDTHS and problem.C % _UNIT == 0
    types = problem.dtype in ("fp16", "bf16") and problem.out_dtype == problem.dtype
    if target.family != "nvidia" or not channels or not types or not problem.N or set(problem.dilation) != {1}:
        return False
    return _walks(problem) and _reaches(problem) and ring_shape(problem, target) is not None


def _walks(problem: ConvProblem) -> bool:
    """Whether strides and filter are among those that the kernels are written for."""
    if problem.direction == "forward":
        return max(problem.stride) <= 2
    if problem.direction != "bwd_data":
        return False
    pairs = problem.stride == (2, 2) and all(size % 2 and size > 1 for size in problem.filter)
    return set(problem.stride) == {1} or pairs


def _reaches(problem: ConvProblem) -> bool:
    """Whether channels are neighbours, offsets inside a few images and inside the weights have 32 bits, and axes can be a map's."""
    sizes = [math.prod(problem.shape(tensor)) // max(problem.N, 1) * 8 for tensor in "xy"]
    fits = max(*sizes, math.prod(problem.shape("w")), problem.N * max(three(problem.input, 1)[1:])) < 1 << 31
    return fits and all(_map(problem, tensor, (8, 1, 1, 1), 0) is not None for tensor in "xy")


def _map(problem: ConvProblem, tensor: str, box: tuple[int, ...], swizzle: int) -> TensorMap | None:
    """The map of the images, or, where rows follow each other through all images, of one tall image."""
    view, spatial = problem.views()[tensor], three(problem.input if tensor == "x" else problem.output, 1)
    sizes = (problem.N, problem.G, *spatial, problem.Cg)
    if merges_rows(problem):
        rows = view.n if problem.ndim == 1 else view.s[1]
        view = TensorView(view.n, view.g, (0, rows, view.s[2]), view.c)
        sizes = (1, problem.G, 1, problem.N * spatial[1], spatial[2], problem.Cg)
    if view.s[0]:
        box = (*box[:3], box[3] if len(box) == 5 else 1, box[-1])
    return image_map(tensor, view, sizes, problem.dtype, box, swizzle)


def merges_rows(problem: ConvProblem) -> bool:
    """Whether no tap reaches from one row to another, so that the rows of all images are those of one."""
    if problem.ndim > 2:
        return False
    filter, stride = three(problem.filter, 1), three(problem.stride, 1)
    return filter[1] == stride[1] == 1 and (problem.ndim == 1 or problem.pad[0] == (0, 0))


def lower_ring(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, arch: str) -> Lowered:
    """The source and plan; the problem must satisfy `is_ring`, and the kernel have no prologue."""
    target = find_arch(arch)
    shape = ring_shape(problem, target)
    assert shape is not None, "is_ring has been asked"
    notes = [f"row ring: strips of {shape.strip} pixels in {shape.images} images, {shape.channels} channels, {shape.rows} rows; "
             f"{shape.ring} stages of {shape.stage_rows} rows, {shape.blocks} blocks a unit"]
    if problem.Cg < 8:
        notes.append(f"{8 // problem.Cg} groups packed into each")
    engine = target.name == _ENGINE_ARCH
    return Lowered(_source(spec, problem, shape, engine), _plan(problem, shape, target, engine), config, tuple(notes))


def _source(spec: KernelSpec, problem: ConvProblem, shape: RingShape, engine: bool) -> str:
    w, pads = problem.views()["w"], three([low for low, _ in problem.pad], 0)
    numbers = {"kAxes": problem.ndim, "kUnit": _UNIT, "kCg": problem.Cg, "kBlockChannels": shape.channels,
               "kStrip": shape.strip, "kRows": shape.rows, "kImages": shape.images, "kRing": shape.ring,
               "kStageRows": shape.stage_rows, "kWaveChannels": shape.wave_channels, "kWavesPixels": shape.waves,
               "kTiles": shape.tiles, "kWn": w.n, "kWg": w.g, "kWd": w.s[0], "kWh": w.s[1], "kWw": w.s[2], "kWc": w.c}
    flags = {"kMergeRows": merges_rows(problem), "kOddPadH": pads[1] % 2 == 1, "kOddPadW": pads[2] % 2 == 1,
             "kExpression": not spec.is_bare, "kEngine": engine}
    facts = [f"static constexpr gconv::Direction kDirection = {DIRECTION[problem.direction]};",
             *(f"using {name} = {int3(getattr(problem, name.lower()))};" for name in ("Filter", "Stride")),
             *(f"static constexpr int {name} = {value};" for name, value in numbers.items()),
             *(f"static constexpr bool {name} = {str(on).lower()};" for name, on in flags.items()),
             f"using In = {CPP[problem.dtype]};", "using Epilogue = ::Epilogue;"]
    header, kernel = ("ring_pairs", "RingPairs") if shape.pairs else ("ring_long", "RingLong") if shape.weights else ("ring", "RowRing")
    body = [f'#include "gconv/{header}.hpp"']
    if not spec.is_bare:
        body.append('#include "gconv/math.hpp"')
    body.append(f"\nnamespace {{\n{prologue_struct(spec)}\n{epilogue_struct(spec, CPP[problem.out_dtype])}\n")
    body.append("struct Facts {\n" + "\n".join(f"  {line}" for line in facts) + "\n};\n}  // namespace\n")
    body.append(f"using Kernel = gconv::{kernel}<Facts>;")
    body.append(entry("gconv_main", "Kernel::kThreads", shape.blocks, "Kernel", maps=1 if engine else 0))
    return "\n".join(body) + "\n"


def _plan(problem: ConvProblem, shape: RingShape, target: Arch, engine: bool) -> Plan:
    source, result = ("x", "y") if problem.direction == "forward" else ("y", "x")
    maps: tuple[TensorMap, ...] = ()
    if engine:
        box = (shape.channels, shape.segment, shape.stage_rows, *([shape.planes] if problem.ndim == 3 else []), shape.images)
        wanted = _map(problem, source, box, shape.channels * 2)
        assert wanted is not None, "is_ring has asked for smaller boxes of the same tensor"
        maps = (wanted,)
    splits = shape.splits(problem, target)
    threads = (shape.consumers + (1 if engine else 0)) * target.wave
    launch = Launch("gconv_main", (shape.blocks_across(problem) * splits, 1, 1), threads, shape.shared(engine), maps=maps)
    return Plan((launch,), problem.args(splits), 0, ((source, 2 * _UNIT), ("w", 4), (result, 8)), dense=True)
