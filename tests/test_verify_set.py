"""``gconv verify --all``: the fixed set and its report."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gconvdsl import cli, cli_run
from gconvdsl.cases import Outcome, check_case
from gconvdsl.choose import Fallback
from gconvdsl.config import KernelConfig
from gconvdsl.pipelines import PIPELINES
from gconvdsl.problem import DIRECTIONS
from gconvdsl.rules import check
from gconvdsl.tiles import default_config
from gconvdsl.verify_set import cases_of


def test_every_pipeline_scheduler_direction_and_dtype_is_there() -> None:
    cases = cases_of("hip", "gfx942")
    assert cases == cases_of("hip", "gfx942") and len(cases) == 288
    found = {(case.config.pipeline[0], case.config.scheduler, case.problem.direction, case.problem.dtype)
             for case in cases if case.config.pipeline}
    assert found == {(row.name, scheduler, direction, dtype) for row in PIPELINES.values() for scheduler in row.schedulers
                     for direction in DIRECTIONS for dtype in ("fp32", "fp16", "bf16")}
    options = {name for case in cases for name, value in case.config.to_dict().items() if value}
    assert {"num_groups_to_merge", "split_image", "explicit_gemm", "two_stage", "split_k", "epilogue", "block_per_cu"} <= options


def test_what_the_hardware_lacks_is_left_out() -> None:
    names = {case.config.pipeline[:1] for case in cases_of("hip", "gfx1100")}
    assert ("comp_async",) not in names and ("compv4",) in names
    assert all(not case.config.pipeline for case in cases_of("cpu", "avx2")) and len(cases_of("cpu", "avx2")) == 72


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201", "sm_90"])
def test_every_case_has_a_legal_tile(arch: str) -> None:
    cases = [case for case in cases_of("hip", arch) if case.config.pipeline][::5]
    for case in cases:
        tile = default_config(case.problem, arch, case.config).tile
        assert not check(case.problem, case.config.resolved(tile=tile), arch), case


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Cases run in this process; ``change`` may alter an outcome."""
    settings: dict[str, Any] = {"change": lambda outcome: outcome}

    class Here:
        def __enter__(self) -> Here:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def check_case(self, *args: Any, **options: Any) -> Outcome:
            return settings["change"](check_case(*args, **{**options, "kinds": ("integers",)}))  # type: ignore[no-any-return]
    monkeypatch.setattr(cli_run, "Worker", Here)
    return settings


ONE = ["verify", "--all", "--target", "cpu", "--only", "depthwise", "--direction", "forward"]


def test_the_report(here: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(ONE) == 0
    printed = capsys.readouterr()
    first, *rows, last = map(json.loads, printed.out.splitlines())
    assert first["report"] == "gconv verify --all" and first["cases"] == 3 == len(rows) and first["target"].startswith("cpu:")
    assert {"version", "compiler", "devices", "python", "system", "seed"} <= set(first)
    assert [row["status"] for row in rows] == ["ok"] * 3 and all(row["case"] == "chosen depthwise" for row in rows)
    assert all(0 <= row["error_ratio"] <= 1 and row["direction"] == "forward" for row in rows)
    assert last == {"summary": {"ok": 3, "WRONG": 0, "failed": 0, "replaced": 0}} and "3 ok" in printed.err


@pytest.mark.parametrize(("change", "status"), [
    ({"ok": False, "reason": "WRONG: of course"}, "WRONG"), ({"ok": False, "error": "the process ended"}, "failed"),
    ({"fallbacks": (Fallback(KernelConfig(), "launch", "refused"),)}, "replaced")])
def test_what_is_not_right_is_exit_1(here: dict[str, Any], capsys: pytest.CaptureFixture[str], change: dict[str, Any],
                                     status: str) -> None:
    here["change"] = lambda outcome: replace(outcome, **change)
    assert cli.main(ONE) == 1
    printed = capsys.readouterr()
    *_, row, last = map(json.loads, printed.out.splitlines())
    assert row["status"] == status and last["summary"][status] == 3 and last["summary"]["ok"] == 0 and status in printed.err


@pytest.mark.parametrize("arguments", [["--all", "--only", "nothing of this name"], ["--all", "--direction", "sideways"]])
def test_an_empty_choice_is_a_mistake(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", *arguments, "--target", "cpu"]) == 2
    assert "error[usage.empty]" in capsys.readouterr().err
