"""``gconv tune``: measure what is left open, and let every later call run the fastest."""

from __future__ import annotations

import argparse
import sys

from . import choose
from .cli_run import directions
from .cli_show import subject
from .measurement import Measurement
from .problem import ConvProblem
from .problem_sets import read_problems
from .progress import Progress
from .results import Results
from .runner import bare_spec
from .spec import KernelSpec
from .tune import TuningResult, parse_budget, tune as tune_one

__all__ = ["tune"]


def tune(options: argparse.Namespace) -> int:
    """Tune one problem or a set; exit code 1 if nothing passed for one of them, 130 after Ctrl-C."""
    parse_budget(options.budget)
    codes = [_tune(spec, problem, options) for spec, problem in _subjects(options)]
    return max(codes)


def _subjects(options: argparse.Namespace) -> list[tuple[KernelSpec, ConvProblem]]:
    if options.problems is None:
        return [subject(options)]
    problems = [one.replace(dtype=options.dtype, out_dtype=options.dtype) if options.dtype else one
                for one in read_problems(options.problems) if not options.only or options.only in (one.name or "")]
    turned = [one.as_(direction) for one in problems for direction in directions(options.direction, one)]
    return [(bare_spec(one.direction), one) for one in dict.fromkeys(turned)]


def _tune(spec: KernelSpec, problem: ConvProblem, options: argparse.Namespace) -> int:
    backend, arch = choose.resolve_target(options.target, options.arch)

    def stopped(result: TuningResult) -> None:
        print(f"interrupted; what was measured is kept, and the same command goes on from here\n{result.summary()}", flush=True)

    with Progress(None, parse_budget(options.budget)) as progress:
        def update(made: Measurement, reused: int) -> None:
            progress.update(made, reused)
        result = tune_one(spec, problem, budget=options.budget, target=f"{backend.name}:{arch}", mode="cold" if options.cold else "warm",
                          results=Results(options.store), workers=options.workers, timeout=options.timeout, progress=update,
                          interrupted=stopped)
    print(result.summary())
    sys.stdout.flush()
    return 0 if result.best is not None else 1
