"""Configurations to measure for a problem: sets by name, files, and what ``field in *`` stands for in a sweep."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .archs import arch as find_arch
from .choose import settle
from .config import OPTIONS, KernelConfig
from .errors import GconvError, error
from .pipelines import PIPELINES, Pipeline
from .problem import ConvProblem
from .rules import check
from .tiles import ranked_tiles, ranked_windows

__all__ = ["SETS", "Configurations", "choices_for", "config_set", "read_configs", "space"]

Configurations = Callable[[ConvProblem, str, str], list[KernelConfig]]
"""(problem, target, arch) -> configurations."""

_TILES = 24
_SPLITS = (1, 2, 4, 8, 16)
_MERGES = (2, 4, 8, 16)
_POINTS, _VECTORS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24), (1, 2, 3, 4)


def space(problem: ConvProblem, target: str, arch: str, config: KernelConfig | None = None) -> Iterator[KernelConfig]:
    """Every legal configuration worth a measurement, the likely ones first; fields that ``config`` states stay as they are."""
    asked, seen = config or KernelConfig(), set()
    every = (full for one in _space(problem, target, arch) for full in _completed(problem, asked, one, target, arch))
    for one in itertools.chain([settle(problem, asked, target, arch)], every):
        if one.identity() not in seen and not check(problem, one, "cpu" if target == "cpu" else arch):
            seen.add(one.identity())
            yield one


def _space(problem: ConvProblem, target: str, arch: str) -> Iterator[KernelConfig]:
    if target == "cpu":
        yield from _cpu_space(problem, arch)
        return
    yield KernelConfig()
    windows = ranked_windows(problem, arch)
    tiles = itertools.islice(ranked_tiles(problem, arch), _TILES)
    for window, tile in itertools.zip_longest(windows, tiles):
        for one in _every_pipeline():
            if window is not None:
                yield one.resolved(tile=window[0], num_groups_to_merge=window[1])
            if tile is not None:
                yield from _variants(problem, one.resolved(tile=tile))


def _variants(problem: ConvProblem, config: KernelConfig) -> Iterator[KernelConfig]:
    """The configuration, and with one option more."""
    yield config
    for merge in _MERGES:
        if problem.G % merge == 0:
            yield config.resolved(num_groups_to_merge=merge)
    if config.double_smem_buffer is None:
        yield config.resolved(double_smem_buffer=True)
    if problem.direction == "bwd_weight":
        for split in _SPLITS[1:]:
            yield config.resolved(split_k=split)
    if problem.taps == 1:
        yield config.resolved(explicit_gemm=True)


def _cpu_space(problem: ConvProblem, arch: str) -> Iterator[KernelConfig]:
    """Algorithms that fit, the usual one first, and their register blocks; blocks of about half the registers first."""
    from .lower_cpu import ISAS, fitting_algorithms, most_vectors

    yield KernelConfig()
    algorithms = fitting_algorithms(problem, arch)
    for one in algorithms[1:]:
        yield KernelConfig(cpu_algorithm=one.name)
    sums = ISAS[arch].registers * 5 // 8
    for one in algorithms:
        blocks = itertools.product(_POINTS, (1,) if one.merged else range(1, most_vectors(arch) + 1))
        for points, vectors in sorted(blocks, key=lambda block: abs(block[0] * block[1] - sums)):
            yield KernelConfig(cpu_algorithm=one.name, cpu_points=points, cpu_vectors=None if one.merged else vectors)


def _completed(problem: ConvProblem, asked: KernelConfig, one: KernelConfig, target: str, arch: str) -> Iterator[KernelConfig]:
    """``one`` with the fields that ``asked`` states, unless that changes what ``one`` is about."""
    stated = {name: getattr(asked, name) for name in ("tile", "pipeline", *OPTIONS)
              if getattr(asked, name) != getattr(KernelConfig(), name)}
    if len(stated.get("pipeline", ())) > 1:
        if one.pipeline and one.pipeline[0] not in stated["pipeline"]:
            return
        stated["pipeline"] = one.pipeline or stated["pipeline"]
    if target != "cpu" and isinstance(stated.get("tile"), tuple):
        stated["tile"] = asked.tile_for(find_arch(arch).family)
    merged = one.resolved(**stated) if stated else one
    if target != "cpu" and len(merged.pipeline) != 1:
        merged = settle(problem, merged, target, arch)
    yield merged


# --- sets by name and files

def _default(problem: ConvProblem, target: str, arch: str) -> list[KernelConfig]:
    return [settle(problem, KernelConfig(), target, arch)]


def _pipelines(problem: ConvProblem, target: str, arch: str) -> list[KernelConfig]:
    if target == "cpu":
        return [KernelConfig()]
    usual = settle(problem, KernelConfig(pipeline="basic_v1"), target, arch)
    tiled = [one.resolved(tile=usual.tile, num_groups_to_merge=usual.num_groups_to_merge) for one in _every_pipeline()]
    return [settle(problem, one.resolved(tile=None), target, arch) if check(problem, one, arch) else one for one in tiled]


def _every_pipeline() -> list[KernelConfig]:
    """Each with each of its schedulers and the options that it implies."""
    return [KernelConfig(pipeline=row.name, **{**row.implied_options, "scheduler": scheduler})
            for row in PIPELINES.values() for scheduler in row.schedulers]


def _few(problem: ConvProblem, target: str, arch: str) -> list[KernelConfig]:
    return list(itertools.islice(space(problem, target, arch), 20))


def _all(problem: ConvProblem, target: str, arch: str) -> list[KernelConfig]:
    return list(space(problem, target, arch))


SETS: dict[str, tuple[Configurations, str]] = {
    "default": (_default, "what is chosen when nothing is asked for"),
    "pipelines": (_pipelines, "every pipeline and scheduler with a chosen tile"),
    "few": (_few, "the 20 likeliest of all"),
    "all": (_all, "every legal configuration worth a measurement"),
}


def config_set(text: str) -> Configurations:
    """The set of this name, or the configurations of a .json file for every problem."""
    if text in SETS:
        return SETS[text][0]
    configs = read_configs(text)
    return lambda problem, target, arch: [settle(problem, config, target, arch) for config in configs(problem)]


def read_configs(path: str) -> Callable[[ConvProblem], list[KernelConfig]]:
    """The configurations of a JSON file: a list of what `KernelConfig.to_dict` gives, a `Registry`, or a configuration file of the
    seed system. Those of the last two serve the problems that their kernels are for. Raises ``store.format`` naming the field.
    """
    from .registry import Registry, read_text

    if not path.endswith(".json") and not Path(path).is_file():
        hint = f"Use a .json file, or one of: {', '.join(SETS)}."
        raise error("usage.option", what="The set of configurations", value=path, hint=hint)
    text = read_text(path)
    if not text.lstrip().startswith("["):
        entries = list(Registry.load(path))
        return lambda problem: [one.spec.config for one in entries if problem.direction in one.spec.directions
                                and problem.dtype in (one.dtypes or (problem.dtype,))
                                and problem.ndim in (one.ndims or (problem.ndim,))]
    configs = [_config(path, number, plain) for number, plain in enumerate(_array(path, text))]
    if not configs:
        raise error("usage.empty", what="measure", reason=f"{path} lists no configuration", hint="Write at least one.")
    return lambda problem: configs


def _array(path: str, text: str) -> list[Any]:
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as fault:
        raise error("store.format", path=f"{path}:{fault.lineno}:{fault.colno}", field="JSON text", value=fault.msg,
                    expected="well formed") from None
    return list(plain)


def _config(path: str, number: int, plain: Any) -> KernelConfig:
    try:
        if isinstance(plain, dict):
            return KernelConfig.from_dict(plain)
        fault = "a JSON object"
    except (GconvError, TypeError, AttributeError) as failure:
        fault = f"a configuration ({getattr(failure, 'message', failure)})"
    raise error("store.format", path=path, field=f"configuration {number + 1}", value=plain, expected=fault)


# --- sweeps of .gconv files

def choices_for(problem: ConvProblem, target: str, arch: str) -> Callable[[str], Iterable[dict[str, Any]]]:
    """What ``field in *`` stands for: every legal value for this problem on this target, with the options that it implies."""
    where = "cpu" if target == "cpu" else arch

    def legal(values: Iterable[dict[str, Any]], field: str) -> list[dict[str, Any]]:
        return [one for one in values if not any(v.field == field for v in check(problem, KernelConfig(**one), where))]

    def choices(field: str) -> list[dict[str, Any]]:
        if field == "pipeline":
            return legal(({"pipeline": (row.name,), **_implied(row)} for row in PIPELINES.values()), field)
        if field == "tile":
            return [] if target == "cpu" else [{"tile": tile} for tile in itertools.islice(ranked_tiles(problem, arch), _TILES)]
        kind = OPTIONS[field].kind
        values = (False, True) if kind == "bool" else kind if isinstance(kind, tuple) else _COUNTS.get(field, (1, 2, 4))
        return legal(({field: value} for value in values), field)
    return choices


def _implied(row: Pipeline) -> dict[str, Any]:
    """The options that a pipeline cannot do without; a scheduler only where it has no other."""
    return {name: value for name, value in row.implied_options.items() if name != "scheduler" or len(row.schedulers) == 1}


_COUNTS = {"split_k": _SPLITS, "num_groups_to_merge": (1, *_MERGES), "num_wave_groups": (1, 2), "cpu_points": _POINTS,
           "cpu_vectors": _VECTORS}
