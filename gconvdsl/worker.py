"""Cases in a process of their own: a kernel that crashes, or never ends, costs one case and not the session."""

from __future__ import annotations

from typing import Any

from . import env
from .cases import Outcome, check_case
from .config import KernelConfig
from .errors import error
from .problem import ConvProblem
from .processes import Lost, Process
from .spec import KernelSpec

__all__ = ["Worker"]

_RUNS_OF_A_CASE = 8


class Worker(Process):
    """One process that checks cases one after the other; replaced when it dies or exceeds its time. A context manager."""

    def __enter__(self) -> Worker:
        return self

    def check_case(self, spec: KernelSpec, config: KernelConfig, problem: ConvProblem, target: str, **options: Any) -> Outcome:
        """`cases.check_case` there; warnings are shown here. A crash or a timeout is an outcome like other failures.

        The limit is GCONV_COMPILE_TIMEOUT and a few times GCONV_RUN_TIMEOUT.
        """
        limit = env.get("GCONV_COMPILE_TIMEOUT") + _RUNS_OF_A_CASE * env.get("GCONV_RUN_TIMEOUT")
        try:
            return self.call(check_case, spec, config, problem, target, limit=limit, **options)
        except Lost as lost:
            if lost.timeout:
                failure = error("launch.timeout", kernel=spec.name, limit=f"{limit:g}", target=target)
            else:
                failure = error("launch.failed", kernel=spec.name, target=target, reason=lost,
                                hint="The other cases are not affected.")
            return Outcome(problem, target, False, error=str(failure))
