"""Wide groups on warpgroup matrix instructions: what is served, the shapes of the work, tensor maps, compiled kernels.

test_wgmma_sim.py executes the kernels.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

import gconvdsl as gconv
from gconvdsl.archs import arch as find_arch
from gconvdsl.config import KernelConfig
from gconvdsl.families import family_name, find_family
from gconvdsl.lower_wgmma import is_wgmma, lower_shape, lower_wgmma
from gconvdsl.problem import ConvProblem
from gconvdsl.runner import bare_spec
from gconvdsl.wgmma_shape import ConvShape, conv_shape, conv_shapes, depth_columns
from gconvdsl.wgmma_weight_shape import WeightShape, weight_shape, weight_shapes

SM90 = find_arch("sm_90")
DIRECTIONS = ["forward", "bwd_data", "bwd_weight"]
PROBLEMS: dict[str, dict[str, Any]] = {
    "dense": dict(N=64, G=1, C=128, K=128, input=(28, 28), filter=3, pad=1, dtype="bf16"),
    "56": dict(N=64, G=8, C=448, K=448, input=(28, 28), filter=3, pad=1, dtype="fp16"),
    "232": dict(N=64, G=6, C=1392, K=1392, input=(14, 14), filter=3, pad=1, dtype="bf16"),
    "unequal": dict(N=3, G=2, C=96, K=128, input=(13, 11), filter=3, pad=((1, 0), (2, 1)), dtype="bf16"),
    "dilated": dict(N=5, G=1, C=64, K=72, input=(17, 15), filter=3, pad=2, dilation=2, dtype="fp16"),
    "long": dict(N=16, G=16, C=768, K=768, input=499, filter=128, pad=64, dtype="bf16"),
    "1x1": dict(N=64, G=1, C=256, K=64, input=(56, 56), filter=1, dtype="bf16"),
    "odd 1x1": dict(N=3, G=2, C=144, K=96, input=(9, 7), filter=1, dtype="fp16"),
}


def _problem(name: str, direction: str = "forward") -> ConvProblem:
    return ConvProblem(**PROBLEMS[name], direction=direction)


# --- what is served

@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_wide_groups_are_served_on_sm_90_alone(name: str, direction: str) -> None:
    problem = _problem(name, direction)
    assert find_family(problem, KernelConfig(), "sm_90", "cuda") is lower_wgmma
    assert family_name(problem, KernelConfig(), "cuda:sm_90") == "wgmma"
    assert find_family(problem, KernelConfig(), "sm_80", "cuda") is not lower_wgmma
    assert find_family(problem, KernelConfig(), "sm_90", "sim") is not lower_wgmma
    assert find_family(problem, KernelConfig(pipeline="mem"), "sm_90", "cuda") is None


@pytest.mark.parametrize("change", [
    dict(dtype="fp32"), dict(stride=2), dict(layout="nchw"), dict(N=0), dict(C=36, K=36), dict(C=132),
    dict(input=(7, 7, 7), filter=3, pad=1), dict(K=8)])
def test_what_is_not_served(change: dict[str, Any]) -> None:
    assert not is_wgmma(ConvProblem(**{**PROBLEMS["dense"], **change}), "sm_90")


def test_kernels_with_a_prologue_are_not_served() -> None:
    @gconv.kernel
    def rectified(x: Any, w: Any) -> Any:
        return gconv.conv(gconv.relu(x), w)

    assert find_family(_problem("dense"), KernelConfig(), "sm_90", "cuda", rectified.spec) is None


# --- the shapes of the work

@pytest.mark.parametrize("direction", DIRECTIONS[:2])
@pytest.mark.parametrize("name", PROBLEMS)
def test_shapes_fit(name: str, direction: str) -> None:
    problem = _problem(name, direction)
    shapes = list(conv_shapes(problem, SM90))
    chosen = conv_shape(problem, SM90)
    assert chosen in shapes
    for shape in shapes:
        assert shape.lds(problem) <= SM90.lds and shape.columns % 8 == 0 and shape.tiles % shape.warpgroups == 0
        sums = shape.tiles // shape.warpgroups * shape.columns // 2
        assert sums <= (176 if shape.warpgroups == 2 else 104), "sums stay in registers"
        assert shape.windows >= 2
        assert shape.resident or shape.weights >= min(3, math.prod(problem.filter) * -(-depth_columns(problem)[0] // 64))


@pytest.mark.parametrize("name", PROBLEMS)
def test_shapes_of_bwd_weight_fit_and_cover(name: str) -> None:
    problem = _problem(name, "bwd_weight")
    shapes = list(weight_shapes(problem, SM90))
    assert weight_shape(problem, SM90) in shapes
    for shape in shapes[::7]:
        assert shape.lds(problem) <= SM90.lds and shape.stages >= 2 and 1 <= shape.splits <= shape.boxes(problem)
        if math.prod(problem.filter) > 1:
            assert all(size % part == 0 for size, part in zip(problem.output[::-1], shape.box[::-1])), "boxes divide the images"
        covered = shape.blocks(problem) * math.prod(shape.block) * shape.taps * 64 * 64
        assert covered >= problem.G * problem.Kg * problem.Cg * math.prod(problem.filter)


def test_what_was_measured_as_fastest_is_chosen() -> None:
    shape = conv_shape(_problem("dense"), SM90)
    assert shape is not None and shape.columns == 128 and shape.tiles == 4
    narrow = conv_shape(ConvProblem(N=64, G=1, C=64, K=64, input=(56, 56), filter=3, pad=1, dtype="bf16"), SM90)
    assert narrow is not None and narrow.resident and narrow.tile == (1, 8, 8)


# --- plans

@pytest.mark.parametrize("name", PROBLEMS)
def test_the_maps_keep_groups_apart(name: str) -> None:
    """A chunk that reaches over the channels of a group reads zeros: groups are an axis of their own."""
    problem = _problem(name)
    plan = lower_wgmma(bare_spec("forward"), problem, KernelConfig(), "sm_90").plan
    source, weights = plan.launches[0].maps
    assert source.dims[0] == problem.Cg and source.dims[-1] == problem.G and source.box[-1] == 1
    assert weights.dims == (problem.Cg, math.prod(problem.filter), problem.Kg, problem.G)
    assert plan.dense and plan.launches[0].grid[0] == plan.args.splits <= SM90.compute_units and plan.launches[0].fits
    assert all(one.fault() == "" and one.box[0] == 64 and one.swizzle == 128 for one in (source, weights))


def test_the_window_reaches_as_far_as_the_filter() -> None:
    problem = _problem("dilated")
    shape = ConvShape((1, 8, 8), (1, 1, 2), 72, 2, weights=3)
    plan = lower_shape(bare_spec("forward"), problem, KernelConfig(), "sm_90", shape).plan
    assert plan.launches[0].maps[0].box == (64, 16 + 2 * 2, 8 + 2 * 2, 1, 1)
    assert plan.launches[0].grid[0] == 5 * 3 * 1 * 1


def test_a_long_window_is_copied_in_equal_pieces() -> None:
    problem = _problem("long")
    shape = ConvShape((1, 1, 64), (1, 1, 8), 48, 2, weights=7)
    assert shape.piece(problem) == 216 and shape.window(problem) == (1, 1, 648)     # 512 + 127 in three parts of whole eights


def test_the_workspace_holds_every_piece() -> None:
    problem = _problem("dense", "bwd_weight")
    shape = WeightShape(3, 192, 2, (2, 1, 1, 1), (1, 14), 5, 22)
    plan = lower_shape(bare_spec("bwd_weight"), problem, KernelConfig(), "sm_90", shape).plan
    assert plan.workspace == 22 * math.prod(problem.shape("w")) * 4 and plan.args.splits == 22
    assert plan.launches[0].grid == (6, 22, 1)
    assert plan.launches[1].grid[0] * 128 >= math.prod(problem.shape("w"))


def test_pixels_of_a_1x1_filter_are_one_row() -> None:
    forward = lower_wgmma(bare_spec("forward"), _problem("1x1"), KernelConfig(), "sm_90").plan
    assert forward.launches[0].maps[0].dims == (256, 64 * 56 * 56, 1, 1, 1) and forward.args.output == (1, 1, 64 * 56 * 56)
    weight = lower_wgmma(bare_spec("bwd_weight"), _problem("1x1", "bwd_weight"), KernelConfig(), "sm_90").plan
    assert weight.launches[0].maps[0].dims == (256, 8, 64 * 56 * 7, 1, 1) and weight.args.N == 8
    odd = lower_wgmma(bare_spec("bwd_weight"), _problem("odd 1x1", "bwd_weight"), KernelConfig(), "sm_90").plan
    assert odd.launches[0].maps[0].dims == (72, 3, 7, 9, 2) and odd.args.N == 3


# --- compiled

@pytest.mark.parametrize(("name", "direction"), [
    ("unequal", "forward"), ("long", "forward"), ("232", "bwd_data"), ("1x1", "bwd_data"), ("dense", "bwd_weight"),
    ("dilated", "bwd_weight")])
def test_it_compiles_without_spilling(name: str, direction: str, require_tool: Any) -> None:
    require_tool("nvcc", "sm_90")
    from gconvdsl.backends.base import get

    problem, backend = _problem(name, direction), get("cuda")
    lowered = lower_wgmma(bare_spec(direction), problem, KernelConfig(), "sm_90")
    rows = lowered.with_shared(backend.resources(lowered.source, "sm_90", "wgmma"))  # type: ignore[attr-defined]
    for launch in lowered.plan.launches:
        row = rows[launch.kernel]
        assert row["spill_bytes"] == row["scratch_bytes"] == 0 and row["vgpr"] * launch.block <= SM90.register_file
    assert re.search(r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.(bf|f)16", lowered.source)


def test_an_epilogue_with_operands_compiles(require_tool: Any) -> None:
    require_tool("nvcc", "sm_90")
    from gconvdsl.backends.base import get

    @gconv.kernel
    def fused(x: Any, w: Any, bias: gconv.PerK, residual: gconv.LikeY) -> Any:
        return gconv.relu(gconv.conv(x, w) + bias + residual)

    lowered = lower_wgmma(fused.spec, _problem("56"), KernelConfig(), "sm_90")
    assert get("cuda").resources(lowered.source, "sm_90", "wgmma")["gconv_main"]["spill_bytes"] == 0  # type: ignore[attr-defined]


def test_depth_and_columns_swap_with_the_direction() -> None:
    assert depth_columns(_problem("unequal")) == (48, 64) and depth_columns(_problem("unequal", "bwd_data")) == (64, 48)
