from __future__ import annotations

import math

import pytest

import gconvdsl as gconv
from gconvdsl.cases import check_case
from gconvdsl.config import CPU_ALGORITHMS
from gconvdsl.explain import explain
from gconvdsl.expr import Expr, apply, operand
from gconvdsl.lower_cpu import ALGORITHMS, ISAS, lower_cpu
from gconvdsl.spec import ConvParams, KernelSpec, Operand

ODD = dict(N=2, G=4, C=32, K=48, input=(13, 11), filter=(3, 2), stride=(2, 1), pad=1, dilation=(1, 2))


def bare(direction: str) -> KernelSpec:
    return KernelSpec("bare", ConvParams(direction))


def lowered(arch: str = "avx2", config: gconv.KernelConfig | None = None, **fields):
    problem = gconv.ConvProblem(**fields)
    return lower_cpu(bare(problem.direction), problem, config or gconv.KernelConfig(), arch)


@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_one_source_serves_every_size_padding_layout_and_number_of_groups(direction):
    base = gconv.ConvProblem(**ODD, direction=direction)
    for change in (dict(N=7), dict(N=0), dict(input=(40, 41)), dict(pad=((0, 2), (1, 0))), dict(layout="nchw"),
                   dict(G=6, C=48, K=72)):
        assert lower_cpu(bare(direction), base.replace(**change), gconv.KernelConfig(), "avx2").source == lowered(
            **ODD, direction=direction).source, change


@pytest.mark.parametrize("change", [
    dict(filter=(3, 3)), dict(stride=1), dict(dilation=1), dict(C=64), dict(K=96), dict(dtype="bf16"), dict(out_dtype="fp16"),
    dict(direction="bwd_data"),
])
def test_what_the_compiler_must_know_is_in_the_source(change):
    assert lowered(**ODD).source != lowered(**{**ODD, **change}).source


def test_the_source_depends_on_the_vector_width():
    sources = {arch: lowered(arch, **ODD).source for arch in ISAS}
    assert "GCONV_LANES 16" in sources["avx512"] and "GCONV_LANES 8" in sources["avx2"] and "GCONV_LANES 4" in sources["neon"]


@pytest.mark.parametrize("groups, channels, outputs, expected", [
    (64, 64, 64, "depthwise"), (64, 64, 128, "merged_groups"), (32, 128, 128, "merged_groups"), (32, 160, 160, "direct"),
    (1, 1, 1, "direct"), (1, 64, 3, "direct"), (2, 2 * 17, 2 * 48, "direct"), (2, 2 * 64, 4, "direct"),
])
def test_the_algorithm_follows_from_the_channels(groups, channels, outputs, expected):
    notes = lowered(N=1, G=groups, C=channels, K=outputs, input=(8, 8), filter=(3, 3), pad=1).notes
    assert notes[0].startswith(f"algorithm {expected}:")
    passed = [one.name for one in ALGORITHMS[:[one.name for one in ALGORITHMS].index(expected)]]
    assert all(any(name in note for note in notes[1:]) for name in passed)


def test_an_algorithm_and_a_register_block_may_be_asked_for():
    fields = dict(N=1, G=8, C=32, K=32, input=(8, 8), filter=(3, 3), pad=1)
    assert set(CPU_ALGORITHMS) == {one.name for one in ALGORITHMS}
    assert "algorithm merged_groups" in lowered(**fields).notes[0]
    asked = lowered(**fields, config=gconv.KernelConfig(cpu_algorithm="direct", cpu_vectors=2, cpu_points=3))
    assert "algorithm direct" in asked.notes[0] and "3 or 3 points by 2 vectors" in asked.notes[1]
    assert "vectors = 2, points = 3, few_points = 3" in asked.source
    with pytest.raises(gconv.RuleError, match="4 is more than 3"):
        lowered(**fields, config=gconv.KernelConfig(cpu_algorithm="direct", cpu_vectors=4))
    assert lowered("avx512", **fields, config=gconv.KernelConfig(cpu_algorithm="direct", cpu_vectors=4)).source
    with pytest.raises(gconv.RuleError, match="merged_groups, direct"):
        lowered(**fields, config=gconv.KernelConfig(cpu_algorithm="depthwise"))


@pytest.mark.parametrize("asked", [("direct", 16, 1), ("direct", 1, 4), ("merged_groups", 3, None)])
@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_any_register_block_is_right(direction, asked):
    problem = gconv.ConvProblem(N=2, G=4, C=12, K=12, input=(7, 9), filter=(2, 3), stride=(1, 2), pad=1, direction=direction)
    algorithm, points, vectors = asked
    config = gconv.KernelConfig(cpu_algorithm=algorithm, cpu_points=points, cpu_vectors=vectors)
    outcome = check_case(bare(direction), config, problem, "cpu", timed=False)
    assert outcome.ok and outcome.config == config, outcome.error or outcome.reason


