"""What would run, why, and what was rejected for which reason: the text behind ``kernel.explain()`` and ``gconv explain``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import choose
from .arrays import argument_names
from .config import KernelConfig
from .errors import NoKernelError, RuleError
from .families import family_name
from .problem import ConvProblem
from .spec import KernelSpec

if TYPE_CHECKING:
    from .plan import Launch, Lowered

__all__ = ["Explanation", "explain"]

_WHY = {
    "demanded": "the declaration names this pipeline and no other",
    "chain": "the first of the declared pipelines that works",
    "rule": "chosen by the rules of thumb",
    "model": "the trained model expects it to be the fastest",
    "tuned": "the fastest of the recorded measurements",
    "none": "no candidate is supported",
}


@dataclass(frozen=True)
class Explanation:
    """The choice for one problem on one target. ``config`` and ``lowered`` are None when nothing can run; print it to read it."""

    problem: ConvProblem
    target: str
    source: str
    config: KernelConfig | None
    fallbacks: tuple[choose.Fallback, ...]
    lowered: Lowered | None
    spec: KernelSpec

    @property
    def supported(self) -> bool:
        """Whether some kernel can run."""
        return self.config is not None

    def __str__(self) -> str:
        m, n, k = self.problem.gemm
        lines = [f"{self.spec.name}: {self.problem.direction} on {self.target}", f"  problem    {self.problem.describe()}",
                 f"  gemm       m = {m}, n = {n}, k = {k} for each of {self.problem.G} groups", f"  layout     {self._layouts()}"]
        lines += self._chosen() if self.config and self.lowered else ["  runs       nothing"]
        lines += [f"  why        {_WHY.get(self.source, self.source)}"]
        lines += [f"  rejected   {fallback}" for fallback in self.fallbacks]
        return "\n".join(lines)

    def _layouts(self) -> str:
        return ", ".join(f"{name} {self.problem.axes(name)} {self.problem.shape(name)}" for name in "xwy")

    def _what(self, config: KernelConfig) -> str:
        if self.target.startswith("cpu"):
            return "native C++"
        family = family_name(self.problem, config, self.target)
        return f"the family {family}" if family else choose.describe_config(config)

    def _chosen(self) -> list[str]:
        config, lowered = self.config, self.lowered
        if config is None or lowered is None:
            return []
        launches = [f"{launch.kernel} {_extent(launch)}" for launch in lowered.plan.launches]
        return [f"  runs       {self._what(config)}", *(f"  launch     {text}" for text in launches),
                f"  workspace  {lowered.plan.workspace} bytes",
                f"  nonfinite  {_locality(self.target, self.problem.direction, config, lowered.notes)}",
                *(f"  note       {note}" for note in lowered.notes)]


def _extent(launch: Launch) -> str:
    if launch.tasks:
        return f"{launch.tasks} tasks"
    return f"{' x '.join(map(str, launch.grid))} blocks of {launch.block} threads"


def _locality(target: str, direction: str, config: KernelConfig, notes: tuple[str, ...]) -> str:
    """Where a NaN or Inf goes."""
    if target.startswith("cpu") and config.strict_nonfinite:
        return "a NaN or Inf reaches only the results that depend on it"
    second = argument_names(direction)[1]
    shared = "; it may reach the groups packed with its own" if any("packed" in note for note in notes) else ""
    return f"a NaN or Inf is never lost; one in {second} is also multiplied by the zeros of padding{shared}"


def explain(spec: KernelSpec, problem: ConvProblem, config: KernelConfig | None = None, target: str | None = None,
            arch: str | None = None) -> Explanation:
    """The choice without compiling or running anything; failures recorded by earlier runs count."""
    config = spec.config if config is None else config
    spec = spec if problem.direction == spec.direction else spec.bare(problem.direction)
    backend, arch = choose.resolve_target(target, arch)
    where = f"{backend.name}:{arch}"
    try:
        made = choose.decide(spec, problem, config, backend, arch, compiled=False)
    except (RuleError, NoKernelError) as refused:
        return Explanation(problem, where, "none", None, _tried(refused, config), None, spec)
    return Explanation(problem, where, made.source, made.config, made.fallbacks, made.lowered, spec)


def _tried(refused: RuleError | NoKernelError, config: KernelConfig) -> tuple[choose.Fallback, ...]:
    if isinstance(refused, NoKernelError):
        return tuple(refused.values.get("tried", ()))
    return (choose.Fallback(config, "rule", str(refused.values.get("reasons", refused.message))),)
