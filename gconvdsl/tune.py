"""Tuning: measure configurations for one problem until the time is up, and let every later call run the fastest.

Each candidate is verified before its time counts, so that a wrong kernel cannot win, and runs in a process that is killed when it
hangs. What the results hold already is not measured again. The winner is verified once more, on every kind of inputs; then it is
recorded under the identity of problem, declaration, configuration asked for, target, arch, device, driver and compiler.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from . import choose, env
from .choose import describe_config
from .config import KernelConfig, Tile
from .errors import error
from .measurement import Measurement
from .problem import ConvProblem
from .results import Results
from .search import space
from .spec import KernelSpec
from .sweep import Item, Options, Sweep
from .tuned import record

__all__ = ["TuningResult", "decorator_text", "parse_budget", "tune"]

_HOPELESS = 3.0
_SHORTEST_LIMIT = 5.0        # seconds for one kernel, at least
_SHOWN, _LAST = 10, 2
_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class TuningResult:
    """What tuning found. ``best`` is None where nothing passed, ``usual`` what would run without tuning, where it was measured."""

    problem: ConvProblem
    target: str
    name: str
    measurements: tuple[Measurement, ...]
    best: Measurement | None
    usual: Measurement | None
    seconds: float
    reused: int
    complete: bool

    @property
    def speedup(self) -> float:
        """The usual choice's time over the best; NaN where one of the two is missing."""
        return self.usual.median_ms / self.best.median_ms if self.best and self.usual and self.usual.times else math.nan

    @property
    def config(self) -> KernelConfig | None:
        """The winner's configuration."""
        return self.best.case.config if self.best else None

    def decorator(self) -> str:
        """The literal decorator (with its tile) that makes this choice permanent."""
        return decorator_text(self.best.case.config) if self.best else ""

    def summary(self) -> str:
        """How many had which status, the fastest and the slowest, and the decorator to paste."""
        from .cli_table import plain

        statuses = Counter(one.status for one in self.measurements)
        counts = ", ".join(f"{status} {count}" for status, count in sorted(statuses.items()))
        passed = sorted((one for one in self.measurements if one.passed), key=lambda one: one.median_ms)
        head = (f"{self.name} {self.problem.direction} on {self.target}: {len(self.measurements)} configurations in "
                f"{self.seconds:.1f} s, {self.reused} of them known before ({counts or 'none'})"
                f"{'' if self.complete else '; stopped before all were measured'}")
        lines = [head]
        if passed:
            hidden = len(passed) - _SHOWN - _LAST
            shown = passed if hidden <= 0 else [*passed[:_SHOWN], *passed[-_LAST:]]
            rows = [self._row(one) for one in shown]
            lines += plain(("", "configuration", "ms", "+-", "TFLOP/s", "error"), rows, ("ms", "+-", "TFLOP/s", "error")).splitlines()
            lines += [f"... {hidden} more not shown"] if hidden > 0 else []
        lines += [f"{one.status}: {describe_config(one.case.config)}: {one.reason.partition(chr(10))[0][:100]}"
                  for one in self.measurements if one.status in ("WRONG", "CRASH", "TIMEOUT")][:_SHOWN]
        if self.best is None:
            return "\n".join([*lines, "Nothing passed: the choice stays as it was."])
        faster = f", {self.speedup:.2f} times as fast as the usual choice" if math.isfinite(self.speedup) else ""
        return "\n".join([*lines, f"recorded: {describe_config(self.best.case.config)}{faster}. Calls on this device use it from "
                          "now on.", "", self.decorator()])

    __str__ = summary

    def _row(self, one: Measurement) -> tuple[str, ...]:
        times = one.times
        assert times is not None
        marks = ("*" if self.best and one.case.key == self.best.case.key else "") + \
                ("=" if self.usual and one.case.key == self.usual.case.key else "")
        return (marks, describe_config(one.case.config), f"{times.median_ms:.4f}", f"{(times.q3_ms - times.q1_ms) / 2:.4f}",
                f"{one.tflops or 0:.3f}", "-" if one.error_ratio is None else f"{one.error_ratio:.3f}")


