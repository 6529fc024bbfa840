"""``gconv run`` and ``gconv verify``."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from typing import Any, Callable, Iterable, Sequence

from . import choose
from .cases import Outcome, check_case
from .cli_table import print_table
from .config import KernelConfig
from .errors import error
from .families import family_name
from .outcomes import keep_outcomes
from .problem import DIRECTIONS, ConvProblem
from .runner import bare_spec
from .worker import Worker

__all__ = ["directions", "print_outcomes", "run", "run_cases", "verify"]

_KINDS_OF_RUN = ("normal", "integers")
"""`gconv run` checks rounding and exactness; `gconv verify` runs every kind of inputs."""


def run(options: argparse.Namespace) -> int:
    """Execute the run and bench statements of a file in order; exit code 1 if any result is wrong or fails."""
    from .grammar import load

    module = load(options.file)
    target = _target_text(options.target)
    if not module.runs and not module.benches:
        raise error("usage.empty", what="run", reason=f"{options.file} has no run statement",
                    hint="Add a line such as: run KERNEL on PROBLEM")
    executed = [one for one in module.statements if one in (*module.runs, *module.benches)]
    parts = itertools.groupby(executed, key=lambda statement: type(statement).__name__ == "Bench")
    return max(_benches(module, list(part), target) if benches else _runs(module, list(part), target, options.seed)
               for benches, part in parts)


def _runs(module: Any, statements: Sequence[Any], target: str, seed: int) -> int:
    with Worker() as worker:
        outcomes = list(_progress(run_cases(module, statements, target, seed, worker.check_case)))
    print_outcomes(outcomes)
    specs = [spec for one in statements for spec, _ in module.jobs(one)]
    keep_outcomes(zip(specs, (outcome for _, outcome in outcomes)), "run")
    return 0 if all(outcome.ok for _, outcome in outcomes) else 1


def _benches(module: Any, statements: Sequence[Any], target: str) -> int:
    from .cli_sweep import run_benches, usual_workers
    from .sweep import Options

    return run_benches(module, statements, Options(target, workers=usual_workers()))


def run_cases(module: Any, runs: Iterable[Any], target: str, seed: int = 0,
              check: Callable[..., Outcome] = check_case) -> Iterable[tuple[str, Outcome]]:
    """(title, outcome) of every kernel, problem and direction of run statements."""
    for statement in runs:
        for spec, problem in module.jobs(statement):
            yield f"{spec.name} on {problem.name}", check(spec, spec.config, problem, target, seed=seed, kinds=_KINDS_OF_RUN)


def _progress(cases: Iterable[tuple[str, Outcome]]) -> Iterable[tuple[str, Outcome]]:
    """The same; on a terminal each finished case shows on one line of standard error that is overwritten."""
    live = sys.stderr.isatty()
    for count, (title, outcome) in enumerate(cases, 1):
        if live:
            print(f"\r\x1b[K{count}: {title} {outcome.problem.direction}: {outcome.status}", end="", file=sys.stderr, flush=True)
        yield title, outcome
    if live:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def print_outcomes(outcomes: Sequence[tuple[str, Outcome]]) -> None:
    """The table of `gconv run`: the error column is the worst error over its bound, at most 1 for a right result."""
    columns = ("kernel and problem", "direction", "target", "config", "ms", "GFLOP/s", "error", "status")
    print_table(columns, [_row(title, outcome) for title, outcome in outcomes], right=("ms", "GFLOP/s", "error"))
    for title, outcome in outcomes:
        for fallback in outcome.fallbacks:
            print(f"fallback: {title} {outcome.problem.direction}: {fallback}")
        if not outcome.ok:
            print(f"{outcome.status}: {title} {outcome.problem.direction}: {outcome.error or outcome.reason}", file=sys.stderr)


def _row(title: str, outcome: Outcome) -> tuple[str, ...]:
    native = outcome.target.startswith("cpu")
    config = "-" if outcome.config is None else "native" if native else _short(outcome)
    ratio = "-" if outcome.error_ratio is None else f"{outcome.error_ratio:.3f}"
    return (title, outcome.problem.direction, outcome.target, config, f"{outcome.run_s * 1e3:.3f}", f"{outcome.gflops:.2f}",
            ratio, outcome.status)


def _short(outcome: Outcome) -> str:
    config = outcome.config or KernelConfig()
    return family_name(outcome.problem, config, outcome.target) or choose.short_config(config)


def _target_text(text: str | None) -> str:
    """The target with its arch, so that a wrong one is refused before anything runs."""
    backend, arch = choose.resolve_target(text)
    return f"{backend.name}:{arch}"


def directions(text: str | None, problem: ConvProblem) -> list[str]:
    """The directions that ``--direction`` names; by default that of the problem."""
    if text is None:
        return [problem.direction]
    if text == "all":
        return list(DIRECTIONS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in DIRECTIONS:
            raise error("problem.direction", value=name)
    return names


def verify(options: argparse.Namespace) -> int:
    """Verify one problem, or the fixed set, in the directions and on the targets asked for; exit code 1 if any is not ok."""
    from .problem_text import parse_problem

    if options.all:
        return _verify_all(options)
    problem = parse_problem(options.problem)
    wanted = directions(options.direction, problem)
    targets = [_target_text(text.strip() or None) for text in (options.target or "").split(",")]
    outcomes = []
    with Worker() as worker:
        for direction, target in itertools.product(wanted, targets):
            outcome = worker.check_case(bare_spec(direction), KernelConfig(), problem.as_(direction), target, seed=options.seed)
            outcomes.append(("convolution", outcome))
            if options.json:
                print(json.dumps(outcome.to_dict()), flush=True)
    if not options.json:
        print_outcomes(outcomes)
    keep_outcomes(((bare_spec(outcome.problem.direction), outcome) for _, outcome in outcomes), "verify")
    return 0 if all(outcome.ok for _, outcome in outcomes) else 1


def _verify_all(options: argparse.Namespace) -> int:
    """A report in JSON lines for each target: a header, a line for each case, a summary. Progress goes to standard error."""
    from .verify_set import cases_of, header

    wrong = 0
    for text in (options.target or "").split(","):
        backend, arch = choose.resolve_target(text.strip() or None)
        wanted = set(options.direction.split(",")) if options.direction not in (None, "all") else set(DIRECTIONS)
        cases = [case for case in cases_of(backend.name, arch)
                 if (options.only or "") in case.name and case.problem.direction in wanted]
        if not cases:
            raise error("usage.empty", what="verify", reason="no case of the set is meant",
                        hint="Leave out --only or --direction.")
        _line({**header(backend, arch, len(cases)), "seed": options.seed})
        counts = _verified(cases, f"{backend.name}:{arch}", options.seed)
        _line({"summary": counts})
        print(f"{backend.name}:{arch}: " + ", ".join(f"{count} {status}" for status, count in counts.items()), file=sys.stderr)
        wrong += sum(counts.values()) - counts["ok"]
    return 1 if wrong else 0


def _verified(cases: Sequence[Any], target: str, seed: int) -> dict[str, int]:
    """How many cases came out as what; each is a line. A kernel that ran in the place of the one asked for is no pass."""
    counts = {"ok": 0, "WRONG": 0, "failed": 0, "replaced": 0}
    with Worker() as worker:
        for number, case in enumerate(cases, 1):
            outcome = worker.check_case(bare_spec(case.problem.direction), case.config, case.problem, target, seed=seed)
            status = "replaced" if outcome.ok and outcome.fallbacks else outcome.status
            keep_outcomes([(bare_spec(case.problem.direction), outcome)], "verify")
            counts[status] += 1
            _line({"case": case.name, "status": status, **outcome.to_dict()})
            if sys.stderr.isatty() or status != "ok":
                end = "" if status == "ok" else "\n"
                about = f"{number}/{len(cases)} {case.name} {case.problem.direction} {case.problem.dtype}: {status}"
                print(f"\r\x1b[K{about}", end=end, file=sys.stderr, flush=True)
    return counts


def _line(facts: dict[str, Any]) -> None:
    print(json.dumps(facts), flush=True)
