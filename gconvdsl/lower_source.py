"""The source text of the kernels for targets that run blocks of threads."""

from __future__ import annotations

from dataclasses import dataclass

from .archs import Instruction
from .config import KernelConfig, Tile
from .dtypes import DTYPES
from .lower_exprs import epilogue_struct, prologue_struct
from .pipelines import PIPELINES
from .problem import ConvProblem
from .reach import Pieces
from .spec import KernelSpec
from .tile_cost import LDS_PAD_BYTES
from .window import Window

__all__ = ["CPP", "DIRECTION", "REDUCE_THREADS", "Shape", "entry", "int3", "source_text"]

REDUCE_THREADS = 256
CPP = {"fp32": "float", "fp16": "gconv::f16", "bf16": "gconv::bf16"}
DIRECTION = {"forward": "gconv::kForward", "bwd_data": "gconv::kBwdData", "bwd_weight": "gconv::kBwdWeight"}


@dataclass(frozen=True)
class Shape:
    """What the launch and the source both need: the resolved tile, its instruction, and how the work is cut."""

    tile: Tile
    instruction: Instruction
    merge: int
    splits: int
    partial: bool
    offset_bits: int
    window: Window | None = None
    wave_groups: int = 1
    prefetch: int = 1
    pieces: Pieces | None = None
    fragment_budget: int = 0

    @property
    def group_waves(self) -> tuple[int, int]:
        """Waves along m and n of one wave group: where waves work in groups, each group covers the whole tile."""
        m, n, _ = self.tile.waves
        return (m // self.wave_groups, n) if m % self.wave_groups == 0 else (m, n // self.wave_groups)


def source_text(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, shape: Shape) -> str:
    """The HIP C++ source of a resolved configuration: compile-time facts, the traced functors, one instantiation."""
    pipeline = PIPELINES[config.pipeline[0]]
    facts = _facts(spec, problem, config, shape)
    body = [f'#include "gconv/conv.hpp"\n#include "gconv/pipeline_{pipeline.name}.hpp"']
    if not spec.is_bare:
        body.append('#include "gconv/math.hpp"')
    body.append(f"\nnamespace {{\n{prologue_struct(spec)}\n{epilogue_struct(spec, CPP[problem.out_dtype])}\n")
    body.append("struct Facts {\n" + "\n".join(f"  {line}" for line in facts) + "\n};\n}  // namespace\n")
    body.append(f"using Kernel = gconv::ConvKernel<Facts, gconv::{pipeline.cpp}>;")
    body.append(entry("gconv_main", "Kernel::kThreads", config.block_per_cu or 1, "Kernel"))
    if shape.partial:
        body.append(entry("gconv_reduce", str(REDUCE_THREADS), 1, "gconv::ReduceSplits<Facts>"))
    return "\n".join(body) + "\n"


def entry(name: str, threads: str, blocks: int, run: str, maps: int = 0, cluster: int = 1) -> str:
    """A kernel that calls ``run::run`` with the argument block and so many tensor maps; ``cluster`` blocks work together."""
    parameters = "".join(f" GCONV_TENSOR_MAP({i})" for i in range(maps))
    passed = "".join(f" GCONV_TENSOR_MAP_ARGUMENT({i})" for i in range(maps))
    together = f" GCONV_CLUSTER({cluster})" if cluster > 1 else ""
    return (f"GCONV_KERNEL void GCONV_LAUNCH_BOUNDS(({threads}), {blocks}){together} {name}(gconv::ConvArgs args{parameters}) "
            f"{{ {run}::run(args{passed}); }}")


def int3(values: tuple[int, ...]) -> str:
    padded = (1,) * (3 - len(values)) + tuple(values)
    return f"gconv::Int3<{', '.join(map(str, padded))}>"


def _facts(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, shape: Shape) -> list[str]:
    constants = {**_sizes(problem, shape), **_pipeline_facts(problem, config, shape)}
    box = shape.window.box if shape.window else (1, 1, 1)
    return [
        f"static constexpr gconv::Direction kDirection = {DIRECTION[problem.direction]};",
        *(f"using {name} = {int3(getattr(problem, name.lower()))};" for name in ("Filter", "Stride", "Dilation")),
        *(f"static constexpr int {name} = {value};" for name, value in constants.items()),
        *(f"static constexpr bool {name} = {str(on).lower()};" for name, on in _flags(spec, problem, config, shape).items()),
        f"using Box = {int3(box)};",
        f"using In = {CPP[problem.dtype]};",
        f"using Out = {CPP[problem.out_dtype]};",
        f"using Offset = {'unsigned' if shape.offset_bits == 32 else 'unsigned long long'};",
        f"using Instruction = gconv::{shape.instruction.name};",
        "using Prologue = ::Prologue;",
        "using Epilogue = ::Epilogue;",
    ]


def _sizes(problem: ConvProblem, shape: Shape) -> dict[str, int]:
    tile, window = shape.tile, shape.window
    m, n = shape.group_waves
    pack = window.pack if window else 1
    return {
        "kAxes": problem.ndim, "kCg": problem.Cg * pack, "kKg": problem.Kg * pack, "kPack": pack, "kM": tile.m, "kN": tile.n,
        "kK": tile.k, "kWavesM": m, "kWavesN": n,
        "kMerge": shape.merge // pack, "kVecA": tile.vector[0], "kVecB": tile.vector[1], "kVecC": tile.vector[2],
        "kChunk": window.chunk if window else 0, "kBoxImages": window.images if window else 1,
        "kPieceRows": shape.pieces.rows if shape.pieces else 0,
    }


def _pipeline_facts(problem: ConvProblem, config: KernelConfig, shape: Shape) -> dict[str, int]:
    direct = PIPELINES[config.pipeline[0]].needs_direct_to_lds
    return {"kWaveGroups": shape.wave_groups, "kPrefetch": shape.prefetch, "kFragmentBudget": shape.fragment_budget,
            "kPad": 0 if direct else LDS_PAD_BYTES // DTYPES[problem.dtype].bytes}


def _flags(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, shape: Shape) -> dict[str, bool]:
    channels_last = {t: problem.views()[t].c == 1 for t in "xy"}
    along_a = {"forward": channels_last["x"], "bwd_data": channels_last["y"], "bwd_weight": False}[problem.direction]
    reads_like = any(spec.kind(name) == "like_y" for name in spec.epilogue.operands)
    return {
        "kWindow": shape.window is not None, "kAlongKA": along_a, "kAlongKB": problem.direction == "forward", "kPartial": shape.partial,
        "kShuffle": config.epilogue == "cshuffle", "kInterwave": config.scheduler == "interwave",
        "kDoubleBuffer": bool(config.double_smem_buffer), "kAsync": PIPELINES[config.pipeline[0]].needs_direct_to_lds,
        "kLikeY": reads_like and not shape.partial, "kExplicit": bool(config.explicit_gemm),
        "kSplitImage": shape.pieces is not None, "kPadM": config.pad_m is not False or shape.pieces is not None,
        "kPadK": config.pad_k is not False,
    }
