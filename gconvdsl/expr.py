"""`Expr`: the frozen expression trees of prologues and epilogues.

Trees share nodes freely (they are DAGs): equality, hash, evaluation, C++ and the term limit count each distinct node once.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Callable, Iterator, Mapping, NoReturn

import numpy as np

from .dtypes import DTYPES, round_to
from .errors import error
from .ops import ALIASES, FLOAT_MAX, OPS, TINY, UNIT, Op, Pair

__all__ = ["ALIASES", "Expr", "LEAVES", "MAX_TERMS", "OPS", "Op", "apply", "const", "operand"]

LEAVES = ("acc", "x", "operand", "const")
MAX_TERMS = 200
_TEXT_LIMIT = 5000                               # terms of the text of a DAG written out as a tree
_LINE = 90                                       # longest C++ expression before it is cut into temporaries


class Expr:
    """One node: an operation of `OPS` on ``args``, or a leaf.

    Leaves are ``Expr("acc")``, ``Expr("x")``, ``Expr("operand", value=name)`` and ``Expr("const", value=number)``; for ``cast``
    ``value`` is the dtype. Immutable, hashable, picklable; `digest` is the same in every process. Raises `TraceError` for an
    unknown operation, a wrong number of arguments, a comparison outside where, a constant that is not finite in float32, or
    more than 200 distinct terms.
    """

    __slots__ = ("op", "args", "value", "digest")
    op: str
    args: tuple[Expr, ...]
    value: float | str | None
    digest: str

    def __init__(self, op: str, args: tuple[Expr, ...] = (), value: float | str | None = None) -> None:
        args = tuple(args)
        value = _checked_value(op, value)
        _check_args(op, args)
        spelled = value.hex() if isinstance(value, float) else value or ""
        text = "|".join((op, spelled, *(a.digest for a in args)))
        for name, item in zip(self.__slots__, (op, args, value, hashlib.sha256(text.encode()).hexdigest())):
            object.__setattr__(self, name, item)
        if args and self.terms > MAX_TERMS:
            raise error("trace.terms", count=self.terms, limit=MAX_TERMS)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"an Expr cannot be changed (tried to set {name!r})")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Expr) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return Expr, (self.op, self.args, self.value)

    def __repr__(self) -> str:
        return f"Expr({self.text()})" if self.tree_terms <= MAX_TERMS else f"Expr({self.op}, {self.terms} terms)"

    def nodes(self) -> Iterator[Expr]:
        """Every distinct node once, arguments before their users."""
        seen: set[str] = set()

        def walk(node: Expr) -> Iterator[Expr]:
            if node.digest not in seen:
                seen.add(node.digest)
                for arg in node.args:
                    yield from walk(arg)
                yield node

        return walk(self)

    @property
    def terms(self) -> int:
        """How many distinct nodes there are."""
        seen = {self.digest}
        stack = [self]
        while stack:
            fresh = [a for a in stack.pop().args if a.digest not in seen]
            seen.update(a.digest for a in fresh)
            stack += fresh
        return len(seen)

    @property
    def tree_terms(self) -> int:
        """How many nodes there would be without sharing; can be astronomic."""
        counts: dict[str, int] = {}
        for node in self.nodes():
            counts[node.digest] = 1 + sum(counts[a.digest] for a in node.args)
        return counts[self.digest]

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands it reads, in the order of first use."""
        return tuple(str(node.value) for node in self.nodes() if node.op == "operand")

    def uses(self, leaf: str) -> bool:
        """Whether the leaf "acc" or "x" occurs."""
        return any(node.op == leaf for node in self.nodes())

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """The value in float64, broadcast by NumPy's rules; ``env`` maps "acc" or "x" and operand names to arrays or numbers."""
        values: dict[str, Any] = {}
        with np.errstate(all="ignore"):
            for node in self.nodes():
                values[node.digest] = node._value(env, [values[a.digest] for a in node.args])
        return values[self.digest]

    def _value(self, env: Mapping[str, Any], args: list[Any]) -> Any:
        if self.op == "const":
            return np.float64(self.value)
        if self.op in LEAVES:
            return np.asarray(env[self._leaf], np.float64)
        return OPS[self.op].numpy(*args, self.value) if self.op == "cast" else OPS[self.op].numpy(*args)

    @property
    def _leaf(self) -> str:
        return str(self.value) if self.op == "operand" else self.op

    def evaluate_with_error(self, env: Mapping[str, tuple[Any, Any]]) -> tuple[Any, Any]:
        """``(value, bound)``: the float64 value, and how far a float32 evaluation can be from it (running error analysis).

        ``env`` maps each leaf to ``(value, error)``. The bound is infinite where float32 may overflow, where a pole or the edge
        of a domain is within the error, and where the value itself is not finite. After Higham, Accuracy and Stability of
        Numerical Algorithms, 2nd ed., section 3.3.
        """
        pairs: dict[str, Pair] = {}
        with np.errstate(all="ignore"):
            for node in self.nodes():
                pairs[node.digest] = node._pair(env, [pairs[a.digest] for a in node.args])
        return pairs[self.digest]

    def _pair(self, env: Mapping[str, tuple[Any, Any]], args: list[Pair]) -> Pair:
        if self.op == "const":
            value = np.float64(self.value)
            return value, np.abs(value - np.float64(np.float32(value)))
        if self.op in LEAVES:
            value, bound = env[self._leaf]
            return np.asarray(value, np.float64), np.asarray(bound, np.float64)
        op = OPS[self.op]
        value = self._value({}, [a[0] for a in args])
        if op.condition:
            return value, _undecided(*args)
        moved = _cast_error(args[0], str(self.value)) if op.error is None else op.error(value, *args)
        bound = moved if op.ulps == 0 else moved + op.ulps * UNIT * (np.abs(value) + moved) + TINY
        safe = np.isfinite(bound) & (np.abs(value) + bound <= FLOAT_MAX)
        return value, np.where(safe, bound, np.inf)

    def text(self) -> str:
        """Canonical ``.gconv`` syntax; parses back to an equal Expr."""
        if self.tree_terms > _TEXT_LIMIT:
            raise error("trace.terms", count=self.tree_terms, limit=_TEXT_LIMIT)
        return _Speller(_text_leaf, _text_call).spell(self)[0]

    def cpp(self, names: Mapping[str, str]) -> str:
        """One C++ expression of type float; ``names`` maps "acc" or "x" and operand names to C++ expressions."""
        body = self.cpp_body(names, "return")
        return body[len("return "):-1] if "\n" not in body else "[&] {\n" + body + "\n}()"

    def cpp_body(self, names: Mapping[str, str], result: str) -> str:
        """C++ statements, one a line, that end with ``const float RESULT = ...;`` (or ``return ...;`` for result "return").

        A node that is used several times, or that would make the line too long, becomes a temporary ``t0``, ``t1``, ...
        """
        def leaf(node: Expr) -> str:
            return _float_literal(float(node.value)) if node.op == "const" else names[node._leaf]  # type: ignore[arg-type]

        lines: list[str] = []
        speller, uses = _Speller(leaf, _cpp_call), self._uses()
        for node in self.nodes():
            text, level = speller.spell(node)
            if node.args and node is not self and (uses[node.digest] > 1 or len(text) > _LINE):
                temporary = f"t{len(lines)}"
                lines.append(f"const {'bool' if OPS[node.op].condition else 'float'} {temporary} = {text};")
                text, level = temporary, 10
            speller.done[node.digest] = (text, level)
        prefix = "return" if result == "return" else f"const float {result} ="
        return "\n".join([*lines, f"{prefix} {speller.done[self.digest][0]};"])

    def _uses(self) -> dict[str, int]:
        uses: dict[str, int] = {}
        for node in self.nodes():
            for arg in node.args:
                uses[arg.digest] = uses.get(arg.digest, 0) + 1
        return uses


