"""Measures what a repeated call costs beyond its kernel: python tests/measure_call.py [THREADS] [ROUNDS].

Python of a call: a tiny problem in a loop, less the launch alone. Whole calls: two layers of a millisecond and less, calls of this
package, the launch alone into one result, and torch where it is installed, interleaved; with page faults. Results of 1 to 16 MB:
what fresh memory costs. Not a test: times depend on the machine and its load. docs/performance.md records what was measured.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
import timeit
from typing import Any, Callable

import numpy as np

import gconvdsl as gconv
from gconvdsl.arrays import bind_inputs, bind_out
from gconvdsl.backends.base import get
from gconvdsl.bench import read_problems
from gconvdsl.runner import bare_spec, execute

LAYERS = ("shufflenet_dw_58c_28", "mbv2_dw_960c_7")
TINY = gconv.ConvProblem(N=1, G=4, C=4, K=4, input=(6, 6), filter=3, pad=1)

Calls = dict[str, Callable[[], Any]]


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def calls_of(problem: gconv.ConvProblem) -> Calls:
    """Ways to compute a forward problem with channels last."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(problem.fused_shape(t)).astype("f4") for t in problem.operands)
    kernel, out = gconv.Kernel(bare_spec("forward")), np.empty(problem.fused_shape("y"), np.float32)
    found: Calls = {
        "kernel(x, w)": lambda: kernel(x, w, problem, target="cpu"),
        "kernel(x, w, out=)": lambda: kernel(x, w, problem, out=out, target="cpu"),
        "execute, timed": lambda: execute(kernel.spec, None, problem, (x, w), target="cpu"),
        "launch alone": launch_alone(kernel, problem, x, w, out),
    }
    return {**found, **torch_calls(problem, x, w)}


def launch_alone(kernel: gconv.Kernel, problem: gconv.ConvProblem, x: Any, w: Any, out: Any) -> Callable[[], None]:
    """The kernels without anything before them, into one result and one workspace."""
    decision, backend = kernel.compile(problem, target="cpu"), get("cpu")
    plan, inputs = decision.lowered.plan, bind_inputs(problem, x, w)
    scratch = backend.allocate(max(plan.workspace, 1))
    views = plan.args.with_views(xv=inputs[0].view, wv=inputs[1].view, yv=bind_out(problem, out, inputs[0], inputs).view)
    args = views.pack(x.ctypes.data, w.ctypes.data, out.ctypes.data, scratch.address)
    assert decision.built is not None
    run = backend.launcher(decision.built.module, plan)
    assert run is not None
    return lambda kept=(x, w, out, scratch): run(args)  # type: ignore[misc]


def torch_calls(problem: gconv.ConvProblem, x: Any, w: Any) -> Calls:
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(int(os.environ["GCONV_THREADS"]))
    a, b = (torch.from_numpy(one).permute(0, 3, 1, 2) for one in (x, w))
    torch.set_grad_enabled(False)
    return {"torch": lambda: torch.nn.functional.conv2d(a, b, padding=problem.pad[0][0], groups=problem.G)}


def show(title: str, calls: Calls, rounds: int) -> None:
    """Medians and least times of interleaved calls."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    touched = dict.fromkeys(calls, 0)
    for number in range(rounds + 3):
        for name, call in calls.items():
            time.sleep(0.005)       # torch's threads spin for milliseconds after its call, each on a core that others miss
            call(), call()          # and each is measured after itself
            before, start = faults(), time.perf_counter_ns()
            call()
            taken, after = time.perf_counter_ns() - start, faults()
            if number >= 3:
                times[name].append(taken / 1e3)
                touched[name] += after - before
    print(title)
    for name in calls:
        median, least = statistics.median(times[name]), min(times[name])
        print(f"  {name:28} median {median:9.1f} us   least {least:9.1f} us   page faults {touched[name] / rounds:7.1f}")


def python_of_a_call() -> None:
    print(f"a tiny problem, {TINY.describe()}: us a call in a loop, the best of 15")
    for name, call in calls_of(TINY).items():
        call()
        print(f"  {name:28} {min(timeit.repeat(call, number=200, repeat=15)) / 200 * 1e6:9.2f}")


def main(threads: str = "2", rounds: str = "200") -> None:
    os.environ["GCONV_THREADS"] = threads
    python_of_a_call()
    problems = {one.name: one for one in read_problems("cpu")}
    for name in LAYERS:
        show(name, calls_of(problems[name]), int(rounds))
    for size in (1, 4, 16):
        problem = gconv.ConvProblem(N=size, G=32, C=32, K=32, input=(64, 128), filter=1)
        show(f"a result of {size} MB", calls_of(problem), int(rounds) // size + 3)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main(*sys.argv[1:])