def test_other_targets_ignore_what_cpu_heeds():
    problem = gconv.ConvProblem(N=2, G=4, C=32, K=32, input=(8, 8), filter=(3, 3), pad=1, dtype="fp16")
    asked = explain(bare("forward"), problem, gconv.KernelConfig(cpu_points=3), "sim:gfx942")
    assert asked.config == explain(bare("forward"), problem, gconv.KernelConfig(), "sim:gfx942").config


def test_the_channels_along_the_lanes_are_those_of_the_result():
    few_inputs = dict(N=1, G=8, C=16, K=8 * 40, input=(8, 8), filter=(3, 3))
    assert "algorithm direct" in lowered(**few_inputs).notes[0]
    assert "algorithm direct" in lowered(**few_inputs, direction="bwd_data").notes[0]    # 40 summed channels are too many to merge
    assert "algorithm merged_groups" in lowered(**{**few_inputs, "K": 8 * 20}, direction="bwd_data").notes[0]


def test_the_workspace_holds_the_packed_weights():
    small = lowered(N=1, G=4, C=16, K=16, input=(8, 8), filter=(3, 3)).plan
    assert small.workspace == 4 * 2 * 9 * 4 * 8                # 2 items of 2 groups: 9 taps, 4 channels, 8 lanes of fp32
    wide = lowered(N=1, G=2, C=34, K=34, input=(8, 8), filter=(3, 3)).plan
    assert wide.workspace == 4 * 2 * 9 * 17 * 24               # 17 output channels take 3 vectors of 8 lanes


def test_the_chunks_of_a_reduction_depend_on_the_problem_only(monkeypatch):
    fields = dict(N=8, G=4, C=32, K=32, input=(56, 56), filter=(3, 3), pad=1, direction="bwd_weight")
    plans = []
    for threads in ("1", "2", "64"):
        monkeypatch.setenv("GCONV_THREADS", threads)
        plans.append(lowered(**fields).plan)
    assert plans[0] == plans[1] == plans[2] and plans[0].args.splits > 1
    accumulate, reduce = plans[0].launches
    assert accumulate.tasks % plans[0].args.splits == 0 and reduce.tasks > 1


def test_partial_sums_stay_small():
    for fields in (dict(N=8, G=1, C=256, K=256, input=(56, 56), filter=(3, 3)),
                   dict(N=64, G=1, C=64, K=64, input=(112, 112), filter=(1, 1))):
        problem = gconv.ConvProblem(**fields, direction="bwd_weight")
        plan = lowered(**fields, direction="bwd_weight").plan
        assert plan.workspace <= max(1 << 22, 2 * 4 * math.prod(problem.shape("w")))


def test_an_empty_batch_still_has_launches_that_define_dw():
    assert all(launch.tasks > 0 for launch in lowered(**{**ODD, "N": 0}, direction="bwd_weight").plan.launches)


def test_functors_read_operands_by_their_place_in_the_declaration():
    epilogue = apply("relu", apply("add", apply("mul", Expr("acc"), operand("scale")), operand("residual")))
    operands = (Operand("unused", "scalar"), Operand("residual", "like_y"), Operand("scale", "per_k"))
    spec = KernelSpec("fused", ConvParams("forward"), operands, epilogue=epilogue)
    source = lower_cpu(spec, gconv.ConvProblem(**ODD), gconv.KernelConfig(), "avx2").source
    assert "static_cast<const float*>(args.operand[2])[channel]" in source
    assert "args.operand[1]) + at" in source and "args.scalar[0]" not in source
    assert "has_prologue = false" in source and '#include "gconv/math.hpp"' in source


def test_the_gradients_of_a_fused_kernel_are_those_of_the_bare_convolution():
    spec = KernelSpec("fused", ConvParams("forward"), epilogue=apply("relu", Expr("acc")))
    source = lower_cpu(spec, gconv.ConvProblem(**ODD, direction="bwd_data"), gconv.KernelConfig(), "avx2").source
    assert "has_epilogue = false" in source


def test_what_the_target_ignores_is_said():
    config = gconv.KernelConfig(tile=gconv.Tile(block=(64, 16, 64)), pipeline="compv4", scheduler="intrawave")
    notes = lowered(**ODD, config=config).notes
    assert any("ignores tile, pipeline, scheduler" in note for note in notes)
    assert not any("ignores" in note for note in lowered(**ODD).notes)
