"""The configurations among which a model chooses, and its choice for a problem."""

from __future__ import annotations

from functools import lru_cache

from .archs import arch as find_arch
from .config import CPU_ALGORITHMS, KernelConfig
from .errors import GconvError
from .families import find_family
from .model import model_for
from .pipelines import PIPELINES
from .problem import ConvProblem
from .tiles import candidates, default_config

__all__ = ["candidates_of", "model_choice"]

_MOST = 20
_POINTS = {1: (14, 10, 8), 2: (12, 8, 6), 3: (8, 6), 4: (6, 4)}


def candidates_of(problem: ConvProblem, arch: str) -> list[KernelConfig]:
    """What may be measured, and what a model ranks: the choice of the rules first, then others, legal ones only."""
    plain = KernelConfig()
    if find_arch(arch).family == "cpu":
        return [plain, *_cpu(problem)]
    family = [plain] if find_family(problem, plain, arch) is not None else []
    made = [*_defaults(problem, arch), *candidates(problem, arch, _MOST)]
    unique = {one.identity(): one for one in [*family, *made]}
    return list(unique.values())[:_MOST]


def _defaults(problem: ConvProblem, arch: str) -> list[KernelConfig]:
    """The tile that the rules would choose, also a window tile, with the first pipelines that have it."""
    found = []
    for pipeline in ("basic_v1", "compv3", "mem"):
        row = PIPELINES[pipeline]
        try:
            found.append(default_config(problem, arch, KernelConfig(pipeline=pipeline, **row.implied_options)))
        except GconvError:
            continue
    return found


def _cpu(problem: ConvProblem) -> list[KernelConfig]:
    """Every algorithm that applies, with register blocks that fit."""
    from .lower_cpu import ISAS, lower_cpu
    from .runner import bare_spec

    found: dict[str, KernelConfig] = {}
    for algorithm in CPU_ALGORITHMS:
        for vectors, points in ((v, p) for v, sizes in _POINTS.items() for p in sizes):
            merged = algorithm != "direct"
            if merged and vectors > 1:
                continue
            config = KernelConfig(cpu_algorithm=algorithm, cpu_points=points, cpu_vectors=None if merged else vectors)
            try:
                source = lower_cpu(bare_spec(problem.direction), problem, config, next(iter(ISAS))).source
            except GconvError:
                continue
            found.setdefault(source, config)
    return list(found.values())


@lru_cache(maxsize=4096)
def model_choice(problem: ConvProblem, arch: str) -> KernelConfig | None:
    """The configuration that the model for an arch expects to be fastest, or None: no model, or it does not cover the problem."""
    model = model_for(arch)
    if model is None or not model.covers(problem):
        return None
    configs = candidates_of(problem, arch)
    return model.ranked(problem, configs)[0] if configs else None
