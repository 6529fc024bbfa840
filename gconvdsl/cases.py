"""One kernel, one problem, one target: run it on seeded data, verify it, time it. What `gconv run` and `gconv verify` list."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from . import choose
from .config import KernelConfig
from .errors import GconvError, error
from .inputs import make_inputs, make_operands
from .problem import ConvProblem
from .runner import execute
from .spec import KernelSpec

__all__ = ["Outcome", "check_case"]

_ENOUGH_SECONDS = 0.2
_MOST_REPEATS = 20


@dataclass(frozen=True)
class Outcome:
    """What came of one case. Times are in seconds; ``run_s`` is the median time of the kernel. ``error`` is empty when it ran."""

    problem: ConvProblem
    target: str
    ok: bool
    error_ratio: float | None = None
    zeros_exact: bool | None = None
    config: KernelConfig | None = None
    fallbacks: tuple[choose.Fallback, ...] = ()
    compile_s: float = 0.0
    run_s: float = 0.0
    reason: str = ""
    error: str = ""

    @property
    def gflops(self) -> float:
        """The rate, in units of 1e9 operations a second."""
        return self.problem.flops / self.run_s / 1e9 if self.run_s else 0.0

    @property
    def status(self) -> str:
        """One word: ok, WRONG, or failed."""
        return "ok" if self.ok else "failed" if self.error else "WRONG"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``gconv verify --json``."""
        plain: dict[str, Any] = {
            "problem": self.problem.describe(), "direction": self.problem.direction, "target": self.target, "ok": self.ok,
            "error_ratio": self.error_ratio, "zeros_exact": self.zeros_exact,
            "config": self.config.to_dict() if self.config else None,
            "fallbacks": [{"config": f.config.to_dict(), "stage": f.stage, "reason": f.reason} for f in self.fallbacks],
            "compile_s": self.compile_s, "run_s": self.run_s,
        }
        return {**plain, **{name: text for name, text in (("reason", self.reason), ("error", self.error)) if text}}


def check_case(spec: KernelSpec, config: KernelConfig, problem: ConvProblem, target: str, *, seed: int = 0,
               kinds: tuple[str, ...] | None = None, timed: bool = True) -> Outcome:
    """Verify the kernel on every kind of inputs that tells (or on ``kinds``), then time it. Failures become the outcome."""
    from .verify import verify

    spec = spec if problem.direction == spec.direction else spec.bare(problem.direction)
    operands = make_operands(problem, spec, seed)
    last: list[Any] = []

    def run(a: Any, b: Any, out: Any) -> None:
        last[:] = [execute(spec, config, problem, (a, b), operands, out, target, poison=True)]

    try:
        report = verify(problem, run, spec=spec, operands=operands, seed=seed, kinds=kinds,
                        strict_nonfinite=config.strict_nonfinite)
        run_s = _median_time(spec, config, problem, target, seed, operands) if timed else last[0].time_ms / 1e3
    except GconvError as failure:
        return Outcome(problem, target, False, error=str(failure))
    except MemoryError as failure:
        return Outcome(problem, target, False, error=str(error("verify.memory", problem=problem.describe(), reason=failure)))
    decision = last[0].decision
    return Outcome(problem, decision.target_text, report.ok, _finite(report.error_ratio), report.zeros_exact, decision.config,
                   decision.fallbacks, decision.built.artifact.seconds, run_s,
                   "" if report.ok else report.summary().removeprefix("WRONG: "))


def _median_time(spec: KernelSpec, config: KernelConfig, problem: ConvProblem, target: str, seed: int, operands: Any) -> float:
    """The median time of the kernel in seconds: few repeats where a run is slow."""
    arrays = make_inputs(problem, "normal", seed)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < _MOST_REPEATS and (not times or time.perf_counter() - start < _ENOUGH_SECONDS):
        times.append(execute(spec, config, problem, arrays, operands, None, target).time_ms / 1e3)
    return statistics.median(times)


def _finite(ratio: float) -> float | None:
    """JSON has no infinity: a result that is not finite, or not written at all, has no ratio."""
    return ratio if ratio < float("inf") else None
