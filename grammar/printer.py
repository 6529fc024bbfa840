"""`dumps`: declarations as ``.gconv`` text that `loads` reads back as equal objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from ..config import KernelConfig, Tile
from ..errors import error
from ..expr import Expr
from ..problem import ConvProblem
from ..spec import ConvParams, KernelSpec, Operand
from .expressions import shown
from .fields import option_field
from .scan import MAX_DEPTH
from .statements import Bench, Clause, Epilogue, Let, Run, Sweep

__all__ = ["dumps"]

_NAME = re.compile(r"[^\W\d]\w*")


def dumps(what: Any) -> str:
    """A `ConvProblem`, `Tile`, `KernelSpec`, `Sweep`, `Module`, other statement, `Kernel`, or an iterable of these, as text.

    A tile that a kernel or sweep uses is written before it. What has no name is given one. ``loads(dumps(x))`` holds objects
    equal to x. Raises ``syntax.object`` or ``syntax.name`` for what cannot be written.
    """
    printer = _Printer(_flat(what))
    return "\n".join(line for one in printer.items for line in printer.lines(one)) + "\n"


def _flat(what: Any) -> list[Any]:
    what = getattr(what, "spec", what)
    if isinstance(what, (ConvProblem, Tile, KernelSpec, Epilogue, Let, Sweep, Run, Bench)):
        return [what]
    if isinstance(what, (str, bytes)) or not isinstance(what, Iterable):
        raise error("syntax.object", got=f"A value of type {type(what).__name__}")
    return [one for item in what for one in _flat(item)]


class _Printer:
    """Writes statements, inventing names for tiles and problems that have none, or one that is taken."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.tiles: dict[str, Tile] = {}
        self.problems: set[str] = {one.name for one in items if isinstance(one, ConvProblem) and one.name}
        self.coming = {one.name: one for one in reversed(items) if isinstance(one, Tile) and one.name}

    def lines(self, one: Any) -> Iterator[str]:
        """The lines of one statement, after those of tiles it needs."""
        needed = _tiles_of(one)
        for tile in needed:
            if not _is_inline(tile):
                yield from self._tile(tile)
        yield from getattr(self, f"_{type(one).__name__.lower()}")(one)

    # --- one writer for each kind

    def _convproblem(self, problem: ConvProblem) -> Iterator[str]:
        name = _free(problem.name or "problem", () if problem.name else self.problems)
        self.problems.add(name)
        yield f"problem {name} {{ {_spaced(problem.describe())} }}"

    def _tile(self, tile: Tile) -> Iterator[str]:
        if self._tile_name(tile) is None:
            name = _free(tile.name or "tile", [name for name in {**self.tiles, **self.coming} if self._taken(name, tile)])
            self.tiles[name] = tile
            yield f"tile {name} {{ {tile.describe()} }}"

    def _tile_name(self, tile: Tile) -> str | None:
        """The name under which it is written already: its own, or another where it has none or another tile has it."""
        same = [name for name, one in self.tiles.items() if one == tile]
        if tile.name in same:
            return tile.name
        return same[0] if same and (tile.name is None or self._taken(tile.name, tile)) else None

    def _taken(self, name: str, tile: Tile) -> bool:
        """Whether the name is that of another tile, written or still to come."""
        return name in self.tiles or self.coming.get(name, tile) != tile

    def _kernelspec(self, spec: KernelSpec) -> Iterator[str]:
        operands = f" ({_params(spec.operands)})" if spec.operands else ""
        yield f"kernel {_named(spec.name)} for {', '.join(spec.directions)}{operands} {{"
        body = [_conv(spec.conv, spec.directions[0]), self._config(spec.config)]
        for field, leaf in (("prologue", "x"), ("epilogue", "acc")):
            expr = getattr(spec, field)
            body.append(f"{field} = {_text(expr)}" if expr != Expr(leaf) else "")
        yield from (f"  {line}" for line in body if line)
        yield "}"

    def _config(self, config: KernelConfig) -> str:
        told = [(f.name, getattr(config, f.name)) for f in fields(config) if getattr(config, f.name) != f.default]
        return "  ".join(f"{option_field(name)} = {self._value(name, value)}" for name, value in told)

    def _value(self, name: str, value: Any) -> str:
        if name == "pipeline":
            return " -> ".join(value)
        if isinstance(value, Tile):
            return self._tile_name(value) or shown(value.block)
        if name == "tile":
            return f"{{ {'  '.join(f'{family}: {self._value(name, tile)}' for family, tile in value)} }}"
        return shown(value)

    def _epilogue(self, one: Epilogue) -> Iterator[str]:
        params = ", ".join(["acc", *([_params(one.operands)] if one.operands else [])])
        yield f"epilogue {_named(one.name)}({params}) = {_text(one.expr)}"

    def _let(self, let: Let) -> Iterator[str]:
        yield f"let {_named(let.name)} = {_text(let.value) if isinstance(let.value, Expr) else shown(let.value)}"

    def _sweep(self, sweep: Sweep) -> Iterator[str]:
        directions = f" for {', '.join(sweep.directions)}" if sweep.directions else ""
        yield f"sweep {_named(sweep.name)}{directions} {{"
        yield from (f"  {self._clause(clause)}" for clause in sweep.clauses)
        yield from (f"  where {condition}" for condition in sweep.where)
        yield "}"

    def _clause(self, clause: Clause) -> str:
        if clause.values is None:
            return f"{option_field(clause.field)} in *"
        return f"{option_field(clause.field)} in {{ {', '.join(self._value(clause.field, value) for value in clause.values)} }}"

    def _run(self, run: Run) -> Iterator[str]:
        yield f"run {run.kernel} on {', '.join(run.problems)}{_for(run.directions)}"

    def _bench(self, bench: Bench) -> Iterator[str]:
        target = f' -> "{bench.file}"' if bench.file else ""
        yield f"bench {', '.join(bench.items)} on {', '.join(bench.problems)}{_for(bench.directions)}{target}"


