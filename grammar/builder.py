"""From trees to the objects that the Python front end builds too: one handler for each kind of statement.

A fault in one field is reported and the next field is read; a statement with a fault leaves its name known but builds nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..config import FAMILIES, OPTIONS, KernelConfig, Tile
from ..errors import GconvError, error
from ..expr import OPS, Expr, operand
from ..problem import from_fields
from ..source import Loc
from ..spec import KINDS, ConvParams, KernelSpec, Operand
from .conditions import Condition, build_condition
from .diagnostics import Report
from .expressions import Node, arrange, build_expr, evaluate, size_text, substitute
from .fields import CONV, KERNEL, PROBLEM, SWEEP, TILE, VOCABULARY, Kind, wrong
from .parser import parse
from .scan import MAX_DEPTH
from .scope import FAULTY, Scope, names_of, parts
from .statements import Bench, Clause, Epilogue, Let, Run, Sweep
from .text import Source, read

__all__ = ["Builder"]

_OPTION_OF = {**{name: name for name in ("tile", "pipeline", *OPTIONS)}, "store": "epilogue"}
_LEAVES = {"acc": Expr("acc"), "x": Expr("x")}


class Builder(Scope):
    """Builds the statements of a source, following includes."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.stack: list[str] = []
        self.included: set[str] = set()

    def add(self, source: Source, path: str | None = None) -> None:
        """Build all statements of a source; ``path`` is its resolved path, for includes."""
        outer, self.source = self.source, source
        self.stack.append(path or source.file)
        self.included.add(self.stack[-1])
        parsed = parse(source, self.report)
        self.damaged |= parsed.damaged
        for tree in parsed.statements:
            self._statement(tree)
        self.stack.pop()
        self.source = outer

    def _statement(self, tree: Any) -> None:
        handler: Callable[[Any], None] = getattr(self, f"_{tree.children[0]}")
        try:
            handler(tree)
        except GconvError as fault:
            self.fail(fault, self.loc(tree.children[0]))
        except RecursionError:
            self.report.add(error("syntax.deep", value="very many", limit=MAX_DEPTH, loc=self.loc(tree.children[0])))

    # --- one handler for each statement

    def _problem(self, tree: Any) -> None:
        name = tree.children[1]
        fields = self.fields(tree, PROBLEM, "problem", self.plain)
        self.declare("problem", name, self.make(name, fields, lambda values: from_fields(values, str(name))))

    def _tile(self, tree: Any) -> None:
        name = tree.children[1]
        fields = self.fields(tree, TILE, "tile", self.plain)
        self.declare("tile", name, self.make(name, fields, lambda values: Tile.from_fields({**values, "name": str(name)})))

    def _let(self, tree: Any) -> None:
        name, node = tree.children[1], arrange(tree.children[3], self.source)
        value = self.attempt(lambda: self._let_value(node), self.loc(node))
        self.declare("let", name, value if value is FAULTY else Let(str(name), value))

    def _let_value(self, node: Node) -> Any:
        if node.kind == "size":
            return node.value
        if node.kind == "name" and node.value in self.names["let"]:
            return self.lets.get(node.value, FAULTY)
        if node.kind == "name" and node.value in VOCABULARY:
            return node.value
        values = self.lets
        tensors = _leaf_names(node) & {*_LEAVES, *(name for name, one in values.items() if isinstance(one, Expr))}
        if tensors or any(name in self.names["epilogue"] for name in _called(node)):
            return build_expr(node, self.source, {**values, **_LEAVES}, self._call)
        return evaluate(node, self.source, values)

    def _epilogue(self, tree: Any) -> None:
        name = tree.children[1]
        before = len(self.report.errors)
        operands = self.attempt(lambda: self._operands(tree, first="acc"), self.loc(name))
        expr = FAULTY
        if operands is not FAULTY:
            expr = self.attempt(lambda: self._expression("acc", operands, arrange(tree.children[4], self.source)), self.loc(name))
        sound = expr is not FAULTY and len(self.report.errors) == before
        self.declare("epilogue", name, Epilogue(str(name), operands, expr) if sound else FAULTY)

    def _operands(self, tree: Any, first: str | None = None) -> tuple[Operand, ...]:
        """The operands of a parameter list; ``first`` is the name that must lead it, without a kind."""
        params = [part.children for group in parts(tree, "params") for part in parts(group, "param")]
        if first and (not params or params[0][0] != first or len(params[0]) > 1):
            raise error("syntax.expected", found=f'"{params[0][0]}"' if params else "no parameter",
                        expected=f'"{first}" as the first parameter',
                        hint=f"Write epilogue NAME({first}, bias: per_k) = ...",
                        loc=self.loc(params[0][0] if params else tree.children[1]))
        self.unique([param[0] for param in params], "operand")
        made = [self.attempt(partial(self._operand, param), self.loc(param[0])) for param in params[1 if first else 0:]]
        return tuple(one for one in made if one is not FAULTY)

    def _operand(self, param: list[Any]) -> Operand:
        name = param[0]
        if len(param) == 1:
            self.fail(error("syntax.missing", what="The operand", name=str(name), field="a kind",
                            hint=f"Write {name}: per_k, or one of {', '.join(KINDS)}."), self.loc(name))
            return Operand(str(name), "scalar")
        kind = self.attempt(partial(self.known, param[2], "kind", KINDS), self.loc(param[2]), "scalar")
        return Operand(str(name), kind)

    # --- expressions

    def _expression(self, leaf: str, operands: Iterable[Operand], node: Node) -> Expr:
        names = {**self.lets, leaf: _LEAVES[leaf], **{one.name: operand(one.name) for one in operands}}
        kinds = {one.name: one.kind for one in operands}
        expr = build_expr(node, self.source, names, lambda call: self._call(call, kinds))
        if expr.op in OPS and OPS[expr.op].condition:
            raise error("syntax.expected", found="a comparison", expected="a value to store", loc=self.loc(node),
                        hint="Choose between two values with where(condition, a, b).")
        return expr

    def _call(self, node: Node, kinds: Mapping[str, str] | None = None) -> Callable[[tuple[Expr, ...]], Expr] | None:
        """What a call of a declared epilogue applies; None for other names."""
        if node.value not in self.names["epilogue"]:
            return None
        declared = self.names["epilogue"][node.value]
        return lambda args: Expr("acc") if declared is FAULTY else self._applied(declared, node, args, kinds or {})

    def _applied(self, declared: Epilogue, node: Node, args: tuple[Expr, ...], kinds: Mapping[str, str]) -> Expr:
        if len(args) != 1 + len(declared.operands):
            names = ", ".join(["acc", *(one.name for one in declared.operands)])
            raise error("trace.args", function=node.value, got=len(args),
                        expected=f"{1 + len(declared.operands)} arguments ({names})")
        for one, given, arg in zip(declared.operands, args[1:], node.args[1:]):
            kind = kinds.get(str(given.value)) if given.op == "operand" else None
            if kind not in (None, one.kind):
                raise error("syntax.value", field=f"The argument {one.name} of {node.value}", value=arg.text,
                            expected=f"{one.kind}, not {kind}",
                            hint="", loc=self.loc(arg))
        leaves = [_LEAVES["acc"], *(operand(one.name) for one in declared.operands)]
        return substitute(declared.expr, dict(zip(leaves, args)))

    # --- kernels

    def _kernel(self, tree: Any) -> None:
        name = tree.children[1]
        before = len(self.report.errors)
        spec = self.attempt(lambda: self._spec(tree, name), self.loc(name))
        self.declare("kernel", name, spec if len(self.report.errors) == before else FAULTY)

    def _spec(self, tree: Any, name: Any) -> Any:
        before = len(self.report.errors)
        directions, operands = self.directions(tree) or ("forward",), list(self._operands(tree))

        def convert(field: str, kind: Kind, value: Any) -> Any:
            return self._kernel_value(field, kind, value, operands)

        fields = self.fields(tree, KERNEL, "kernel", convert)
        conv = self._conv(tree, name, directions[0])

        def build(values: dict[str, Any]) -> KernelSpec:
            expressions = {field: values.pop(field) for field in ("prologue", "epilogue") if field in values}
            config = KernelConfig(**{_OPTION_OF[field]: value for field, value in values.items()})
            return KernelSpec(str(name), conv, tuple(operands), config=config, directions=directions, loc=self.loc(name),
                              **expressions)

        return FAULTY if conv is FAULTY or len(self.report.errors) > before else self.make(name, fields, build)

    def _conv(self, tree: Any, name: Any, direction: str) -> Any:
        blocks = parts(tree, "conv")
        if len(blocks) > 1:
            raise error("syntax.duplicate", what="The block", name="conv", line=self.loc(blocks[0].children[0]).line,
                        loc=self.loc(blocks[1].children[0]))
        fields = self.fields(blocks[0], CONV, "conv", self.plain) if blocks else {}
        return self.make(name, fields, lambda values: ConvParams(**{"direction": direction, **values}))

    def _kernel_value(self, field: str, kind: Kind, tree: Any, operands: list[Operand]) -> Any:
        if kind.form != "expr":
            return self._config_value(field, kind, tree)
        if tree.data != "expr":
            raise error("syntax.value", field=field, value="a list", expected=kind.expected, hint="")
        node = arrange(tree, self.source)
        if field == "epilogue" and node.kind == "name" and node.value in self.names["epilogue"]:
            return self._named_epilogue(node.value, operands)
        return self._expression("x" if field == "prologue" else "acc", operands, node)

    def _named_epilogue(self, name: str, operands: list[Operand]) -> Any:
        """``epilogue = name``: the declared expression; its operands become the kernel's unless it names them itself."""
        declared = self.names["epilogue"][name]
        if declared is FAULTY:
            return FAULTY
        known = {one.name: one.kind for one in operands}
        for one in declared.operands:
            if known.setdefault(one.name, one.kind) != one.kind:
                raise error("syntax.value", field=f"The operand {one.name}", value=known[one.name],
                            expected=f"{one.kind} for the epilogue {name}", hint="")
        operands += [one for one in declared.operands if one not in operands]
        return declared.expr

    def _config_value(self, field: str, kind: Kind, tree: Any) -> Any:
        """The value of an option, a tile or a pipeline chain, checked as `KernelConfig` does."""
        if kind.form == "tile":
            return self._tile_value(kind, tree)
        if kind.form == "chain":
            return self._chain(kind, tree)
        return self.plain(field, kind, tree)

    def _chain(self, kind: Kind, tree: Any) -> Any:
        if tree.data == "chain":
            tokens = [token for token in tree.children if token.type == "NAME"]
        elif tree.data == "expr" and len(tree.children) == 1 and getattr(tree.children[0], "type", "") == "NAME":
            tokens = list(tree.children)
        else:
            raise error("syntax.value", field="pipeline", value="that", expected=kind.expected, hint="")
        names = [self.lets.get(token, str(token)) for token in self.unique(tokens, "pipeline")]
        for token, name in zip(tokens, names):
            if name not in kind.words:
                self.known(token, "pipeline", kind.words)
        return tuple(names)

    def _tile_value(self, kind: Kind, tree: Any) -> Any:
        if tree.data == "families":
            return self._family_tiles(tree)
        if tree.data != "expr":
            raise error("syntax.value", field="tile", value="a list", expected=kind.expected, hint="")
        node = arrange(tree, self.source)
        value = self.lets.get(node.value) if node.kind == "name" else node.value
        if isinstance(value, tuple):
            return self._inline_tile(kind, node, value)
        if node.kind != "name":
            raise wrong("tile", kind, node, node.value)
        return self.refer(tree.children[0], "tile")

    def _inline_tile(self, kind: Kind, node: Node, value: tuple[Any, ...]) -> Tile:
        try:
            return Tile(block=value)
        except GconvError:
            raise error("syntax.value", field="tile", value=size_text(value), expected=kind.expected, hint="",
                        loc=self.loc(node)) from None

    def _family_tiles(self, tree: Any) -> Any:
        names = [token for token in tree.children if getattr(token, "type", "") == "NAME"]
        for token in self.unique(names, "family"):
            self.known(token, "arch family", FAMILIES)
        tiles = {str(token): self._tile_value(KERNEL["tile"], value) for token, value in zip(names, parts(tree, "expr"))}
        return FAULTY if any(one is FAULTY for one in tiles.values()) else tiles

    # --- sweeps, runs, benches

    def _sweep(self, tree: Any) -> None:
        name = tree.children[1]
        before = len(self.report.errors)
        clauses = self.attempt(lambda: self._clauses(tree, name), self.loc(name))
        where = tuple(self.attempt(partial(self._condition, part.children[1]), self.loc(part)) for part in parts(tree, "where"))
        directions = self.directions(tree)
        if len(self.report.errors) > before or str(name) in self.damaged:
            self.declare("sweep", name, FAULTY)
        else:
            sweep = Sweep(str(name), directions, clauses, where, self.loc(name))
            self.declare("sweep", name, sweep)
            sweep.check()

    def _condition(self, tree: Any) -> Condition:
        return build_condition(arrange(tree, self.source), self.source, self.lets)

    def _clauses(self, tree: Any, name: Any) -> tuple[Clause, ...]:
        found: list[Clause] = []
        places: dict[str, tuple[Any, Loc]] = {}
        for part in parts(tree, "clause"):
            field = part.children[0]
            if self.attempt(partial(self.new_field, field, SWEEP, "sweep", places), self.loc(field)) is not FAULTY:
                places[str(field)] = None, self.loc(field)
                clause = self.attempt(partial(self._clause, field, part, name), self.loc(part))
                found += [clause] if clause is not FAULTY else []
        if not parts(tree, "clause") and str(name) not in self.damaged:
            raise error("syntax.missing", what="The sweep", name=str(name), field="at least one clause",
                        hint="Write for example pipeline in *.")
        return tuple(found)

    def _clause(self, field: Any, part: Any, name: Any) -> Clause:
        return Clause(_OPTION_OF[field], self._clause_values(part, name), self.loc(part))

    def _clause_values(self, part: Any, name: Any) -> tuple[Any, ...] | None:
        field, value = str(part.children[0]), part.children[2]
        if not hasattr(value, "children"):
            return None
        values = []
        for one in (child for child in value.children if hasattr(child, "children")):
            made = self.attempt(partial(self._config_value, field, SWEEP[field], one), self.loc(one))
            if made is not FAULTY:
                values.append(getattr(_checked(_OPTION_OF[field], made, self.loc(one)), _OPTION_OF[field]))
        if not parts(value, "expr") + parts(value, "chain") + parts(value, "families"):
            raise error("syntax.empty_sweep", name=str(name), clause=f"{field} in {{ }}",
                        hint=f"Write {field} in *, or give it {SWEEP[field].expected}.")
        return tuple(dict.fromkeys(values))

    def _run(self, tree: Any) -> None:
        kernel = tree.children[1]
        spec = self.refer(kernel, "kernel")
        directions = self.directions(tree)
        if isinstance(spec, KernelSpec):
            for direction in directions:
                if spec.direction != "forward" and direction not in spec.directions:
                    raise error("syntax.value", field=f"The direction of {kernel}", value=direction,
                                expected=f"one of: {', '.join(spec.directions)}",
                                hint="A kernel declared for forward runs in all three.",
                                loc=self.loc(parts(tree, "directions")[0]))
        problems = self.references(names_of(parts(tree, "names")[0]), "problem")
        if spec is not FAULTY:
            self.statements.append(Run(str(kernel), problems, directions, self.loc(tree)))

    def _bench(self, tree: Any) -> None:
        items, problems = parts(tree, "names")
        files = [token for token in tree.children if getattr(token, "type", "") == "STRING"]
        bench = Bench(self.references(names_of(items), "kernel", "sweep"), self.references(names_of(problems), "problem"),
                      self.directions(tree),
                      str(files[0])[1:-1] if files else None, self.loc(tree))
        if bench.file == "":
            raise error("syntax.value", field="The file of bench", value='""', expected="a file name", hint="",
                        loc=self.loc(files[0]))
        self.statements.append(bench)

    def _include(self, tree: Any) -> None:
        token = tree.children[1]
        path, loc = str(token)[1:-1], self.loc(token)
        base = Path(self.stack[-1]).parent if not self.stack[-1].startswith("<") else Path()
        target = os.path.realpath(base / path) if "\0" not in path else path
        if target in self.stack:
            chain = [os.path.basename(one) for one in [*self.stack[self.stack.index(target):], target]]
            raise error("syntax.cycle", path=path, chain=" -> ".join(chain), loc=loc)
        if len(self.stack) >= MAX_DEPTH:
            raise error("syntax.deep", value=len(self.stack) + 1, limit=MAX_DEPTH, loc=loc)
        if target not in self.included:
            self.add(self._read(target, str(base / path), path, loc), target)

    def _read(self, target: str, shown: str, path: str, loc: Loc) -> Source:
        try:
            return Source(read(target).text, shown)
        except GconvError as fault:
            if fault.code == "syntax.file":
                raise error("syntax.include", path=path, reason=fault.values["reason"], loc=loc) from None
            raise


# --- small helpers

def _leaf_names(node: Node) -> set[str]:
    return {node.value} if node.kind == "name" else {name for arg in node.args for name in _leaf_names(arg)}


def _called(node: Node) -> set[str]:
    return ({node.value} if node.kind == "call" else set()) | {name for arg in node.args for name in _called(arg)}


def _checked(option: str, value: Any, loc: Loc) -> KernelConfig:
    try:
        return KernelConfig(**{option: value})
    except GconvError as fault:
        raise fault.at(loc) from None
