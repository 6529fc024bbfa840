"""From a configuration to a loaded kernel: lower, compile (cached, with a time limit), load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .config import KernelConfig
from .families import find_family
from .problem import ConvProblem
from .spec import KernelSpec

if TYPE_CHECKING:
    from .backends.base import Artifact, Backend
    from .plan import Lowered

__all__ = ["ANY_STRIDES", "Built", "build", "lower"]

ANY_STRIDES = ("cpu",)
"""Targets whose kernels take every stride at run time; elsewhere strides of 1 are compile-time facts."""


@dataclass(frozen=True)
class Built:
    """A kernel ready to launch: ``module`` is None where the target cannot launch here."""

    artifact: Artifact
    module: Any


def lower(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, target: str, arch: str) -> Lowered:
    """Source text and plan for a target by name; `lower_cpu` serves cpu, the others run blocks of threads.

    There a configuration without a pipeline stands for a family of its own (depthwise, direct), one with a pipeline for
    implicit GEMM.
    """
    if target == "cpu":
        from .lower_cpu import lower_cpu

        return lower_cpu(spec, problem, config, arch)
    family = find_family(problem, config, arch, target, spec)
    if family is not None:
        return family(spec, problem, config, arch)
    from .lower import lower as lower_gpu

    return lower_gpu(spec, problem, config, arch)


def build(lowered: Lowered, backend: Backend, arch: str, name: str, load: bool = True) -> Built:
    """Compile and load. The time limit is GCONV_COMPILE_TIMEOUT, kept by the toolchain that runs the compiler.

    Raises `CompileError` and `LaunchError`.
    """
    artifact = backend.compile(lowered.source, arch, name)
    return Built(artifact, backend.load(artifact) if load else None)
