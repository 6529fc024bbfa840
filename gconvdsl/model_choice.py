"""The configurations among which a model chooses, and its choice for a problem."""

from __future__ import annotations

from functools import lru_cache

from .config import KernelConfig
from .model import model_for
from .problem import ConvProblem
from .search import SETS

__all__ = ["candidates_of", "model_choice"]


def candidates_of(problem: ConvProblem, target: str, arch: str) -> list[KernelConfig]:
    """What a model ranks, and what should be measured to train one: the set "few" of `search`."""
    return SETS["few"][0](problem, target, arch)


@lru_cache(maxsize=4096)
def model_choice(problem: ConvProblem, target: str, arch: str) -> KernelConfig | None:
    """The configuration that the model for the arch expects to be fastest, or None: no model, or it does not cover the problem."""
    model = model_for("cpu" if target == "cpu" else arch)
    if model is None or not model.covers(problem):
        return None
    configs = candidates_of(problem, target, arch)
    return model.ranked(problem, configs)[0] if configs else None
