"""What a measuring process does: compile one kernel; verify it; then, and only then, measure it.

Everything here runs in a process of its own (processes.py) and returns plain values; nothing is chosen and nothing falls back.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable

from . import choose
from .config import KernelConfig
from .errors import GconvError
from .exact import Exact, Launcher, build_exactly
from .inputs import KINDS, kinds_for, make_inputs, make_operands
from .measurement import Times
from .problem import ConvProblem
from .spec import KernelSpec
from .verify import Expected, expect, judge

if TYPE_CHECKING:
    from .backends.base import Backend

__all__ = ["Job", "Outcome", "compile_job", "measure_job", "prepare_job", "status_of", "status_of_code"]

_KINDS = ("normal", "integers")
_MOST_SAMPLES, _FEWEST_SAMPLES = 50, 5
_SAMPLE_MS = 0.2                # a sample is at least this long, if need be of several launches in a row
_MOST_LAUNCHES = 100
_LONG_MS = 200.0                # below this a single slow run may be another process's fault
_COLD_BYTES = 512 << 20         # of all rotating buffers: more than the caches of any device hold
_MOST_COPIES = 64
_NO_DEVICE = ("compile.missing", "compile.arch", "launch.device", "launch.driver", "launch.memory", "launch.runtime",
              "launch.broken")


@dataclass(frozen=True)
class Job:
    """One kernel to measure. ``seconds``: of the samples; ``hopeless``: it stops early when it is this much slower than
    ``best_ms``; ``thorough``: verified on every kind of inputs that tells."""

    spec: KernelSpec
    problem: ConvProblem
    config: KernelConfig
    target: str
    mode: str = "warm"
    seconds: float = 0.2
    seed: int = 0
    best_ms: float = math.inf
    hopeless: float = math.inf
    thorough: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of it; ``status`` as in `measurement.STATUSES`, "" after a compilation without a fault."""

    status: str
    reason: str = ""
    times: Times | None = None
    error_ratio: float | None = None
    fraction: float | None = None
    kernel_hash: str = ""
    compile_s: float = 0.0


def status_of(failure: GconvError) -> str:
    """The status that an error means."""
    return status_of_code(failure.code)


def status_of_code(code: str) -> str:
    """The same for a code of the catalogue."""
    if code in _NO_DEVICE:
        return "NO_DEVICE"
    if code == "launch.timeout":
        return "TIMEOUT"
    return {"rule": "ILLEGAL", "kernel": "ILLEGAL", "compile": "COMPILE_ERROR"}.get(code.partition(".")[0], "LAUNCH_ERROR")


def _failed(failure: GconvError) -> Outcome:
    details = failure.details.strip().partition("\n")[0]
    return Outcome(status_of(failure), " ".join(filter(None, [failure.message, failure.fix, details])))


def compile_job(job: Job) -> Outcome:
    """Compile into the cache, and load nothing."""
    backend, arch = choose.resolve_target(job.target)
    try:
        exact = build_exactly(job.spec, job.problem, job.config, backend, arch, load=False)
    except GconvError as failure:
        return _failed(failure)
    return Outcome("", kernel_hash=exact.hash, compile_s=0.0 if exact.built.artifact.cached else exact.built.artifact.seconds)


# --- inputs and references, which all kernels of a problem share

@dataclass(frozen=True)
class _Inputs:
    """Seeded arrays of one kind and what must come of them."""

    kind: str
    arrays: tuple[Any, Any]
    want: Expected


@dataclass
class _Shared:
    """Of the problem that is being measured: one at a time, since references are large."""

    problem: ConvProblem
    spec: KernelSpec
    seed: int
    operands: dict[str, Any]
    inputs: dict[str, _Inputs] = field(default_factory=dict)

    def of_kind(self, kind: str) -> _Inputs:
        """The arrays and their reference, computed once."""
        if kind not in self.inputs:
            arrays = make_inputs(self.problem, kind, self.seed)
            want = expect(self.problem, *arrays, self.spec, self.operands, exact=KINDS[kind].exact)
            self.inputs[kind] = _Inputs(kind, arrays, want)
        return self.inputs[kind]


_shared: list[_Shared] = []


def _share(job: Job) -> _Shared:
    if not _shared or (_shared[0].problem, _shared[0].spec, _shared[0].seed) != (job.problem, job.spec, job.seed):
        _shared[:] = [_Shared(job.problem, job.spec, job.seed, make_operands(job.problem, job.spec, job.seed))]
    return _shared[0]


def prepare_job(job: Job) -> None:
    """Compute what all kernels of the job's problem are compared with, so that no kernel's time limit pays for it."""
    for kind in _kinds(job):
        _share(job).of_kind(kind)
    _roofline(job.target)


