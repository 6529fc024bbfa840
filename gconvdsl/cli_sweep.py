"""``gconv bench`` with ``--configs``, or on the bench statements of a .gconv file: many configurations, measured."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from . import choose
from .choose import describe_config
from .cli_results import first_line
from .cli_run import directions
from .cli_table import print_table
from .errors import error
from .measurement import Measurement
from .problem import ConvProblem
from .problem_sets import read_problems
from .progress import Progress
from .results import Results
from .results_table import write_table
from .runner import bare_spec
from .search import Configurations, choices_for, config_set
from .sweep import Item, Options, Sweep, items_for

__all__ = ["bench_items", "measure_items", "print_summary", "run_benches", "sweep", "usual_workers"]

_FAILURES_SHOWN = 20


def sweep(options: argparse.Namespace) -> int:
    """Measure; exit code 1 if any result was wrong, crashed or timed out, or nothing passed."""
    settings = _settings(options)
    if options.file:
        from .grammar import load

        module = load(options.file)
        if not module.benches:
            raise error("usage.empty", what="measure", reason=f"{options.file} has no bench statement",
                        hint="Add a line such as: bench KERNEL on PROBLEM. Or pass --problems and --configs.")
        return run_benches(module, module.benches, settings, options.store, (options.csv, options.parquet))
    problems = [problem.replace(dtype=options.dtype, out_dtype=options.dtype) if options.dtype else problem
                for problem in read_problems(options.problems or "cpu")
                if not options.only or options.only in (problem.name or "")]
    chosen = [problem.as_(direction) for problem in problems for direction in _directions(options.direction, problem)]
    plan = _Plan(list(dict.fromkeys(chosen)), config_set(options.configs), settings.target)
    return measure_items(plan, settings, Results(options.store), (options.csv, options.parquet))


class _Plan:
    """Every problem with every configuration for it, found as they are needed; ``total`` is estimated from those seen so far."""

    def __init__(self, problems: Sequence[ConvProblem], configs: Configurations, target: str) -> None:
        self._problems, self._configs, self._target = problems, configs, target
        self.total = 0

    def __iter__(self) -> Iterator[Item]:
        seen = 0
        for done, problem in enumerate(self._problems, 1):
            items = items_for([problem], self._configs, self._target, bare_spec)
            seen += len(items)
            self.total = seen + (len(self._problems) - done) * seen // done
            yield from items


def _settings(options: argparse.Namespace) -> Options:
    backend, arch = choose.resolve_target(options.target)
    return Options(f"{backend.name}:{arch}", "cold" if options.cold else "warm", options.workers or usual_workers(),
                   min(options.seconds, 60.0) if options.seconds is not None else 0.2, again=options.again,
                   timeout=options.timeout)


def usual_workers() -> int:
    """Processes that compile: the cores, 16 at most."""
    from .backends.cpu import threads

    return max(1, min(threads(), 16))


def _directions(text: str | None, problem: ConvProblem) -> list[str]:
    """Those asked for; a problem that states a backward direction is measured in it, any other in all three."""
    if text is None and problem.direction != "forward":
        return [problem.direction]
    return directions(text or "all", problem)


# --- bench statements

def run_benches(module: Any, benches: Iterable[Any], settings: Options, store: str | None = None,
                files: Sequence[str | None] = ()) -> int:
    """Execute bench statements in order, each into its file too; the worst exit code."""
    codes = []
    for bench in benches:
        if bench.file and not bench.file.endswith((".csv", ".parquet", ".pq")):
            raise error("table.write", path=bench.file, reason="it is neither a .csv nor a .parquet", hint="Change its name.")
        codes.append(measure_items(bench_items(module, bench, settings.target), settings, Results(store), (bench.file, *files)))
    return max(codes, default=0)


def bench_items(module: Any, bench: Any, target: str) -> list[Item]:
    """What a bench statement stands for: kernels with what would run, sweeps with each of their configurations."""
    backend, arch = choose.resolve_target(target)
    items = []
    for problem in (module.problems[name] for name in bench.problems):
        for name in bench.items:
            kernel, listed = module.kernels.get(name), module.sweeps.get(name)
            own = (problem.direction,) if problem.direction != "forward" else (kernel or listed).directions or ("forward",)
            for direction in bench.directions or own:
                turned = problem.as_(direction)
                if kernel is not None:
                    spec = kernel if direction in kernel.directions else kernel.bare(direction)
                    items.append(Item(spec, turned, choose.settle(turned, kernel.config, backend.name, arch)))
                else:
                    configs = listed.expand(turned, choices_for(turned, backend.name, arch))
                    settled = (choose.settle(turned, one, backend.name, arch) for one in configs)
                    items += [Item(bare_spec(direction), turned, one) for one in settled]
    return list(dict.fromkeys(items))


# --- measuring and the table at the end

def measure_items(items: Sequence[Item] | _Plan, settings: Options, store: Results, files: Sequence[str | None] = ()) -> int:
    """Measure items with progress on standard error; what is known is written and printed also after Ctrl-C."""
    found: list[Measurement] = []
    code = 0
    with Sweep(settings, store) as work:
        try:
            with Progress(_total(items)) as progress:
                for made in work.run(items):
                    found.append(made)
                    progress.total = _total(items)
                    progress.update(made, work.reused)
        except KeyboardInterrupt:
            print(f"interrupted: {len(found)} of {_total(items)} are kept; the same command goes on from here", file=sys.stderr)
            code = 130
    for path in filter(None, files):
        print(f"{path}: {write_table(path, found)} rows")
    print_summary(found)
    print(f"{len(found)} results, {work.reused} of them known before, in {store.path}")
    return code or _exit_code(found)


def _total(items: Sequence[Item] | _Plan) -> int:
    return items.total if isinstance(items, _Plan) else len(items)


def _exit_code(found: Sequence[Measurement]) -> int:
    bad = any(one.status in ("WRONG", "CRASH", "TIMEOUT") for one in found)
    return int(bad or not any(one.passed or one.status == "DUPLICATE" for one in found))


def print_summary(found: Sequence[Measurement]) -> None:
    """The best configuration of each problem, how many had which status, and the failures."""
    groups: dict[tuple[ConvProblem, str], list[Measurement]] = {}
    for one in found:
        groups.setdefault((one.case.problem, one.case.spec), []).append(one)
    columns = ("problem", "direction", "best configuration", "ms", "TFLOP/s", "GB/s", "roofline", "error", "median/best", "passed")
    print_table(columns, [_best(rows) for rows in groups.values()], right=(*columns[3:],))
    print(", ".join(f"{status} {count}" for status, count in sorted(Counter(one.status for one in found).items())))
    failures = [one for one in found if one.status not in ("PASS", "SLOW", "DUPLICATE", "ILLEGAL")]
    for one in failures[:_FAILURES_SHOWN]:
        print(f"{one.status}: {one.case.title}, {describe_config(one.case.config)}: {first_line(one.reason)}", file=sys.stderr)
    if len(failures) > _FAILURES_SHOWN:
        print(f"... and {len(failures) - _FAILURES_SHOWN} more; gconv results --status WRONG,CRASH lists them", file=sys.stderr)


def _best(rows: Sequence[Measurement]) -> tuple[str, ...]:
    problem, passed = rows[0].case.problem, sorted((one for one in rows if one.passed), key=lambda one: one.median_ms)
    title = problem.name or problem.describe()
    if not passed:
        return title, problem.direction, "-", "-", "-", "-", "-", "-", "-", f"0/{len(rows)}"
    one, middle = passed[0], passed[len(passed) // 2]
    return (title, problem.direction, describe_config(one.case.config), f"{one.median_ms:.4f}", f"{one.tflops or 0:.3f}",
            f"{one.gbs or 0:.1f}", "-" if one.fraction is None else f"{one.fraction:.0%}",
            "-" if one.error_ratio is None else f"{one.error_ratio:.3f}", f"{middle.median_ms / one.median_ms:.2f}",
            f"{len(passed)}/{len(rows)}")
