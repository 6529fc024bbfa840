"""The row ring on targets that run blocks of threads, executed by the simulator: with the copy engine (sm_90) and without (sm_80)."""

from __future__ import annotations

from typing import Any

import pytest

import gconvdsl as gconv
from gconvdsl.archs import arch as find_arch
from gconvdsl.config import KernelConfig
from gconvdsl.families import find_family
from gconvdsl.inputs import make_operands
from gconvdsl.lower_ring import is_ring, lower_ring
from gconvdsl.ring_shape import ring_shape
from gconvdsl.runner import bare_spec, execute
from gconvdsl.verify import verify

SQUARE = dict(N=2, G=8, C=32, K=32, input=(7, 10), filter=3, pad=1, dtype="bf16")
PROBLEMS: dict[str, dict[str, Any]] = {
    "packed groups": SQUARE,
    "half a slice of channels": dict(N=1, G=9, C=72, K=72, input=(5, 19), filter=3, pad=1, dtype="fp16"),
    "depthwise, images together": dict(N=5, G=40, C=40, K=40, input=(6, 7), filter=3, pad=1, dtype="bf16"),
    "depthwise 5x5": dict(N=1, G=16, C=16, K=16, input=(9, 17), filter=5, pad=2, dtype="fp16"),
    "depthwise 7x7": dict(N=1, G=16, C=16, K=16, input=(8, 9), filter=7, pad=3, dtype="bf16"),
    "wide groups": dict(N=5, G=3, C=48, K=48, input=(6, 7), filter=3, pad=1, dtype="bf16"),
    "wider groups": dict(N=1, G=3, C=96, K=96, input=(6, 18), filter=3, pad=1, dtype="fp16"),
    "uneven padding": dict(N=1, G=8, C=16, K=16, input=(5, 18), filter=(2, 4), pad=((1, 0), (3, 2)), dtype="bf16"),
    "1-D": dict(N=5, G=16, C=16, K=16, input=37, filter=7, pad=3, dtype="bf16"),
    "1-D, even": dict(N=5, G=4, C=16, K=16, input=20, filter=4, pad=((1, 2),), dtype="fp16"),
    "one row of taps": dict(N=2, G=8, C=16, K=16, input=(5, 20), filter=(1, 5), pad=((0, 0), (2, 1)), dtype="bf16"),
    "3-D": dict(N=2, G=4, C=32, K=32, input=(4, 5, 9), filter=3, pad=1, dtype="bf16"),
    "weights in LDS": dict(N=1, G=16, C=16, K=16, input=(9, 19), filter=(15, 7), pad=(7, 3), dtype="bf16"),
    "even weights in LDS": dict(N=3, G=8, C=8, K=8, input=(7, 9), filter=(18, 8), pad=((8, 9), (3, 4)), dtype="fp16"),
}
STRIDED: dict[str, dict[str, Any]] = {
    "packed groups": dict(N=2, G=16, C=32, K=32, input=(9, 34), filter=3, stride=2, pad=1, dtype="bf16"),
    "depthwise, images together": dict(N=5, G=16, C=16, K=16, input=(8, 12), filter=3, stride=2, pad=1, dtype="fp16"),
    "depthwise 5x5": dict(N=2, G=16, C=16, K=16, input=(9, 35), filter=5, stride=2, pad=2, dtype="bf16"),
    "wide groups": dict(N=2, G=2, C=64, K=64, input=(8, 17), filter=3, stride=2, pad=1, dtype="bf16"),
    "uneven padding": dict(N=1, G=16, C=16, K=16, input=(12, 20), filter=(3, 7), stride=2, pad=((0, 1), (2, 0)), dtype="bf16"),
}
FORWARD: dict[str, dict[str, Any]] = {
    "stride along h": dict(N=2, G=8, C=16, K=16, input=(8, 12), filter=(4, 1), pad=((1, 2), (0, 0)), stride=(2, 1), dtype="bf16"),
    "3-D with strides": dict(N=2, G=16, C=16, K=16, input=(5, 5, 9), filter=(3, 2, 3), pad=1, stride=(2, 1, 2), dtype="bf16"),
}
CASES = [(name, row, direction) for table, directions in ((PROBLEMS, ("forward", "bwd_data")), (STRIDED, ("forward", "bwd_data")),
                                                          (FORWARD, ("forward",)))
         for name, row in table.items() for direction in directions]