def _kinds(job: Job) -> tuple[str, ...]:
    return kinds_for(job.problem) if job.thorough else _KINDS


# --- measuring

def measure_job(job: Job) -> Outcome:
    """Verify on outputs and workspace full of NaN, then time. A failure of this package is an outcome."""
    backend, arch = choose.resolve_target(job.target)
    try:
        with backend.activate(arch):
            return _measure(job, build_exactly(job.spec, job.problem, job.config, backend, arch), backend, arch)
    except MemoryError as failure:
        return Outcome("LAUNCH_ERROR", f"This machine has too little memory: {failure}")
    except GconvError as failure:
        return _failed(failure)


def _measure(job: Job, exact: Exact, backend: Backend, arch: str) -> Outcome:
    shared = _share(job)
    launcher = Launcher(exact, backend, shared.of_kind("normal").arrays, shared.operands, _copies(job))
    worst = 0.0
    for kind in _kinds(job):
        one = shared.of_kind(kind)
        launcher.load(one.arrays)
        launcher.poison()
        launcher.launch()
        backend.synchronize()
        report = judge(job.problem, launcher.result(), one.want, one.arrays[1], kind=kind,
                       strict_nonfinite=job.config.strict_nonfinite)
        worst = max(worst, report.error_ratio)
        if not report.ok:
            return Outcome("WRONG", report.summary().removeprefix("WRONG: "), error_ratio=_finite(report.error_ratio),
                           kernel_hash=exact.hash)
    launcher.load(shared.of_kind("normal").arrays)
    samples, early = _samples(job, launcher)
    times = Times.of(samples)
    status, reason = "PASS", ""
    if early:
        status, reason = "SLOW", f"stopped after {len(samples)} samples: {times.best_ms / job.best_ms:.1f} times the best so far"
    return Outcome(status, reason, times, _finite(worst), _fraction(job, times), exact.hash)


def _finite(ratio: float) -> float | None:
    return ratio if math.isfinite(ratio) else None


def _copies(job: Job) -> int:
    """Sets of buffers: one, or as many as make every launch find other data in the caches."""
    if job.mode == "warm":
        return 1
    return max(2, min(_MOST_COPIES, -(-_COLD_BYTES // max(1, job.problem.bytes))))


def _samples(job: Job, launcher: Launcher) -> tuple[list[float], bool]:
    """Times in milliseconds, after one untimed pass over the buffers; whether the kernel was given up as hopeless."""
    start = time.perf_counter()
    first = launcher.timed(1)
    if first > max(_LONG_MS, 10 * job.hopeless * job.best_ms):
        return [first], True
    estimate = min(first, launcher.timed(1))
    count = max(1, min(_MOST_LAUNCHES, math.ceil(_SAMPLE_MS / max(estimate, 1e-6))))
    if job.mode == "cold":
        launcher.timed(_copies(job))
    samples: list[float] = []
    while len(samples) < _MOST_SAMPLES and (len(samples) < _FEWEST_SAMPLES or time.perf_counter() - start < job.seconds):
        samples.append(launcher.timed(count))
        if len(samples) >= _FEWEST_SAMPLES and min(samples) > job.hopeless * job.best_ms:
            return samples, True
        if time.perf_counter() - start > 20 * max(job.seconds, 0.05):        # a very slow kernel
            break
    return samples, False


# --- the limits of the machine

@lru_cache(maxsize=4)
def _roofline(target: str) -> Callable[[ConvProblem], float] | None:
    """The least time in milliseconds, by limits that are measured in this process; None where nothing measures them."""
    backend, arch = choose.resolve_target(target)
    if backend.name == "cpu":
        return _cpu_limits(arch)
    return _cuda_limits() if backend.name == "cuda" else None


def _cpu_limits(arch: str) -> Callable[[ConvProblem], float] | None:
    from .backends.cpu import host_isas, threads
    from .roofline import CpuRoofline

    if arch not in host_isas():
        return None
    found = CpuRoofline(arch, threads())
    return lambda problem: found.limit(problem, found.peak())[0] * 1e3      # the rate now: processors change it


def _cuda_limits() -> Callable[[ConvProblem], float] | None:
    """By matrix products and a copy of PyTorch, where that is installed."""
    from .bench_device import DeviceLimits

    try:
        return DeviceLimits.measured().floor_ms
    except (GconvError, ImportError, RuntimeError):
        return None


def _fraction(job: Job, times: Times) -> float | None:
    """Of the roofline: the least possible time over the median."""
    limit = _roofline(job.target)
    return limit(job.problem) / times.median_ms if limit is not None and times.median_ms > 0 else None
