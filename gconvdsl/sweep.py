"""Measuring many configurations: compiled by several processes, measured one at a time under a lock of the device.

Every outcome is committed to the results as soon as it is known, and what they already hold is not measured again: a sweep that
was killed goes on where it was. A kernel that crashes, hangs or is wrong is a row like the others.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, TimeoutError
from dataclasses import dataclass, field, replace
from typing import Any

from . import choose, env
from .cachedir import roots, warn_once
from .config import KernelConfig
from .errors import GconvError, StoreError
from .measure import Job, Outcome, compile_job, measure_job, prepare_job, status_of
from .measurement import FINAL, Case, Measurement
from .problem import ConvProblem
from .processes import Lost, Pool, Process
from .results import Results
from .rules import check
from .spec import KernelSpec

__all__ = ["Item", "Options", "Sweep", "device_lock", "items_for"]

_PREPARE_FACTOR = 10        # time limits for references, in those of a run
_GRACE = 30.0               # seconds beyond the compiler's own limit


@dataclass(frozen=True)
class Item:
    """One thing to measure: a declaration, a problem in its direction, a configuration in full."""

    spec: KernelSpec
    problem: ConvProblem
    config: KernelConfig


@dataclass(frozen=True)
class Options:
    """How to measure. ``workers`` compile; ``again``: also what the results hold; ``hopeless``: a kernel this many times slower
    than the best of its problem is stopped early (infinite: never); ``timeout``: seconds for one kernel, default GCONV_RUN_TIMEOUT;
    ``executor``: compiles instead of own processes; ``deadline``: `time.monotonic` after which nothing new begins."""

    target: str
    mode: str = "warm"
    workers: int = 2
    seconds: float = 0.2
    seed: int = 0
    again: bool = False
    hopeless: float = math.inf
    timeout: float | None = None
    kind: str = "sweep"
    executor: Executor | None = None
    deadline: float = math.inf


def items_for(problems: Iterable[ConvProblem], configs: Callable[[ConvProblem, str, str], Iterable[KernelConfig]], target: str,
              spec: Callable[[str], KernelSpec]) -> list[Item]:
    """Every problem with every configuration for it, each once; ``spec(direction)`` is the declaration."""
    backend, arch = choose.resolve_target(target)
    return list(dict.fromkeys(Item(spec(problem.direction), problem, config) for problem in dict.fromkeys(problems)
                              for config in configs(problem, backend.name, arch)))


def device_lock(target: str, device: str) -> Any:
    """Held while a kernel is measured: one at a time on a device, also among processes (of one user)."""
    from filelock import FileLock

    folder = roots()[-1] / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", f"{target}-{device}").strip("-")
    return FileLock(str(folder / f"device-{name}.lock"), fallback_to_soft=False)


@dataclass
class Sweep:
    """A run over items, which yields each `Measurement` as it is known. `close` ends its processes; a context manager."""

    options: Options
    results: Results
    reused: int = 0
    _measuring: Process = field(default_factory=Process)
    _pool: Executor | None = None
    _unsaved: list[Measurement] = field(default_factory=list)
    _best: dict[ConvProblem, float] = field(default_factory=dict)
    _hashes: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._backend, self._arch = choose.resolve_target(self.options.target)
        self._environment: dict[str, str] = {}
        self._absent = self._missing()
        self._lock = device_lock(self._backend.name, self._environment.get("device", ""))

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, failure: Any, *_: Any) -> None:
        self.close(0 if failure else 5.0)

    def close(self, patience: float = 0.0) -> None:
        """End the processes and write what could not be written before. Raises `StoreError` if it cannot be written now."""
        self._measuring.stop(patience)
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        if self._unsaved:
            self.results.add(*self._unsaved)
            self._unsaved = []

    def run(self, items: Iterable[Item]) -> Iterator[Measurement]:
        """Measure the items, problem by problem; earlier results of the same cases come first and are counted in ``reused``."""
        for _, group in itertools.groupby(items, key=lambda one: (one.problem, one.spec)):
            for part in _chunks(group, (4 if math.isinf(self.options.deadline) else 1) * self.options.workers):
                yield from self._run_some(part)

    # --- one chunk: what is known, what is illegal, what compiles, what is measured

    def _run_some(self, items: Sequence[Item]) -> Iterator[Measurement]:
        cases = [(self.case(item), item) for item in items]
        done = {} if self.options.again else self.results.done([case.key for case, _ in cases])
        for case, _ in cases:
            if case.key in done:
                yield self._again(case, done[case.key])
        waiting: list[tuple[Case, Job, Future[Outcome]]] = []
        for case, item in cases:
            if case.key in done:
                continue
            refused = self._refusal(item)
            if refused is not None:
                yield self._keep(case, refused)
            elif time.monotonic() < self.options.deadline:
                job = self._job(item)
                waiting.append((case, job, self._executor().submit(compile_job, job)))
        compiled = [(case, job, self._compiled(future)) for case, job, future in waiting]
        for case, job, outcome in compiled:
            if outcome is None:
                continue
            if outcome.status:
                yield self._keep(case, outcome)
            elif time.monotonic() < self.options.deadline:
                yield self._measured(case, job, outcome)

    def _again(self, case: Case, earlier: Measurement) -> Measurement:
        """An earlier result, under the names of now."""
        self.reused += 1
        self._learn(earlier)
        return replace(earlier, case=case)

    def _compiled(self, future: Future[Outcome]) -> Outcome | None:
        """What came of a compilation; None where the deadline comes first."""
        left = self.options.deadline - time.monotonic()
        try:
            return future.result(max(0.0, left) if math.isfinite(left) else None)
        except TimeoutError:
            return None
        except Lost as lost:
            return Outcome("COMPILE_ERROR", str(lost))
        except GconvError as failure:
            return Outcome(status_of(failure), failure.message)
        except Exception as failure:
            return Outcome("COMPILE_ERROR", f"{type(failure).__name__}: {failure}")

    def case(self, item: Item) -> Case:
        """The identity of an item's measurement."""
        return Case.here(item.spec, item.problem, item.config, self._backend, self._arch, self._environment, self.options.mode)

    def _job(self, item: Item) -> Job:
        chosen = self.options
        return Job(item.spec, item.problem, item.config, f"{self._backend.name}:{self._arch}", chosen.mode, chosen.seconds,
                   chosen.seed, hopeless=chosen.hopeless)

    def _missing(self) -> str:
        """Why nothing can be measured here; empty if something can."""
        try:
            self._environment = dict(self._backend.identity(self._arch))
        except GconvError as failure:
            return f"{failure.message} {failure.fix}".strip()
        found = self._backend.detect()
        if not found.available:
            return found.reason
        if not self._backend.can_launch:
            return "this version compiles for it but does not launch on it"
        return ""

    def _refusal(self, item: Item) -> Outcome | None:
        violations = check(item.problem, item.config, "cpu" if self._backend.name == "cpu" else self._arch)
        if violations:
            return Outcome("ILLEGAL", "; ".join(f"{v.message} [{v.rule}]" for v in violations))
        return Outcome("NO_DEVICE", self._absent) if self._absent else None

    def _executor(self) -> Executor:
        if self.options.executor is not None:
            return self.options.executor
        if self._pool is None:
            self._pool = Pool(self.options.workers, env.get("GCONV_COMPILE_TIMEOUT") + _GRACE)
        return self._pool

    def _measured(self, case: Case, job: Job, compiled: Outcome) -> Measurement:
        twin = (case.problem, case.spec, case.mode, compiled.kernel_hash)
        if twin in self._hashes:
            reason = f"the same binary, launched alike, as {self._hashes[twin]}"
            return self._keep(case, replace(compiled, status="DUPLICATE", reason=reason))
        with self._lock:
            other = {} if self.options.again else self.results.done([case.key])
            if other:                               # another process was quicker
                return self._again(case, other[case.key])
            outcome = self.measure(replace(job, best_ms=self._best.get(case.problem, math.inf)))
            return self._keep(case, replace(outcome, kernel_hash=compiled.kernel_hash, compile_s=compiled.compile_s))

    def measure(self, job: Job) -> Outcome:
        """One kernel in the measuring process, which is replaced if it does not survive."""
        limit = self.options.timeout or env.get("GCONV_RUN_TIMEOUT")
        try:
            self._measuring.call(prepare_job, job, limit=_PREPARE_FACTOR * env.get("GCONV_RUN_TIMEOUT"))
            return self._measuring.call(measure_job, job, limit=limit)
        except Lost as lost:
            return Outcome("TIMEOUT" if lost.timeout else "CRASH", str(lost))
        except GconvError as failure:
            return Outcome(status_of(failure), failure.message)
        except Exception as failure:
            return Outcome("LAUNCH_ERROR", f"{type(failure).__name__}: {failure}")

    def check(self, item: Item) -> Outcome:
        """Verify an item on every kind of inputs that tells, and record nothing."""
        with self._lock:
            return self.measure(replace(self._job(item), thorough=True, seconds=0.0))

    def _keep(self, case: Case, outcome: Outcome) -> Measurement:
        """Commit it. A store that another process locks for long is tried again with the next row."""
        made = Measurement(case, outcome.status, outcome.reason, outcome.times, outcome.error_ratio, outcome.fraction,
                           outcome.kernel_hash, outcome.compile_s, self.options.kind)
        self._unsaved.append(made)
        try:
            self.results.add(*self._unsaved)
            self._unsaved = []
        except StoreError as failure:
            if failure.code != "store.locked":
                raise
            warn_once(f"results {self.results.path}", f"{failure.message} Rows are kept and written later.")
        self._learn(made)
        return made

    def _learn(self, made: Measurement) -> None:
        case = made.case
        if made.kernel_hash and made.status in FINAL and made.status != "DUPLICATE":
            self._hashes.setdefault((case.problem, case.spec, case.mode, made.kernel_hash), _described(case.config))
        if made.passed:
            self._best[case.problem] = min(made.median_ms, self._best.get(case.problem, math.inf))


def _described(config: KernelConfig) -> str:
    return choose.describe_config(config) if config != KernelConfig() else "what is chosen when nothing is asked for"


def _chunks(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while part := list(itertools.islice(items, max(1, size))):
        yield part


