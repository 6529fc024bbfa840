"""Expressions: from the parser's flat lists of operands and operators to trees, kernel expressions and numbers.

Which functions and operators exist, and which binds tighter, is the op table's business (`gconvdsl.expr.OPS`).
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..dtypes import DTYPES
from ..errors import GconvError, error
from ..expr import ALIASES, MAX_TERMS, OPS, Expr, apply, const
from .diagnostics import did_you_mean
from .text import Source

__all__ = ["Node", "arrange", "build_expr", "check_size", "evaluate", "shown", "size_text", "substitute"]

_LARGEST = 10**40
_LOGIC = {"or": -3, "and": -2}                   # looser than every operation of the table
_NOT = -1
_PLAIN: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul, "%": operator.mod}


@dataclass(frozen=True)
class Node:
    """One part of an expression, with its place in the text.

    ``kind``: number, size, name, member, call, op, neg or not; ``value``: the number, the size's entries, the name or symbol.
    """

    kind: str
    value: Any
    start: int
    end: int
    args: tuple[Node, ...] = ()
    depth: int = 1
    size: int = 1

    @property
    def text(self) -> str:
        """A short spelling, for messages."""
        if self.kind == "size":
            return size_text(self.value)
        return str(self.value) if self.kind in ("number", "name", "member") else "an expression"


def size_text(entries: tuple[Any, ...]) -> str:
    """(28, 28) as "28x28", ((0, 1), 2) as "0:1x2", (2,) as "2x"."""
    text = "x".join(f"{entry[0]}:{entry[1]}" if isinstance(entry, tuple) else str(entry) for entry in entries)
    return text + "x" if len(entries) == 1 and not isinstance(entries[0], tuple) else text


@functools.lru_cache(maxsize=1)
def _infix() -> dict[str, tuple[str, int]]:
    """Symbol -> (operation, precedence)."""
    table = {op.cpp: (op.name, op.precedence) for op in OPS.values() if op.infix}
    return {**table, "%": ("mod", OPS["mul"].precedence), **{word: (word, level) for word, level in _LOGIC.items()}}


# --- from the flat list to a tree

def arrange(tree: Any, source: Source) -> Node:
    """The tree of an ``expr``; ``syntax.terms`` when it is too large or deep."""
    items = list(tree.children)
    if sum(1 for item in items if getattr(item, "type", "") in ("OPERATOR", "STAR", "MINUS", "NOT")) > MAX_TERMS:
        raise _too_large(source, items[0], len(items))
    return _Arranger(items, source).binary(min(_LOGIC.values()))


def _too_large(source: Source, at: Any, size: int) -> GconvError:
    start = at.start_pos if hasattr(at, "start_pos") else at.children[0].start_pos
    return error("syntax.terms", value=size, limit=MAX_TERMS, loc=source.loc(start))


def check_size(node: Node, source: Source) -> None:
    """``syntax.terms`` for a tree of more than 200 terms."""
    if node.size > MAX_TERMS:
        raise error("syntax.terms", value=node.size, limit=MAX_TERMS, loc=source.loc(node.start, node.end))


class _Arranger:
    """Precedence climbing over the items of one ``expr``."""

    def __init__(self, items: list[Any], source: Source) -> None:
        self.items, self.source, self.at = items, source, 0

    def _peek(self) -> str:
        return str(self.items[self.at]) if self.at < len(self.items) and hasattr(self.items[self.at], "type") else ""

    def binary(self, level: int) -> Node:
        left = self.unary()
        while self._peek() in _infix() and _infix()[self._peek()][1] >= level:
            token = self.items[self.at]
            precedence = _infix()[str(token)][1]
            self.at += 1
            left = self._join(str(token), left, self.binary(precedence + 1))
            if precedence == OPS["lt"].precedence and self._peek() in _infix() and _infix()[self._peek()][1] == precedence:
                other = self.items[self.at]
                raise error("syntax.expected", found=f'"{other}"', expected="and, or, or the end of the comparison",
                            hint="Comparisons are not chained: write a < b and b < c.",
                            loc=self.source.loc(other.start_pos, other.end_pos))
        return left

    def _join(self, symbol: str, left: Node, right: Node) -> Node:
        return self._node("op", symbol, left.start, right.end, (left, right))

    def _node(self, kind: str, value: Any, start: int, end: int, args: tuple[Node, ...]) -> Node:
        depth, size = 1 + max((arg.depth for arg in args), default=0), 1 + sum(arg.size for arg in args)
        if depth > MAX_TERMS:
            raise error("syntax.terms", value=size, limit=MAX_TERMS, loc=self.source.loc(start, end))
        return Node(kind, value, start, end, args, depth, size)

    def unary(self) -> Node:
        item = self.items[self.at]
        self.at += 1
        if getattr(item, "type", "") == "NOT":
            inner = self.binary(_NOT)
            return self._node("not", "not", item.start_pos, inner.end, (inner,))
        if getattr(item, "type", "") == "MINUS":
            inner = self.unary()
            if inner.kind == "number":
                return Node("number", -inner.value or -0.0, item.start_pos, inner.end)
            return self._node("neg", "-", item.start_pos, inner.end, (inner,))
        return self._atom(item)

    def _atom(self, item: Any) -> Node:
        if hasattr(item, "type"):
            return self._leaf(item)
        parts = item.children
        if item.data == "paren":
            inner = arrange(parts[1], self.source)
            return Node(inner.kind, inner.value, parts[0].start_pos, parts[-1].end_pos, inner.args, inner.depth, inner.size)
        if item.data == "member":
            return Node("member", f"{parts[0]}.{parts[2]}", parts[0].start_pos, parts[2].end_pos)
        args = tuple(arrange(part, self.source) for part in parts[2:-1] if not hasattr(part, "type"))
        return self._node("call", str(parts[0]), parts[0].start_pos, parts[-1].end_pos, args)

    def _leaf(self, token: Any) -> Node:
        value: Any = str(token)
        if token.type == "NUMBER":
            value = _number(value)
        elif token.type == "SIZE":
            value = tuple(_entry(part) for part in value.rstrip("x").split("x"))
        if value is None or (token.type == "SIZE" and None in value):
            raise error("syntax.value", field="A number", value=_short(str(token)),
                        expected=f"at most {len(str(_LARGEST)) - 1} digits long",
                        hint="", loc=self.source.loc(token.start_pos, token.end_pos))
        return Node(token.type.lower(), value, token.start_pos, token.end_pos)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."


def _number(text: str) -> int | float | None:
    if len(text) > 40:
        return None
    value = int(text) if text.isdigit() else float(text)
    return value if value < _LARGEST else None


def _entry(text: str) -> Any:
    numbers = tuple(_number(part) for part in text.split(":"))
    return None if None in numbers else numbers if len(numbers) == 2 else numbers[0]


# --- kernel expressions

Apply = Callable[[tuple[Expr, ...]], Expr]

def build_expr(node: Node, source: Source, names: Mapping[str, Any], call: Callable[[Node], Apply | None]) -> Expr:
    """The kernel expression of a tree.

    ``names`` maps each known name to an Expr or a number; ``call`` gives what a call of a declared epilogue applies, else None.
    """
    def build(part: Node) -> Expr:
        try:
            return _build(part, source, names, call, build)
        except GconvError as fault:
            raise _located(fault, source, part) from None

    return build(node)


def _located(fault: GconvError, source: Source, node: Node) -> GconvError:
    loc = source.loc(node.start, node.end)
    if fault.code == "trace.terms":
        return error("syntax.terms", value=fault.values["count"], limit=fault.values["limit"], loc=loc)
    return fault.at(loc)


def _build(node: Node, source: Source, names: Mapping[str, Any], call: Any, build: Callable[[Node], Expr]) -> Expr:
    if node.kind == "number":
        return const(node.value)
    if node.kind == "name":
        return _name(node, names)
    if node.kind == "neg":
        return apply("neg", build(node.args[0]))
    if node.kind == "op" and node.value in _infix() and _infix()[node.value][0] in OPS:
        return apply(_infix()[node.value][0], *map(build, node.args))
    if node.kind == "call":
        return _call(node, names, call, build)
    raise error("syntax.expected", found=node.text if node.kind == "size" else f'"{node.value}"',
                expected="an operation on tensors",
                hint="A kernel expression knows + - * /, functions, and comparisons inside where(...).")


def _name(node: Node, names: Mapping[str, Any]) -> Expr:
    value = names.get(node.value)
    if value is None:
        functions = {name: f"{name}(...)" for name in _functions()}
        raise error("syntax.unknown", what="The name", name=node.value,
                    hint=f"Write {functions[node.value]}." if node.value in functions
                    else did_you_mean(node.value, names, "Names known here"))
    if isinstance(value, Expr):
        return value
    if isinstance(value, (int, float)):
        return const(value)
    raise error("syntax.value", field=f"The name {node.value!r}", value=shown(value), expected="a number or an expression here",
                hint="")


def _call(node: Node, names: Mapping[str, Any], call: Any, build: Callable[[Node], Expr]) -> Expr:
    if node.value == "cast":
        return _cast(node, build)
    declared, name = call(node), ALIASES.get(node.value, node.value)
    if declared is None and name not in _functions():
        raise error("syntax.unknown", what="The function", name=node.value,
                    hint=did_you_mean(node.value, _functions(), "Functions"))
    args = tuple(map(build, node.args))
    if declared is not None:
        return declared(args)  # type: ignore[no-any-return]
    if name == "neg":                            # spelled as a function it stays an operation, also on a constant
        return Expr("neg", args)
    return apply(name, *args)


def _cast(node: Node, build: Callable[[Node], Expr]) -> Expr:
    allowed = ", ".join(DTYPES)
    if len(node.args) != 2 or node.args[1].kind != "name":
        raise error("syntax.expected", found="cast", expected=f"cast(value, dtype) with one of {allowed}",
                    hint="Write cast(acc, bf16).")
    if node.args[1].value not in DTYPES:
        raise error("syntax.unknown", what="The dtype", name=node.args[1].value, hint=did_you_mean(node.args[1].value, DTYPES))
    return apply("cast", build(node.args[0]), value=node.args[1].value)


def _functions() -> list[str]:
    return [op.name for op in OPS.values() if not op.infix]


def shown(value: Any) -> str:
    """A value as the text would spell it."""
    return size_text(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else _short(str(value))


def substitute(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """The expression with some of its leaves replaced."""
    done: dict[Expr, Expr] = {}
    for node in expr.nodes():
        replaced = values.get(node)
        done[node] = replaced if replaced is not None else Expr(node.op, tuple(done[arg] for arg in node.args), node.value)
    return done[expr]


# --- numbers

def evaluate(node: Node, source: Source, names: Mapping[str, Any]) -> int | float:
    """The number of a tree without tensors. Whole numbers stay exact; a division that comes out even stays whole."""
    check_size(node, source)
    try:
        value = _evaluate(node, source, names)
    except GconvError as fault:
        raise fault.at(source.loc(node.start, node.end)) from None
    except (ArithmeticError, ValueError, TypeError):
        value = float("nan")
    if not abs(value) < _LARGEST:
        raise error("syntax.value", field="A number", value=re.sub(r"\s+", " ", _short(source.text[node.start:node.end])),
                    expected="finite and below 1e40", hint="", loc=source.loc(node.start, node.end))
    return value


def _evaluate(node: Node, source: Source, names: Mapping[str, Any]) -> int | float:
    if node.kind == "number":
        return node.value  # type: ignore[no-any-return]
    if node.kind == "name":
        return _known_number(node, names)
    args = [evaluate(arg, source, names) for arg in node.args]
    if node.kind == "neg":
        return -args[0]
    if node.kind == "op" and node.value in "+-*/%":
        return _arithmetic(node.value, *args)
    if node.kind == "call":
        return _function(node, args)
    raise error("syntax.expected", found=f'"{node.value if node.kind != "size" else size_text(node.value)}"', expected="a number",
                hint="A number may be computed with + - * / % and functions.")


def _known_number(node: Node, names: Mapping[str, Any]) -> int | float:
    value = names.get(node.value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if value is None:
        numbers = [name for name, one in names.items() if isinstance(one, (int, float))]
        raise error("syntax.unknown", what="The name", name=node.value,
                    hint=did_you_mean(node.value, numbers) or f"Declare it above with let {node.value} = ...")
    raise error("syntax.value", field=f"The name {node.value!r}", value=shown(value), expected="a number here", hint="")


def _arithmetic(symbol: str, a: Any, b: Any) -> int | float:
    if symbol == "/":
        return a // b if isinstance(a, int) and isinstance(b, int) and a % b == 0 else a / b
    return _PLAIN[symbol](a, b)  # type: ignore[no-any-return]


def _function(node: Node, args: list[int | float]) -> int | float:
    import numpy as np

    op = OPS.get(ALIASES.get(node.value, node.value))
    if op is None or op.infix or op.name in ("cast", "where"):
        raise error("syntax.unknown", what="The function", name=node.value,
                    hint=did_you_mean(node.value, _functions(), "Functions"))
    if len(args) != op.arity:
        raise error("trace.args", function=node.value, expected=f"{op.arity} argument{'s' * (op.arity != 1)}", got=len(args))
    with np.errstate(all="ignore"):
        value = op.numpy(*args)
    return value.item() if hasattr(value, "item") else value  # type: ignore[no-any-return]
