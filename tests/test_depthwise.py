"""The depthwise family on targets that run blocks of threads, executed by the simulator and compiled for AMD."""

from __future__ import annotations

import pytest

import gconvdsl as gconv
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.errors import NoKernelError
from gconvdsl.lower_depthwise import is_depthwise, lower_depthwise
from gconvdsl.lower_ring import is_ring
from gconvdsl.lower_row_weight import is_row_weight
from gconvdsl.runner import bare_spec, execute
from gconvdsl.verify import verify

SQUARE = dict(N=2, G=24, C=24, K=24, input=(13, 14), filter=(3, 3), pad=1, dtype="fp16")
PROBLEMS = {
    "3x3": SQUARE,
    "strided": dict(N=2, G=6, C=6, K=6, input=(15, 9), filter=(5, 3), stride=(2, 1), pad=((2, 1), (0, 1)), dtype="bf16"),
    "1-D": dict(N=2, G=5, C=5, K=5, input=9, filter=3, stride=2, pad=1, dtype="fp32"),
    "3-D": dict(N=2, G=8, C=8, K=8, input=(5, 6, 7), filter=3, stride=(1, 2, 2), pad=1, dtype="fp16"),
    "7x7": dict(N=1, G=40, C=40, K=40, input=(16, 16), filter=7, pad=3, dtype="bf16"),
    "long": dict(N=1, G=10, C=10, K=10, input=(9, 11), filter=(15, 13), stride=(1, 2), pad=(7, 6), dtype="bf16"),
    "run past the row": dict(N=1, G=8, C=8, K=8, input=(6, 6), filter=3, pad=1, dtype="bf16"),
    "gaps": dict(N=1, G=1, C=1, K=1, input=(9, 11), filter=3, stride=4, dtype="fp32"),
}


def by_rows(problem, target):
    """Whether the family of tests/test_row_weight.py comes first."""
    return is_row_weight(problem, target.partition(":")[2])


def _run(problem, target, spec=None, operands=None):
    def run(a, b, out):
        used = spec if spec is not None and spec.direction == problem.direction else bare_spec(problem.direction)
        result = execute(used, KernelConfig(), problem, (a, b), operands, out=out, target=target, poison=True)
        ring = is_ring(problem, target.partition(":")[2]) and used.prologue.op == "x"
        served = "row ring" if ring else "by rows" if by_rows(problem, target) else "depthwise"
        assert served in " ".join(result.decision.lowered.notes) and not result.config.pipeline
        return result.output
    return run


@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_right(name, direction):
    problem = gconv.ConvProblem(**PROBLEMS[name], direction=direction)
    verify(problem, _run(problem, "sim:gfx942")).require()


@pytest.mark.nightly
@pytest.mark.parametrize("target", [
    "sim:gfx908", "sim:gfx950", "sim:gfx1100", "sim:gfx1201", "sim:gfx1250", "sim:sm_80", "sim:sm_90"])
@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_right_on_every_arch(name, direction, target):
    problem = gconv.ConvProblem(**PROBLEMS[name], direction=direction)
    verify(problem, _run(problem, target)).require()


def test_prologue_and_epilogue_run_in_the_same_pass():
    @gconv.kernel
    def fused(x, w, scale: gconv.PerC, bias: gconv.PerK, residual: gconv.LikeY):
        return gconv.relu(gconv.conv(gconv.relu(x * scale), w) + bias + residual)

    from gconvdsl.inputs import make_operands

    problem = gconv.ConvProblem(**SQUARE)
    operands = make_operands(problem, fused.spec, seed=3)
    verify(problem, _run(problem, "sim:gfx942", fused.spec, operands), spec=fused.spec, operands=operands).require()


@pytest.mark.parametrize("change", [dict(K=48), dict(dilation=2), dict(layout="nchw")])
def test_what_it_does_not_serve(change):
    assert is_depthwise(gconv.ConvProblem(**SQUARE))
    assert not is_depthwise(gconv.ConvProblem(**{**SQUARE, **change}))


@pytest.mark.parametrize("direction", ["forward", "bwd_data"])
def test_a_grid_that_cannot_be_launched_is_refused(direction):
    from gconvdsl import choose
    from gconvdsl.families import find_family
    from gconvdsl.runner import bare_spec

    small = gconv.ConvProblem(N=1, G=2048, C=2048, K=2048, input=64, filter=3, pad=1, direction=direction)
    [one] = lower_depthwise(bare_spec(direction), small, KernelConfig(), "gfx942").plan.launches
    most = (2 ** 32 - 1) // (one.grid[0] * one.block)       # images, each of which takes this many threads
    assert one.fits and find_family(small.replace(N=most), KernelConfig(), "gfx942") is lower_depthwise
    large = small.replace(N=most + 1)
    assert is_depthwise(large) and find_family(large, KernelConfig(), "gfx942") is None
    with pytest.raises(NoKernelError) as caught:
        choose.decide(bare_spec(direction), large.replace(N=2 ** 29), KernelConfig(), *choose.resolve_target("hip:gfx942"), compiled=False)
    assert "limit.grid" in str(caught.value) and "can be launched" in str(caught.value)


def test_a_tile_or_pipeline_asks_for_implicit_gemm():
    from gconvdsl import choose

    problem = gconv.ConvProblem(**SQUARE)
    backend, arch = choose.resolve_target("sim:gfx942")
    for asked in (KernelConfig(pipeline="basic_v1"), KernelConfig(tile=Tile((64, 16, 16), (2, 1, 1), (16, 16, 16)))):
        assert choose.decide(bare_spec("forward"), problem, asked, backend, arch, compiled=False).config.pipeline == ("basic_v1",)
    assert choose.decide(bare_spec("forward"), problem, KernelConfig(), backend, arch, compiled=False).config.pipeline == ()


@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_it_compiles_for_amd(direction, require_tool):
    require_tool("clang")
    from gconvdsl.backends.base import parse_target
    from gconvdsl.build import build, lower

    problem = gconv.ConvProblem(**SQUARE, direction=direction)
    for arch in ("gfx942", "gfx1201"):
        backend, name = parse_target(f"hip:{arch}")
        lowered = lower(bare_spec(direction), problem, KernelConfig(), "hip", name)
        assert build(lowered, backend, name, "depthwise", load=False).artifact.bytes
