"""The choice of a kernel: demands, chains, tiles that do not fit, failures, and what is remembered."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Iterator

import pytest

import gconvdsl as gconv
from gconvdsl import choose
from gconvdsl.choose import FallbackWarning
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.explain import explain
from gconvdsl.runner import bare_spec
from tests.stub_target import ARCH, StubBackend

PROBLEM = gconv.ConvProblem(N=2, G=2, C=64, K=64, input=(8, 8), filter=(3, 3), pad=1, dtype="bf16")
SPEC = bare_spec("forward")
TILE = Tile(block=(64, 32, 64), waves=(2, 1, 1), wave_tile=(16, 16, 16))
CHAIN = "compv4 -> compv3 -> basic_v1"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StubBackend]:
    """A target that cannot fail of itself, with empty records."""
    backend = StubBackend()
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(choose, "lower", backend.lower)
    monkeypatch.setattr(choose, "_warned", set())
    choose.forget()
    yield backend
    choose.forget()


def decide(stub: StubBackend, config: KernelConfig, problem: gconv.ConvProblem = PROBLEM) -> choose.Decision:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return choose.decide(SPEC, problem, config, stub, ARCH)


def test_a_demand_runs_or_raises(stub: StubBackend) -> None:
    made = decide(stub, KernelConfig(tile=TILE, pipeline="compv4"))
    assert made.config.pipeline == ("compv4",) and made.config.double_smem_buffer is True
    assert (made.source, made.fallbacks) == ("demanded", ())
    with pytest.raises(gconv.RuleError, match="double_smem_buffer") as caught:
        decide(stub, KernelConfig(tile=TILE, pipeline="compv4", double_smem_buffer=False))
    assert [v.rule for v in caught.value.violations] == ["pipeline.double_smem_buffer"]
    stub.uncompilable = {"mem"}
    with pytest.raises(gconv.CompileError):
        decide(stub, KernelConfig(tile=TILE, pipeline="mem"))


def test_along_a_chain_only_pipeline_and_buffers_change(stub: StubBackend) -> None:
    stub.uncompilable = {"compv4", "compv3"}
    asked = KernelConfig(tile=TILE, pipeline=CHAIN, scheduler="intrawave", double_smem_buffer=True, block_per_cu=2)
    made = decide(stub, asked)
    assert made.config == asked.resolved(pipeline="basic_v1", double_smem_buffer=False)
    assert [(f.config.pipeline, f.stage) for f in made.fallbacks] == [(("compv4",), "compile"), (("compv3",), "compile")]
    assert made.source == "chain"


def test_a_rule_moves_along_the_chain_too(stub: StubBackend) -> None:
    made = decide(stub, KernelConfig(tile=TILE, pipeline="compv3 -> mem", scheduler="interwave"))
    assert made.config.pipeline == ("mem",)
    assert made.fallbacks[0].stage == "rule" and "interwave" in made.fallbacks[0].reason


def test_nothing_left_is_an_error_that_lists_everything(stub: StubBackend) -> None:
    stub.uncompilable = {"compv4", "compv3", "basic_v1"}
    with pytest.raises(gconv.NoKernelError) as caught:
        decide(stub, KernelConfig(tile=TILE, pipeline=CHAIN))
    text = str(caught.value)
    assert all(name in text for name in ("compv4", "compv3", "basic_v1")) and text.count("stubcc") == 3


@pytest.mark.parametrize("changes, rule", [
    ({"stride": 10**30, "direction": "bwd_data"}, "limit.index"),          # as many stride phases are not to be looked at one by one
    ({"stride": 2**14, "direction": "bwd_data"}, "limit.grid"),
    ({"N": 2**29}, "limit.grid"),                                          # too many blocks for any tile
])
def test_sizes_beyond_the_limits_are_refused_by_a_rule(stub: StubBackend, changes: dict[str, Any], rule: str) -> None:
    for config in (KernelConfig(), KernelConfig(pipeline="basic_v1"), KernelConfig(pipeline="compv4 -> basic_v1")):
        with pytest.raises(gconv.GconvError) as caught:
            decide(stub, config, PROBLEM.replace(**changes))
        assert caught.value.code in ("rule.violated", "kernel.none") and rule in str(caught.value)
    assert stub.compiled == []


def test_a_tile_of_another_family_is_replaced_and_said_once(stub: StubBackend) -> None:
    foreign = Tile(block=(64, 32, 64), waves=(2, 1, 1), wave_tile=(16, 8, 16))
    with pytest.warns(FallbackWarning, match="wave_tile"):
        made = choose.decide(SPEC, PROBLEM, KernelConfig(tile=foreign, pipeline="basic_v1"), stub, ARCH)
    assert made.fallbacks[0].stage == "tile" and made.config.tile != foreign
    assert not gconv.check(PROBLEM, made.config, ARCH)
    choose.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose.decide(SPEC, PROBLEM, KernelConfig(tile=foreign, pipeline="basic_v1"), stub, ARCH)


def test_a_tile_that_is_wrong_everywhere_is_an_error(stub: StubBackend) -> None:
    crooked = Tile(block=(56, 32, 64), waves=(2, 1, 1), wave_tile=(16, 16, 16))
    with pytest.raises(gconv.RuleError, match="block.m"):
        decide(stub, KernelConfig(tile=crooked, pipeline="basic_v1"))


def test_tiles_by_family(stub: StubBackend) -> None:
    nvidia = Tile(block=(64, 32, 64), wave_tile=(16, 8, 16))
    made = decide(stub, KernelConfig(tile={"cdna": TILE, "nvidia": nvidia}, pipeline="basic_v1"))
    assert made.config.tile == TILE and not made.fallbacks
    other = decide(stub, KernelConfig(tile={"nvidia": nvidia}, pipeline="basic_v1"))
    assert other.fallbacks[0].stage == "tile" and "cdna" in other.fallbacks[0].reason


def test_a_warning_names_the_line_of_the_call(stub: StubBackend) -> None:
    with pytest.warns(FallbackWarning) as caught:
        choose.decide(SPEC, PROBLEM, KernelConfig(pipeline="comp_async -> basic_v1"), stub, "gfx1100")
    assert [one.filename for one in caught] == [__file__]


def test_free_means_no_warning(stub: StubBackend) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = choose.decide(SPEC, PROBLEM, KernelConfig(), stub, ARCH)
    assert made.source == "rule" and made.config.tile is not None


def test_a_decision_is_made_once(stub: StubBackend) -> None:
    first = decide(stub, KernelConfig(tile=TILE, pipeline="mem"))
    again = choose.decide(bare_spec("forward"), PROBLEM.replace(), KernelConfig(tile=TILE, pipeline="mem"), stub, ARCH)
    assert again is first and stub.compiled == ["mem"]


def test_a_failed_compile_is_not_tried_again_by_the_next_process(stub: StubBackend) -> None:
    stub.uncompilable = {"compv4"}
    config = KernelConfig(tile=TILE, pipeline=CHAIN)
    decide(stub, config)
    choose.forget()                     # what a new process starts with
    stub.uncompilable = set()
    made = decide(stub, config)
    assert made.config.pipeline == ("compv3",) and stub.compiled.count("compv4") == 1
    assert made.fallbacks[0].stage == "compile" and "stubcc" in made.fallbacks[0].reason
    other = decide(stub, config, PROBLEM.replace(N=3))
    assert other.config.pipeline == ("compv4",), "another problem is another decision"


def test_a_demand_that_failed_before_says_so(stub: StubBackend) -> None:
    stub.uncompilable = {"mem"}
    for expected in (gconv.CompileError, gconv.NoKernelError):
        with pytest.raises(expected, match="stubcc"):
            decide(stub, KernelConfig(tile=TILE, pipeline="mem"))
        choose.forget()
    assert stub.compiled == ["mem"]


def test_a_missing_compiler_is_no_fault_of_the_kernel(stub: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise gconv.CompileError("compile.missing", {"tool": "stubcc", "target": "stub", "hint": ""})

    monkeypatch.setattr(choose, "build", missing)
    with pytest.raises(gconv.CompileError) as caught:
        decide(stub, KernelConfig(tile=TILE, pipeline=CHAIN))
    assert caught.value.code == "compile.missing"
    monkeypatch.undo()
    monkeypatch.setattr(choose, "lower", stub.lower)


def test_explain_compiles_nothing_and_shows_what_is_remembered(stub: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "resolve_target", lambda target, arch: (stub, ARCH))
    config = KernelConfig(tile=TILE, pipeline=CHAIN)
    assert "runs       compv4" in str(explain(SPEC, PROBLEM, config)) and stub.compiled == []
    stub.uncompilable = {"compv4"}
    decide(stub, config)
    text = str(explain(SPEC, PROBLEM, config))
    assert "runs       compv3" in text and "compile: stubcc" in text and "a note" in text and "m = 128, n = 32, k = 288" in text
    refused = explain(SPEC, PROBLEM, KernelConfig(tile=TILE, pipeline="compv3", scheduler="interwave"))
    assert not refused.supported and "interwave" in str(refused)


def test_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_TARGET", "sim:gfx1100")
    assert choose.default_target() == "sim:gfx1100"
    monkeypatch.delenv("GCONV_TARGET")
    nothing = type("Nothing", (), {"available": False, "arch": None})()
    monkeypatch.setattr(choose, "_detect", lambda name: nothing)
    assert choose.default_target() == "cpu" and choose.detect_arch() == "none"
    found = type("Found", (), {"available": True, "arch": "gfx90a"})()
    monkeypatch.setattr(choose, "_detect", lambda name: found if name == "hip" else nothing)
    assert choose.detect_arch() == "gfx90a"
    with pytest.raises(gconv.GconvError) as caught:
        choose.resolve_target("tpu")
    assert caught.value.code == "launch.target"


def test_a_target_that_is_no_text_is_not_known() -> None:
    with pytest.raises(gconv.LaunchError, match="Target '3' is not known"):
        choose.resolve_target(3)  # type: ignore[arg-type]


def test_an_arch_alone_is_of_the_default_target_or_of_its_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(target: str | None, arch: str | None) -> str:
        backend, found = choose.resolve_target(target, arch)
        return f"{backend.name}:{found}"

    monkeypatch.setenv("GCONV_TARGET", "sim:gfx942")
    assert named(None, "gfx1100") == "sim:gfx1100" and named("hip", "gfx950") == "hip:gfx950"
    monkeypatch.setenv("GCONV_TARGET", "cpu")
    assert named(None, "gfx950") == "hip:gfx950" and named(None, "sm_90") == "cuda:sm_90"
    assert named("sim:gfx90a", "gfx950") == "sim:gfx90a"
    with pytest.raises(gconv.GconvError) as caught:
        choose.resolve_target(None, "gfx000")
    assert caught.value.code == "compile.arch"
