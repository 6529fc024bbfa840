"""Side-by-side measurement: this package, a baseline and a roofline loop, interleaved call by call in one process.

Machines change their speed from one second to the next, so absolute times of different moments say little. Each round here
calls every contender once, and medians over the rounds are compared: the ratio is what counts. A timed call follows an untimed
one of the same contender, so that its threads are awake and caches hold what a repeated call leaves there.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Protocol

from .config import KernelConfig
from .inputs import make_inputs
from .problem import ConvProblem
from .problem_sets import read_problems
from .roofline import Roofline
from .runner import bare_spec, execute
from .verify import compare

__all__ = ["Baseline", "Row", "json_number", "measure", "measure_case", "read_problems", "summary"]

_HOPELESS = 4.0       # a form of the baseline that is this much slower than its best is measured no further
_ROUNDS = (7, 31)     # fewest and most

Contenders = Mapping[str, Callable[[], Any]]


class Baseline(Protocol):
    """Something to compare with."""

    name: str

    def contenders(self, problem: ConvProblem, a: Any, b: Any) -> dict[str, Callable[[], Any]]:
        """Calls that compute the problem on NumPy arrays a and b, one for each memory format it may prefer."""


class Measured(Protocol):
    """What `summary` asks of a row."""

    @property
    def problem(self) -> ConvProblem:
        """What was measured."""

    @property
    def ratio(self) -> float:
        """Baseline over ours."""


@dataclass(frozen=True)
class Row:
    """One measured case. Times are medians in milliseconds, ``best`` holds the shortest (ours, baseline), which other processes
    disturb least; ``peak`` is the FMA rate measured between the calls in GFLOP/s.

    ``error_ratio``: worst error over the bound of `verify`. ``fraction``: of the roofline, time at the limit over our time.
    """

    problem: ConvProblem
    algorithm: str
    ok: bool
    error_ratio: float
    ours_ms: float
    baseline_ms: float
    baseline_form: str
    best: tuple[float, float]
    peak: float
    fraction: float
    bound: str
    rounds: int

    @property
    def ratio(self) -> float:
        """Baseline over ours: above 1 this package is faster. NaN without a baseline."""
        return self.baseline_ms / self.ours_ms

    @property
    def best_ratio(self) -> float:
        """The ratio of the shortest times."""
        return self.best[1] / self.best[0]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``gconv bench --json``."""
        return {"name": self.problem.name, "problem": self.problem.describe(), "direction": self.problem.direction,
                "groups": self.problem.G, "algorithm": self.algorithm, "ok": self.ok, "error_ratio": round(self.error_ratio, 4),
                "ours_ms": round(self.ours_ms, 4), "baseline_ms": json_number(self.baseline_ms), "baseline_form": self.baseline_form,
                "ratio": json_number(self.ratio), "best_ratio": json_number(self.best_ratio),
                "peak_gflops": round(self.peak, 1), "roofline": round(self.fraction, 3),
                "bound": self.bound, "rounds": self.rounds}


def json_number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else round(value, 4)


# --- measuring

def measure(problems: Iterable[ConvProblem], target: str, roofline: Roofline, baseline: Baseline | None = None,
            seconds: float = 2.0, progress: Callable[[Row], None] = lambda row: None,
            clock: Callable[[], float] = time.perf_counter) -> list[Row]:
    """`measure_case` for each problem, in its own direction; ``progress`` is called with each finished row."""
    rows = []
    for problem in problems:
        rows.append(measure_case(problem, target, roofline, baseline, seconds, clock))
        progress(rows[-1])
    return rows


def measure_case(problem: ConvProblem, target: str, roofline: Roofline, baseline: Baseline | None = None,
                 seconds: float = 2.0, clock: Callable[[], float] = time.perf_counter) -> Row:
    """One problem on seeded data: run and verified, then timed against the baseline for about ``seconds``.

    ``clock`` may be `time.thread_time` where everybody uses one thread: what other processes take is not counted then.
    """
    a, b = make_inputs(problem, "normal", 0)
    spec, config = bare_spec(problem.direction), KernelConfig()
    first = execute(spec, config, problem, (a, b), target=target, poison=True)
    report = compare(problem, first.output, a, b)
    others = baseline.contenders(problem, a, b) if baseline else {}
    calls = {"peak": roofline.fma_loop, "ours": lambda: execute(spec, config, problem, (a, b), target=target),
             **_worthwhile(others, clock)}
    samples = _interleaved(calls, seconds, clock)
    times = {name: statistics.median(values) for name, values in samples.items()}
    form = min((name for name in times if name in others), key=lambda name: times[name], default="")
    peak = roofline.fma_flops / times["peak"] / 1e9
    limit, bound = roofline.limit(problem, peak)
    best = min(samples["ours"]) * 1e3, min(samples[form]) * 1e3 if form else math.nan
    return Row(problem, _algorithm(first.decision), report.ok, report.error_ratio, times["ours"] * 1e3,
               times[form] * 1e3 if form else math.nan, form, best, peak, limit / times["ours"], bound, len(samples["ours"]))


def _algorithm(decision: Any) -> str:
    """What `explain` calls the algorithm, on targets that have several."""
    notes = [note for note in decision.lowered.notes if note.startswith("algorithm ")] if decision else []
    return notes[0].split()[1].rstrip(":") if notes else "-"


def _seconds_of(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start


def _worthwhile(calls: Contenders, clock: Callable[[], float]) -> Contenders:
    """Those within reach of the fastest, judged by a second call."""
    if len(calls) < 2:
        return calls
    for call in calls.values():
        call()
    once = {name: _seconds_of(call, clock) for name, call in calls.items()}
    return {name: calls[name] for name in calls if once[name] <= _HOPELESS * min(once.values())}


def _interleaved(calls: Contenders, seconds: float, clock: Callable[[], float]) -> dict[str, list[float]]:
    """The times of each call in seconds, one for each round."""
    round_s = sum(2 * _seconds_of(call, clock) for call in calls.values())
    rounds = max(_ROUNDS[0], min(_ROUNDS[1], int(seconds / round_s)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            times[name].append(_seconds_of(call, clock))
    return times


# --- summing up

def summary(rows: Iterable[Measured], cap: float = 6.0) -> dict[str, dict[str, float]]:
    """Per direction and kind of problem ("grouped", "dense"): rows, geometric mean and median of
    the ratios, capped, and the lowest."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if not math.isnan(row.ratio):
            kind = "grouped" if row.problem.G > 1 else "dense"
            ratios.setdefault(f"{row.problem.direction} {kind}", []).append(min(row.ratio, cap))
    return {name: {"rows": len(values), "mean": statistics.geometric_mean(values), "median": statistics.median(values),
                   "lowest": min(values)} for name, values in ratios.items()}
