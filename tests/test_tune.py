"""Tuning: nothing wrong, hanging or crashing wins; it is recorded at once, and found nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fault_target
import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import choose, cli, processes, records, search, tune as tuning, tuned
from gconvdsl.errors import GconvError
from gconvdsl.measurement import Case, Measurement, Times
from gconvdsl.results import Results
from gconvdsl.runner import bare_spec
from gconvdsl.tune import decorator_text, parse_budget, tune

PROBLEM = gconv.ConvProblem(C=1, K=1, input=(3, 3), filter=(1, 1), name="tiny")
TILED = choose.settle(PROBLEM, gconv.KernelConfig(pipeline="basic_v1"), "fault", fault_target.ARCH)
SPEC = bare_spec("forward")


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, new_cache: Path) -> Iterator[None]:
    monkeypatch.setattr(processes, "IMPORTS", ["fault_target"])
    monkeypatch.setattr(records, "_memory", {})
    monkeypatch.setattr(choose, "_failed", {})
    choose.forget()
    yield
    choose.forget()


def candidates(monkeypatch: pytest.MonkeyPatch, *kinds: int) -> None:
    """The space of tuning: the usual kernel, then these."""
    configs = [TILED, *(TILED.resolved(block_per_cu=kind) for kind in kinds)]
    monkeypatch.setattr(tuning, "space", lambda *_: iter(configs))
    monkeypatch.setattr(choose, "settle", lambda *_: TILED)


def run(budget: Any = 30, **options: Any) -> tuning.TuningResult:
    return tune(SPEC, PROBLEM, budget=budget, target="fault:gfx942", workers=1, timeout=2.0, **options)


def decided(problem: gconv.ConvProblem = PROBLEM, config: gconv.KernelConfig | None = None, spec: Any = SPEC) -> Any:
    return choose.decide(spec, problem, config or spec.config, *choose.resolve_target("fault:gfx942"), compiled=False)


def test_the_fastest_right_kernel_wins_and_is_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = decided()
    candidates(monkeypatch, *range(fault_target.WRONG, fault_target.SLOW + 1))
    result = run()
    assert result.best is not None and result.config == TILED.resolved(block_per_cu=fault_target.FASTER)
    assert result.complete and result.speedup > 1.5 and result.usual and result.usual.case.config == TILED
    after = decided()
    assert before.source == "rule" and after.source == "tuned" and after.config == result.config
    text = result.summary()
    for shown in ("WRONG 1", "CRASH 1", "TIMEOUT 1", "DUPLICATE 1", "SLOW 1", "block_per_cu=8", "@gconv.tile", "times as fast"):
        assert shown in text
    assert {one.kind for one in Results().find()} == {"tune"}


def test_a_kernel_that_only_other_inputs_show_to_be_wrong_cannot_win(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates(monkeypatch, fault_target.FASTER)
    from gconvdsl.measure import Outcome
    from gconvdsl.sweep import Sweep
    usual = Sweep.check

    def check(self: Sweep, item: Any) -> Outcome:
        fast = item.config.block_per_cu == fault_target.FASTER
        return Outcome("WRONG", "an infinity was lost") if fast else usual(self, item)
    monkeypatch.setattr(Sweep, "check", check)
    result = run()
    assert result.config == TILED and "an infinity was lost" in result.summary()
    assert [one.status for one in Results().find({"status": "WRONG"})] == ["WRONG"]


def test_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "space", lambda *_: iter([TILED.resolved(block_per_cu=fault_target.CRASH)]))
    monkeypatch.setattr(choose, "settle", lambda *_: TILED.resolved(block_per_cu=fault_target.WRONG))
    result = run()
    assert result.best is None and result.decorator() == "" and "Nothing passed" in result.summary() and decided().source == "rule"


def test_it_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAULT_LOG", str(tmp_path / "log"))
    candidates(monkeypatch, fault_target.FASTER, fault_target.SLOW)
    first = run()
    once = (tmp_path / "log").read_text().count("\n")
    again = run()
    assert again.reused == 3 == len(first.measurements) and again.config == first.config
    assert (tmp_path / "log").read_text().count("\n") - once < once / 2        # the winner is verified once more


def test_the_budget_is_kept_and_the_usual_choice_measured_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates(monkeypatch, *(10 + i for i in range(2000)))
    result = run(0.001)
    assert not result.complete and [one.case.config for one in result.measurements] == [TILED]
    result = run("6s")
    assert not result.complete and 1 <= len(result.measurements) < 2000


def test_an_interrupt_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates(monkeypatch, fault_target.FASTER, fault_target.SLOW)
    partial: list[tuning.TuningResult] = []

    def progress(made: Measurement, reused: int) -> None:
        if made.case.config.block_per_cu == fault_target.FASTER:
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        run(progress=progress, interrupted=partial.append)
    assert len(partial[0].measurements) == 2 and not partial[0].complete
    assert decided().source == "tuned" and decided().config.block_per_cu == fault_target.FASTER


# --- the record

BEST = Measurement(Case(PROBLEM, TILED.resolved(block_per_cu=fault_target.FASTER), "fault", "gfx942"), "PASS", times=Times.of([1.0]))


def record() -> None:
    tuned.record(SPEC, PROBLEM, SPEC.config, *choose.resolve_target("fault:gfx942"), BEST)


def test_the_record_is_found_by_the_next_process(new_cache: Path) -> None:
    record()
    choose.forget()
    assert decided().source == "tuned"
    backend, arch = choose.resolve_target("fault:gfx942")
    tuned.forget(SPEC, PROBLEM, SPEC.config, backend, arch)
    assert decided().source == "rule"


ELSEWHERE: dict[str, dict[str, Any]] = {
    "dtype": {"dtype": "fp16", "out_dtype": "fp16"}, "out_dtype": {"dtype": "fp16", "out_dtype": "fp32"}, "dilation": {"dilation": 2},
    "stride": {"stride": 2}, "N": {"N": 2}, "pad": {"pad": 1}, "layout": {"layout": "ngchw"}, "direction": {"direction": "bwd_data"},
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_no_record_of_another_problem_is_used(what: str) -> None:
    record()
    problem = PROBLEM.replace(**ELSEWHERE[what])
    assert decided(problem, spec=bare_spec(problem.direction)).source == "rule" and decided().source == "tuned"


@pytest.mark.parametrize("what", ["device", "compiler", "arch", "package", "declaration", "asked"])
def test_no_record_of_another_place_is_used(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    record()
    spec, config, arch = SPEC, SPEC.config, "gfx942"
    if what in ("device", "compiler"):
        monkeypatch.setenv(f"FAULT_{what.upper()}", "another")
    if what == "package":
        monkeypatch.setattr(gconv.cache if hasattr(gconv, "cache") else sys.modules["gconvdsl.cache"], "decision_hash", lambda: "older")
    if what == "declaration":
        spec = gconv.kernel(_negated).spec
    if what == "asked":
        config = gconv.KernelConfig(pipeline="mem -> basic_v1")
    if what == "arch":
        monkeypatch.setattr(fault_target.FaultBackend, "archs", lambda self: ("gfx942", "gfx950"))
        arch = "gfx950"
    choose.forget()
    found = choose.decide(spec, PROBLEM, config, *choose.resolve_target(f"fault:{arch}"), compiled=False)
    assert found.source != "tuned"


def _negated(x, w):      # type: ignore[no-untyped-def]
    return -gconv.conv(x, w)


def test_a_record_that_can_no_longer_be_built_is_passed_over() -> None:
    broken = replace(BEST, case=replace(BEST.case, config=TILED.resolved(block_per_cu=fault_target.NO_COMPILE)))
    tuned.record(SPEC, PROBLEM, SPEC.config, *choose.resolve_target("fault:gfx942"), broken)
    with pytest.warns(choose.FallbackWarning, match="could not compile"):
        found = choose.decide(SPEC, PROBLEM, SPEC.config, *choose.resolve_target("fault:gfx942"))
    assert found.source == "rule" and found.fallbacks[0].config.block_per_cu == fault_target.NO_COMPILE


def test_a_damaged_record_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    for content in ({"config": {"pipelin": "mem"}}, {"config": 3}, {}, {"stage": "compile", "reason": "no"}):
        monkeypatch.setattr(records, "recall", lambda identity, content=content: content)
        assert tuned.recall(SPEC, PROBLEM, SPEC.config, *choose.resolve_target("fault:gfx942")) is None


# --- texts

def test_the_decorator_can_be_pasted() -> None:
    config = gconv.KernelConfig(tile=gconv.Tile((64, 32, 16), name="m64"), pipeline="compv4", double_smem_buffer=True, split_k=2)
    names: dict[str, Any] = {"gconv": gconv}
    exec(decorator_text(config) + "\ndef fast(x, w): return gconv.conv(x, w)\n", names)
    assert names["m64"] == config.tile and names["fast"].spec.config == config
    assert decorator_text(gconv.KernelConfig()) == "@gconv.kernel"


@pytest.mark.parametrize("text, seconds", [("60s", 60), ("5min", 300), (2.5, 2.5), ("500ms", 0.5), ("1h", 3600), ("7", 7), (" 3 m ", 180)])
def test_budgets(text: Any, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3s", "5 fortnights", None, True, "1e3s", 0])
def test_what_is_no_budget(text: Any) -> None:
    with pytest.raises(GconvError, match="60s"):
        parse_budget(text)


# --- on target cpu

def test_a_kernel_is_tuned_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    @gconv.kernel
    def shifted(x, w, b: gconv.PerK):      # type: ignore[no-untyped-def]
        return gconv.relu(gconv.conv(x, w, pad=1, groups=2) + b)
    configs = [gconv.KernelConfig(), gconv.KernelConfig(cpu_algorithm="direct", cpu_points=2, cpu_vectors=1)]
    monkeypatch.setattr(tuning, "space", lambda *_: iter(configs))
    problem = gconv.ConvProblem(N=1, G=2, C=8, K=8, input=(5, 6), filter=(3, 3), pad=1)
    rng = np.random.default_rng(3)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 5, 6, 8), (8, 3, 3, 4), (8,)))
    before = shifted(x, w, b, target="cpu")
    result = shifted.tune(problem, budget=60, target="cpu", workers=1)
    assert result.best is not None and all(one.passed for one in result.measurements) and len(result.measurements) == 2
    np.testing.assert_allclose(shifted(x, w, b, target="cpu"), before, rtol=1e-5, atol=1e-5)
    assert shifted.signatures[-1].config == result.config
    assert "the fastest of the recorded measurements" in str(shifted.explain(problem, target="cpu"))


def test_the_space_keeps_what_is_stated() -> None:
    problem = gconv.ConvProblem(N=4, G=4, C=64, K=64, input=(8, 8), filter=(3, 3), pad=1, dtype="fp16")

    def first(count: int, **stated: Any) -> list[gconv.KernelConfig]:
        return [one for _, one in zip(range(count), search.space(problem, "hip", "gfx942", gconv.KernelConfig(**stated)))]
    found = first(40, pipeline="compv3", epilogue="default")
    assert len(found) > 10 and {one.pipeline for one in found} == {("compv3",)} and {one.epilogue for one in found} == {"default"}
    chain = first(60, pipeline="compv3 -> mem")
    assert {one.pipeline for one in chain} == {("compv3",), ("mem",)}
    tile = gconv.Tile((64, 16, 16), wave_tile=(16, 16, 16))
    assert {one.tile for one in first(10, tile=tile)} == {tile}
    open_ = list(search.space(problem, "cpu", "avx2"))
    assert open_[0] == gconv.KernelConfig() and len(open_) > 30 and len(set(open_)) == len(open_)


# --- the command

def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [gconv.KernelConfig(), gconv.KernelConfig(cpu_algorithm="direct", cpu_points=2)]
    monkeypatch.setattr(tuning, "space", lambda *_: iter(configs))
    text = "C=4 K=4 input=5x6 filter=3x3 pad=1"
    assert cli.main(["tune", "--problem", text, "--target", "cpu", "--budget", "60s", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 configurations" in out and "recorded: " in out and "@gconv.kernel" in out
    assert cli.main(["explain", "--problem", text, "--target", "cpu"]) == 0
    assert "the fastest of the recorded measurements" in capsys.readouterr().out
    assert cli.main(["tune", "--problem", text, "--target", "cpu", "--budget", "soon"]) == 2
    assert cli.main(["tune", "--target", "cpu"]) == 2


RUNNER = """
import sys
sys.path[:0] = {path!r}
import fault_target, test_tune
from gconvdsl import choose, cli, processes, tune
processes.IMPORTS.append("fault_target")
configs = [test_tune.TILED, *(test_tune.TILED.resolved(block_per_cu=10 + i) for i in range(2000))]
tune.space = lambda *_: iter(configs)
choose.settle = lambda *_: test_tune.TILED
sys.exit(cli.main(["tune", "--problem", test_tune.PROBLEM.describe(), "--target", "fault:gfx942", "--budget", "120s", "--workers", "1"]))
"""


def test_ctrl_c_keeps_results_and_says_so(new_cache: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = RUNNER.format(path=[str(Path(__file__).parent)])
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)) as process:
        end = time.monotonic() + 90
        while Results().info()["rows"] < 3 and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in out and "recorded: " in out and "Traceback" not in err
    choose.forget()
    assert decided().source == "tuned"
