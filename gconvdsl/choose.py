"""Which kernel runs: candidates in order, each checked by the rules and built, the first that works is the `Decision`.

One explicit pipeline is a demand: nothing else is tried. A chain ``a -> b`` or none permits fallback; along a chain only the
pipeline and double_smem_buffer change. A tile that cannot exist on the target's arch is replaced by a chosen one. Each
step down is recorded in the decision, warned about once, and failures of compilers and launches are remembered across processes.
"""

from __future__ import annotations

import itertools
import json
import threading
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Iterator

from . import env
from .build import Built, build, lower
from .config import CPU_OPTIONS, KernelConfig, Tile, without_cpu_options
from .errors import CompileError, GconvError, LaunchError, NoKernelError, error
from .families import find_family
from .frames import stacklevel
from .models import directory_of
from .pipelines import PIPELINES
from .problem import ConvProblem
from .shown import Shown
from .spec import KernelSpec
from .tuned import recall

if TYPE_CHECKING:
    from .backends.base import Backend
    from .plan import Lowered

__all__ = [
    "Decision", "Fallback", "FallbackWarning", "decide", "default_target", "describe_config", "detect_arch", "forget",
    "generation", "reject", "renew", "resolve_target", "settle", "short_config",
]

_NOT_OF_THE_KERNEL = ("compile.missing", "compile.arch", "launch.device", "launch.driver", "launch.memory", "launch.broken",
                      "launch.runtime")
"""Errors that say something about the machine: no other candidate would fare better, and nothing is to be remembered."""


_FAULTS_SHOWN = ("launch.sim", "launch.emu", "launch.timeout")
"""Failures that the next process is to see again: simulator and emulator are there to find faults, and time depends on the machine."""

_RULES_OF_AN_ARCH = ("tile.wave_tile", "tile.threads", "tile.lds", "tile.registers")
"""Rules by which a tile that is good on one arch is none on another."""


class FallbackWarning(UserWarning):
    """Something that was asked for cannot be had, and something else runs in its place."""


@dataclass(frozen=True)
class Fallback:
    """A candidate that was passed over: at which ``stage`` ("tile", "rule", "compile" or "launch") and why."""

    config: KernelConfig
    stage: str
    reason: str

    def __str__(self) -> str:
        return f"{describe_config(self.config)}: {self.stage}: {self.reason}"


@dataclass(frozen=True)
class Decision(Shown):
    """What runs. ``source`` says why: "demanded" (named by the user), "chain", "rule" (a rule of thumb), "model", "tuned"."""

    spec: KernelSpec
    problem: ConvProblem
    config: KernelConfig
    target: str
    arch: str
    lowered: Lowered
    fallbacks: tuple[Fallback, ...]
    source: str
    built: Built | None = None
    asked: KernelConfig = field(default_factory=KernelConfig)
    candidate: KernelConfig = field(default_factory=KernelConfig)

    def __repr__(self) -> str:
        return f"<{self.spec.name} {self.problem.direction} on {self.target_text}: {describe_config(self.config)}>"

    def _facts(self) -> list[tuple[str, str]]:
        return [("decision for", self.spec.name), ("problem", self.problem.describe()), ("target", self.target_text),
                ("configuration", describe_config(self.config)), ("why", self.source), *(("note", note) for note in self.lowered.notes),
                *(("rejected", str(fallback)) for fallback in self.fallbacks)]

    @property
    def target_text(self) -> str:
        """The target as it is spelt: ``cpu:avx2``, ``sim:gfx942``."""
        return f"{self.target}:{self.arch}"


def describe_config(config: KernelConfig) -> str:
    """One line: pipeline, scheduler, tile and the options that are set."""
    plain = config.to_dict()
    tile = plain.pop("tile", None)
    heeded = any(getattr(config, name) for name in CPU_OPTIONS)
    parts = [" -> ".join(config.pipeline)] if config.pipeline or heeded else ["any pipeline"]
    plain.pop("pipeline", None)
    if isinstance(tile, dict) and "block" in tile:
        parts.append("tile " + "x".join(map(str, config.tile.block)))  # type: ignore[union-attr]
    return " ".join(filter(None, parts + [value if key == "scheduler" else f"{key}={value}" for key, value in plain.items()]))


def short_config(config: KernelConfig) -> str:
    """Pipeline and block of the tile, as far as they are settled: ``basic_v1 64x16x64``; "-" where there are neither."""
    block = ["x".join(map(str, config.tile.block))] if isinstance(config.tile, Tile) else []
    return " ".join([*([" -> ".join(config.pipeline)] if config.pipeline else []), *block]) or "-"


# --- targets

_detected: dict[str, Any] = {}


