"""Random problems on a device, each in three directions, against the float64 reference: python tests/verify_on_device.py [--count 200]

A script and no test: it needs a GPU. Kernels are compiled ahead by threads, so that compilers run side by side; outputs are filled with NaN
and every kind of inputs that tells runs, as `gconv verify` does. Prints which families ran how often, how many problems were long enough to
reach the main loops, and every result that is wrong; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gconvdsl as gconv
from gconvdsl.config import KernelConfig
from gconvdsl.errors import GconvError
from gconvdsl.kernel import Kernel
from gconvdsl.problem import DIRECTIONS
from gconvdsl.runner import bare_spec, execute
from gconvdsl.verify import verify

_LONG_K, _LONG_M = 80, 512       # a reduction and a result of this length reach several steps and blocks of every family


def problems(count: int, seed: int) -> list[gconv.ConvProblem]:
    """Channels per group that suit the families and odd ones, all ranks, strides, dilations, paddings, dtypes, filters short and long."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        ndim = rng.choice([1, 2, 2, 2, 2, 3])
        narrow = rng.random() < 0.7
        cg = rng.choice([1, 1, 2, 4, 8, 16, 32] if narrow else [3, 5, 12, 24, 48, 56, 64, 96, 128, 232])
        kg = cg if narrow or rng.random() < 0.6 else rng.choice([1, 7, 16, 40, 64, 72])
        groups = rng.choice([1, 2, 3, 4, 6, 8, 16, 24, 40, 72] if cg <= 32 else [1, 2, 3])
        most = {1: 31, 2: 9, 3: 3}[ndim]
        taps = tuple(min(most, rng.choice([1, 2, 3, 3, 3, 4, 5, 7, 15, 31])) for _ in range(ndim))
        sizes = {1: [20, 65, 130, 500, 1000], 2: [3, 7, 8, 13, 14, 17, 28, 31, 56], 3: [3, 5, 8, 9]}[ndim]
        fields = dict(N=rng.choice([1, 2, 3, 5, 8, 9, 16]), G=groups, C=groups * cg, K=groups * kg, input=tuple(rng.choice(sizes) for _ in taps), filter=taps,
                      stride=tuple(rng.choice([1, 1, 1, 2, 3]) for _ in taps), dilation=tuple(rng.choice([1, 1, 1, 1, 2]) for _ in taps),
                      pad=tuple((rng.randrange(one + 1), rng.randrange(one + 1)) for one in taps), dtype=rng.choice(["bf16", "bf16", "fp16", "fp32"]))
        try:
            problem = gconv.ConvProblem(**fields)
        except GconvError:
            continue
        if problem.flops < 1.5e9 and problem.bytes < 4e7:
            found.append(problem)
    return found


def check(problem: gconv.ConvProblem, target: str) -> tuple[str, float, str]:
    """(family or pipeline, worst error over its bound, what is wrong)."""
    last: list[Any] = []

    def run(a: Any, b: Any, out: Any) -> None:
        last[:] = [execute(bare_spec(problem.direction), KernelConfig(), problem, (a, b), {}, out, target, poison=True)]

    try:
        report = verify(problem, run, kinds=("normal", "integers"))
    except GconvError as failure:
        return "failed", float("inf"), str(failure)
    note = next(iter(last[0].decision.lowered.notes), "?")
    return note.split(":")[0].split(",")[0], report.error_ratio, "" if report.ok else str(report)


def main() -> int:
    options = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    options.add_argument("--count", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--target", default="cuda:sm_90")
    options.add_argument("--jobs", type=int, default=16)
    options.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    chosen = options.parse_args()
    start = time.time()
    cases = [problem.as_(direction) for problem in problems(chosen.count, chosen.seed) for direction in DIRECTIONS]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        built = list(pool.map(lambda case: _compiled(case, chosen.target), cases))
    print(f"{len(cases)} cases, {sum(not text for text in built)} compiled in {time.time() - start:.0f} s", flush=True)
    families: collections.Counter[str] = collections.Counter()
    wrong, worst, long, done = 0, 0.0, 0, 0
    for case in cases:
        if time.time() - start > chosen.seconds:
            break
        family, ratio, fault = check(case, chosen.target)
        families[f"{case.direction} {family}"] += 1
        done, worst = done + 1, max(worst, ratio if not fault else 0.0)
        long += case.gemm.k >= _LONG_K and case.gemm.m * case.gemm.n >= _LONG_M
        if fault:
            wrong += 1
            print(f"WRONG {family}: {case.describe()}: {fault}", flush=True)
    print(f"{done} verified, {wrong} wrong, worst error of right ones {worst:.3f} of the bound, {long} long; {time.time() - start:.0f} s")
    for name, count in sorted(families.items()):
        print(f"  {count:4} {name}")
    return 1 if wrong else 0


def _compiled(case: gconv.ConvProblem, target: str) -> str:
    try:
        Kernel(bare_spec(case.direction)).compile(case, target=target)
        return ""
    except GconvError as failure:
        return str(failure)


if __name__ == "__main__":
    sys.exit(main())
