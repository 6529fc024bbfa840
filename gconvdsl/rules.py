"""What is legal, and nothing else says it.

The principle: every pipeline works in all three directions on every arch unless the hardware forbids it. Each rule is a small
function with an id, one sentence and a reason; validation, fallback, sweeps and the printed tables all come from `check`.
A value of None is chosen later and breaks no rule. The target cpu ignores tile, pipeline and scheduler, so their rules do
not apply to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from .archs import Arch, Instruction, arch as find_arch, arithmetic
from .config import KernelConfig, Tile, size_text
from .errors import error
from .pipelines import PIPELINES, Pipeline
from .problem import ConvProblem
from .reach import Pieces, find_pieces
from .tile_cost import lds_bytes, register_limit, registers_per_lane
from .window import Window, find_window

__all__ = ["RULES", "Case", "Rule", "Violation", "check", "gemms", "lds_bytes", "require"]

VECTOR_WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Violation:
    """One broken rule: the field at fault, its value, the limit, one sentence, and what to do about it."""

    rule: str
    field: str
    value: Any
    limit: Any
    fix: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}. {self.fix}"


@dataclass(frozen=True)
class Case:
    """What a rule looks at: the problem, the configuration, the arch, and the tile and pipeline that apply."""

    problem: ConvProblem
    config: KernelConfig
    arch: Arch

    @property
    def tile(self) -> Tile | None:
        """The tile declared for the arch's family; None where it is chosen later or ignored."""
        return None if self.arch.family == "cpu" else self.config.tile_for(self.arch.family)

    @property
    def pipeline(self) -> Pipeline | None:
        """The pipeline, the first of a chain; None where it is chosen later or ignored."""
        return PIPELINES[self.config.pipeline[0]] if self.config.pipeline and self.arch.family != "cpu" else None

    @property
    def arithmetic(self) -> str:
        """The dtype of the matrix instruction's inputs."""
        return arithmetic(self.problem.dtype, self.config.precision)

    @property
    def instruction(self) -> Instruction | None:
        """The matrix instruction that the tile uses, if there is one."""
        return self.arch.instruction(self.arithmetic, self.tile.wave_tile) if self.tile else None

    @property
    def window(self) -> Window | None:
        """The window that the tile is staged by, where it is."""
        if self.tile is None or self.instruction is None or (self.pipeline and self.pipeline.needs_direct_to_lds):
            return None
        part = self.pieces.problem if self.pieces else self.problem
        return find_window(part, self.tile, self.instruction, self.config.num_groups_to_merge or 1, self.arch.lds)

    @property
    def pieces(self) -> Pieces | None:
        """The pieces that images are cut into, where they are."""
        return find_pieces(self.problem, self.config, self.tile) if self.tile else None

    @property
    def threads(self) -> int:
        """Threads of one block; 0 without a tile."""
        return math.prod(self.tile.waves) * self.arch.wave if self.tile else 0


Find = Callable[[Case], "Violation | None"]


@dataclass(frozen=True)
class Rule:
    """A rule: a stable id, one sentence, the reason behind it, and the function that finds its violation."""

    id: str
    sentence: str
    reason: str
    find: Find


RULES: dict[str, Rule] = {}


def _rule(id: str, sentence: str, reason: str) -> Callable[[Find], Find]:
    def register(find: Find) -> Find:
        RULES[id] = Rule(id, sentence, reason, find)
        return find
    return register


def _bad(field: str, value: Any, limit: Any, message: str, fix: str) -> Violation:
    return Violation("", field, value, limit, fix, message)


def check(problem: ConvProblem, config: KernelConfig, arch: str | Arch) -> list[Violation]:
    """Every rule that the configuration breaks for this problem on this arch, in the order of `RULES`; empty means legal.

    Of a pipeline chain the first is looked at. Raises ``compile.arch`` for an unknown arch.
    """
    case = Case(problem, config, find_arch(arch))
    found = ((rule.id, rule.find(case)) for rule in RULES.values())
    return [replace(violation, rule=id) for id, violation in found if violation]


def require(problem: ConvProblem, config: KernelConfig, arch: str | Arch) -> None:
    """Raise ``rule.violated`` with all reasons and fixes unless the configuration is legal."""
    violations = check(problem, config, arch)
    if violations:
        raise error("rule.violated", arch=find_arch(arch).name, violations=tuple(violations),
                    reasons="; ".join(f"{one.message} [{one.rule}]" for one in violations),
                    fixes=" ".join(dict.fromkeys(one.fix for one in violations)))


# --- rules of pipelines


@_rule("pipeline.scheduler", "interwave is for basic_v1 and mem.",
       "The other pipelines carry an intrawave schedule of their own.")
