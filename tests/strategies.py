"""Random kernels with problems that share them: what varies between the problems of a `Family` is not compiled in.

The strategies build legal cases directly and leave the last word to `rules.check`, the one place that says what is legal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hypothesis import assume, strategies as st

from gconvdsl.archs import arch as find_arch
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.expr import Expr, apply, const, operand
from gconvdsl.layouts import LAYOUTS
from gconvdsl.pipelines import PIPELINES, Pipeline
from gconvdsl.problem import ConvProblem
from gconvdsl.rules import check
from gconvdsl.spec import PLACES, ConvParams, KernelSpec, Operand
from tests.grammar.gconv_strategies import expressions

__all__ = ["Family", "families", "gemm_parts", "has_loads", "is_hot"]

DTYPES = ("fp16", "bf16", "fp32")
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 48)
ARCHS = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250", "sm_80", "sm_90")
STEPS = 5                                       # K-steps of a hot problem
_MOST_PRODUCTS = 1_500_000                      # of one problem: bounds simulated work


@dataclass(frozen=True)
class Family:
    """A kernel, its configuration, and problems that differ in N, sizes and padding only."""

    spec: KernelSpec
    config: KernelConfig
    problems: tuple[ConvProblem, ...]

    def __repr__(self) -> str:
        return f"{self.spec}\n{self.config}\n" + "\n".join(one.describe() for one in self.problems)


def gemm_parts(problem: ConvProblem) -> list[tuple[int, int, int]]:
    """(m, n, k) of every matrix product that the direction needs: bwd_data has one for each stride phase."""
    if problem.direction != "bwd_data":
        return [tuple(problem.gemm)]  # type: ignore[list-item]
    return [(problem.N * math.prod(phase.count), problem.gemm.n, problem.Kg * math.prod(map(len, phase.taps)))
            for phase in problem.phases]


def is_hot(problem: ConvProblem, tile: Tile) -> bool:
    """At least 2 blocks in m and n and 5 K-steps, with a tail in all three."""
    least = (2, 2, STEPS)
    return any(all(size > (count - 1) * block and size % block for size, block, count in zip(part, tile.block, least))
               for part in gemm_parts(problem))


def is_legal(problem: ConvProblem, config: KernelConfig, arch: str) -> bool:
    return not check(problem, config, arch)


def has_loads(config: KernelConfig, arch: str) -> bool:
    """Whether the arch has what the pipeline cannot do without: loads from global memory straight to LDS."""
    return not PIPELINES[config.pipeline[0]].needs_direct_to_lds or arch == "cpu" or bool(find_arch(arch).direct_to_lds)


@st.composite
def families(draw: Any, direction: str, kind: str, count: int = 2) -> Family:
    """Families of ``kind`` "plain", "hot" (every problem is, for the tile of every arch) or "window" (a K-step is all taps of a
    chunk of channels)."""
    ndim, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(DTYPES))
    fields = draw(convolutions(direction, kind, ndim))
    fields.update(dtype=dtype, out_dtype=draw(st.sampled_from((dtype, dtype, *DTYPES))), direction=direction,
                  layout=draw(layouts(ndim, kind)), G=draw(st.sampled_from((1, 2, 3, 4, 6))))
    taps, row = math.prod(fields["filter"]), draw(st.sampled_from(list(PIPELINES.values())))
    tiles = draw(tile_families(dtype, taps if kind == "window" else 0, row.needs_num_wave_groups or 1))
    fields.update(draw(channels(direction, kind, fields, tiles)))
    problems = tuple(draw(problem_of(fields, kind, tiles)) for _ in range(count))
    config = draw(configs(problems[0], tiles, kind, row))
    assume(all(is_legal(problem, config, arch) for problem in problems for arch in (*ARCHS, "cpu") if has_loads(config, arch)))
    return Family(draw(specs(direction)), config, problems)


def layouts(ndim: int, kind: str) -> st.SearchStrategy[str]:
    return st.sampled_from([one.name for one in LAYOUTS.values()
                            if one.ndim == ndim and not (kind == "window" and one.channels_first)])


@st.composite
def convolutions(draw: Any, direction: str, kind: str, ndim: int) -> dict[str, Any]:
    """Filter, stride and dilation: 1x1 filters, strides beyond the filter, one large axis."""
    largest = {1: 9, 2: 5, 3: 3}[ndim]
    filters = [draw(st.sampled_from((1, 2, 3, 3, draw(st.integers(1, largest))))) for _ in range(ndim)]
    strides = [draw(st.sampled_from((1, 1, 2, 3, 5))) for _ in range(ndim)]
    if kind == "window":
        filters = [min(one, 3) for one in filters]
        filters[-1] = max(2, filters[-1])
        assume(math.prod(filters) <= 9)
        strides = [1] * ndim if direction == "bwd_data" else [min(one, 2) for one in strides]
    return {"filter": tuple(filters), "stride": tuple(strides),
            "dilation": tuple(draw(st.sampled_from((1, 1, 2, 3))) for _ in range(ndim))}


@st.composite
def tile_families(draw: Any, dtype: str, window_taps: int, wave_groups: int) -> dict[str, Tile]:
    """One block for all families of archs, with the waves and the instruction of each; gfx1250 may need a deeper K-step."""
    m = draw(st.sampled_from((16, 32, 48, 64, 128) if wave_groups == 1 else (32, 64, 128)))
    n = draw(st.sampled_from((16, 16, 32, 48)))
    k = window_taps * draw(st.sampled_from((16, 16, 32))) if window_taps else draw(st.sampled_from((16, 16, 32, 48)))
    deep = k if dtype == "fp32" or window_taps else -(-k // 32) * 32
    vector = tuple(draw(st.sampled_from((1, 2, 4, 8, 16))) for _ in range(3))
    half = dtype != "fp32"
    shapes: dict[str, tuple[int, int, int]] = {
        "cdna": (16, 16, 16 if half else 4), "rdna": (16, 16, 16), "gfx1250": (16, 16, 32 if half else 4),
        "nvidia": (16, 8, 16) if half else (16, 16, 16)}
    if m % 32 == n % 32 == 0 and m * n >= 1024 * wave_groups and draw(st.booleans()):
        shapes["cdna"] = (32, 32, 8)
    if window_taps and half:
        deep = window_taps * 32
    blocks = {family: (m, n, deep if family == "gfx1250" else k) for family in shapes}
    return {family: Tile(blocks[family], draw(waves(m // shape[0], n // shape[1], wave_groups)), shape, vector)
            for family, shape in shapes.items()}


@st.composite
def waves(draw: Any, rows: int, columns: int, groups: int) -> tuple[int, int, int]:
    """Up to four waves that share rows x columns instructions evenly, in ``groups`` equal groups."""
    return draw(st.sampled_from([(m, n, 1) for m in (1, 2, 3, 4) for n in (1, 2, 3)
                                 if rows % m == columns % n == 0 and m * n <= 4 and m * n % groups == 0]))


@st.composite
def channels(draw: Any, direction: str, kind: str, fields: dict[str, Any], tiles: dict[str, Tile]) -> dict[str, int]:
    """C and K. Hot ones reach over the blocks with a tail; those of a window are whole chunks in the reduction."""
    groups, taps, tile = fields["G"], math.prod(fields["filter"]), tiles["cdna"]
    cg, kg = draw(st.sampled_from(CHANNELS)), draw(st.sampled_from(CHANNELS))
    if kind == "plain" and draw(st.integers(0, 3)) == 0:
        cg = 1                                  # depthwise, with a channel multiplier
    if kind == "window":
        reduced = tiles["gfx1250"].k // taps * draw(st.integers(1, 2))
        cg, kg = (reduced, kg) if direction == "forward" else (cg, reduced)
    if kind == "hot":
        cg, kg = draw(hot_channels(direction, fields, taps, tile, tiles["gfx1250"].k))
    return {"C": groups * cg, "K": groups * kg}


@st.composite
def hot_channels(draw: Any, direction: str, fields: dict[str, Any], taps: int, tile: Tile, deepest: int) -> tuple[int, int]:
    if direction == "bwd_weight":
        rows = draw(beyond(tile.m, tile.m, 1))
        return draw(beyond(tile.n, tile.n, taps)), rows
    columns = draw(beyond(tile.n, tile.n, 1))
    if direction == "forward":
        return draw(beyond((STEPS - 1) * deepest, tile.k, taps)), columns
    most = math.prod(-(-count // (step // math.gcd(step, dilation)))
                     for count, step, dilation in zip(fields["filter"], fields["stride"], fields["dilation"]))
    return columns, draw(beyond((STEPS - 1) * deepest, tile.k, most))


@st.composite
def beyond(draw: Any, size: int, block: int, factor: int) -> int:
    """A count whose ``factor``-fold is more than ``size`` and no multiple of ``block``."""
    fitting = [one for one in range(size // factor + 1, (size + block) // factor + 3) if one * factor % block]
    assume(fitting)
    return draw(st.sampled_from(fitting))


@st.composite
def problem_of(draw: Any, fields: dict[str, Any], kind: str, tiles: dict[str, Tile]) -> ConvProblem:
    """N, sizes and asymmetric padding; some inputs are smaller than the filter."""
    images, sizes, pads = draw(st.integers(0 if kind == "plain" else 1, 5)), [], []
    for taps, dilation in zip(fields["filter"], fields["dilation"]):
        reach = dilation * (taps - 1) + 1
        pad = (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
        sizes.append(max(draw(st.integers(1, 11 if len(fields["filter"]) < 3 else 6)), reach - sum(pad)))
        pads.append(pad)
    problem = ConvProblem(N=images, input=sizes, pad=pads, **fields)
    if kind == "hot":
        problem = _grown(problem, tiles)
    assume(problem.flops // 2 <= _MOST_PRODUCTS)
    return problem


def _grown(problem: ConvProblem, tiles: dict[str, Tile]) -> ConvProblem:
    """The problem with more images or larger inputs, until it is hot for every tile."""
    for turn in range(60):
        if all(is_hot(problem, tile) for tile in tiles.values()):
            return problem
        axis = turn % (problem.ndim + 1)
        if axis == problem.ndim:
            problem = problem.replace(N=problem.N + 1)
        else:
            problem = problem.replace(input=[size + (i == axis) for i, size in enumerate(problem.input)])
    assume(False)
    return problem


_BOOLS = st.sampled_from((None, None, True))


@st.composite
def configs(draw: Any, problem: ConvProblem, tiles: dict[str, Tile], kind: str, row: Pipeline) -> KernelConfig:
    """Every option that changes what a kernel does."""
    options: dict[str, Any] = {"epilogue": draw(st.sampled_from((None, "default", "cshuffle"))),
                               "scheduler": draw(st.sampled_from(row.schedulers)),
                               "deterministic": draw(st.sampled_from((True, True, False))),
                               **{name: draw(_BOOLS) for name in ("pad_m", "pad_n", "pad_k")}}
    if not row.needs_double_smem_buffer:
        options["double_smem_buffer"] = draw(_BOOLS)
    merges = [one for one in (None, 2, 3, 4) if problem.G % (one or 1) == 0]
    options["num_groups_to_merge"] = draw(st.sampled_from(merges))
    if problem.direction == "bwd_weight":
        options["two_stage"] = draw(_BOOLS)
    if kind != "window":
        steps = max(1, problem.depth // max(tile.k for tile in tiles.values()))
        options["split_k"] = draw(st.sampled_from((None, min(2, steps), min(3, steps), min(7, steps))))
    if problem.direction != "bwd_weight" and options.get("split_k", 1) in (None, 1):
        options["split_image"] = draw(_BOOLS)
    plain = problem.taps == 1 and set(problem.stride) == {1} and not any(map(sum, problem.pad))
    if plain and not LAYOUTS[problem.layout].channels_first:
        options["explicit_gemm"] = draw(_BOOLS)
    return KernelConfig(tile=tiles, pipeline=row.name, **{**row.implied_options, **options})


def _decided(expr: Expr) -> bool:
    """No root or logarithm of a computed value: a negative one that underflows has NaN in float64 and rightly 0 in float32."""
    return not any(node.op in ("sqrt", "rsqrt", "log") and node.args[0].args for node in expr.nodes())


@st.composite
def specs(draw: Any, direction: str) -> KernelSpec:
    """A bare convolution, a usual epilogue, or random expressions over all operations."""
    places, form = PLACES[direction], draw(st.sampled_from(("bare", "usual", "random")))
    vector = next((kind for kind in ("per_k", "per_c") if kind in places["epilogue"]), "scalar")
    operands = [Operand("bias", vector), Operand("residual", "like_y"), Operand("slope", "scalar")]
    prologue, epilogue = Expr("x"), Expr("acc")
    if form == "bare":
        return KernelSpec("bare", ConvParams(direction))
    if form == "usual":
        total = apply("add", apply("add", Expr("acc"), operand("bias")), operand("residual"))
        after = draw(st.sampled_from(("relu", "silu", "gelu", "leaky_relu", "tanh", "clamp")))
        more = {"leaky_relu": (operand("slope"),), "clamp": (const(-1), const(6))}.get(after, ())
        epilogue = apply(after, total, *more)
    else:
        usable = tuple(one.name for one in operands if one.kind in places["epilogue"])
        epilogue = draw(expressions("acc", usable, depth=3).filter(_decided))
    if direction == "forward" and draw(st.booleans()):
        operands.append(Operand("scale", "per_c"))
        prologue = draw(st.sampled_from((apply("mul", Expr("x"), operand("scale")), apply("relu", Expr("x")),
                                         apply("silu", apply("add", Expr("x"), operand("slope"))))))
    return KernelSpec(form, ConvParams(direction), tuple(operands), prologue, epilogue)