def _detect(name: str) -> Any:
    """The backend's detection, made once in a process; a backend that is absent detects nothing."""
    if name not in _detected:
        from .backends.base import get

        _detected[name] = get(name).detect()
    return _detected[name]


def detect_arch() -> str:
    """The arch of the first GPU found here, such as "gfx942" or "sm_90"; "none" where there is none."""
    for name in ("hip", "cuda"):
        found = _detect(name)
        if found.available and found.arch:
            return str(found.arch)
    return "none"


def default_target() -> str:
    """GCONV_TARGET; else a GPU that is here and that this version can launch on; else cpu."""
    chosen = env.get("GCONV_TARGET")
    if chosen:
        return str(chosen)
    from .backends.base import get

    for name in ("hip", "cuda"):
        if _detect(name).available and get(name).can_launch:
            return name
    return "cpu"


def resolve_target(target: str | None = None, arch: str | None = None) -> tuple[Backend, str]:
    """(backend, arch) of a target's text. ``arch`` completes a target without one; alone it is of the default target where that
    knows it, else of its vendor's: gfx950 of hip, sm_90 of cuda."""
    from .backends.base import get, parse_target

    text = target or default_target()
    if arch is None or (target and ":" in target):
        return parse_target(text)
    name = text.partition(":")[0]
    if target is None and arch not in get(name).archs():
        from .archs import arch as find_arch

        name = find_arch(arch).target
    return parse_target(f"{name}:{arch}")


# --- candidates

def _candidates(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, target: str, arch: str,
                passed: list[Fallback]) -> Iterator[KernelConfig]:
    """Configurations to try, best first. What had to be replaced before any could be formed is added to ``passed``."""
    if target == "cpu":
        yield config
        return
    config = without_cpu_options(config)
    if _beyond_limits(problem, arch):
        yield config.resolved(tile=None, pipeline=config.pipeline[:1])
        return
    if find_family(problem, config, arch, target, spec) is not None:
        yield config
    config = _with_tile(problem, config, arch, passed)
    for name in _pipelines(config):
        yield _with_pipeline(config, name)


def settle(problem: ConvProblem, config: KernelConfig, target: str, arch: str) -> KernelConfig:
    """The configuration in full, as it would be tried first: a chosen tile where none is declared, the options that its pipeline
    implies. What is declared stays, also where the rules refuse it. A family of its own keeps the empty configuration."""
    if target == "cpu":
        return config
    from .archs import arch as find_arch
    from .rules import check

    config = without_cpu_options(config)
    if find_family(problem, config, arch, target) is not None or _beyond_limits(problem, arch):
        return config
    declared = config.tile_for(find_arch(arch).family)
    config = config.resolved(tile=declared) if declared else _with_chosen_tile(problem, config, arch)
    options = [_with_pipeline(config, name) for name in _pipelines(config)]
    return next((one for one in options if not check(problem, one, arch)), options[0])


def _beyond_limits(problem: ConvProblem, arch: str) -> bool:
    """Whether the sizes alone are refused; asked first, since the search for a tile looks at every stride phase."""
    from .rules import check

    return any(violation.rule.startswith("limit.") for violation in check(problem, KernelConfig(), arch))


def _with_pipeline(config: KernelConfig, name: str) -> KernelConfig:
    """The configuration for one pipeline with the options that it implies; along a chain double_smem_buffer follows it."""
    row = PIPELINES[name]
    options = {option: value for option, value in row.implied_options.items() if getattr(config, option) is None}
    if config.double_smem_buffer and not config.demanded:
        options["double_smem_buffer"] = row.needs_double_smem_buffer
    return config.resolved(pipeline=name, **options)


def _with_tile(problem: ConvProblem, config: KernelConfig, arch: str, passed: list[Fallback]) -> KernelConfig:
    """The configuration with one tile for this arch: the declared one if it can exist there, else a chosen one."""
    from .archs import arch as find_arch

    family = find_arch(arch).family
    declared = config.tile_for(family)
    if declared is not None:
        reason = _tile_misfit(problem, config.resolved(tile=declared), arch)
        if not reason:
            return config.resolved(tile=declared)
        passed.append(Fallback(config.resolved(tile=declared), "tile", reason))
    elif config.tile is not None:
        passed.append(Fallback(config, "tile", f"no tile is declared for the family {family} of {arch}"))
    return _with_chosen_tile(problem, config, arch)


def _pipelines(config: KernelConfig) -> tuple[str, ...]:
    """Those that are asked for, or all that there are."""
    return config.pipeline or tuple(PIPELINES)


