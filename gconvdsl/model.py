"""Learned selection: which configuration is expected to be fastest for a problem.

A model is a directory with ``model.txt`` (LightGBM's text), ``model.json`` (what it was trained on, and with which features). It predicts
log2 of TFLOP/s. One that cannot be read, or was trained with other features, is one warning, and the rule of thumb is used.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np

from .cachedir import warn_once
from .config import KernelConfig
from .errors import GconvError, error
from .features import NAMES, SCHEMA, matrix
from .forest import Forest
from .models import directory_of
from .problem import ConvProblem

__all__ = ["Model", "model_for"]


class Model:
    """A trained model: ``facts`` says what it was made from, ``arch`` for which arch."""

    def __init__(self, forest: Forest, facts: Mapping[str, Any]) -> None:
        self.forest, self.facts = forest, dict(facts)

    @property
    def arch(self) -> str:
        """Of the kernels that it ranks."""
        return str(self.facts["arch"])

    @classmethod
    def load(cls, directory: str | Path) -> Model:
        """Raises ``store.format`` for text that is no model, ``store.model`` for one of other features."""
        path = Path(directory)
        try:
            facts = json.loads((path / "model.json").read_text(encoding="utf-8"))
            text = (path / "model.txt").read_text(encoding="utf-8")
        except (OSError, ValueError) as failure:
            raise error("store.format", path=str(path), field="model.json and model.txt", value=str(failure), expected="a model") from None
        if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
            found = facts.get("schema") if isinstance(facts, dict) else None
            raise error("store.model", path=str(path), found=found, known=SCHEMA)
        forest = Forest.parse(text, str(path / "model.txt"))
        if forest.names != NAMES:
            raise error("store.model", path=str(path), found="other feature names", known=SCHEMA)
        return cls(forest, facts)

    def save(self, directory: str | Path, text: str) -> None:
        """Write the model whose text is ``text``."""
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        for name, content in (("model.txt", text), ("model.json", json.dumps(self.facts, indent=1) + "\n")):
            part = path / f"{name}.part"
            part.write_text(content, encoding="utf-8")
            part.replace(path / name)

    def predict(self, problem: ConvProblem, configs: Sequence[KernelConfig]) -> list[float]:
        """Expected TFLOP/s of each configuration."""
        if not configs:
            return []
        return [float(value) for value in np.exp2(self.forest.predict(matrix(problem, configs, self.arch)))]

    def ranked(self, problem: ConvProblem, configs: Sequence[KernelConfig]) -> list[KernelConfig]:
        """The configurations, the one expected to be fastest first; equal ones keep their order."""
        scores = self.predict(problem, configs)
        return [configs[i] for i in sorted(range(len(configs)), key=lambda i: -scores[i])]

    def covers(self, problem: ConvProblem) -> bool:
        """Whether it was trained on problems of this direction and dtype."""
        return problem.direction in self.facts.get("directions", ()) and problem.dtype in self.facts.get("dtypes", ())


def model_for(arch: str) -> Model | None:
    """The model for an arch ("cpu", "sm_90"), or None; what cannot be used is one warning."""
    place = directory_of(arch)
    return None if place is None else _loaded(str(place))


@lru_cache(maxsize=16)
def _loaded(directory: str) -> Model | None:
    try:
        return Model.load(directory)
    except GconvError as failure:
        warn_once(f"model {directory}", f"{failure.message} The rules of thumb are used.")
        return None

