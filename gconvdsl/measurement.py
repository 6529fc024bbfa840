"""One measured, failed or verified kernel, with everything that its result depends on."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import cache
from ._version import __version__
from .config import KernelConfig
from .problem import ConvProblem

if TYPE_CHECKING:
    from .backends.base import Backend
    from .spec import KernelSpec

__all__ = ["Case", "FINAL", "MODES", "Measurement", "STATUSES", "Times"]

STATUSES: dict[str, str] = {
    "PASS": "verified, then measured",
    "WRONG": "a result outside the error bound, or a sum of integers that is not exact; never measured",
    "CRASH": "the process that ran it died; the reason names the signal",
    "TIMEOUT": "no answer within the time limit; its process was killed",
    "ILLEGAL": "refused by the rules, which the reason names",
    "COMPILE_ERROR": "the compiler failed or took too long",
    "LAUNCH_ERROR": "it could not be loaded or launched",
    "NO_DEVICE": "there is no device or no compiler for the target here; tried again the next time",
    "DUPLICATE": "the same binary, launched alike, as another configuration of this problem; not measured again",
    "SLOW": "verified, and stopped after the first runs because it was far behind the best",
}
FINAL = frozenset(STATUSES) - {"NO_DEVICE"}
"""What a resumed sweep does not repeat."""

MODES = ("warm", "cold")
"""How caches are when a timed run begins: as a run before it left them; or filled with other data by rotating buffers."""


@dataclass(frozen=True)
class Times:
    """Samples of one kernel's time, in milliseconds."""

    samples: int
    median_ms: float
    q1_ms: float
    q3_ms: float
    best_ms: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Times:
        """Median and quartiles of at least one sample."""
        low, high = (values[0], values[0]) if len(values) == 1 else statistics.quantiles(values, n=4, method="inclusive")[::2]
        return cls(len(values), statistics.median(values), low, high, min(values))


@dataclass(frozen=True)
class Case:
    """What is measured and where: the identity of a measurement.

    ``environment``: what `Backend.identity` says (device, driver, compiler, threads). ``spec``: the declaration's digest,
    empty for a bare convolution. ``package``: digest of this package's kernels and rules.
    """

    problem: ConvProblem
    config: KernelConfig
    target: str
    arch: str
    environment: Mapping[str, str] = field(default_factory=dict)
    kernel: str = "convolution"
    spec: str = ""
    mode: str = "warm"
    package: str = field(default_factory=cache.decision_hash)

    @classmethod
    def here(cls, spec: KernelSpec, problem: ConvProblem, config: KernelConfig, backend: Backend, arch: str,
             environment: Mapping[str, str], mode: str = "warm") -> Case:
        """The case of a declaration on a target of this machine."""
        from .runner import bare_spec

        bare = spec.digest() == bare_spec(spec.direction).digest()
        return cls(problem, config, backend.name, arch, dict(environment), "convolution" if bare else spec.name,
                   "" if bare else spec.digest(), mode)

    @cached_property
    def key(self) -> str:
        """sha256 of the identity."""
        facts = [self.problem.identity(), self.config.identity(), self.target, self.arch, dict(self.environment), self.spec,
                 self.mode, self.package]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    @property
    def title(self) -> str:
        """A short text for tables and progress."""
        return f"{self.problem.name or self.problem.describe()} {self.problem.direction}"


@dataclass(frozen=True)
class Measurement:
    """A row of the results. ``fraction``: of the roofline, least possible time over measured time.

    ``kernel_hash``: of binary and launches. ``kind``: what made it ("sweep", "tune", "verify", "bench", "import"). ``made``:
    seconds since 1970.
    """

    case: Case
    status: str
    reason: str = ""
    times: Times | None = None
    error_ratio: float | None = None
    fraction: float | None = None
    kernel_hash: str = ""
    compile_s: float = 0.0
    kind: str = "sweep"
    made: float = field(default_factory=time.time)
    version: str = __version__

    @property
    def passed(self) -> bool:
        """Whether it may win."""
        return self.status == "PASS" and self.times is not None

    @property
    def median_ms(self) -> float:
        """The median time; infinite where there is none."""
        return self.times.median_ms if self.times else math.inf

    @property
    def tflops(self) -> float | None:
        """The rate in units of 1e12 operations a second."""
        return self.case.problem.flops / self.median_ms / 1e9 if self.times and self.median_ms > 0 else None

    @property
    def gbs(self) -> float | None:
        """Bytes of the three tensors, each once, in GB/s."""
        return self.case.problem.bytes / self.median_ms / 1e6 if self.times and self.median_ms > 0 else None

    def with_reason(self, status: str, reason: str) -> Measurement:
        """A copy with another outcome."""
        return replace(self, status=status, reason=reason)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `results_table` has the same names as columns."""
        from .results_table import to_row

        return {name: value for name, value in to_row(self).items() if value not in (None, "")}