def _with_chosen_tile(problem: ConvProblem, config: KernelConfig, arch: str) -> KernelConfig:
    """With a tile and merged groups for the first pipeline that has them; if none has, with one that the rules then refuse."""
    from .tiles import closest_tile, default_config

    for name in _pipelines(config):
        try:
            chosen = default_config(problem, arch, _with_pipeline(config.resolved(tile=None), name))
        except NoKernelError:
            continue
        return config.resolved(tile=chosen.tile, num_groups_to_merge=chosen.num_groups_to_merge)
    return config.resolved(tile=closest_tile(problem, arch, config.resolved(tile=None)))


def _tile_misfit(problem: ConvProblem, config: KernelConfig, arch: str) -> str:
    """Why the tile cannot exist on this arch; empty if it can with basic_v1 or a pipeline that is asked for, which differ in LDS
    and registers. What is wrong on every arch is left to the rules."""
    from .rules import check

    reasons = []
    for name in dict.fromkeys(("basic_v1", *config.pipeline)):
        plain = KernelConfig(tile=config.tile, pipeline=name, precision=config.precision)
        reasons.append("; ".join(v.message for v in check(problem, plain, arch) if v.rule in _RULES_OF_AN_ARCH))
    return "" if "" in reasons else reasons[0]


# --- deciding

_lock = threading.RLock()
_turns: dict[tuple[Any, ...], threading.RLock] = {}
_decisions: dict[tuple[Any, ...], Decision] = {}
_generation = 0
_failed: dict[str, tuple[KernelSpec, Fallback]] = {}
_warned: set[str] = set()


def _settings() -> tuple[Any, ...]:
    """The variables that change what is compiled, beyond target and arch."""
    return env.get("GCONV_SIM_SANITIZE"), env.get("GCONV_DEBUG")


def decide(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, backend: Backend, arch: str, *,
           compiled: bool = True) -> Decision:
    """The kernel for a problem on a target. Remembered in this process; ``compiled=False`` stops before the compiler.

    Raises `RuleError` for a demand that the rules refuse, `NoKernelError` when nothing works.
    """
    key = (spec, problem, config, backend.name, arch, _settings())
    found = _decisions.get(key)
    if found is not None and (found.built is not None or not compiled):
        return found
    with _turn(key):
        found = _decisions.get(key)
        if found is None or (compiled and found.built is None):
            found = _decide(spec, problem, config, backend, arch, compiled)
            if compiled:
                with _lock:
                    _decisions[key] = found
                    _warn(found)
    return found


def _turn(key: tuple[Any, ...]) -> threading.RLock:
    """One thread decides a problem; threads with different problems compile at the same time."""
    with _lock:
        return _turns.setdefault(key, threading.RLock())


def _decide(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, backend: Backend, arch: str,
            compiled: bool) -> Decision:
    passed: list[Fallback] = []
    last: GconvError | None = None
    tuned = recall(spec, problem, config, backend, arch)
    expected = _expected(problem, config, backend.name, arch) if tuned is None else None
    best = [one for one in (tuned, expected) if one is not None]
    for candidate in itertools.chain(best, _candidates(spec, problem, config, backend.name, arch, passed)):
        outcome = _try(spec, problem, candidate, backend, arch, compiled)
        if isinstance(outcome, Decision):
            source = "tuned" if candidate is tuned else "model" if candidate is expected else _source(config, backend.name)
            return replace(outcome, asked=config, fallbacks=tuple(passed), source=source)
        fallback, last = outcome
        passed.append(fallback)
    if last is not None and (config.demanded or sum(f.stage != "tile" for f in passed) == 1):
        raise last
    raise error("kernel.none", problem=problem.describe(), target=f"{backend.name}:{arch}", tried=tuple(passed),
                details="\n".join(f"  {fallback}" for fallback in passed))


def _expected(problem: ConvProblem, config: KernelConfig, target: str, arch: str) -> KernelConfig | None:
    """What a trained model expects to be fastest, where there is one and nothing is asked for."""
    if directory_of("cpu" if target == "cpu" else arch) is None or config.identity() != KernelConfig().identity():
        return None
    from .model_choice import model_choice

    return model_choice(problem, target, arch)


def _source(config: KernelConfig, target: str) -> str:
    if target == "cpu":
        return "rule"
    return "demanded" if config.demanded else "chain" if config.pipeline else "rule"


def _try(spec: KernelSpec, problem: ConvProblem, candidate: KernelConfig, backend: Backend, arch: str,
         compiled: bool) -> Decision | tuple[Fallback, GconvError | None]:
    """The decision for this candidate, or why it is passed over."""
    # The rules know the host's processor as one arch; its instruction sets differ in speed only.
    refused = _refused(problem, candidate, "cpu" if backend.name == "cpu" else arch)
    if refused is not None:
        return Fallback(candidate, "rule", refused.values["reasons"]), refused
    remembered = _recall(spec, problem, candidate, backend, arch)
    if remembered is not None:
        return remembered, None
    lowered = lower(spec, problem, candidate, backend.name, arch)
    made = Decision(spec, problem, lowered.config, backend.name, arch, lowered, (), "", candidate=candidate)
    if not compiled:
        return made
    try:
        return replace(made, built=build(lowered, backend, arch, spec.name, backend.can_launch))
    except (CompileError, LaunchError) as failure:
        if failure.code in _NOT_OF_THE_KERNEL:
            raise
        fallback = Fallback(candidate, "compile", f"{failure.message} {failure.fix}".strip())
        _remember(spec, problem, candidate, backend, arch, fallback)
        return fallback, failure