# --- parts of statements

def _text(expr: Expr) -> str:
    """The expression; ``syntax.deep`` when it is nested deeper than the parser reads."""
    text, depth, deepest = expr.text(), 1, 1
    for char in text:
        depth += (char == "(") - (char == ")")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise error("syntax.deep", value=deepest, limit=MAX_DEPTH)
    return text


def _for(directions: tuple[str, ...]) -> str:
    return f" for {', '.join(directions)}" if directions else ""


def _params(operands: tuple[Operand, ...]) -> str:
    return ", ".join(f"{one.name}: {one.kind}" for one in operands)


def _conv(conv: ConvParams, direction: str) -> str:
    told = [("direction", conv.direction)] if conv.direction != direction else []
    told += [(name, value) for name in ("stride", "pad", "dilation", "groups") if (value := getattr(conv, name)) is not None]
    return f"conv {{ {'  '.join(f'{name} = {shown(value)}' for name, value in told)} }}" if told else ""


def _spaced(fields_text: str) -> str:
    """`ConvProblem.describe`'s "N=2 C=3" with the spaces of this language's style."""
    return "  ".join(part.replace("=", " = ") for part in fields_text.split(" "))


def _tiles_of(one: Any) -> list[Tile]:
    """The tiles that a kernel or sweep refers to, in order, without the statement itself."""
    if isinstance(one, Sweep):
        values: list[Any] = [value for clause in one.clauses if clause.field == "tile" for value in clause.values or ()]
    else:
        values = [one.config.tile] if isinstance(one, KernelSpec) else []
    groups = [[pair[1] for pair in value] if isinstance(value, tuple) else [value] for value in values]
    return [tile for group in groups for tile in group if tile is not None]


def _is_inline(tile: Tile) -> bool:
    """Whether a size alone stands for it."""
    return tile.name is None and tile == Tile(block=tile.block)


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise error("syntax.name", name=name)
    return name


def _free(name: str, taken: Iterable[str]) -> str:
    """The name made of letters, digits and _, with a number when it is taken."""
    plain = re.sub(r"\W", "_", name)
    plain = plain if _NAME.fullmatch(plain) else f"_{plain}"
    names, number = {plain: 0, **dict.fromkeys(taken, 1)}, 1
    while names.get(plain):
        number += 1
        plain = f"{re.sub(r'_[0-9]+$', '', plain)}_{number}"
    return plain


