"""A target for tests of sweeps and tuning: its kernels are right, wrong, slow, or end the process, by the block_per_cu asked for.

Importing this module registers it as ``fault``, in the test and in the processes that measure. Every launch is one line of the
file named by FAULT_LOG.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from stub_target import ARCH, StubBackend, compute

from gconvdsl import build, choose, exact
from gconvdsl.backends import base
from gconvdsl.backends.base import Artifact
from gconvdsl.config import KernelConfig
from gconvdsl.errors import error
from gconvdsl.plan import Launch, Lowered, Plan
from gconvdsl.problem import ConvProblem

RIGHT, WRONG, CRASH, HANG, NO_COMPILE, NO_LAUNCH, TWIN, FASTER, SLOW = range(1, 10)
MILLISECONDS = {RIGHT: 20, WRONG: 0, TWIN: 20, FASTER: 5, SLOW: 300}
_COMPILE_SECONDS = float(os.environ.get("FAULT_COMPILE_SECONDS", "0"))


class FaultBackend(StubBackend):
    """``identity`` follows FAULT_DEVICE and FAULT_COMPILER."""

    name = "fault"

    def identity(self, arch: str) -> dict[str, str]:
        return {name: os.environ.get(f"FAULT_{name.upper()}", f"a {name}") for name in ("device", "compiler")}

    def lower(self, spec: Any, problem: ConvProblem, config: KernelConfig, target: str, arch: str) -> Lowered:
        self.problem = problem
        kind = config.block_per_cu if config.block_per_cu in range(RIGHT, SLOW + 1) else RIGHT
        variant = f" variant {config.block_per_cu}" if (config.block_per_cu or 0) > SLOW else ""
        text = f"{RIGHT if kind == TWIN else kind}{variant}"
        return Lowered(text, Plan((Launch("k"),), problem.args(), workspace=64), config)

    def compile(self, source: str, arch: str, kernel: str) -> Artifact:
        time.sleep(_COMPILE_SECONDS)
        if int(source.split()[0]) == NO_COMPILE:
            raise error("compile.failed", tool="stubcc", kernel=kernel, arch=arch, status=1, hint="",
                        details="too many registers")
        return Artifact(Path("none"), 0, {"source": source})

    def launch(self, module: Any, plan: Plan, args: bytes, stream: Any = None) -> None:
        kind = int(module.split()[0])
        if "FAULT_LOG" in os.environ:
            with open(os.environ["FAULT_LOG"], "a") as log:
                log.write(f"{module}\n")
        if kind == CRASH:
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == NO_LAUNCH:
            raise error("launch.failed", kernel="k", target="fault", reason="it was asked to", hint="")
        time.sleep(1000 if kind == HANG else MILLISECONDS[kind] / 1e3)
        if kind != WRONG:
            assert self.problem is not None
            compute(self.problem, args)


def install() -> None:
    backend = FaultBackend()
    usual = build.lower

    def lower(spec: Any, problem: ConvProblem, config: KernelConfig, target: str, arch: str) -> Lowered:
        return (backend.lower if target == "fault" else usual)(spec, problem, config, target, arch)
    base._loaded["fault"] = backend
    exact.lower = lower         # type: ignore[attr-defined]
    choose.lower = lower        # type: ignore[attr-defined]


install()
__all__ = ["ARCH"]
