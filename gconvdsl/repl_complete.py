"""Completion in the REPL: names that are declared, fields, legal values, commands."""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping

from .grammar.fields import CONV, KERNEL, PROBLEM, TILE, Kind

__all__ = ["candidates"]

_STATEMENTS = ("problem", "tile", "kernel", "epilogue", "let", "sweep", "run", "bench", "include", "explain")
_FIELDS: dict[str, Mapping[str, Kind]] = {"problem": PROBLEM, "tile": TILE, "kernel": KERNEL, "sweep": KERNEL, "conv": CONV}


def candidates(text: str, names: Mapping[str, Iterable[str]], commands: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Words that may stand at the end of ``text``, which is all of the input up to the cursor.

    ``names``: kind ("problem", "kernel", ...) -> declared names; ``values``: names of Python expressions.
    """
    word = re.search(r"[:\w.]*$", text)
    begun = word[0] if word else ""
    before = text[:len(text) - len(begun)]
    return sorted({one for one in _possible(begun, before, names, commands, values) if one.startswith(begun) and one != begun})


def _possible(begun: str, before: str, names: Mapping[str, Iterable[str]], commands: Iterable[str],
              values: Mapping[str, Any]) -> Iterable[str]:
    if not before.strip():
        known = [one for kind in ("problem", "tile", "kernel") for one in names.get(kind, ())]
        return [*commands, *_STATEMENTS, *known, *values, *_attributes(begun, values)]
    value = re.search(r"(\w+)\s*=\s*(?:\w+\s*->\s*)*$", before)
    block = re.findall(r"\b(\w+)\b[^{}]*\{", before) if before.count("{") > before.count("}") else []
    if block:
        fields = _FIELDS.get(block[-1], _FIELDS.get(before.split()[0], {}))
        return _values(fields.get(value[1]), names) if value else [*fields, *(["conv"] if block[-1] == "kernel" else [])]
    if re.match(r"\s*(:\w+|run|bench|explain)\s", before):
        return _after_verb(before, names)
    return [*values, *_attributes(begun, values), *(one for kind in names for one in names[kind])]


def _values(kind: Kind | None, names: Mapping[str, Iterable[str]]) -> Iterable[str]:
    if kind is None:
        return ()
    if kind.form == "bool":
        return ("true", "false")
    return names.get("tile", ()) if kind.form == "tile" else kind.words


def _after_verb(before: str, names: Mapping[str, Iterable[str]]) -> Iterable[str]:
    if re.search(r"\bfor\s+[\w,\s]*$", before):
        return ("forward", "bwd_data", "bwd_weight")
    if re.search(r"\bon\s+[\w,\s]*$", before):
        return [*names.get("problem", ()), "for"]
    return [*names.get("kernel", ()), "on"]


def _attributes(begun: str, values: Mapping[str, Any]) -> Iterable[str]:
    """``name.attribute`` of a value whose name is complete."""
    owner, dot, _ = begun.rpartition(".")
    if not dot or owner not in values:
        return ()
    return [f"{owner}.{one}" for one in dir(values[owner]) if not one.startswith("_")]
