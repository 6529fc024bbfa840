"""Problems from text: the body of a ``.gconv`` problem, or a MIOpenDriver command line as bug reports quote it."""

from __future__ import annotations

import re
from typing import Any

from .driver_text import is_driver, parse_driver
from .errors import GconvError, error
from .problem import ConvProblem, from_fields
from .source import Loc

__all__ = ["parse_problem"]

_STATEMENT = re.compile(r"\s*problem\s+(?P<name>[^\W\d]\w*)\s*\{(?P<body>[^{}]*)\}\s*\Z")
_FIELD = re.compile(r"(?P<name>[^\W\d]\w*)\s*=\s*(?P<value>[^\s,;=]+)(?=[\s,;]|\Z)")
_SIZE = re.compile(r"\d+(?::\d+)?(?:x\d+(?::\d+)?)*\Z")
_BETWEEN = re.compile(r"[\s,;]*")
_WORDS = ("dtype", "out_dtype", "layout", "direction", "name")
_LONGEST = 4_000      # characters; a problem is a line or two


def parse_problem(text: str) -> ConvProblem:
    """The problem that ``text`` describes.

    Either fields as in a ``.gconv`` problem, with or without ``problem NAME { }`` around them, such as
    ``N=2 G=4 C=32 K=48 input=13x11 filter=3x3 stride=2x1 pad=0:1x2:2 dtype=fp16 direction=bwd_data``, where one number serves
    every axis and defaults are those of `ConvProblem`. Or a MIOpenDriver command (see `driver_text`), whose default layout is
    that of the driver, nchw. Raises `GconvError` naming the part that is wrong.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST:
        raise error("problem.text", text=text if not isinstance(text, str) else text[:60])
    if is_driver(text):
        return parse_driver(text)
    whole = _STATEMENT.match(text)
    start, stop = whole.span("body") if whole else (0, len(text))
    fields, places = _fields(text, start, stop)
    try:
        return from_fields(fields, whole["name"] if whole else None)
    except GconvError as caught:
        wrong = places.get(str(caught.values.get("field") or caught.code.partition(".")[2]))
        raise (caught.at(wrong) if wrong else caught) from None


def _fields(text: str, start: int, stop: int) -> tuple[dict[str, Any], dict[str, Loc]]:
    """Field name -> value, and where it stands."""
    fields: dict[str, Any] = {}
    places: dict[str, Loc] = {}
    at = _skip(text, start, stop)
    while at < stop:
        found = _FIELD.match(text, at, stop)
        if found is None:
            raise error("problem.text", text=text[at:stop].strip()[:60], loc=_loc(text, at, at + 1))
        name, loc = found["name"], _loc(text, *found.span())
        if name in fields:
            raise error("syntax.duplicate", what="The field", name=name, line=places[name].line, loc=loc)
        fields[name], places[name] = _value(name, found["value"], loc), loc
        at = _skip(text, found.end(), stop)
    return fields, places


def _skip(text: str, at: int, stop: int) -> int:
    found = _BETWEEN.match(text, at, stop)
    return found.end() if found else at


def _loc(text: str, start: int, end: int) -> Loc:
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line = text[line_start:] if line_end < 0 else text[line_start:line_end]
    return Loc("<problem>", text.count("\n", 0, start) + 1, start - line_start + 1, end - line_start + 1, line)


def _value(name: str, text: str, loc: Loc) -> Any:
    """A word, a number, or a tuple of numbers; in ``pad`` also of (low, high) pairs."""
    if name in _WORDS:
        return text.strip("\"'")
    if not _SIZE.match(text) or (":" in text and name != "pad"):
        if re.fullmatch(r"[+-]?\d+", text):
            return int(text)
        expected = "a number or a size such as 0:1x2:2" if name == "pad" else "a number or a size such as 3x3"
        raise error("syntax.value", field=name, value=text, expected=expected, hint="", loc=loc)
    entries = tuple(_entry(part) for part in text.split("x"))
    return entries[0] if len(entries) == 1 and isinstance(entries[0], int) else entries


def _entry(text: str) -> Any:
    numbers = tuple(map(int, text.split(":")))
    return numbers if len(numbers) == 2 else numbers[0]
