"""Runs and verifications are among the results."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import gconvdsl as gconv
from gconvdsl import cachedir, cli, results
from gconvdsl.cases import Outcome
from gconvdsl.outcomes import keep_outcomes, measurement_of
from gconvdsl.results import Results
from gconvdsl.runner import bare_spec

PROBLEM = gconv.ConvProblem(C=4, K=4, input=(5, 6), filter=(3, 3), pad=1)
FOUND = {
    "PASS": Outcome(PROBLEM, "cpu:avx2", True, 0.5, True, gconv.KernelConfig(), run_s=2e-3),
    "WRONG": Outcome(PROBLEM, "cpu:avx2", False, 3.0, True, gconv.KernelConfig(), run_s=2e-3, reason="the error exceeds the bound"),
    "ILLEGAL": Outcome(PROBLEM, "sim:gfx942", False, error="error[rule.violated]: The rules refuse it."),
    "COMPILE_ERROR": Outcome(PROBLEM, "sim:gfx942", False, error="error[compile.failed]: g++ could not."),
    "NO_DEVICE": Outcome(PROBLEM, "hip:gfx942", False, error="error[launch.device]: There is none."),
    "TIMEOUT": Outcome(PROBLEM, "cpu:avx2", False, error="error[launch.timeout]: It ran longer."),
    "CRASH": Outcome(PROBLEM, "cpu:avx2", False, error="error[launch.failed]: the process that ran it ended with SIGSEGV"),
    "LAUNCH_ERROR": Outcome(PROBLEM, "cpu:avx2", False, error="error[launch.load]: could not be loaded"),
}


@pytest.mark.parametrize("status", FOUND)
def test_the_status_of_an_outcome(status: str) -> None:
    row = measurement_of(bare_spec("forward"), FOUND[status], "run")
    assert row.status == status and row.kind == "run" and (row.times is not None) == (status == "PASS")
    assert row.reason == (FOUND[status].error or FOUND[status].reason) and row.case.spec == ""


def test_the_commands_add_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_RESULTS", str(tmp_path / "r.sqlite3"))
    (tmp_path / "f.gconv").write_text("problem a { C = 4  K = 4  input = 5x6  filter = 3x3 }\n"
                                      "kernel biased for forward (b: per_k) { epilogue = acc + b }\nrun biased on a\n")
    assert cli.main(["run", str(tmp_path / "f.gconv"), "--target", "cpu"]) == 0
    assert cli.main(["verify", "--problem", PROBLEM.describe(), "--direction", "bwd_data", "--target", "cpu"]) == 0
    rows = Results().find()
    assert [(one.kind, one.case.kernel, one.status) for one in rows] == [("run", "biased", "PASS"), ("verify", "convolution", "PASS")]
    assert rows[0].case.spec and rows[0].times and rows[1].case.problem.direction == "bwd_data"
    assert Results().done([one.case.key for one in rows]) == {}          # a sweep measures them itself


def test_a_store_that_cannot_be_used_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_RESULTS", str(tmp_path / "r.sqlite3"))
    monkeypatch.setattr(cachedir, "_warned", set())
    with closing(sqlite3.connect(tmp_path / "r.sqlite3")) as file:
        file.execute(f"PRAGMA user_version = {len(results._SCHEMA) + 7}")
    with pytest.warns(RuntimeWarning, match="newer version"):
        keep_outcomes([(bare_spec("forward"), FOUND["PASS"])], "run")
