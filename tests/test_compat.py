"""The old names, with the right behaviour. Each row of docs/from_ck.md names a test here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import compat

SMALL = dict(N=1, C=64, K=64, G=2, Hi=8, Wi=8, pad_h=1, pad_w=1)


def arrays(problem: compat.GroupedConvProblem, first: str, second: str, dtype: type = np.float16):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(problem.problem().shape(name)).astype(dtype) for name in (first, second)]


def test_fields_and_defaults() -> None:
    config = compat.GroupedConvKernelConfig()
    assert (config.variant, config.ndim_spatial, config.dtype, config.layout, config.arch) == ("forward", 2, "fp16", "nhwgc", "gfx942")
    assert (config.tile_str, config.wave_str, config.warp_str, config.vec_str) == ("1x128x128", "2x2x1", "32x32x16", "4x8x8")
    assert (config.pipeline, config.scheduler, config.epilogue) == ("compv4", "intrawave", "cshuffle")
    assert not (config.double_smem_buffer or config.split_image or config.explicit_gemm or config.two_stage)
    problem = compat.GroupedConvProblem()
    assert (problem.N, problem.C, problem.K, problem.G, problem.Hi, problem.Wi, problem.Y, problem.X) == (1, 64, 128, 1, 28, 28, 3, 3)
    assert compat.DIRECTION_MAP == {"forward": 0, "bwd_data": 1, "bwd_weight": 2}
    assert compat.GroupedConvKernelConfig(variant="bwdw").variant == "bwd_weight"


def test_shapes_and_arithmetic() -> None:
    problem = compat.GroupedConvProblem(**SMALL)
    assert (problem.Ho, problem.Wo, problem.Do, problem.is_3d) == (8, 8, 1, False)
    assert problem.input_shape == (1, 8, 8, 2, 32) and problem.weight_shape == (2, 32, 3, 3, 32) and problem.output_shape == (1, 8, 8, 2, 32)
    assert problem.flops == 2 * 1 * 64 * 64 * 32 * 9 and problem.gflops == pytest.approx(problem.flops / 1e9)
    deep = compat.GroupedConvProblem(C=4, K=4, Di=5, Z=3, Hi=6, Wi=7, Y=1, X=1)
    assert (deep.ndim_spatial, deep.Do, deep.Ho, deep.Wo) == (3, 3, 6, 7) and deep.input_shape == (1, 5, 6, 7, 1, 4)
    with pytest.raises(ValueError):
        compat.GroupedConvProblem(C=5, G=2)


@pytest.mark.parametrize(("direction", "first", "second"), [("forward", "x", "w"), ("bwd_data", "y", "w"), ("bwd_weight", "x", "y")])
def test_more_than_one_group_is_right_in_every_direction(direction: str, first: str, second: str) -> None:
    problem = compat.GroupedConvProblem(**SMALL, direction=direction)
    a, b = arrays(problem, first, second)
    result = compat.GpuGroupedConvRunner(target="cpu").run(a, b, problem)
    assert result.success, result.error
    assert gconv.compare(problem.problem("fp16"), result.output, a, b).ok


def test_odd_channels_run() -> None:
    problem = compat.GroupedConvProblem(N=1, C=9, K=6, G=3, Hi=7, Wi=5)
    a, b = arrays(problem, "x", "w", np.float32)
    result = compat.GpuGroupedConvRunner(target="cpu").run(a, b, problem)
    assert gconv.compare(problem.problem("fp32"), result.output, a, b).ok and result.time_ms > 0


def test_a_failure_keeps_its_message() -> None:
    result = compat.GpuGroupedConvRunner(target="cpu").run(np.zeros((3, 3), np.float32), np.zeros((3, 3), np.float32), compat.GroupedConvProblem())
    assert not result.success and "x" in result.error and "axes" in result.error


def test_the_runner_is_available_before_it_has_run() -> None:
    assert compat.GpuGroupedConvRunner(target="cpu").is_available()
    assert not compat.GpuGroupedConvRunner(target="nowhere").is_available()
    assert "nowhere" in compat.GpuGroupedConvRunner(target="nowhere").get_init_error()


def test_a_backward_variant_keeps_its_pipeline() -> None:
    for pipeline in gconv_pipelines():
        config = compat.GroupedConvKernelConfig(variant="bwd_data", pipeline=pipeline, arch="gfx950")
        assert config.pipeline == pipeline and config.kernel_config().pipeline == (pipeline,)
        assert compat.validate_grouped_conv_config(config).is_valid


def gconv_pipelines() -> list[str]:
    from gconvdsl.pipelines import PIPELINES

    return list(PIPELINES)


def test_the_default_configuration_can_be_built() -> None:
    config = compat.GroupedConvKernelConfig()
    assert compat.validate_grouped_conv_config(config).is_valid
    mine = config.kernel_config()
    assert mine.tile is None and mine.pipeline == ("compv4",) and mine.double_smem_buffer is None


def test_validation_uses_every_rule() -> None:
    def errors(**fields: object) -> str:
        base = dict(tile_m=64, tile_n=64, tile_k=64, wave_m=2, wave_n=2, wave_k=1, warp_tile_m=32, warp_tile_n=32, warp_tile_k=16, pipeline="compv3")
        return " ".join(compat.validate_grouped_conv_config(compat.GroupedConvKernelConfig(**{**base, **fields})).errors)
    assert errors() == ""
    assert "block.m = 48" in errors(tile_m=48)
    assert "LDS" in errors(tile_m=256, tile_n=256, tile_k=128)
    assert "interwave" in errors(scheduler="interwave")
    assert "comp_async" in errors(pipeline="comp_async", arch="gfx1100", warp_tile_m=16, warp_tile_n=16)
    assert "missing" in " ".join(compat.validate_grouped_conv_config({"variant": "forward"}).errors)


def test_correction_gives_a_legal_configuration() -> None:
    bad = compat.GroupedConvKernelConfig(tile_m=48, tile_n=64, tile_k=32, wave_m=2, wave_n=2, warp_tile_m=16, warp_tile_n=16,
                                         warp_tile_k=16, scheduler="interwave", arch="gfx1201")
    corrected, changed = compat.auto_correct_grouped_conv_config(bad)
    assert changed and compat.validate_grouped_conv_config(corrected).is_valid
    assert corrected["trait_config"]["pipeline"] == ["compv4"] and corrected["trait_config"]["double_smem_buffer"] == [True]
    again, changed = compat.auto_correct_grouped_conv_config(corrected)
    assert not changed and again == corrected


@pytest.mark.parametrize("variant", compat.VALID_VARIANTS)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_default_configurations_are_legal(variant: str, arch: str) -> None:
    config = compat.get_grouped_conv_default_config(variant, arch=arch, dtype="bf16")
    assert config.tile_m > 1 and compat.validate_grouped_conv_config(config).is_valid


def test_names_tell_kernels_apart() -> None:
    base = dict(tile_m=64, tile_n=64, tile_k=64, warp_tile_m=16, warp_tile_n=16)
    names = {compat.GroupedConvKernelConfig(**base, **more).name
             for more in ({}, {"wave_m": 1}, {"warp_tile_k": 32}, {"vector_size_a": 8}, {"explicit_gemm": True}, {"num_groups_to_merge": 2})}
    assert len(names) == 6


def test_selection_looks_at_dtype_rank_direction_and_rules() -> None:
    registry = compat.GroupedConvRegistry("mine")
    three = compat.GroupedConvKernelConfig(ndim_spatial=3, layout="ndhwgc")
    backward = compat.GroupedConvKernelConfig(variant="bwd_data", pipeline="compv3")
    plain = compat.GroupedConvKernelConfig(pipeline="mem")
    for one in (three, backward, plain, plain):
        registry.add(one)
    assert len(registry) == 3 and registry.select(compat.GroupedConvProblem(**SMALL)) == plain
    assert registry.select(compat.GroupedConvProblem(**SMALL, direction="bwd_data")) == backward
    assert registry.select(compat.GroupedConvProblem(**SMALL, direction="bwd_weight")) is None
    better = compat.GroupedConvKernelConfig(pipeline="compv3")
    registry.add(better)
    assert registry.select(compat.GroupedConvProblem(**SMALL), heuristic=lambda problem: ["compv3", "mem"]) == better
    assert registry.filter_by_variant("bwdd") == [backward] and len(registry.filter_by_arch("gfx942")) == 4


def test_json_keeps_every_field() -> None:
    registry = compat.GroupedConvRegistry("mine")
    registry.add(compat.GroupedConvKernelConfig(split_image=True, pad_m=False, explicit_gemm=True, two_stage=True, double_smem_buffer=True))
    assert compat.GroupedConvRegistry.from_json(registry.to_json()).kernels() == registry.kernels()
    assert len(registry.registry()) == 1


def test_kernels_are_compiled_for_their_arch_and_keep_their_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    from gconvdsl import kernel

    asked = []

    class Stub:
        def __init__(self, spec):
            self.spec = spec

        def compile(self, problem, arch):
            asked.append((self.spec.config.pipeline, problem.direction, arch))
            if arch == "gfx1100":
                raise gconv.errors.error("compile.missing", tool="clang")
            return type("D", (), {"built": None})

    monkeypatch.setattr(compat, "Kernel", Stub)
    configs = [compat.GroupedConvKernelConfig(pipeline="mem"), compat.GroupedConvKernelConfig(variant="bwdw", pipeline="compv5", arch="gfx1100")]
    first, second = compat.setup_multiple_grouped_conv_dispatchers(configs)
    assert first is not None and second is None and kernel is not None
    assert sorted(asked) == [(("compv5",), "bwd_weight", "gfx1100"), (("mem",), "forward", "gfx942")]
    registry = compat.GroupedConvRegistry()
    for one in configs:
        registry.add(one)
    assert list(registry.build()) == [configs[0].name]


def test_no_arch_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat.choose, "detect_arch", lambda: "none")
    assert compat.detect_gpu_arch() == "none" and compat.detect_gpu_arch("gfx942") == "gfx942"
    monkeypatch.setattr(compat.choose, "detect_arch", lambda: "gfx950")
    assert compat.detect_gpu_arch("gfx942") == "gfx950"


def test_every_row_of_the_page_names_a_test() -> None:
    text = (Path(__file__).parent.parent / "docs" / "from_ck.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", text)
    assert len(named) >= 12
    for path, name in named:
        assert f"def {name}(" in (Path(__file__).parent.parent / path).read_text(encoding="utf-8"), (path, name)
