"""Training and judging models: data sets of measurements, cross-validation grouped by the whole problem and by network, efficiency.

Efficiency of a choice is the best measured time of the problem's pool over the chosen configuration's. LightGBM (extra ``ml``) trains;
`forest` evaluates.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from .config import KernelConfig
from .errors import error
from .features import NAMES, SCHEMA, matrix
from .forest import Forest
from .measurement import Measurement
from .model import Model
from .problem import ConvProblem

__all__ = ["PARAMETERS", "Pool", "Score", "cross_validate", "evaluate", "network_of", "pools_of", "train"]

PARAMETERS: dict[str, Any] = {
    "objective": "regression", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 8, "feature_fraction": 0.8,
    "bagging_fraction": 0.9, "bagging_freq": 1, "lambda_l2": 0.5, "seed": 42, "deterministic": True, "force_row_wise": True,
    "verbosity": -1, "num_threads": 2,
}
_ROUNDS = 400
Chooser = Callable[["Pool"], int]


@dataclass(frozen=True)
class Pool:
    """The measured configurations of one problem, and their median times in milliseconds; infinite for one that failed."""

    problem: ConvProblem
    configs: tuple[KernelConfig, ...]
    times: tuple[float, ...]

    @property
    def best(self) -> float:
        """The shortest time."""
        return min(self.times)

    @property
    def spread(self) -> float:
        """Median of the times that there are, over the best."""
        return statistics.median(time for time in self.times if math.isfinite(time)) / self.best

    def efficiency(self, index: int) -> float:
        """Of a choice: 1 is the best, 0 one that failed."""
        return self.best / self.times[index] if math.isfinite(self.times[index]) else 0.0


@dataclass(frozen=True)
class Score:
    """Efficiencies over problems: mean, 10th percentile, lowest; shares of problems whose best is the choice, or in its first five."""

    problems: int
    mean: float
    p10: float
    lowest: float
    top1: float
    top5: float

    @classmethod
    def of(cls, efficiencies: Sequence[float], first: Sequence[bool], fifth: Sequence[bool]) -> Score:
        """Of at least one problem."""
        values = np.array(efficiencies)
        return cls(len(values), float(values.mean()), float(np.percentile(values, 10)), float(values.min()), float(np.mean(first)),
                   float(np.mean(fifth)))

    def __str__(self) -> str:
        return (f"{self.problems} problems: mean {self.mean:.1%}, p10 {self.p10:.1%}, lowest {self.lowest:.1%}, "
                f"top-1 {self.top1:.1%}, top-5 {self.top5:.1%}")


def pools_of(measurements: Iterable[Measurement], arch: str, least: int = 2) -> list[Pool]:
    """One pool for each problem with at least ``least`` configurations that passed; the newest row of a configuration counts."""
    found: dict[tuple[str, str | None], dict[str, Measurement]] = defaultdict(dict)
    for one in measurements:
        if _arch_of(one) == arch and not one.case.spec:
            found[one.case.problem.identity(), one.case.problem.name][one.case.config.identity()] = one
    pools = []
    for rows in found.values():
        kept = [one for one in rows.values() if one.status in ("PASS", "SLOW", "WRONG", "CRASH", "TIMEOUT")]
        if sum(one.status in ("PASS", "SLOW") for one in kept) >= least:
            times = tuple(one.median_ms if one.status in ("PASS", "SLOW") else math.inf for one in kept)
            pools.append(Pool(kept[0].case.problem, tuple(one.case.config for one in kept), times))
    return pools


def _arch_of(one: Measurement) -> str:
    """Instruction sets of the CPU share a model."""
    return "cpu" if one.case.target == "cpu" else one.case.arch


def network_of(problem: ConvProblem) -> str:
    """The network that a problem of the package's sets comes from: its name up to the last dot."""
    return (problem.name or "").rpartition(".")[0] or problem.name or "unnamed"