def _scheduler(case: Case) -> Violation | None:
    row, scheduler = case.pipeline, case.config.scheduler
    if row is None or scheduler is None or scheduler in row.schedulers:
        return None
    allowed = " or ".join(row.schedulers)
    return _bad("scheduler", scheduler, allowed, f"scheduler {scheduler} does not exist for pipeline {row.name}, only {allowed}",
                f"Use scheduler = {row.schedulers[0]}, or one of the pipelines basic_v1 and mem.")


@_rule("pipeline.direct_to_lds", "comp_async and basic_async_v1 need direct global-to-LDS loads.",
       "gfx90a, gfx942, gfx950 and NVIDIA from sm_80 have such loads; the other archs move data through registers.")
def _direct_to_lds(case: Case) -> Violation | None:
    row = case.pipeline
    if row is None or not row.needs_direct_to_lds or case.arch.direct_to_lds:
        return None
    return _bad("pipeline", row.name, "direct global-to-LDS loads",
                f"pipeline {row.name} needs direct global-to-LDS loads, which {case.arch.name} does not have",
                "Use a pipeline that stages through registers, such as compv4 or basic_v1.")


@_rule("pipeline.double_smem_buffer", "compv4 and comp_async need double_smem_buffer.",
       "They read one LDS buffer while the other is filled.")
def _double_smem_buffer(case: Case) -> Violation | None:
    row = case.pipeline
    if row is None or not row.needs_double_smem_buffer or case.config.double_smem_buffer is not False:
        return None
    return _bad("double_smem_buffer", False, True, f"pipeline {row.name} needs two LDS buffers, but double_smem_buffer is false",
                "Set double_smem_buffer = true, or leave it out.")


@_rule("pipeline.num_wave_groups", "compv5 needs num_wave_groups = 2; the other pipelines have one group.",
       "In compv5 two groups of waves alternate between loading and computing; elsewhere all waves do the same.")
def _num_wave_groups(case: Case) -> Violation | None:
    row, groups = case.pipeline, case.config.num_wave_groups
    needed = (row.needs_num_wave_groups or 1) if row else None
    if row is None or groups in (None, needed):
        return None
    return _bad("num_wave_groups", groups, needed, f"pipeline {row.name} needs num_wave_groups = {needed}, not {groups}",
                f"Set num_wave_groups = {needed}, or leave it out.")


@_rule("pipeline.even_waves", "compv5 needs an even number of waves.", "The waves of a block are dealt into two equal groups.")
def _even_waves(case: Case) -> Violation | None:
    row, tile = case.pipeline, case.tile
    if row is None or row.needs_num_wave_groups is None or tile is None or math.prod(tile.waves) % row.needs_num_wave_groups == 0:
        return None
    return _bad("tile.waves", size_text(tile.waves), "an even number of waves",
                f"pipeline {row.name} needs an even number of waves; waves = {size_text(tile.waves)} are {math.prod(tile.waves)}",
                "Give waves an even product, such as 2x1x1.")


# --- rules of tiles


def _divides(case: Case, axis: int) -> Violation | None:
    tile = case.tile
    if tile is None:
        return None
    name, size, waves = "mn"[axis], tile.block[axis], tile.waves[axis]
    if axis == 1:
        waves //= math.gcd(waves, (case.config.num_groups_to_merge or 1) // (case.window.pack if case.window else 1))
    step = waves * tile.wave_tile[axis]
    if size % step == 0:
        return None
    return _bad(f"tile.block.{name}", size, f"a multiple of {step}",
                f"block.{name} = {size} is not a multiple of waves.{name} x wave_tile.{name} = {step}",
                f"Use block.{name} = {-(-size // step) * step}, or fewer waves along {name}.")


_WHOLE = "Every wave computes the same whole number of matrix instructions."


@_rule("tile.block_m", "block.m is a multiple of waves.m x wave_tile.m.", _WHOLE)
def _block_m(case: Case) -> Violation | None:
    return _divides(case, 0)


@_rule("tile.block_n", "block.n is a multiple of waves.n x wave_tile.n; waves are dealt over merged groups first.", _WHOLE)
def _block_n(case: Case) -> Violation | None:
    return _divides(case, 1)


@_rule("tile.block_k", "block.k is a multiple of wave_tile.k.", "A K-step is a whole number of matrix instructions deep.")
def _block_k(case: Case) -> Violation | None:
    tile = case.tile
    if tile is None or tile.k % tile.wave_tile[2] == 0:
        return None
    step = tile.wave_tile[2]
    return _bad("tile.block.k", tile.k, f"a multiple of {step}", f"block.k = {tile.k} is not a multiple of wave_tile.k = {step}",
                f"Use block.k = {-(-tile.k // step) * step}, or a smaller wave_tile.k.")


