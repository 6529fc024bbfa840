"""What an import pulls in: `import gconvdsl` nearly nothing, a call only what it uses, a cached call no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"cffi", "filelock", "hypothesis", "lark", "ml_dtypes", "onnx", "platformdirs", "rich", "sqlite3", "subprocess", "torch"}
KERNEL = '''
import sys
import numpy as np
x, w, bias = np.ones((1, 6, 6, 8), "f4"), np.ones((8, 3, 3, 4), "f4"), np.ones(8, "f4")
import gconvdsl as gconv
@gconv.kernel
def kernel(x, w, bias: gconv.PerK):
    return gconv.relu(gconv.conv(x, w, pad=1, groups=2) + bias)
'''


def modules(code: str, where: Path, before: str = "import sys, numpy") -> set[str]:
    """The modules that ``code`` imports in a new process, beyond those that ``before`` does."""
    script = where / "script.py"
    script.write_text(f"{before}\n_before = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - _before))\n", encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def heavy(found: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in found} & HEAVY


def test_importing_the_package_imports_no_module_of_it(tmp_path: Path) -> None:
    found = modules("import gconvdsl", tmp_path)
    assert {name for name in found if name.startswith("gconvdsl")} == {"gconvdsl", "gconvdsl._version"}
    assert heavy(found) == set()


def test_declaring_imports_no_other_package_than_numpy(tmp_path: Path) -> None:
    found = modules(KERNEL + "gconv.ConvProblem(C=8, K=8, input=5, filter=3), gconv.Tile((64, 64, 16))", tmp_path)
    assert "gconvdsl.kernel" in found
    assert heavy(found) == set()
    assert not any(name.startswith("gconvdsl.backends") for name in found)


def test_a_cached_call_starts_no_process_and_takes_no_lock(tmp_path: Path) -> None:
    call = KERNEL + "assert kernel(x, w, bias).shape == (1, 6, 6, 8)"
    modules(call, tmp_path)                     # builds, or finds what another test built
    assert heavy(modules(call, tmp_path)) <= {"sqlite3"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]], ids=" ".join)
def test_help_needs_not_even_numpy(arguments: list[str], tmp_path: Path) -> None:
    code = ("from gconvdsl import cli\nimport contextlib, io\nwith contextlib.suppress(SystemExit), "
            f"contextlib.redirect_stdout(io.StringIO()):\n    cli.main({arguments})\n")
    found = modules(code, tmp_path, before="import sys")
    assert "gconvdsl.cli" in found and "numpy" not in found
    assert heavy(found) == set()


def test_reading_gconv_text_imports_no_backend(tmp_path: Path) -> None:
    found = modules('import gconvdsl\ngconvdsl.loads("problem p { C = 8  K = 8  input = 5x5  filter = 3x3 }")', tmp_path)
    assert "lark" in found
    assert heavy(found) == {"lark"}
    assert not any(name.startswith("gconvdsl.backends") for name in found)
