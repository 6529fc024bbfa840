"""What README.md says is true: its Python runs as one script, its .gconv file loads, its commands succeed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SET_UP = ["python3 -m pip install -e . && gconv run examples/resnext50.gconv",
          "python3 -m pip install -e '.[test]' && python3 -m pytest"]


def blocks(kind: str) -> list[str]:
    """The code blocks of one kind, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def run(arguments: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    """A Python command in another directory, with this checkout's package."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run([sys.executable, *arguments], cwd=where, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": path})


def commands() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("gconv ")]


def test_it_opens_with_the_two_set_up_commands() -> None:
    assert blocks("sh")[0].splitlines() == SET_UP
    assert TEXT.index("```sh") < 400


def test_the_python_runs_as_it_stands(tmp_path: Path) -> None:
    script = tmp_path / "tour.py"
    script.write_text("\n".join(blocks("python")))
    done = run([str(script)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "(2, 14, 14, 64)" in done.stdout and "True" in done.stdout and "ok: worst error" in done.stdout
    assert "GCONV_KERNEL" in done.stdout and "pipeline.direct_to_lds" in done.stdout


@pytest.mark.parametrize("command", commands())
def test_every_command_succeeds(command: str, tmp_path: Path) -> None:
    (tmp_path / "mini.gconv").write_text(blocks("gconv")[0])
    words = shlex.split(command, comments=True)
    done = run(["-m", "gconvdsl.cli", *words[1:]], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_the_documents_it_names_are_there() -> None:
    for name in re.findall(r"\]\((docs/[^)]+)\)", TEXT):
        assert (ROOT / name).is_file(), name
