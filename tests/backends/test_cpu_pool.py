"""The thread pool of target cpu: each task once whatever the threads, sleeping and waking, calls inside of calls, several callers."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from gconvdsl.backends import cpu, toolchain

SOURCE = """
#include <atomic>
#include <thread>
typedef void (*Kernel)(const void*, long long);
struct Work { void (*parallel)(Kernel, const void*, long long, int); std::atomic<int>* counts; long long inner, spin, nap; };
static void once(const void* args, long long task) { static_cast<const Work*>(args)->counts[task]++; }
extern "C" void gconv_convolve(const void* args, long long task) {
  const Work& work = *static_cast<const Work*>(args);
  for (volatile long long i = 0; i < work.spin * (task % 3); i = i + 1) {}
  if (work.nap && task == 0) std::this_thread::sleep_for(std::chrono::microseconds(work.nap));
  if (work.inner) {
    Work mine = work;
    mine.counts += task * work.inner;
    work.parallel(once, &mine, work.inner, 4);
  } else {
    once(args, task);
  }
}
"""

Run = Callable[..., list[int]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    tool, folder = toolchain.find("cxx"), tmp_path_factory.mktemp("pool")
    if tool is None:
        pytest.skip("no C++ compiler")
    (folder / "work.cpp").write_text(SOURCE)
    done = toolchain.run([tool.command, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", "work.so", "work.cpp"],
                         environment=toolchain.clean_environment("cxx"), cwd=folder, limit=60)
    assert done.status == 0, done.text
    return cpu._Library(Path(folder / "work.so"))


def counts(library: Any, tasks: int, threads: int, inner: int = 0, spin: int = 0, nap: int = 0) -> list[int]:
    """How often each task ran, those inside of others where there are ``inner``."""
    from gconvdsl.backends._cpu_api import ffi

    found = np.zeros(tasks * max(inner, 1) + 1, np.int32)
    parallel = cpu._pool().gconv_parallel
    address = int(ffi.cast("unsigned long long", ffi.addressof(cpu._pool(), "gconv_parallel")))
    work = np.array([address, found.ctypes.data, inner, spin, nap], np.int64)
    parallel(library.function("gconv_convolve"), ffi.from_buffer(work), tasks, threads)
    return [int(one) for one in found]


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 80])
def test_each_task_runs_once(library: Any, threads: int) -> None:
    for tasks in (0, 1, 2, 3, 7, 64, 65, 1000):
        for spin in (0, 0, 0, 300):
            assert counts(library, tasks, threads, spin=spin) == [1] * tasks + [0], tasks


@pytest.mark.parametrize("threads", [2, 4])
def test_workers_sleep_and_are_woken(library: Any, threads: int) -> None:
    for pause in (0, 5e-5, 8e-5, 1e-4, 2e-4, 2e-3) * 8:         # around the time for which workers look for the next job
        time.sleep(pause)
        assert counts(library, 50, threads, spin=50) == [1] * 50 + [0]


def test_the_caller_waits_for_the_last_task(library: Any) -> None:
    for nap in (0, 10, 30, 100, 3000) * 4:
        assert counts(library, 4, 3, nap=nap) == [1] * 4 + [0]


def test_a_call_inside_of_a_call_runs_in_place(library: Any) -> None:
    for _ in range(20):
        assert counts(library, 30, 3, inner=7) == [1] * 210 + [0]


def test_several_callers(library: Any) -> None:
    wrong: list[list[int]] = []

    def call(threads: int) -> None:
        for _ in range(200):
            found = counts(library, 20, threads, spin=20)
            if found != [1] * 20 + [0]:
                wrong.append(found)

    callers = [threading.Thread(target=call, args=(threads,)) for threads in (1, 2, 3, 8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_made_while_another_thread_calls(library: Any) -> None:
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            counts(library, 20, 2, spin=100)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                os._exit(0 if counts(library, 20, 3, spin=20) == [1] * 20 + [0] else 1)
            end = time.monotonic() + 20
            while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
                time.sleep(0.001)
            if done == (0, 0):
                os.kill(child, 9)
                os.waitpid(child, 0)
            assert done == (child, 0)
    finally:
        stop.set()
        caller.join()


def test_counting_counts(library: Any) -> None:
    """What the tests above compare with can differ: without the pool, two calls count twice."""
    from gconvdsl.backends._cpu_api import ffi

    found = np.zeros(3, np.int32)
    work = np.array([0, found.ctypes.data, 0, 0, 0], np.int64)
    for _ in range(2):
        for task in range(2):
            library.function("gconv_convolve")(ffi.from_buffer(work), task)
    assert found.tolist() == [2, 2, 0]
