"""Test harnesses that survive their tests: each test runs in a process of its own, and what ends it is a row of the table.

A script defines its tests as a function of the target and calls `main`. The same script run with ``--single-test JSON`` runs one
test and prints its outcome as JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Outcome", "Trial", "default_target", "main", "tile_for"]

_LIMIT = 900.0          # seconds for one test
_SHOWN = 400            # characters of a crashed test's output


@dataclass(frozen=True)
class Trial:
    """One test: ``row`` is what its results are counted under; ``config`` as `KernelConfig.to_dict`; ``refused``: by a rule."""

    name: str
    row: str
    problem: str
    config: dict[str, Any]
    target: str
    refused: bool = False


@dataclass(frozen=True)
class Outcome:
    """``status``: PASS, WRONG (against the float64 reference), REFUSED (by a rule), FAIL (an error), CRASH (the process died)."""

    status: str
    detail: str = ""
    error_ratio: float | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def default_target() -> str:
    """A GPU that is here and can be launched on, else sim:gfx942."""
    from .choose import default_target as usual

    found = usual()
    return "sim:gfx942" if found == "cpu" else found


def tile_for(target: str, dtype: str = "bf16") -> dict[str, Any] | None:
    """A small tile with the first matrix instruction of the target's arch; None for the target cpu."""
    from .archs import arch as find_arch
    from .choose import resolve_target
    from .config import Tile

    backend, arch = resolve_target(target)
    if backend.name == "cpu":
        return None
    one = find_arch(arch).instructions_for(dtype)[0]
    return Tile((32, 32, 32), (2, 1, 1), (one.m, one.n, one.k)).to_dict()


def run_single(test: Trial) -> Outcome:
    """Run one test in this process."""
    from .cases import check_case
    from .choose import resolve_target
    from .config import KernelConfig
    from .problem_text import parse_problem
    from .rules import check
    from .runner import bare_spec

    problem, config = parse_problem(test.problem), KernelConfig.from_dict(test.config)
    _, arch = resolve_target(test.target)
    broken = check(problem, config, arch) if not test.target.startswith("cpu") else []
    if broken:
        return Outcome("REFUSED", "; ".join(one.rule for one in broken))
    found = check_case(bare_spec(problem.direction), config, problem, test.target, timed=False)
    if found.error:
        return Outcome("FAIL", found.error)
    notes = list(map(str, found.fallbacks))
    if notes:
        return Outcome("FAIL", "something else ran in its place", notes=notes)
    return Outcome("PASS" if found.ok else "WRONG", found.reason, found.error_ratio, found.run_s)


def run_apart(script: str, test: Trial) -> Outcome:
    """Run one test through the script in a process of its own."""
    command = [sys.executable, "-u", script, "--single-test", json.dumps(asdict(test))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        return Outcome("CRASH", f"no answer within {_LIMIT:g} s")
    try:
        return Outcome(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        code = done.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Outcome("CRASH", f"{how}: {(done.stderr or done.stdout).strip()[-_SHOWN:]}")


def main(title: str, tests: Callable[[str], Sequence[Trial]], script: str, argv: Sequence[str] | None = None,
         single: Callable[[Trial], Outcome] = run_single) -> int:
    """The command line of a harness: run all tests, print a table and a summary. 1 if a test did not end as expected."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--target", help="TARGET[:ARCH] (default: a GPU that is here, else sim:gfx942)")
    parser.add_argument("--arch", help="an arch of the target, such as gfx950")
    parser.add_argument("--only", metavar="TEXT", help="only tests whose name contains this")
    parser.add_argument("--json", metavar="FILE", help="write the results there as well; - prints them instead of the table")
    parser.add_argument("--single-test", metavar="JSON", help="run one test in this process and print its outcome as JSON")
    options = parser.parse_args(argv)
    if options.single_test:
        print(json.dumps(asdict(single(Trial(**json.loads(options.single_test))))))
        return 0
    target = _target(options.target, options.arch)
    chosen = [test for test in tests(target) if not options.only or options.only in test.name]
    results = []
    for test in chosen:
        results.append((test, run_apart(script, test)))
        if options.json != "-":
            print(_line(*results[-1]), flush=True)
    _report(results, options.json, target)
    return 0 if results and all(_as_expected(*one) for one in results) else 1


def _target(target: str | None, arch: str | None) -> str:
    name = target or (default_target().partition(":")[0] if arch else default_target())
    return f"{name}:{arch}" if arch and ":" not in name else name


def _as_expected(test: Trial, outcome: Outcome) -> bool:
    return outcome.status == "REFUSED" if test.refused else outcome.status in ("PASS", "REFUSED")


def _line(test: Trial, outcome: Outcome) -> str:
    ratio = "" if outcome.error_ratio is None else f"  {outcome.error_ratio:.3f} of the error bound"
    mark = "" if _as_expected(test, outcome) else "  <-- not as expected"
    detail = outcome.detail.replace("\n", " | ")
    return f"{outcome.status:8}{test.name}{ratio}{'  ' if detail else ''}{detail}{mark}"


def _report(results: Sequence[tuple[Trial, Outcome]], path: str | None, target: str) -> None:
    rows: dict[str, list[str]] = {}
    for test, outcome in results:
        rows.setdefault(test.row, []).append(outcome.status)
    summary = {row: "supported" if "PASS" in found else ", ".join(dict.fromkeys(found)) for row, found in rows.items()}
    plain = {"target": target, "results": [{**asdict(test), **asdict(outcome), "as_expected": _as_expected(test, outcome)}
                                           for test, outcome in results], "summary": summary}
    if path == "-":
        print(json.dumps(plain, indent=1))
        return
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(plain, file, indent=1)
    width = max(map(len, summary), default=0)
    print(f"\n{target}: {sum(_as_expected(*one) for one in results)} of {len(results)} tests as expected")
    for row, verdict in summary.items():
        print(f"  {row.ljust(width)}  {verdict}")
