"""Measures start-up in new processes: python tests/measure_startup.py [REPEATS]. Prints medians of wall and CPU time in ms.

Not a test: times depend on the machine and its load. docs/performance.md records what was measured.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

START = "import time\n_wall, _cpu = time.perf_counter(), time.process_time()\n"
STOP = "\nprint((time.perf_counter() - _wall) * 1e3, (time.process_time() - _cpu) * 1e3)"
DECLARE = """
import importlib, sys
import numpy as np
import gconvdsl as gconv
def kernel(x, w, bias: gconv.PerK):
    return gconv.relu(gconv.conv(x, w, pad=1, groups=2) + bias)
kernel = gconv.kernel(kernel)
x, w, bias = np.ones((1, 6, 6, 8), "f4"), np.ones((8, 3, 3, 4), "f4"), np.ones(8, "f4")
"""
CALL = "kernel(x, w, bias)"


def output(code: str) -> str:
    """What a new process with this code prints; byte code is cached, as it is after an installation."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def called_modules() -> str:
    """Code that imports what the first call imports, so that the rest of the call can be measured alone."""
    names = output(f"{DECLARE}before = set(sys.modules)\n{CALL}\nprint(*(set(sys.modules) - before))").split()
    return f"for name in {sorted(names)}:\n    importlib.import_module(name)\n"


def row(what: str, samples: list[tuple[float, float]]) -> None:
    wall, cpu = (statistics.median(column) for column in zip(*samples))
    print(f"{what:40} {wall:8.1f} {cpu:8.1f}")


def measured(code: str) -> tuple[float, float]:
    """Wall and CPU time that the code prints."""
    wall, cpu = output(code).split()
    return float(wall), float(cpu)


def timed(*arguments: str) -> tuple[float, float]:
    """Wall and CPU time of a whole Python process."""
    wall, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return (time.perf_counter() - wall) * 1e3, cpu * 1e3


def main(repeats: int = 20) -> None:
    output(DECLARE + CALL)      # build once
    print(f"{f'median of {repeats}, in ms':40} {'wall':>8} {'CPU':>8}")
    rows = {
        "import numpy": START + "import numpy" + STOP,
        "import gconvdsl, after numpy": f"import numpy\n{START}import gconvdsl{STOP}",
        "... and its first names": f"import numpy\n{START}import gconvdsl as g\ng.kernel, g.ConvProblem{STOP}",
        "first call of a cached kernel": f"{DECLARE}{START}{CALL}{STOP}",
        "... beyond its imports": f"{DECLARE}{called_modules()}{START}{CALL}{STOP}",
    }
    for what, code in rows.items():
        row(what, [measured(code) for _ in range(repeats)])
    row("python -c pass", [timed("-c", "pass") for _ in range(repeats)])
    row("gconv --help", [timed("-m", "gconvdsl.cli", "--help") for _ in range(repeats)])
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