@_rule("tile.waves_k", "waves.k is 1.",
       "Waves that share a result would have to add their parts through LDS, which no pipeline does yet.")
def _waves_k(case: Case) -> Violation | None:
    tile = case.tile
    if tile is None or tile.waves[2] == 1:
        return None
    return _bad("tile.waves.k", tile.waves[2], 1, f"waves.k = {tile.waves[2]} is more than 1",
                "Set waves.k = 1, and use split_k to cut a long reduction.")


def _shapes(instructions: Iterable[Instruction]) -> str:
    return ", ".join(size_text((one.m, one.n, one.k)) for one in instructions)


@_rule("tile.wave_tile", "wave_tile is m x n of one matrix instruction of the arch for the dtype, k a multiple of its k.",
       "A wave computes with the matrix instructions that the arch has.")
def _wave_tile(case: Case) -> Violation | None:
    tile = case.tile
    if tile is None or case.instruction is not None:
        return None
    shape = size_text(tile.wave_tile)
    known = _shapes(case.arch.instructions_for(case.arithmetic)) or "none"
    return _bad("tile.wave_tile", shape, known,
                f"wave_tile = {shape} is no matrix instruction of {case.arch.name} for {case.arithmetic}, which has {known}",
                "Use m x n of one of them and a multiple of its k.")


@_rule("tile.threads", "The threads of a block, waves x wave size, stay within the arch's limit.",
       "The hardware starts no larger block.")
def _threads(case: Case) -> Violation | None:
    tile, limit = case.tile, case.arch.max_threads
    if tile is None or case.threads <= limit:
        return None
    return _bad("tile.waves", case.threads, limit,
                f"waves = {size_text(tile.waves)} make {case.threads} threads; a block on {case.arch.name} has at most {limit}",
                f"Use at most {limit // case.arch.wave} waves.")


@_rule("tile.vector", "Vector widths are 1, 2, 4, 8 or 16 elements.",
       "Memory instructions move powers of two. They are upper limits: at most 16 bytes are moved at once.")
def _vector(case: Case) -> Violation | None:
    tile = case.tile
    if tile is None or all(width in VECTOR_WIDTHS for width in tile.vector):
        return None
    return _bad("tile.vector", size_text(tile.vector), VECTOR_WIDTHS,
                f"vector = {size_text(tile.vector)} has a width other than 1, 2, 4, 8 and 16", "Use 1, 2, 4, 8 or 16 for each.")


@_rule("tile.lds",
       "The A and B tiles (with padding, buffers, merged groups) or the cshuffle buffer, and the row table, fit into LDS.",
       "A block cannot start with more LDS than the arch gives it.")
def _lds(case: Case) -> Violation | None:
    tile, config = case.tile, case.config
    if tile is None:
        return None
    need = lds_bytes(tile, case.problem.dtype, case.pipeline, config.num_groups_to_merge or 1,
                     double_smem_buffer=config.double_smem_buffer, epilogue=config.epilogue, window=case.window)
    if need <= case.arch.lds:
        return None
    return _bad("tile.block", need, case.arch.lds,
                f"block = {size_text(tile.block)} needs {need} bytes of LDS; {case.arch.name} has {case.arch.lds}",
                "Use a smaller block.k, a smaller block, fewer merged groups, or a pipeline with one LDS buffer.")


@_rule("tile.registers", "Accumulators, fragments and staging are estimated to fit into the registers of a lane.",
       "What does not fit is spilled to memory, which no kernel here is meant to do.")
def _registers(case: Case) -> Violation | None:
    tile, arch = case.tile, case.arch
    if tile is None:
        return None
    need = registers_per_lane(tile, case.problem.dtype, arch, case.pipeline, case.instruction,
                              case.config.num_groups_to_merge or 1, case.window)
    limit = register_limit(arch, case.threads)
    if need <= limit:
        return None
    return _bad("tile.block", need, limit,
                f"block = {size_text(tile.block)} with waves = {size_text(tile.waves)} needs about {need} "
                f"registers a lane; {arch.name} has {limit} for a block of {case.threads} threads",
                "Use a smaller block or more waves.")


def gemms(problem: ConvProblem) -> list[tuple[int, int, int]]:
    """The matrix products that are computed: one, or one for each phase of a strided bwd_data."""
    if problem.direction != "bwd_data":
        return [(problem.gemm.m, problem.gemm.n, problem.gemm.k)]
    return [(problem.N * math.prod(phase.count), problem.Cg, problem.Kg * math.prod(map(len, phase.taps)))
            for phase in problem.phases]


# The other half registers its rules behind these.
from . import rules_options as _options  # noqa: E402, F401
