"""Depthwise convolution as Toeplitz products, executed by the simulator, and where it is chosen."""

from __future__ import annotations

from typing import Any

import pytest

import gconvdsl as gconv
from gconvdsl.config import KernelConfig
from gconvdsl.families import find_family
from gconvdsl.inputs import make_operands
from gconvdsl.lower_depthwise import lower_depthwise
from gconvdsl.lower_ring import lower_ring
from gconvdsl.lower_toeplitz import is_toeplitz, lower_toeplitz, toeplitz_shape
from gconvdsl.runner import bare_spec, execute
from gconvdsl.verify import verify

SQUARE = dict(N=2, G=8, C=8, K=8, input=(20, 21), filter=(5, 31), pad=(2, 15), dtype="bf16")
PROBLEMS: dict[str, dict[str, Any]] = {
    "steps outside of the image": SQUARE,
    "strips and bands": dict(N=1, G=16, C=16, K=16, input=(67, 75), filter=(3, 23), pad=((2, 0), (9, 13)), dtype="fp16"),
    "taller than the image": dict(N=1, G=8, C=8, K=8, input=(7, 9), filter=(13, 13), pad=6, dtype="bf16"),
    "no padding": dict(N=1, G=8, C=8, K=8, input=(18, 40), filter=(2, 16), dtype="fp16"),
    "more padding than taps": dict(N=1, G=8, C=8, K=8, input=(3, 5), filter=(2, 9), pad=(3, 11), dtype="bf16"),
    "1-D": dict(N=2, G=16, C=16, K=16, input=300, filter=31, pad=15, dtype="bf16"),
    "1-D, uneven": dict(N=1, G=8, C=8, K=8, input=1037, filter=18, pad=((3, 9),), dtype="fp16"),
    "1-D, longest": dict(N=1, G=8, C=8, K=8, input=141, filter=127, pad=60, dtype="bf16"),
}


def _run(problem: gconv.ConvProblem, spec: Any = None, operands: Any = None) -> Any:
    def run(a: Any, b: Any, out: Any) -> Any:
        used = spec if spec is not None else bare_spec(problem.direction)
        result = execute(used, KernelConfig(), problem, (a, b), operands, out=out, target="sim:sm_90")
        assert "Toeplitz" in " ".join(result.decision.lowered.notes) and not result.config.pipeline
        return result.output
    return run


@pytest.mark.parametrize("direction", ["forward", "bwd_data"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_right(name: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_RUN_TIMEOUT", "20")
    problem = gconv.ConvProblem(**PROBLEMS[name], direction=direction)
    verify(problem, _run(problem)).require()


@pytest.mark.parametrize("name", ["steps outside of the image", "1-D"])
def test_inf_and_nan_stay_in_their_windows(name: str) -> None:
    problem = gconv.ConvProblem(**PROBLEMS[name])
    verify(problem, _run(problem), kinds=("nonfinite",), strict_nonfinite=True).require()


@pytest.mark.parametrize("order", ["reverse", "random:3"])
def test_no_order_of_waves_matters(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_SIM_ORDER", order)
    for name in ("steps outside of the image", "1-D"):
        problem = gconv.ConvProblem(**PROBLEMS[name])
        verify(problem, _run(problem), kinds=("normal",)).require()


@pytest.mark.parametrize("name", ["strips and bands", "1-D"])
def test_an_epilogue_runs_in_the_same_pass(name: str) -> None:
    @gconv.kernel
    def fused(x: Any, w: Any, bias: gconv.PerK, residual: gconv.LikeY) -> Any:
        return gconv.relu(gconv.conv(x, w) + bias + residual)

    problem = gconv.ConvProblem(**PROBLEMS[name])
    operands = make_operands(problem, fused.spec, seed=3)
    verify(problem, _run(problem, fused.spec, operands), spec=fused.spec, operands=operands).require()


def test_a_prologue_is_left_to_other_kernels() -> None:
    @gconv.kernel
    def scaled(x: Any, w: Any, scale: gconv.PerC) -> Any:
        return gconv.conv(x * scale, w)

    problem = gconv.ConvProblem(**SQUARE)
    assert find_family(problem, KernelConfig(), "sm_90", spec=scaled.spec) is lower_depthwise
    assert find_family(problem, KernelConfig(), "sm_90", spec=bare_spec("forward")) is lower_toeplitz


@pytest.mark.parametrize("change", [
    dict(dtype="fp32"), dict(out_dtype="fp32"), dict(layout="nchw"), dict(dilation=(2, 1)), dict(stride=(1, 2)), dict(K=16), dict(N=0),
    dict(G=12, C=12, K=12), dict(filter=(5, 8), pad=2), dict(filter=(5, 128), pad=(2, 64)), dict(direction="bwd_weight"),
    dict(input=(200, 200), filter=(127, 127), pad=63)])
def test_what_it_does_not_serve(change: dict[str, Any]) -> None:
    assert is_toeplitz(gconv.ConvProblem(**SQUARE), "sm_90") and not is_toeplitz(gconv.ConvProblem(**SQUARE), "gfx942")
    assert toeplitz_shape(gconv.ConvProblem(**{**SQUARE, **change}), "sm_90") is None


def test_the_row_ring_keeps_what_it_needs_few_products_for() -> None:
    row = dict(N=2, G=16, C=16, K=16, input=(20, 20), dtype="bf16")
    assert find_family(gconv.ConvProblem(**row, filter=(1, 9), pad=(0, 4)), KernelConfig(), "sm_90") is lower_ring
    assert find_family(gconv.ConvProblem(**row, filter=(1, 31), pad=(0, 15)), KernelConfig(), "sm_90") is lower_toeplitz