def _refused(problem: ConvProblem, candidate: KernelConfig, arch: str) -> GconvError | None:
    from .rules import check

    violations = check(problem, candidate, arch)
    if not violations:
        return None
    reasons = "; ".join(f"{v.message} [{v.rule}]" for v in violations)
    fixes = " ".join(dict.fromkeys(v.fix for v in violations))
    return error("rule.violated", arch=arch, reasons=reasons, fixes=fixes, violations=tuple(violations))


def reject(decision: Decision, backend: Backend, failure: GconvError) -> Decision:
    """What runs after a launch of ``decision`` failed, which is remembered. Raises if nothing else can."""
    if failure.code in _NOT_OF_THE_KERNEL:
        raise failure
    fallback = Fallback(decision.candidate, "launch", failure.message)
    lasting = failure.code not in _FAULTS_SHOWN
    _remember(decision.spec, decision.problem, decision.candidate, backend, decision.arch, fallback, lasting)
    _drop(decision.spec)
    if decision.asked.demanded or decision.target == "cpu":
        raise failure
    try:
        return decide(decision.spec, decision.problem, decision.asked, backend, decision.arch)
    except NoKernelError as nothing:
        raise (failure if len(nothing.values["tried"]) == 1 else nothing) from None


def forget(spec: KernelSpec | None = None) -> None:
    """Drop this process's decisions, those of one kernel or all of them, and what it has learnt of their failures."""
    from . import records

    with _lock:
        _drop(spec)
        for identity in [identity for identity, (owner, _) in _failed.items() if spec is None or owner == spec]:
            del _failed[identity]
            if spec is not None:
                records.forget(identity)


def renew(spec: KernelSpec) -> None:
    """Decide anew what was decided for a kernel in this process; what it learnt of failures stays."""
    _drop(spec)


def generation() -> int:
    """A number that changes when decisions are dropped: what was derived from earlier ones is out of date then."""
    return _generation


def _drop(spec: KernelSpec | None) -> None:
    global _generation
    with _lock:
        for key in [key for key in _decisions if spec is None or key[0] == spec]:
            del _decisions[key]
            _turns.pop(key, None)
        _generation += 1                # last: who reads the number and then finds an old decision must see it change


def _warn(decision: Decision) -> None:
    """One warning a process for each thing that was asked for and is not had."""
    if decision.source == "rule" and not any(f.stage != "rule" for f in decision.fallbacks):
        return
    for fallback in decision.fallbacks:
        used, wanted = short_config(decision.config), short_config(fallback.config)
        text = f"{fallback.reason} ({decision.target_text}); {used} is used instead of {wanted}"
        if text not in _warned:
            _warned.add(text)
            warnings.warn(text, FallbackWarning, stacklevel=stacklevel())


# --- memory across processes: failures only, since the rules decide everything else in microseconds

def _identity(spec: KernelSpec, problem: ConvProblem, candidate: KernelConfig, backend: Backend, arch: str) -> str:
    facts = {"problem": problem.identity(), "spec": spec.digest(), "config": candidate.identity(), "target": backend.name,
             "arch": arch, "limit": env.get("GCONV_COMPILE_TIMEOUT"), "settings": _settings(), **backend.identity(arch)}
    return json.dumps(facts, sort_keys=True)


def _remember(spec: KernelSpec, problem: ConvProblem, candidate: KernelConfig, backend: Backend, arch: str, fallback: Fallback,
              lasting: bool = True) -> None:
    """For this process and, where ``lasting``, for those to come."""
    from . import records

    identity = _identity(spec, problem, candidate, backend, arch)
    with _lock:
        _failed[identity] = spec, fallback
    if lasting:
        records.remember(identity, {"stage": fallback.stage, "reason": fallback.reason})


def _recall(spec: KernelSpec, problem: ConvProblem, candidate: KernelConfig, backend: Backend, arch: str) -> Fallback | None:
    from . import records

    identity = _identity(spec, problem, candidate, backend, arch)
    if identity in _failed:
        return _failed[identity][1]
    found = records.recall(identity)
    if not found or "stage" not in found:
        return None
    return Fallback(candidate, found["stage"], found["reason"] + " (remembered from an earlier run)")
