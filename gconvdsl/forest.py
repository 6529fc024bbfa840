"""LightGBM's text models evaluated with NumPy: what serves where LightGBM is not installed.

The format is the one that LightGBM documents and writes with ``save_model``: blocks ``Tree=N`` of ``key=value`` lines. Numerical splits
only, as `learn` trains them: go left where the value is at most the threshold, or is NaN and the default is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import error

__all__ = ["Forest"]

_CATEGORICAL, _DEFAULT_LEFT = 1, 2
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Tree:
    """Inner nodes in arrays; a child below zero is the leaf ``-1 - child``."""

    feature: Array
    threshold: Array
    default_left: Array
    left: Array
    right: Array
    leaf: Array
    depth: int

    def predict(self, rows: Array) -> Array:
        """The leaf value of each row."""
        if not self.feature.size:
            return np.full(len(rows), self.leaf[0])
        node = np.zeros(len(rows), np.int64)
        for _ in range(self.depth):
            inner = node >= 0
            if not inner.any():
                break
            at = np.where(inner, node, 0)
            value = rows[np.arange(len(rows)), self.feature[at]]
            goes_left = np.where(np.isnan(value), self.default_left[at], value <= self.threshold[at])
            node = np.where(inner, np.where(goes_left, self.left[at], self.right[at]), node)
        values: Array = self.leaf[-1 - node]
        return values


class Forest:
    """A sum of trees. ``names``: its features in order."""

    def __init__(self, names: tuple[str, ...], trees: list[_Tree]) -> None:
        self.names, self.trees = names, trees

    @classmethod
    def parse(cls, text: str, where: str = "model") -> Forest:
        """A model from its text. Raises ``store.format`` naming the part that is not as expected."""
        head, *blocks = text.split("\nTree=")
        facts = _facts(head)
        if "feature_names" not in facts or not blocks:
            raise error("store.format", path=where, field="feature_names and trees", value="missing", expected="a LightGBM text model")
        body = [block.split("\nend of trees", 1)[0] for block in blocks]
        trees = [_tree(_facts(one), f"{where}: tree {number}") for number, one in enumerate(body)]
        return cls(tuple(facts["feature_names"].split()), trees)

    def predict(self, rows: Array) -> Array:
        """One number for each row of features."""
        result = np.zeros(len(rows))
        for tree in self.trees:
            result += tree.predict(rows)
        return result


def _facts(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)


def _tree(facts: dict[str, str], where: str) -> _Tree:
    try:
        leaves = int(facts["num_leaves"])
        leaf = np.array([float(one) for one in facts["leaf_value"].split()])
        if leaves == 1:
            empty = np.zeros(0, np.int64)
            return _Tree(empty, empty, empty, empty, empty, leaf, 0)
        names = ("split_feature", "decision_type", "left_child", "right_child")
        ints = {name: np.array([int(one) for one in facts[name].split()]) for name in names}
        threshold = np.array([float(one) for one in facts["threshold"].split()])
    except (KeyError, ValueError) as failure:
        raise error("store.format", path=where, field="tree", value=str(failure), expected="a tree of numerical splits") from None
    sizes = {len(one) for one in (*ints.values(), threshold)}
    if sizes != {leaves - 1} or len(leaf) != leaves or (ints["decision_type"] & _CATEGORICAL).any():
        raise error("store.format", path=where, field="tree", value=f"{leaves} leaves", expected="a tree of numerical splits")
    default_left = (ints["decision_type"] & _DEFAULT_LEFT) > 0
    return _Tree(ints["split_feature"], threshold, default_left, ints["left_child"], ints["right_child"], leaf,
                 _depth(ints["left_child"], ints["right_child"], where))


def _depth(left: Array, right: Array, where: str) -> int:
    """The longest path; also finds a child that is no node, and a node that is reached twice."""
    seen, level, depth = {0}, [0], 0
    while level:
        depth += 1
        children = [int(child) for node in level for child in (left[node], right[node]) if child >= 0]
        if any(child >= len(left) or child in seen for child in children) or len(set(children)) < len(children):
            raise error("store.format", path=where, field="children", value=children, expected="a tree")
        seen.update(children)
        level = children
    return depth if math.isfinite(depth) else 0
