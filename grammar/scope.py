"""What is known while a ``.gconv`` text is built: names and their places, references, and blocks of fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ..errors import GconvError, error
from ..problem import DIRECTIONS
from ..source import Loc
from .diagnostics import Report, did_you_mean
from .expressions import Node, arrange
from .fields import ELSEWHERE, Kind, value_of
from .statements import Let, Statement
from .text import Source

__all__ = ["FAULTY", "Scope", "names_of", "parts"]

FAULTY: Any = object()
"""Stands for the value of a field, or the object of a name, that had a fault: reported once, then passed over in silence."""


class Scope:
    """The state of one pass over a file and what it includes.

    ``names``: kind -> name -> object or `FAULTY`; ``statements``: what was built, in order; ``damaged``: names of statements
    that could not be read whole.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.statements: list[Statement] = []
        self.names: dict[str, dict[str, Any]] = {kind: {} for kind in ("problem", "tile", "kernel", "epilogue", "let", "sweep")}
        self.places: dict[tuple[str, str], Loc] = {}
        self.damaged: set[str] = set()
        self.source = Source("", "")

    @property
    def lets(self) -> dict[str, Any]:
        """The values of the lets so far."""
        return {name: let.value for name, let in self.names["let"].items() if isinstance(let, Let)}

    def fail(self, fault: GconvError, loc: Loc) -> None:
        """Report an error, at ``loc`` unless it has a place; a consequence of an earlier fault is dropped."""
        word = fault.values.get("name" if fault.code == "syntax.unknown" else "value")
        if self.names["let"].get(str(word)) is not FAULTY and not (fault.code.startswith("syntax.") and word in self.damaged):
            self.report.add(fault.at(loc))

    def attempt(self, what: Callable[[], Any], loc: Loc, default: Any = FAULTY) -> Any:
        """What ``what()`` returns; where it fails, the error is reported and ``default`` returned."""
        try:
            return what()
        except GconvError as fault:
            self.fail(fault, loc)
            return default

    def loc(self, what: Any) -> Loc:
        """The place of a token, a tree or a node."""
        if isinstance(what, Node):
            return self.source.loc(what.start, what.end)
        tokens = list(what.scan_values(lambda value: hasattr(value, "start_pos"))) if hasattr(what, "children") else [what]
        return self.source.loc(tokens[0].start_pos, tokens[-1].end_pos)

    # --- names

    def declare(self, kind: str, token: Any, value: Any) -> None:
        """Enter a name. ``syntax.duplicate`` if its kind has it already; kernels and sweeps share their names."""
        name = str(token)
        for other in ("kernel", "sweep") if kind in ("kernel", "sweep") else (kind,):
            if name in self.names[other]:
                raise error("syntax.duplicate", what=f"The {other}", name=name, line=self.places[other, name].line,
                            loc=self.loc(token))
        self.names[kind][name] = value
        self.places[kind, name] = self.loc(token)
        if value is not FAULTY:
            self.statements.append(value)

    def refer(self, token: Any, *kinds: str) -> Any:
        """The object of a name; ``syntax.unknown`` with a hint when there is none of these kinds."""
        name = str(token)
        for kind in kinds:
            if name in self.names[kind]:
                return self.names[kind][name]
        if name in self.damaged:
            return FAULTY
        known = [one for kind in kinds for one in self.names[kind]]
        what = " or ".join(kinds)
        raise error("syntax.unknown", what=f"The {what}", name=name, loc=self.loc(token),
                    hint=did_you_mean(name, known, f"Known names of a {what}") or f"No {what} is declared above.")

    def references(self, tokens: Iterable[Any], *kinds: str) -> tuple[str, ...]:
        """The names of a list, each checked; faults are reported one by one."""
        found = self.unique(tokens, kinds[0])
        for token in found:
            self.attempt(partial(self.refer, token, *kinds), self.loc(token))
        return tuple(map(str, found))

    def unique(self, tokens: Iterable[Any], what: str) -> list[Any]:
        """The tokens; ``syntax.duplicate`` when a word stands twice."""
        seen: dict[str, Any] = {}
        for token in tokens:
            if str(token) in seen:
                raise error("syntax.duplicate", what=f"The {what}", name=str(token), line=self.loc(seen[token]).line,
                            loc=self.loc(token))
            seen[str(token)] = token
        return list(seen.values())

    def directions(self, tree: Any) -> tuple[str, ...]:
        """The directions after ``for``; empty without it."""
        tokens = [token for part in parts(tree, "directions") for token in names_of(part.children[1])]
        for token in self.unique(tokens, "direction"):
            self.attempt(partial(self.known, token, "direction", DIRECTIONS), self.loc(token))
        return tuple(str(token) for token in tokens if token in DIRECTIONS)

    def known(self, token: Any, what: str, words: Iterable[str]) -> str:
        """The word; ``syntax.unknown`` when it is not one of ``words``."""
        if token not in words:
            raise error("syntax.unknown", what=f"The {what}", name=str(token), hint=did_you_mean(token, words),
                        loc=self.loc(token))
        return str(token)

    # --- blocks of fields

    def fields(self, tree: Any, table: Mapping[str, Kind], what: str,
               convert: Callable[[str, Kind, Any], Any]) -> dict[str, tuple[Any, Loc]]:
        """Field -> (value, place of the value); faults are reported and leave `FAULTY`."""
        found: dict[str, tuple[Any, Loc]] = {}
        for part in parts(tree, "field"):
            name, value = part.children[0], part.children[2]
            if self.attempt(partial(self.new_field, name, table, what, found), self.loc(name)) is FAULTY:
                found[str(name)] = FAULTY, self.loc(value)
            else:
                found[str(name)] = self.attempt(partial(convert, str(name), table[name], value), self.loc(value)), self.loc(value)
        return found

    def new_field(self, name: Any, table: Iterable[str], what: str, found: Mapping[str, tuple[Any, Loc]]) -> None:
        """Raise for a field that a block has already, or never has."""
        if str(name) in found:
            raise error("syntax.duplicate", what="The field", name=str(name), line=found[name][1].line, loc=self.loc(name))
        if name not in table:
            hint = ELSEWHERE.get((what, str(name))) or did_you_mean(name, table, "Fields")
            raise error("syntax.unknown", what=f"The {what} field", name=str(name), hint=hint,
                        loc=self.loc(name))

    def plain(self, name: str, kind: Kind, tree: Any) -> Any:
        """The value of a field of form count, size, pad, bool or word."""
        if tree.data != "expr":
            raise error("syntax.value", field=name, value="a list", expected=kind.expected, hint="")
        return value_of(name, kind, arrange(tree, self.source), self.source, self.lets)

    def make(self, token: Any, fields: Mapping[str, tuple[Any, Loc]], build: Callable[[dict[str, Any]], Any]) -> Any:
        """The object of the fields, `FAULTY` if one of them is faulty; an error is placed at the field it names."""
        values = {name: value for name, (value, _) in fields.items()}
        if str(token) in self.damaged or any(value is FAULTY for value in values.values()):
            return FAULTY
        try:
            return build(values)
        except GconvError as fault:
            self.report.add(fault.at(self._blamed(fault, fields) or self.loc(token)))
            return FAULTY

    def _blamed(self, fault: GconvError, fields: Mapping[str, tuple[Any, Loc]]) -> Loc | None:
        """The place of the field that an error is about: the error or its code names the field, or a kernel's expression."""
        place = str(fault.values.get("place", "")).split(" of ")[0].replace("the ", "")
        names = (str(fault.values.get("field")), place, fault.code.partition(".")[2])
        return next((fields[name][1] for name in names if name in fields), None)


def parts(tree: Any, data: str) -> list[Any]:
    """The direct subtrees of one rule."""
    return [child for child in tree.children if getattr(child, "data", None) == data]


def names_of(tree: Any) -> list[Any]:
    """The direct tokens that are names."""
    return [token for token in tree.children if getattr(token, "type", "") == "NAME"]
