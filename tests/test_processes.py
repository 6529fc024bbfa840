"""Processes that functions are called in: what they lose, and that they do not outlive their parent."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from gconvdsl.processes import Lost, Pool, Process


def warn_and_return(text: str) -> str:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return text


def test_calls_values_warnings_and_exceptions() -> None:
    with Process() as process:
        assert process.call(math.sqrt, 4.0) == 2.0
        with pytest.raises(ValueError):
            process.call(math.sqrt, -1.0)
        with pytest.warns(RuntimeWarning, match="mind"):
            assert process.call(warn_and_return, "mind", limit=60) == "mind"


def test_a_death_and_a_timeout_cost_one_call() -> None:
    with Process() as process:
        first = process.call(os.getpid)
        with pytest.raises(Lost, match="SIGABRT"):
            process.call(os.abort)
        second = process.call(os.getpid)
        with pytest.raises(Lost, match="0.2 s") as late:
            process.call(time.sleep, 60, limit=0.2)
        assert late.value.timeout and len({first, second, process.call(os.getpid)}) == 3


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import math\nfrom gconvdsl.processes import Process\nprint('once')\n"
                      "with Process() as process:\n    print(process.call(math.sqrt, 9.0))\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout == "once\n3.0\n", done.stderr


HANGING = """
import sys, time
from gconvdsl.processes import Process
process = Process()
process.start()
print(process.process.pid, flush=True)
process.call(time.sleep, 1000)
"""


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_hanging_call_does_not_outlive_a_killed_parent() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.5)
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + 30
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(pid)


def test_a_pool() -> None:
    with Pool(2, limit=60) as pool:
        futures = [pool.submit(math.sqrt, float(i * i)) for i in range(6)]
        lost = pool.submit(os.abort)
        assert [future.result() for future in futures] == list(map(float, range(6)))
        with pytest.raises(Lost):
            lost.result()
        assert list(pool.map(math.sqrt, [1.0, 4.0])) == [1.0, 2.0]
    with pytest.raises(RuntimeError):
        pool.submit(math.sqrt, 1.0)


def test_a_pool_is_stopped_at_once() -> None:
    pool = Pool(1)
    hanging = pool.submit(time.sleep, 1000)
    waiting = pool.submit(math.sqrt, 1.0)
    while not hanging.running():
        time.sleep(0.01)
    pool.shutdown(cancel_futures=True)
    assert waiting.cancelled() and isinstance(hanging.exception(), Lost)
