"""What `gconv run` and `gconv verify` found, as rows of the results."""

from __future__ import annotations

import re
from collections.abc import Iterable

from . import choose
from .cachedir import warn_once
from .cases import Outcome
from .config import KernelConfig
from .errors import GconvError, StoreError
from .measure import status_of_code
from .measurement import Case, Measurement, Times
from .results import Results
from .spec import KernelSpec

__all__ = ["keep_outcomes", "measurement_of"]


def keep_outcomes(pairs: Iterable[tuple[KernelSpec, Outcome]], kind: str) -> None:
    """Add declarations and their outcomes to the results; a store that cannot be used costs one warning, not the command."""
    try:
        Results().add(*(measurement_of(spec, outcome, kind) for spec, outcome in pairs))
    except StoreError as failure:
        warn_once("results", f"{failure.message} This run is not among the results.")


def measurement_of(spec: KernelSpec, outcome: Outcome, kind: str) -> Measurement:
    """The row of an outcome; its time is a median without quartiles."""
    backend, arch = choose.resolve_target(outcome.target)
    try:
        environment = backend.identity(arch)
    except GconvError:
        environment = {}
    config = outcome.config or KernelConfig()
    case = Case.here(spec, outcome.problem, config, backend, arch, environment)
    milliseconds = outcome.run_s * 1e3
    times = Times(1, *[milliseconds] * 4) if outcome.ok and milliseconds > 0 else None
    return Measurement(case, _status(outcome), outcome.error or outcome.reason, times, outcome.error_ratio,
                       compile_s=outcome.compile_s, kind=kind)


def _status(outcome: Outcome) -> str:
    if not outcome.error:
        return "PASS" if outcome.ok else "WRONG"
    code = re.match(r"error\[([\w.]+)\]", outcome.error)
    if "ended with SIG" in outcome.error:
        return "CRASH"
    return status_of_code(code[1] if code else "launch.failed")
