"""Python expressions of the REPL, computed node by node: names, attributes, calls, indexing, arithmetic, comparisons, displays.

Nothing is compiled or executed as code; what begins with an underscore is out of reach.
"""

from __future__ import annotations

import ast
import operator
from typing import Any, Callable, Mapping

from .errors import error

__all__ = ["assignment", "evaluate"]

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.MatMult: operator.matmul, ast.Pow: operator.pow,
}
_UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}
_BUILTINS = {function.__name__: function for function in (
    abs, bool, dict, divmod, enumerate, float, int, len, list, max, min, print, range, repr, round, set, sorted, str, sum, tuple, zip)}
_MOST_POWER = 1 << 12


def assignment(text: str) -> tuple[str | None, str]:
    """(name, expression) of ``name = expression``; (None, text) otherwise."""
    name, equals, rest = text.partition("=")
    if equals and not rest.startswith("=") and name.strip().isidentifier():
        return name.strip(), rest.strip()
    return None, text


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression; ``usage.expression`` with the column for what is not one."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as fault:
        raise _fault(text, fault.offset or 1, fault.msg) from None
    return _value(tree.body, names, text)


def _fault(text: str, column: int, reason: str) -> Exception:
    return error("usage.expression", text=text.strip(), reason=reason, details=f"    {text.strip()}\n    {' ' * (column - 1)}^")


def _value(node: ast.expr, names: Mapping[str, Any], text: str) -> Any:
    def value(part: ast.expr) -> Any:
        return _value(part, names, text)

    column = node.col_offset + 1
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        if node.id in names:
            return names[node.id]
        if node.id in _BUILTINS:
            return _BUILTINS[node.id]
        raise _fault(text, column, f"the name {node.id!r} is not known")
    if isinstance(node, ast.Attribute):
        if node.attr.startswith("_"):
            raise _fault(text, column, "names that begin with an underscore cannot be used here")
        return getattr(value(node.value), node.attr)
    if isinstance(node, ast.Call):
        return _call(node, value)
    if isinstance(node, ast.Subscript):
        return value(node.value)[value(node.slice)]
    if isinstance(node, ast.Slice):
        return slice(*(None if part is None else value(part) for part in (node.lower, node.upper, node.step)))
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        items = [one for part in node.elts for one in (value(part.value) if isinstance(part, ast.Starred) else [value(part)])]
        return {ast.Tuple: tuple, ast.List: list, ast.Set: set}[type(node)](items)
    if isinstance(node, ast.Dict) and all(node.keys):
        return {value(key): value(item) for key, item in zip(node.keys, node.values) if key is not None}
    return _operation(node, value, text)


def _operation(node: ast.expr, value: Callable[[ast.expr], Any], text: str) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = value(node.left), value(node.right)
        if isinstance(node.op, ast.Pow) and isinstance(right, int) and abs(right) > _MOST_POWER:
            raise _fault(text, node.col_offset + 1, f"the exponent {right} is larger than {_MOST_POWER}")
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](value(node.operand))
    if isinstance(node, ast.IfExp):
        return value(node.body) if value(node.test) else value(node.orelse)
    if isinstance(node, ast.BoolOp):
        last: Any = None
        for part in node.values:
            last = value(part)
            if bool(last) == isinstance(node.op, ast.Or):
                break
        return last
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        values = [value(node.left), *map(value, node.comparators)]
        results = [_COMPARE[type(op)](*pair) for op, pair in zip(node.ops, zip(values, values[1:]))]
        return results[0] if len(results) == 1 else all(results)
    raise _fault(text, node.col_offset + 1, f"{type(node).__name__} is not understood here")


def _call(node: ast.Call, value: Callable[[ast.expr], Any]) -> Any:
    positional = [one for part in node.args for one in (value(part.value) if isinstance(part, ast.Starred) else [value(part)])]
    named: dict[str, Any] = {}
    for keyword in node.keywords:
        named.update({keyword.arg: value(keyword.value)} if keyword.arg else value(keyword.value))
    return value(node.func)(*positional, **named)