def parse_budget(budget: Any) -> float:
    """Seconds: a number, or text such as "60s", "500ms", "5min", "1h"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", str(budget).lower())
    if match is None or match[2] not in _UNITS or isinstance(budget, bool) or float(match[1]) <= 0:
        raise error("usage.option", what="The budget", value=budget, hint='Write for example "60s", "5min" or a number of seconds.')
    return float(match[1]) * _UNITS[match[2]]


def tune(spec: KernelSpec, problem: ConvProblem, *, budget: Any = "60s", target: str | None = None, arch: str | None = None,
         config: KernelConfig | None = None, results: Results | None = None, mode: str = "warm", workers: int | None = None,
         timeout: float | None = None, progress: Callable[[Measurement, int], None] = lambda made, reused: None,
         interrupted: Callable[[TuningResult], None] = lambda result: None) -> TuningResult:
    """Measure what ``config`` (default: that of the declaration) leaves open, for at most about ``budget`` of time, and record the
    fastest. The usual choice is measured first. After Ctrl-C what was found is recorded too, given to ``interrupted``, and
    KeyboardInterrupt raised again.
    """
    start, seconds = time.monotonic(), parse_budget(budget)
    backend, name = choose.resolve_target(target, arch)
    spec = spec if problem.direction == spec.direction else spec.bare(problem.direction)
    asked = spec.config if config is None else config
    options = Options(f"{backend.name}:{name}", mode, workers or _workers(), hopeless=_HOPELESS, kind="tune",
                      timeout=timeout or min(env.get("GCONV_RUN_TIMEOUT"), max(_SHORTEST_LIMIT, seconds / 3)))
    first = Item(spec, problem, choose.settle(problem, asked, backend.name, name))
    found: list[Measurement] = []
    work = Sweep(options, results or Results())

    def finished(complete: bool) -> TuningResult:
        best = _winner(work, spec, problem, found)
        if best is not None:
            record(spec, problem, asked, backend, name, best)
        usual = next((one for one in found if one.case.config == first.config and one.times), None)
        return TuningResult(problem, options.target, spec.name, tuple(found), best, usual, time.monotonic() - start, work.reused,
                            complete)

    with work:
        try:
            deadline = start + seconds
            for made in itertools.chain(work.run([first]), _others(work, first, asked, backend.name, name, deadline)):
                found.append(made)
                progress(made, work.reused)
            return finished(time.monotonic() < deadline)
        except KeyboardInterrupt:
            interrupted(finished(False))
            raise


def _others(work: Sweep, first: Item, asked: KernelConfig, target: str, arch: str, deadline: float) -> Iterator[Measurement]:
    """The other candidates, as long as there is time; the usual choice is measured in any case."""
    work.options = replace(work.options, deadline=deadline)

    def items() -> Iterator[Item]:
        for config in space(first.problem, target, arch, asked):
            if time.monotonic() >= deadline:
                return
            if config != first.config:
                yield replace(first, config=config)
    yield from work.run(items())


def _workers() -> int:
    from .backends.cpu import threads

    return max(1, min(threads(), 16))


def _winner(work: Sweep, spec: KernelSpec, problem: ConvProblem, found: list[Measurement]) -> Measurement | None:
    """The fastest that also passes on every kind of inputs; what does not becomes a row that says so."""
    for one in sorted((one for one in found if one.passed), key=lambda one: one.median_ms):
        outcome = work.check(Item(spec, problem, one.case.config))
        if outcome.status == "PASS":
            return one
        wrong = replace(one, status=outcome.status, reason=f"on every kind of inputs: {outcome.reason}", times=None, made=time.time())
        work.results.add(wrong)
        found[found.index(one)] = wrong
    return None


# --- the decorator to paste

def decorator_text(config: KernelConfig) -> str:
    """Python source of the decorator, with the class of its tile before it."""
    plain = config.to_dict()
    plain.pop("tile", None)
    arguments = [f"{field}={value!r}" for field, value in plain.items()]
    lines = []
    if isinstance(config.tile, Tile):
        title = config.tile.name or "tuned_tile"
        names = ("block", "waves", "wave_tile", "vector")
        values = ", ".join(str(getattr(config.tile, name)) for name in names)
        lines = ["@gconv.tile", f"class {title}:", f"    {', '.join(names)} = {values}", ""]
        arguments.insert(0, f"tile={title}")
    return "\n".join([*lines, f"@gconv.kernel({', '.join(arguments)})" if arguments else "@gconv.kernel"])
