"""Candidates of a problem ranked by what the compiler made of them, for AMD archs that are not here.

Each candidate is compiled; registers, LDS and the main loop (`loop_report`) say how many blocks share a compute unit and what a
K-step costs it. The costs are those of an ideal machine: good for ranking, not for times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .archs import Arch, arch as find_arch
from .choose import decide, resolve_target
from .config import KernelConfig, Tile
from .dtypes import DTYPES
from .errors import GconvError
from .loop_report import LoopReport, loop_report, mca_report
from .pipelines import PIPELINES
from .problem import ConvProblem
from .rules import gemms
from .runner import bare_spec
from .tiles import candidates

if TYPE_CHECKING:
    from .backends.base import Backend
    from .plan import Lowered

__all__ = ["Ranked", "rank"]

# Of a compute unit: SIMDs, cycles a vector instruction occupies one, multiply-adds a cycle in 16 bits and fp32.
_SIMDS, _VALU_CYCLES = {"cdna": 4, "rdna": 2, "gfx1250": 4}, {"cdna": 4, "rdna": 1, "gfx1250": 1}
_RATES = {"cdna": (1024, 128), "rdna": (256, 64), "gfx1250": (2048, 256)}
_LDS_RATE, _MEMORY_RATE = 128, 64       # bytes a cycle
_LATENCY, _BLOCK_WAIT = 600, 2000       # cycles from a load to its data; around the main loop of a block


@dataclass(frozen=True)
class Ranked:
    """A candidate with its figures. ``step``: what a K-step of all resident blocks costs a compute unit, in cycles, by limiter;
    ``cycles``: of the whole problem; ``utilisation``: bound on the share of time in which the matrix units work."""

    config: KernelConfig
    registers: int
    lds_bytes: int
    blocks: int
    resident: int
    step: dict[str, float]
    cycles: float
    utilisation: float

    @property
    def bound(self) -> str:
        """The limiter: matrix, valu, wave (one wave's own chain), lds, memory or latency."""
        return max(self.step, key=self.step.__getitem__)


def rank(problem: ConvProblem, arch: str, limit: int = 12) -> list[Ranked]:
    """At most ``limit`` candidates, the lowest predicted cost first. What fails to compile, or spills in its loop, is left out."""
    backend, name = resolve_target("hip", arch)
    ranked = (_ranked(problem, config, backend, find_arch(name)) for config in candidates(problem, name, limit))
    return sorted((one for one in ranked if one), key=lambda one: one.cycles)


def _ranked(problem: ConvProblem, config: KernelConfig, backend: Backend, arch: Arch) -> Ranked | None:
    try:
        lowered = decide(bare_spec(problem.direction), problem, config, backend, arch.name, compiled=False).lowered
        resources = lowered.with_shared(backend.resources(lowered.source, arch.name, "rank"))[lowered.plan.launches[0].kernel]
        loop = loop_report(backend, lowered, problem, arch.name, "rank")
    except GconvError:
        return None
    if loop.scratch or not loop.matrix:
        return None
    return _predicted(problem, lowered, resources, loop, _one_wave(backend, lowered, arch, loop), arch)


def _one_wave(backend: Backend, lowered: Lowered, arch: Arch, loop: LoopReport) -> float:
    """Cycles of a K-step of a wave alone on its SIMD: by llvm-mca where it knows the arch, else of its vector instructions."""
    try:
        return mca_report(backend, lowered, arch.name, "rank").cycles / loop.steps
    except GconvError:
        return loop.valu * _VALU_CYCLES[arch.family] / loop.steps


def _predicted(problem: ConvProblem, lowered: Lowered, resources: dict[str, int], loop: LoopReport, one_wave: float,
               arch: Arch) -> Ranked:
    config, launch = lowered.config, lowered.plan.launches[0]
    tile: Tile = config.tile
    waves, simds = math.prod(tile.waves), _SIMDS[arch.family]
    lds = resources.get("lds_bytes", 0)
    resident = max(1, min(resources.get("occupancy", 1) * simds // waves, arch.lds // max(lds, 1)))
    blocks = math.prod(launch.grid)
    share = resident * waves / loop.steps                       # passes of single waves that make a K-step of a compute unit
    rate = _RATES[arch.family][0 if DTYPES[problem.dtype].bytes == 2 else 1]
    multiplied = math.prod(tile.block) * (config.num_groups_to_merge or 1) / rate
    prefetch = PIPELINES[config.pipeline[0]].prefetch
    step = {"matrix": resident * multiplied, "valu": share * loop.valu * _VALU_CYCLES[arch.family] / simds, "wave": one_wave,
            "lds": share * (loop.lds_read_bytes + loop.lds_write_bytes) / _LDS_RATE,
            "memory": share * loop.global_bytes / _MEMORY_RATE, "latency": _LATENCY / prefetch}
    rounds = math.ceil(blocks / (arch.compute_units * resident))
    steps = _steps(problem, config, tile)
    cycles = rounds * (steps * max(step.values()) + _BLOCK_WAIT)
    ideal = blocks * steps * multiplied / arch.compute_units
    registers = resources.get("vgpr", 0) + resources.get("agpr", 0)
    return Ranked(config, registers, lds, blocks, resident, step, cycles, min(1.0, ideal / cycles))


def _steps(problem: ConvProblem, config: KernelConfig, tile: Tile) -> float:
    """K-steps of a block, the average over stride phases."""
    depths = [-(-k // tile.k) for _, _, k in gemms(problem)]
    return sum(depths) / max(len(depths), 1) / (config.split_k or 1)
