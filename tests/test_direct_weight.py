"""bwd_weight of grouped convolution straight from windows in LDS, executed by the simulator."""

from __future__ import annotations

import pytest

import gconvdsl as gconv
from gconvdsl.config import KernelConfig
from gconvdsl.families import find_family
from gconvdsl.lower_direct_weight import lower_direct_weight
from gconvdsl.runner import bare_spec, execute
from gconvdsl.verify import verify

PROBLEMS = {
    "16": dict(N=4, G=4, C=64, K=64, input=(8, 8), filter=3, pad=1, dtype="bf16"),
    "packed": dict(N=2, G=8, C=32, K=32, input=(8, 12), filter=3, pad=1, stride=(1, 2), dtype="fp16"),
    "unequal": dict(N=2, G=4, C=32, K=64, input=(8, 8), filter=3, pad=1, dtype="bf16"),
    "dilated": dict(N=2, G=2, C=64, K=64, input=(8, 8), filter=(3, 1), dilation=(2, 1), pad=((2, 2), (0, 0)), dtype="bf16"),
    "3-D": dict(N=2, G=4, C=32, K=32, input=(4, 4, 4), filter=3, pad=1, dtype="fp16"),
    "1-D": dict(N=4, G=2, C=32, K=32, input=40, filter=5, pad=2, dtype="fp16"),
}


def _problem(name):
    return gconv.ConvProblem(**PROBLEMS[name], direction="bwd_weight")


def _verify(problem, target):
    def run(a, b, out):
        result = execute(bare_spec("bwd_weight"), KernelConfig(), problem, (a, b), out=out, target=target, poison=True)
        assert result.decision.lowered.notes[0].startswith("direct")
        return result.output

    verify(problem, run).require()


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_right(name):
    _verify(_problem(name), "sim:gfx942")


@pytest.mark.parametrize("target", ["sim:gfx1201", "sim:sm_80"])
def test_it_is_right_with_other_matrix_instructions(target):
    _verify(_problem("packed"), target)


@pytest.mark.nightly
@pytest.mark.parametrize("target", [
    "sim:gfx908", "sim:gfx90a", "sim:gfx950", "sim:gfx1100", "sim:gfx1201", "sim:sm_80"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_right_on_every_arch(name, target):
    _verify(_problem(name), target)


@pytest.mark.parametrize("change", [
    dict(direction="forward"), dict(dtype="fp32"), dict(C=256, K=256), dict(input=(9, 7), N=1), dict(layout="nchw"),
    dict(filter=5, pad=2)])
def test_what_it_does_not_serve(change):
    problem = _problem("16")
    assert find_family(problem, KernelConfig(), "gfx942") is lower_direct_weight
    assert find_family(problem.replace(**change), KernelConfig(), "gfx942") is None
    assert find_family(problem, KernelConfig(pipeline="basic_v1"), "gfx942") is None
    assert find_family(problem, KernelConfig(), "gfx1250") is None


def test_it_compiles_for_amd(require_tool):
    require_tool("clang")
    from gconvdsl.backends.base import parse_target
    from gconvdsl.build import build, lower

    for arch in ("gfx942", "gfx1201"):
        backend, name = parse_target(f"hip:{arch}")
        lowered = lower(bare_spec("bwd_weight"), _problem("packed"), KernelConfig(), "hip", name)
        assert build(lowered, backend, name, "direct", load=False).artifact.bytes