def _run(problem: gconv.ConvProblem, target: str, spec: Any = None, operands: Any = None) -> Any:
    def run(a: Any, b: Any, out: Any) -> Any:
        used = spec if spec is not None else bare_spec(problem.direction)
        result = execute(used, KernelConfig(), problem, (a, b), operands, out=out, target=target)
        assert "row ring" in " ".join(result.decision.lowered.notes) and not result.config.pipeline
        return result.output
    return run


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:sm_80"])
@pytest.mark.parametrize(("name", "row", "direction"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_it_is_right(name: str, row: dict[str, Any], direction: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_RUN_TIMEOUT", "20")
    problem = gconv.ConvProblem(**row, direction=direction)
    verify(problem, _run(problem, target)).require()


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:sm_80"])
@pytest.mark.parametrize("order", ["reverse", "random:3"])
@pytest.mark.parametrize("row", [PROBLEMS["packed groups"], STRIDED["wide groups"]])
@pytest.mark.parametrize("direction", ["forward", "bwd_data"])
def test_no_order_of_waves_matters(row: dict[str, Any], direction: str, order: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_RUN_TIMEOUT", "20")
    monkeypatch.setenv("GCONV_SIM_ORDER", order)
    problem = gconv.ConvProblem(**row, direction=direction)
    verify(problem, _run(problem, target), kinds=("normal",)).require()


@pytest.mark.parametrize("name", ["packed groups", "half a slice of channels", "wide groups", "weights in LDS"])
def test_an_epilogue_runs_in_the_same_pass(name: str) -> None:
    @gconv.kernel
    def fused(x: Any, w: Any, bias: gconv.PerK, residual: gconv.LikeY) -> Any:
        return gconv.relu(gconv.conv(x, w) + bias + residual)

    problem = gconv.ConvProblem(**PROBLEMS[name])
    operands = make_operands(problem, fused.spec, seed=3)
    verify(problem, _run(problem, "sim:sm_90", fused.spec, operands), spec=fused.spec, operands=operands).require()


def test_a_prologue_is_left_to_other_kernels() -> None:
    @gconv.kernel
    def scaled(x: Any, w: Any, scale: gconv.PerC) -> Any:
        return gconv.conv(x * scale, w)

    problem = gconv.ConvProblem(**SQUARE)
    assert find_family(problem, KernelConfig(), "sm_90", spec=scaled.spec) is None
    assert find_family(problem, KernelConfig(), "sm_90", spec=bare_spec("forward")) is lower_ring


@pytest.mark.parametrize("change", [
    dict(dtype="fp32"), dict(out_dtype="fp32"), dict(layout="nchw"), dict(dilation=2), dict(G=2), dict(K=64), dict(N=0), dict(stride=3, pad=1),
    dict(G=3, C=12, K=12), dict(filter=13, pad=6), dict(direction="bwd_weight"), dict(direction="bwd_data", stride=(2, 1)),
    dict(direction="bwd_data", stride=2, filter=4)])
def test_what_it_does_not_serve(change: dict[str, Any]) -> None:
    if "G" in change and "C" not in change:
        change = {**change, "C": 96, "K": 96}
    problem = gconv.ConvProblem(**{**SQUARE, **change})
    assert is_ring(gconv.ConvProblem(**SQUARE), "sm_90") and is_ring(gconv.ConvProblem(**SQUARE), "sm_80")
    assert not is_ring(problem, "sm_90") and find_family(problem, KernelConfig(), "sm_90") is not lower_ring
    assert not is_ring(gconv.ConvProblem(**SQUARE), "gfx942")


@pytest.mark.parametrize("width", [5, 8, 14, 28, 56, 100, 224])
@pytest.mark.parametrize("channels", [1, 4, 32])
@pytest.mark.parametrize("direction", ["forward", "bwd_data"])
def test_the_launch_is_what_the_shape_says(width: int, channels: int, direction: str) -> None:
    problem = gconv.ConvProblem(N=64, G=256 // channels, C=256, K=256, input=(width, width), filter=3, pad=1, dtype="bf16", direction=direction)
    shape = ring_shape(problem, find_arch("sm_90"))
    assert shape is not None
    lowered = lower_ring(bare_spec(direction), problem, KernelConfig(), "sm_90")
    [launch] = lowered.plan.launches
    [one] = launch.maps
    assert one.operand == ("x" if direction == "forward" else "y") and one.fault() == "" and lowered.plan.dense
    assert launch.shared >= one.box_bytes * shape.ring and launch.shared <= find_arch("sm_90").lds
    assert launch.grid[0] == shape.blocks_across(problem) * lowered.plan.args.splits
    assert lowered.plan.args.splits <= shape.units(problem)
    older = lower_ring(bare_spec(direction), problem, KernelConfig(), "sm_80").plan.launches[0]
    before = ring_shape(problem, find_arch("sm_80"))
    assert before is not None and not older.maps and older.block == 32 * before.consumers


def test_a_bundle_a_wave() -> None:
    shape = ring_shape(gconv.ConvProblem(**PROBLEMS["depthwise 7x7"]), find_arch("sm_90"))
    assert shape is not None and shape.wave_channels == 8, "7x7 filters have waves of 8 channels"
