"""The conditions of sweeps: exact arithmetic and comparisons over the tile and the problem.

A condition reads ``tile.m``, ``tile.n``, ``tile.k``, the numbers of the problem (``N G C K Cg Kg ndim taps depth``, ``gemm.m``,
``gemm.n``, ``gemm.k``), and compares its sizes and words (``filter == 1x1``, ``dtype == bf16``) for equality.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..config import KernelConfig, Tile
from ..errors import error
from ..problem import ConvProblem
from ..source import Loc
from .diagnostics import did_you_mean
from .expressions import Node, check_size, shown
from .fields import PROBLEM
from .text import Source

__all__ = ["Condition", "build_condition"]

NUMBERS = ("N", "G", "C", "K", "Cg", "Kg", "ndim", "taps", "depth", "gemm.m", "gemm.n", "gemm.k", "tile.m", "tile.n", "tile.k")
SIZES = ("input", "filter", "stride", "pad", "dilation", "output")
WORDS = ("dtype", "out_dtype", "layout", "direction")

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction, "%": operator.mod, "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}
_LEVEL = {"or": 1, "and": 2, "not": 3, "<": 4, "<=": 4, ">": 4, ">=": 4, "==": 4, "!=": 4, "+": 5, "-": 5, "*": 6, "/": 6,
          "%": 6, "neg": 7}


@dataclass(frozen=True)
class Condition:
    """One node: ``op`` is a symbol of the language, "neg", or "name", "number", "size", "word" with ``value``.

    ``str()`` is its text.
    """

    op: str
    args: tuple[Condition, ...] = ()
    value: Any = None
    loc: Loc | None = field(default=None, compare=False, repr=False)

    def holds(self, problem: ConvProblem, config: KernelConfig) -> bool:
        """Whether it is true. False where it divides by zero, or reads the tile of a configuration that leaves the tile open."""
        return self.meets(config.tile, problem)

    def meets(self, tile: Any, problem: ConvProblem | None = None) -> bool:
        """The same for a tile, or (family, tile) pairs that must all meet it; without a problem it must read the tile alone."""
        tiles = [one for _, one in tile] if isinstance(tile, tuple) else [tile]
        try:
            return all(bool(self._value(problem, one)) for one in tiles)
        except (ZeroDivisionError, _NoTile):
            return False

    def reads(self) -> set[str]:
        """The names it reads."""
        return {self.value} if self.op == "name" else {name for arg in self.args for name in arg.reads()}

    def _value(self, problem: ConvProblem | None, tile: Tile | None) -> Any:
        if self.op == "name":
            return _read(self.value, problem, tile)
        if self.op == "number":
            return Fraction(repr(self.value)) if isinstance(self.value, float) else self.value
        if self.op in ("size", "word"):
            return self.value
        if self.op == "and":
            return all(arg._value(problem, tile) for arg in self.args)
        if self.op == "or":
            return any(arg._value(problem, tile) for arg in self.args)
        args = [arg._value(problem, tile) for arg in self.args]
        if self.op in ("not", "neg"):
            return not args[0] if self.op == "not" else -args[0]
        if self.op in ("==", "!=") and any(isinstance(one, tuple) for one in args):
            args = _same_axes(*args)
        return _BINARY[self.op](*args)

    def __str__(self) -> str:
        if self.op == "size":
            return shown(self.value)
        if not self.args:
            return str(self.value)
        if self.op in ("not", "neg"):
            return ("not " if self.op == "not" else "-") + self.args[0]._inside(_LEVEL[self.op] + (self.op == "neg"))
        level = _LEVEL[self.op]
        return f"{self.args[0]._inside(level + (level == 4))} {self.op} {self.args[1]._inside(level + 1)}"

    def _inside(self, level: int) -> str:
        negative = self.op == "number" and self.value < 0
        return str(self) if not negative and _LEVEL.get(self.op, 9) >= level else f"({self})"


class _NoTile(Exception):
    """The condition reads the tile, and there is none."""


def _read(name: str, problem: ConvProblem | None, tile: Tile | None) -> Any:
    owner, _, part = name.partition(".")
    if owner == "tile":
        if tile is None:
            raise _NoTile
        return getattr(tile, part)
    return getattr(problem.gemm, part) if part and problem is not None else getattr(problem, name)


def _same_axes(a: Any, b: Any) -> list[Any]:
    """Both sides as one entry per axis, each padding entry as a pair; a lone number or pair serves every axis."""
    ndim = max(len(one) if isinstance(one, tuple) else 1 for one in (a, b))
    paired = any(isinstance(entry, tuple) for one in (a, b) if isinstance(one, tuple) for entry in one)

    def spread(one: Any) -> tuple[Any, ...]:
        entries = one if isinstance(one, tuple) else (one,)
        entries = entries * ndim if len(entries) == 1 else entries
        return tuple((entry, entry) if paired and not isinstance(entry, tuple) else entry for entry in entries)

    return [spread(a), spread(b)]


# --- from the tree, with the types checked

def build_condition(node: Node, source: Source, lets: Mapping[str, Any]) -> Condition:
    """The condition of a ``where``; errors name the part that does not fit."""
    check_size(node, source)
    found, kind = _build(node, source, lets, frozenset())
    if kind != "truth":
        text = " ".join(source.text[node.start:node.end].split())
        raise error("syntax.expected", found=f'"{text[:60]}"', expected="a condition such as tile.n <= 4 * K / G", hint="",
                    loc=source.loc(node.start, node.end))
    return found


def _build(node: Node, source: Source, lets: Mapping[str, Any], words: frozenset[str]) -> tuple[Condition, str]:
    """The condition and its type: number, size, truth, or the field whose words it holds. ``words`` may stand as plain words."""
    loc = source.loc(node.start, node.end)
    if node.kind in ("number", "size"):
        return Condition(node.kind, value=node.value, loc=loc), node.kind
    if node.kind in ("name", "member"):
        return _name(node, loc, lets, words)
    if node.kind in ("neg", "not"):
        inner = _typed(node.args[0], source, lets, "number" if node.kind == "neg" else "truth")
        if inner.op == "number":
            return Condition("number", value=-inner.value, loc=loc), "number"
        return Condition(node.kind, (inner,), loc=loc), "number" if node.kind == "neg" else "truth"
    if node.kind == "op" and node.value in ("==", "!="):
        return _equality(node, source, lets, loc)
    if node.kind == "op":
        takes = "truth" if node.value in ("and", "or") else "number"
        args = tuple(_typed(arg, source, lets, takes) for arg in node.args)
        return Condition(node.value, args, loc=loc), "number" if node.value in "+-*/%" else "truth"
    raise error("syntax.expected", found=f'"{node.value}"', expected="a name, a number or a comparison",
                hint="Conditions have no functions.", loc=loc)


def _typed(node: Node, source: Source, lets: Mapping[str, Any], takes: str) -> Condition:
    found, kind = _build(node, source, lets, frozenset())
    if kind != takes:
        words = {"number": "a number", "truth": "a comparison"}[takes]
        raise error("syntax.value", field="This part of the condition", value=node.text, expected=words,
                    hint=f"Compare {node.value} with == or !=." if node.kind == "name" else "",
                    loc=source.loc(node.start, node.end))
    return found


def _name(node: Node, loc: Loc, lets: Mapping[str, Any], words: frozenset[str]) -> tuple[Condition, str]:
    name = node.value
    if name in NUMBERS:
        return Condition("name", value=name, loc=loc), "number"
    if name in SIZES or name in WORDS:
        return Condition("name", value=name, loc=loc), "size" if name in SIZES else name
    value = lets.get(name, name)
    if isinstance(value, str) and value in words:
        return Condition("word", value=value, loc=loc), "word"
    if name in lets and isinstance(value, (int, float, tuple)):
        sort = "size" if isinstance(value, tuple) else "number"
        return Condition(sort, value=value, loc=loc), sort
    raise error("syntax.unknown", what="The name", name=name, loc=loc,
                hint=did_you_mean(name, [*words, *NUMBERS, *SIZES, *WORDS, *lets], "Conditions read"))


def _equality(node: Node, source: Source, lets: Mapping[str, Any], loc: Loc) -> tuple[Condition, str]:
    left = _build(node.args[0], source, lets, frozenset())
    words = frozenset(PROBLEM[left[1]].words) if left[1] in WORDS else frozenset()
    right = _build(node.args[1], source, lets, words)
    same_sort = left[1] == right[1] and left[1] != "truth"
    both_words = left[1] in WORDS and right[1] in ("word", *WORDS)
    fits = same_sort or both_words or {left[1], right[1]} == {"size", "number"}
    if not fits:
        raise error("syntax.value", field=f"{node.args[0].text} {node.value} ...", value=node.args[1].text,
                    expected="of the same sort as the left side",
                    hint="", loc=source.loc(node.args[1].start, node.args[1].end))
    return Condition(node.value, (left[0], right[0]), loc=loc), "truth"
