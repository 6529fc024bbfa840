"""The names of CK Tile's heuristics over this package: ``Predictor``, ``GroupedConvFeatureEngine``, pools of kernels by name.

    import pandas as pd                                        # or pyarrow: any column of names will do
    engine = GroupedConvFeatureEngine()
    predictor = Predictor("models/grouped_conv_forward_bf16_sm_90", engine)
    pool = pd.read_parquet("data/grouped_conv_forward_bf16_sm_90.parquet")["kernel_name"].unique()
    print(predictor.rank_kernels(problem, pool)[:5])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterable, Sequence

from .config import KernelConfig
from .errors import error
from .features import NAMES, features
from .model import Model
from .problem import ConvProblem

__all__ = ["GroupedConvFeatureEngine", "Predictor", "config_of_name", "name_of_config"]


def name_of_config(config: KernelConfig) -> str:
    """A kernel's name in tables: its configuration as one line of JSON, which loses nothing, so that no two kernels share one."""
    return config.to_json()


def config_of_name(name: str) -> KernelConfig:
    """The inverse of `name_of_config`."""
    return KernelConfig.from_json(name)


class GroupedConvFeatureEngine:
    """Features of a problem and a kernel, the same for training and prediction. ``arch``: of the kernels."""

    def __init__(self, arch: str = "gfx950") -> None:
        self.arch = arch

    def get_feature_names(self) -> list[str]:
        """In the order of `extract`."""
        return list(NAMES)

    def extract(self, problem: Any, kernel: Any) -> list[float]:
        """One row. ``problem``: a `ConvProblem` or `compat.GroupedConvProblem`; ``kernel``: a configuration, or a name of one."""
        row = features(_problem(problem), _config(kernel), self.arch)
        return [row[name] for name in NAMES]


class Predictor:
    """A trained model as CK Tile's users know it."""

    def __init__(self, model_dir: str | Path, feature_engine: GroupedConvFeatureEngine | None = None) -> None:
        self.model = Model.load(model_dir)
        self.engine = feature_engine or GroupedConvFeatureEngine(self.model.arch)
        self.engine.arch = self.model.arch

    def predict_tflops(self, problem: Any, kernel: Any) -> float:
        """Expected TFLOP/s."""
        return self.model.predict(_problem(problem), [_config(kernel)])[0]

    def rank_kernels(self, problem: Any, kernels: Iterable[Any]) -> list[tuple[Any, float]]:
        """(kernel, expected TFLOP/s), the best first."""
        pool = list(kernels)
        scores = self.model.predict(_problem(problem), [_config(one) for one in pool])
        return sorted(zip(pool, scores), key=lambda pair: -pair[1])

    def select_best(self, problem: Any, kernels: Sequence[Any]) -> Any:
        """The kernel that is expected to be fastest."""
        ranked = self.rank_kernels(problem, kernels)
        if not ranked:
            raise error("usage.empty", what="select", reason="the pool holds no kernel", hint="")
        return ranked[0][0]


def _problem(problem: Any) -> ConvProblem:
    return problem if isinstance(problem, ConvProblem) else problem.problem()


def _config(kernel: Any) -> KernelConfig:
    if isinstance(kernel, KernelConfig):
        return kernel
    made = getattr(kernel, "kernel_config", None)
    return made() if made is not None else config_of_name(str(kernel))
