"""Cases in a process of their own: a kernel that crashes, or never ends, costs one case and not the session."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from typing import Any

from . import env
from .cases import Outcome, check_case
from .config import KernelConfig
from .errors import GconvError, error
from .problem import ConvProblem
from .spec import KernelSpec

__all__ = ["Worker"]

_RUNS_OF_A_CASE = 8
_SECONDS_TO_END = 5


class Worker:
    """One process that checks cases one after the other; replaced when it dies or exceeds its time. A context manager."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, failure: Any, *_: Any) -> None:
        self._stop(0 if failure else _SECONDS_TO_END)

    def check_case(self, spec: KernelSpec, config: KernelConfig, problem: ConvProblem, target: str, **options: Any) -> Outcome:
        """`cases.check_case` there; warnings are shown here. A crash or a timeout is an outcome like other failures.

        The limit is GCONV_COMPILE_TIMEOUT and a few times GCONV_RUN_TIMEOUT.
        """
        limit = env.get("GCONV_COMPILE_TIMEOUT") + _RUNS_OF_A_CASE * env.get("GCONV_RUN_TIMEOUT")
        self._start()
        try:
            self._pipe.send((spec, config, problem, target, options))
            if not self._pipe.poll(limit):
                return self._lost(problem, target, error("launch.timeout", kernel=spec.name, limit=f"{limit:g}", target=target))
            outcome, shown = self._pipe.recv()
        except (EOFError, ConnectionError):
            return self._lost(problem, target, error("launch.failed", kernel=spec.name, target=target, reason=self._death(),
                                                     hint="The other cases are not affected."))
        for category, text in shown:
            warnings.warn(text, category, stacklevel=2)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    def _death(self) -> str:
        self._process.join(5)
        code = self._process.exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return f"the process that ran it ended with {how}"

    def _lost(self, problem: ConvProblem, target: str, failure: GconvError) -> Outcome:
        self._stop()
        return Outcome(problem, target, False, error=str(failure))

    def _start(self) -> None:
        if self._process is None:
            # A forked child would inherit the thread pools and locks of whatever ran here before.
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()

    def _stop(self, patience: float = 0) -> None:
        """Close the pipe, at which an idle process ends and removes its temporary files; after ``patience`` seconds kill it."""
        if self._process is not None:
            self._pipe.close()
            self._process.join(patience)
            self._process.kill()
            self._process.join()
            self._process = None


def _serve(pipe: Any) -> None:
    """The worker: answers until the pipe closes. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(*case))


def _answer(spec: KernelSpec, config: KernelConfig, problem: ConvProblem, target: str,
            options: dict[str, Any]) -> tuple[Any, ...]:
    """The outcome (or the exception) and the warnings on the way to it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome: Any = check_case(spec, config, problem, target, **options)
        except Exception as failure:
            outcome = failure
    return outcome, [(one.category, str(one.message)) for one in caught]
