"""Families of kernels beside implicit GEMM, for targets that run blocks of threads.

A family is taken when nothing of tile, pipeline or options is asked for and it serves the problem on the arch; its configuration
is the empty one. In order: the first that serves wins, unless its grid is larger than can be launched.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Callable

from .config import KernelConfig
from .problem import ConvProblem
from .spec import KernelSpec

if TYPE_CHECKING:
    from .plan import Lowered

__all__ = ["family_name", "find_family"]

Lowering = Callable[[KernelSpec, ConvProblem, KernelConfig, str], "Lowered"]


def find_family(problem: ConvProblem, config: KernelConfig, arch: str, target: str = "",
                spec: KernelSpec | None = None) -> Lowering | None:
    """The lowering of the family for a problem, or None: implicit GEMM.

    ``target``: its name, for families that exist on one alone. ``spec``: the kernel, for families that do not serve every one.
    """
    if config.identity() != KernelConfig().identity():
        return None
    from .lower_depthwise import is_depthwise, lower_depthwise
    from .lower_direct_weight import is_direct_weight, lower_direct_weight
    from .lower_ring import is_ring, lower_ring
    from .lower_row_weight import is_row_weight, lower_row_weight
    from .lower_toeplitz import is_toeplitz, lower_toeplitz
    from . import lower_wgmma as wgmma

    plain = spec is None or spec.prologue.op == "x"
    if plain and is_toeplitz(problem, arch):
        return _launchable(lower_toeplitz, problem, arch)
    if plain and is_ring(problem, arch):
        return _launchable(lower_ring, problem, arch)
    if is_row_weight(problem, arch):
        return _launchable(lower_row_weight, problem, arch)
    if is_depthwise(problem):
        return _launchable(lower_depthwise, problem, arch)
    if target in wgmma.TARGETS and plain and wgmma.is_wgmma(problem, arch):
        return _launchable(wgmma.lower_wgmma, problem, arch)
    return _launchable(lower_direct_weight, problem, arch) if is_direct_weight(problem, arch) else None


@lru_cache(maxsize=256)
def _launchable(lowering: Lowering, problem: ConvProblem, arch: str) -> Lowering | None:
    """The lowering if its grid stays within what can be launched; it is the same for every expression."""
    from .runner import bare_spec

    plan = lowering(bare_spec(problem.direction), problem, KernelConfig(), arch).plan
    return lowering if all(launch.fits for launch in plan.launches) else None


def family_name(problem: ConvProblem, config: KernelConfig, target: str) -> str:
    """What a family is called in tables and explanations; empty for implicit GEMM. ``target`` is spelt with its arch."""
    name, _, arch = target.partition(":")
    family = find_family(problem, config, arch, name)
    return family.__name__.removeprefix("lower_") if family else ""
