"""The harnesses examples/10, 11 and 12: a few of their tests for real, and what becomes of a test that dies."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ROOT = EXAMPLES.parent
DIRECTIONS = ("forward", "bwd_data", "bwd_weight")
PIPELINES = ("basic_v1", "mem", "compv3", "compv4", "compv5", "compv6", "comp_async", "basic_async_v1")


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})


def results(script: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run(EXAMPLES / script, "--json", "-", *arguments)
    return done.returncode, json.loads(done.stdout)


def trials(script: str, target: str = "sim:gfx942") -> list[Any]:
    return list(runpy.run_path(str(EXAMPLES / script))["tests"](target))


def test_a_pipeline_runs_and_one_that_the_arch_lacks_is_refused() -> None:
    code, found = results("10_test_all_pipelines.py", "--target", "sim", "--arch", "gfx1201", "--only", "bwd_data basic")
    assert code == 0 and found["target"] == "sim:gfx1201"
    assert [(one["name"], one["status"]) for one in found["results"]] == [
        ("bwd_data basic_v1", "PASS"), ("bwd_data basic_async_v1", "REFUSED")]
    assert 0 < found["results"][0]["error_ratio"] <= 1 and "direct_to_lds" in found["results"][1]["detail"]
    assert found["summary"] == {"bwd_data basic_v1": "supported", "bwd_data basic_async_v1": "REFUSED"}


def test_one_scheduler_that_runs_is_enough() -> None:
    code, found = results("11_test_schedulers.py", "--only", "forward compv6")
    assert code == 0 and found["target"] == "sim:gfx942" and found["summary"] == {"forward compv6": "supported"}
    assert [one["status"] for one in found["results"]] == ["PASS", "REFUSED"]


def test_options_run_or_are_refused_as_expected(tmp_path: Path) -> None:
    script = EXAMPLES / "12_test_config_options.py"
    done = run(script, "--only", "forward compv3 explicit_gemm", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 0 and "2 of 2 tests as expected" in done.stdout
    found = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [(one["status"], one["refused"]) for one in found] == [("PASS", False), ("REFUSED", True)]


def test_every_combination_has_its_test() -> None:
    assert [one.name for one in trials("10_test_all_pipelines.py")] == [f"{d} {p}" for d in DIRECTIONS for p in PIPELINES]
    assert [one.name for one in trials("11_test_schedulers.py")] == [
        f"{d} {p} {s}" for d in DIRECTIONS for p in PIPELINES for s in ("intrawave", "interwave")]
    options = {one.row for one in trials("12_test_config_options.py")}
    assert options == {f"{d} {o}" for d in DIRECTIONS for o in ("double_smem_buffer", "num_groups_to_merge", "split_image",
                                                                "explicit_gemm", "two_stage")}


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["10_test_all_pipelines.py", "11_test_schedulers.py", "12_test_config_options.py"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_the_whole_harness(script: str, arch: str) -> None:
    code, found = results(script, "--arch", arch)
    assert code == 0, [one for one in found["results"] if not one["as_expected"]]


SCRIPT = """
import os, signal, sys
from gconvdsl.harness import Outcome, Trial, main

def single(trial):
    if trial.name == "dies":
        print("the last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if trial.name == "leaves":
        sys.exit(3)
    return Outcome("WRONG" if trial.name == "is wrong" else "PASS", error_ratio=2.0)

def tests(target):
    return [Trial(name, "a row", "", {}, target) for name in ("dies", "leaves", "is wrong", "is right")]

sys.exit(main("a harness", tests, __file__, single=single))
"""


def test_what_dies_is_a_row_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "harness.py").write_text(SCRIPT)
    done = run(tmp_path / "harness.py", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 1 and "1 of 4 tests as expected" in done.stdout
    dies, leaves, wrong, fine = json.loads((tmp_path / "out.json").read_text())["results"]
    assert dies["status"] == "CRASH" and "SIGSEGV" in dies["detail"] and "the last words" in dies["detail"]
    assert leaves["status"] == "CRASH" and "exit code 3" in leaves["detail"]
    assert (wrong["status"], fine["status"]) == ("WRONG", "PASS")