def const(value: float) -> Expr:
    """A constant leaf; `TraceError` unless it is finite in float32."""
    return Expr("const", (), value)


def operand(name: str) -> Expr:
    """The leaf that reads an operand."""
    return Expr("operand", (), name)


def apply(op: str, *args: Expr, value: str | None = None) -> Expr:
    """The operation (or its alias) on ``args``, missing last arguments filled by its defaults; minus a constant is a constant."""
    name = ALIASES.get(op, op)
    if name == "neg" and len(args) == 1 and args[0].op == "const":
        return const(-float(args[0].value))  # type: ignore[arg-type]
    row = OPS.get(name)
    missing = row.arity - len(args) if row else 0
    if row and 0 < missing <= len(row.defaults):
        args = (*args, *map(const, row.defaults[-missing:]))
    return Expr(name, args, value)


def _checked_value(op: str, value: Any) -> float | str | None:
    if op == "const":
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise error("trace.const", value=value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not abs(number) <= FLOAT_MAX:
            raise error("trace.const", value=value)
        return number
    if op == "operand" and not (isinstance(value, str) and value):
        raise error("trace.op", what=f"an operand named {value!r}")
    if op == "cast" and value not in DTYPES:
        raise error("trace.args", function="cast", expected=f"one of {', '.join(DTYPES)}", got=repr(value))
    return value if op in ("operand", "cast") else None


def _check_args(op: str, args: tuple[Expr, ...]) -> None:
    row = OPS.get(op)
    if row is None and op not in LEAVES:
        raise error("trace.op", what=f"the function {op!r}")
    arity = row.arity if row else 0
    if len(args) != arity:
        raise error("trace.args", function=op, expected=f"{arity} argument{'s' * (arity != 1)}", got=len(args))
    for index, arg in enumerate(args):
        if (arg.op in OPS and OPS[arg.op].condition) != (op == "where" and index == 0):
            raise error("trace.condition", function=op)


def _undecided(a: Pair, b: Pair) -> Any:
    """The error of a comparison: infinite where the errors of its sides could turn it, else 0."""
    reach = np.asarray(a[1]) + b[1]
    apart = np.abs(np.asarray(a[0]) - b[0]) > reach
    same = np.asarray(a[0]) == b[0]              # also equal infinities, whose difference is NaN
    unordered = np.isnan(a[0]) | np.isnan(b[0])
    return np.where(apart | unordered | (same & (reach == 0)), 0.0, np.inf)


def _cast_error(a: Pair, dtype: str) -> Any:
    """Rounding moves two neighbours by at most one spacing more than they are apart, and equal values not at all."""
    form = DTYPES[dtype]
    far = np.abs(a[0]) + a[1]
    spacing = np.ldexp(1.0, np.maximum(np.frexp(far)[1] - form.digits, form.min_exponent))
    exact = np.asarray(a[1]) == 0
    moved = np.where(exact, np.where(round_to(a[0], "fp32") == a[0], 0.0, spacing), a[1] + spacing)
    return np.where(far <= form.max, moved, np.inf)


# --- spelling

class _Speller:
    """Writes a tree with as few parentheses as precedence allows; ``done`` holds nodes that are already spelled."""

    def __init__(self, leaf: Callable[[Expr], str], call: Callable[[Expr, list[str]], str]) -> None:
        self.leaf, self.call = leaf, call
        self.done: dict[str, tuple[str, int]] = {}

    def spell(self, node: Expr) -> tuple[str, int]:
        """The text and its precedence (10: a name or a call)."""
        if node.digest in self.done:
            return self.done[node.digest]
        if node.op in LEAVES:
            text = self.leaf(node)
            return text, 10 if text[0] != "-" else 4
        op = OPS[node.op]
        parts = [self.spell(a) for a in node.args]
        if op.infix:
            left, right = _closed(parts[0], op.precedence), _closed(parts[1], op.precedence + 1, sign=True)
            return f"{left} {op.cpp} {right}", op.precedence
        if op.name == "neg" and node.args[0].op != "const":
            return "-" + _closed(parts[0], 5), 4
        return self.call(node, [text for text, _ in parts]), 10


def _closed(part: tuple[str, int], level: int, sign: bool = False) -> str:
    text, own = part
    return text if own >= level and not (sign and text.startswith("-")) else f"({text})"


def _text_leaf(node: Expr) -> str:
    if node.op != "const":
        return node._leaf
    text = repr(float(node.value))  # type: ignore[arg-type]
    return text[:-2] if text.endswith(".0") else text


def _text_call(node: Expr, args: list[str]) -> str:
    return f"{node.op}({', '.join([*args, *([str(node.value)] if node.value is not None else [])])})"


def _cpp_call(node: Expr, args: list[str]) -> str:
    if node.op == "neg":
        return f"(-({args[0]}))"
    name = f"round_{node.value}" if node.op == "cast" else node.op
    return f"gconv::math::{name}({', '.join(args)})"


def _float_literal(value: float) -> str:
    text = str(np.float32(value))                # the shortest decimal that reads back as this float32
    return text + ("f" if "." in text or "e" in text else ".0f")
