"""What tuning found, as the dispatcher asks for it.

A record is found only for the same problem (with direction, dtypes, dilation, layout and all sizes), declaration, configuration
asked for, target, arch, device, driver, compiler and threads, and by the same kernels and rules of this package.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from . import records
from .config import KernelConfig
from .errors import GconvError

if TYPE_CHECKING:
    from .backends.base import Backend
    from .measurement import Measurement
    from .problem import ConvProblem
    from .spec import KernelSpec

__all__ = ["forget", "recall", "record"]


def _identity(spec: KernelSpec, problem: ConvProblem, asked: KernelConfig, backend: Backend, arch: str) -> str:
    facts = {"tuned": 1, "problem": problem.identity(), "spec": spec.digest(), "asked": asked.identity(), "target": backend.name,
             "arch": arch, **backend.identity(arch)}
    return json.dumps(facts, sort_keys=True)


def record(spec: KernelSpec, problem: ConvProblem, asked: KernelConfig, backend: Backend, arch: str, best: Measurement) -> None:
    """Let the dispatcher use this measurement's configuration from now on, in this process at once."""
    from . import choose

    records.remember(_identity(spec, problem, asked, backend, arch),
                     {"config": best.case.config.to_dict(), "ms": best.median_ms, "kernel_hash": best.kernel_hash, "made": best.made})
    choose.renew(spec)


def recall(spec: KernelSpec, problem: ConvProblem, asked: KernelConfig, backend: Backend, arch: str) -> KernelConfig | None:
    """The recorded configuration, or None. Never raises: without a compiler there is no identity and so no record."""
    try:
        found = records.recall(_identity(spec, problem, asked, backend, arch))
        return KernelConfig.from_dict(found["config"]) if found and "config" in found else None
    except (GconvError, TypeError, KeyError, AttributeError):
        return None


def forget(spec: KernelSpec, problem: ConvProblem, asked: KernelConfig, backend: Backend, arch: str) -> None:
    """Drop the record."""
    from . import choose

    records.forget(_identity(spec, problem, asked, backend, arch))
    choose.renew(spec)

