"""The numbered examples, each as its own process, from a directory that is not the checkout."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNNING = ["01_basic_grouped_conv", "02_forward", "03_bwd_data", "04_bwd_weight", "06_registry_json", "07_fused_epilogue"]
SESSION = "08_repl_session"


def run(name: str, where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(EXAMPLES / f"{name}.py"), *arguments], capture_output=True, text=True, cwd=where, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "GCONV_TARGET": ""})


@pytest.mark.parametrize("name", RUNNING)
def test_it_runs_and_the_second_run_reuses_the_cache(name: str, tmp_path: Path) -> None:
    for _ in range(2):
        done = run(name, tmp_path, "--target", "cpu")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "running on cpu:" in done.stdout and "ok: worst error" in done.stdout
    assert "from the cache" in done.stdout and "compiled in" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_the_arch_of_an_absent_gpu_is_simulated(tmp_path: Path) -> None:
    done = run("01_basic_grouped_conv", tmp_path, "--arch", "gfx950")
    assert done.returncode == 0 and "running on sim:gfx950" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("name", RUNNING)
def test_failures_have_an_exit_code_and_help_has_none(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path, "--target", "nowhere").returncode != 0
    done = run(name, tmp_path, "--help")
    assert done.returncode == 0 and "--arch" in done.stdout


def test_the_registry_is_written_and_read_back(tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    first = run("06_registry_json", tmp_path, "--target", "cpu", "--out", str(out))
    assert first.returncode == 0 and len(json.loads(out.read_text())["kernels"]) == 12
    again = run("06_registry_json", tmp_path, "--target", "cpu", "--config", str(out))
    assert again.returncode == 0 and "12 kernels:" in again.stdout
    out.write_text('{"variant": "forward"}')
    broken = run("06_registry_json", tmp_path, "--target", "cpu", "--config", str(out))
    assert broken.returncode != 0 and "tile_config" in broken.stderr


def test_the_session_of_the_repl(tmp_path: Path) -> None:
    done = run(SESSION, tmp_path, "--target", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert run(SESSION, tmp_path, "--target", "nowhere").returncode != 0


def test_a_sweep_measures_nothing_twice(tmp_path: Path) -> None:
    arguments = ("--target", "cpu", "--most", "2", "--store", str(tmp_path / "results.sqlite3"), "--csv", str(tmp_path / "rows.csv"))
    first = run("05_benchmark", tmp_path, *arguments)
    assert first.returncode == 0 and "PASS 6" in first.stdout and "6 results, 0 of them known before" in first.stdout, first.stderr
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 and all(row["status"] == "PASS" and float(row["latency_ms"]) > 0 for row in rows)
    again = run("05_benchmark", tmp_path, *arguments)
    assert again.returncode == 0 and "6 results, 6 of them known before" in again.stdout
    assert run("05_benchmark", tmp_path, "--target", "cpu", "--configs", str(tmp_path / "none.json")).returncode != 0


def test_learned_selection(tmp_path: Path) -> None:
    done = run("09_ml_heuristic", tmp_path, "--target", "cpu", "--problems", "4", "--configs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained on 2 problems" in done.stdout and "unseen problems, model   2 problems" in done.stdout
