"""examples/resnext50.gconv through the command line: whole on cpu, and with small images in the simulator."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "resnext50.gconv"
LAYERS = ("res2", "res3_down", "res3", "res4_down", "res4", "res5_down", "res5")
DIRECTIONS = ("forward", "bwd_data", "bwd_weight")


def gconv_run(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``gconv run`` in a process of its own."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run([sys.executable, "-m", "gconvdsl.cli", "run", str(file), *options], capture_output=True, text=True,
                          timeout=900, env={**os.environ, "PYTHONPATH": path})


def results(done: subprocess.CompletedProcess[str], target: str) -> dict[tuple[str, str], float]:
    """(layer, direction) -> error, read from the table by the places of its columns; every row must be ok."""
    header, *lines = [line for line in done.stdout.splitlines() if line.strip()]
    columns = re.split(r"\s{2,}", header.strip())
    found = {}
    for line in lines:
        row = dict(zip(columns, re.split(r"\s{2,}", line.strip())))
        assert row["status"] == "ok" and row["target"].startswith(target) and float(row["ms"]) > 0, line
        found[row["kernel and problem"].split(" on ")[1], row["direction"]] = float(row["error"])
    return found


def test_every_grouped_layer_is_right_on_cpu_in_three_directions() -> None:
    done = gconv_run(FILE, "--target", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(done, "cpu:")
    assert set(found) == {(layer, direction) for layer in LAYERS for direction in DIRECTIONS}
    assert all(0 < error <= 1 for error in found.values())


def test_smaller_images_are_right_in_the_simulator(tmp_path: Path) -> None:
    chosen = ("res2", "res3_down", "res4_down", "res5")         # each number of channels; with and without a stride
    text = re.sub(r"input = (\d+)x\d+", lambda match: f"input = {max(3, int(match[1]) // 9)}x5", FILE.read_text())
    text = re.sub(r" on res2, .*res5(?= |$)", f" on {', '.join(chosen)}", text, flags=re.MULTILINE)
    small = tmp_path / "small.gconv"
    small.write_text(text)
    done = gconv_run(small, "--target", "sim:gfx942")
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(done, "sim:gfx942")
    assert set(found) == {(layer, direction) for layer in chosen for direction in DIRECTIONS}
    assert all(0 < error <= 1 for error in found.values())


def test_a_wrong_result_shows_in_the_table_and_the_exit_code(tmp_path: Path) -> None:
    """A kernel whose results are off by a thousandth, played by a hook in every process of the command."""
    (tmp_path / "plain.gconv").write_text(
        "problem one { C = 8  K = 8  input = 4x4  filter = 1x1 }\nkernel k for forward { }\nrun k on one\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import gconvdsl.cases as cases\nreal = cases.execute\n"
        "def execute(spec, config, problem, arrays, operands, out, *rest, **named):\n"
        "    result = real(spec, config, problem, arrays, operands, out, *rest, **named)\n"
        "    if out is not None:\n        out *= 1.001\n"
        "    return result\n"
        "cases.execute = execute\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run([sys.executable, "-m", "gconvdsl.cli", "run", str(tmp_path / "plain.gconv"), "--target", "cpu"],
                          capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 1 and done.stdout.rstrip().endswith("WRONG"), done.stdout + done.stderr
    assert "WRONG: k on one forward: " in done.stderr and "got " in done.stderr and ", expected " in done.stderr