def train(pools: Sequence[Pool], arch: str, rounds: int = _ROUNDS, parameters: Mapping[str, Any] | None = None) -> tuple[Model, str]:
    """(model, its text) from pools. The target is log2 of TFLOP/s; each problem weighs the same."""
    booster = _lightgbm()
    rows, target, weight = _table(pools, arch)
    data = booster.Dataset(rows, target, weight=weight, feature_name=list(NAMES), free_raw_data=True)
    text = str(booster.train({**PARAMETERS, **(parameters or {})}, data, num_boost_round=rounds).model_to_string())
    problems = [pool.problem for pool in pools]
    facts = {"schema": SCHEMA, "arch": arch, "problems": len(pools), "rows": len(target), "rounds": rounds,
             "directions": sorted({one.direction for one in problems}), "dtypes": sorted({one.dtype for one in problems}),
             "networks": len({network_of(one) for one in problems}), "target": "log2 TFLOP/s"}
    return Model(Forest.parse(text), facts), text


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError:
        raise error("usage.option", what="lightgbm", value="not installed",
                    hint='Training needs it: python3 -m pip install "gconvdsl[ml]".') from None
    return lightgbm


def _table(pools: Sequence[Pool], arch: str) -> tuple[Any, Any, Any]:
    """Features, targets and weights of every configuration that ran."""
    rows, target, weight = [], [], []
    for pool in pools:
        ran = [i for i, time in enumerate(pool.times) if math.isfinite(time)]
        rows.append(matrix(pool.problem, [pool.configs[i] for i in ran], arch))
        target += [math.log2(pool.problem.flops / pool.times[i] / 1e9) for i in ran]
        weight += [1.0 / len(ran)] * len(ran)
    return np.concatenate(rows), np.array(target), np.array(weight)


# --- judging

def evaluate(pools: Sequence[Pool], choosers: Mapping[str, Callable[[Pool], Sequence[int]]]) -> dict[str, Score]:
    """Name -> score, for functions that give the indices of a pool in order of preference."""
    scores = {}
    for name, ranking in choosers.items():
        orders = [list(ranking(pool)) for pool in pools]
        best = [pool.times.index(pool.best) for pool in pools]
        scores[name] = Score.of([pool.efficiency(order[0]) for pool, order in zip(pools, orders)],
                                [pool.times[order[0]] <= pool.times[one] for pool, order, one in zip(pools, orders, best)],
                                [one in order[:5] for order, one in zip(orders, best)])
    return scores


def by_model(model: Model) -> Callable[[Pool], Sequence[int]]:
    """The order that a model predicts."""
    def order(pool: Pool) -> Sequence[int]:
        scores = model.predict(pool.problem, pool.configs)
        return sorted(range(len(scores)), key=lambda i: -scores[i])
    return order


def at_random(seed: int = 0) -> Callable[[Pool], Sequence[int]]:
    """A random order, the same for a problem each time."""
    def order(pool: Pool) -> Sequence[int]:
        indices = list(range(len(pool.times)))
        random.Random(f"{seed} {pool.problem.identity()}").shuffle(indices)
        return indices
    return order


def by_rule(pool: Pool) -> Sequence[int]:
    """The rule of thumb's order: a configuration with nothing asked for first, then as `tiles.candidates` ranks tiles."""
    plain = [i for i, config in enumerate(pool.configs) if config.identity() == KernelConfig().identity()]
    return [*plain, *(i for i in range(len(pool.configs)) if i not in plain)]


def cross_validate(pools: Sequence[Pool], arch: str, folds: int = 5, by: str = "problem", rounds: int = _ROUNDS) -> dict[str, Score]:
    """Scores of the model, of random choice and of the rule of thumb, each problem judged by a model that has not seen it.

    ``by="problem"`` keeps all rows of a problem in one fold; ``by="network"`` all problems of a network.
    """
    keys = [pool.problem.identity() if by == "problem" else network_of(pool.problem) for pool in pools]
    names = sorted(set(keys))
    random.Random(0).shuffle(names)
    fold_of = {name: number % folds for number, name in enumerate(names)}
    if len(names) < folds:
        raise error("usage.empty", what="cross-validate", reason=f"{len(names)} {by}s are fewer than {folds} folds", hint="Measure more.")
    orders: dict[int, Sequence[int]] = {}
    for fold in range(folds):
        held = [i for i, key in enumerate(keys) if fold_of[key] == fold]
        model, _ = train([pool for i, pool in enumerate(pools) if i not in set(held)], arch, rounds)
        order = by_model(model)
        orders.update({i: order(pools[i]) for i in held})
    index = {id(pool): orders[i] for i, pool in enumerate(pools)}
    return evaluate(pools, {"model": lambda pool: index[id(pool)], "random": at_random(), "rule": by_rule})
