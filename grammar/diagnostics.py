"""What is said about faults: expectations in words, hints, and the list of errors of one pass."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from ..errors import GconvError, GconvSyntaxError, error
from .scan import KEYWORDS
from .text import Source

__all__ = ["MAX_ERRORS", "Report", "TooMany", "did_you_mean", "explain"]

MAX_ERRORS = 20
_SHOWN = 40                                      # characters of a word that are repeated
_LISTED = 40                                     # names that a hint lists

_WORDS = {
    "NAME": "a name", "FIELD": 'a field such as "pad = 1"', "CLAUSE": 'a clause such as "pipeline in *"', "NUMBER": "a number",
    "SIZE": "a size such as 3x3", "STRING": 'a file name in quotes such as "results.parquet"', "OPERATOR": "an operator",
    "MINUS": '"-"', "STAR": '"*"', "LBRACE": '"{"', "RBRACE": '"}"', "LPAR": '"("', "RPAR": '")"', "COMMA": '","', "COLON": '":"',
    "DOT": '"."', "EQUAL": '"="', "ARROW": '"->"', "$END": "the end of the text",
}
_OPERAND = {"NAME", "NUMBER", "SIZE", "LPAR", "MINUS", "NOT"}
_STATEMENT = {word.upper() for word in KEYWORDS}
_AFTER_OPERAND = {"OPERATOR", "MINUS", "STAR", "DOT", "LPAR", "ARROW"}


class TooMany(Exception):
    """Raised inside the pass once there are `MAX_ERRORS` errors; never leaves the package."""


class Report:
    """The errors of one pass, in the order of discovery, each place once."""

    def __init__(self) -> None:
        self.errors: list[GconvError] = []

    def add(self, fault: GconvError) -> None:
        """Keep an error; `TooMany` when the list is full."""
        for one in (fault, *getattr(fault, "others", ())):
            if not any(_same(one, known) for known in self.errors):
                self.errors.append(one)
        if len(self.errors) >= MAX_ERRORS:
            del self.errors[MAX_ERRORS:]
            raise TooMany

    def raise_first(self) -> None:
        """Raise what was found as one error: the first in the text, the others in its ``others``."""
        found = self.ordered()
        if not found:
            return
        if len(found) == 1:
            raise found[0]
        first, rest = found[0], found[1:]
        if not isinstance(first, GconvSyntaxError):
            first, rest = error("syntax.several", count=len(found), loc=first.loc), found
        first.values["others"] = tuple(rest)
        raise first

    def ordered(self) -> list[GconvError]:
        """The errors by place, those of one file together."""
        files = list(dict.fromkeys(one.loc.file for one in self.errors if one.loc))
        return sorted(self.errors,
                      key=lambda one: (files.index(one.loc.file), one.loc.line, one.loc.column) if one.loc else (-1, 0, 0))


def _same(a: GconvError, b: GconvError) -> bool:
    return a.loc is not None and a.loc == b.loc and a.code == b.code


def did_you_mean(name: str, known: Iterable[str], what: str = "Use one of") -> str:
    """A hint that names the closest known word, or all of them when none is close."""
    names = list(dict.fromkeys(known))
    by_lower = {one.lower(): one for one in names}
    close = difflib.get_close_matches(name[:_SHOWN].lower(), list(by_lower), 1, 0.6)
    if close:
        return f"Did you mean {by_lower[close[0]]}?"
    shown = [*names[:_LISTED], *(["..."] if len(names) > _LISTED else [])]
    return f"{what}: {', '.join(shown)}." if names else ""


def explain(source: Source, at: int, accepts: set[str], value_words: str | None, opened: int | None) -> GconvError:
    """The error for text that cannot go on at ``at``.

    ``accepts``: the terminals that could follow. ``value_words``: what the value of the field before ``at`` must be, when that
    value should begin there. ``opened``: where an unclosed brace stands.
    """
    found = _found(source.text, at)
    expected = value_words or _in_words(accepts)
    if not found:
        return error("syntax.end", expected=expected, hint=_unclosed(source, opened), loc=source.end())
    loc = source.loc(at, at + len(found))
    odd = _odd(found)
    if odd:
        return error("syntax.character", found=odd[0], hint=odd[1], loc=loc)
    hint = _hint(source.text, at, found, accepts) or (_unclosed(source, opened) if found in KEYWORDS else "")
    return error("syntax.expected", found=_quoted(found), expected=expected, hint=hint, loc=loc)


def _found(text: str, at: int) -> str:
    """The word, number or mark at a place; empty at the end."""
    match = re.compile(r'"[^"\n]*"|[\w.:]*\w|->|[<>=!]=|\S').match(text, at)
    return match[0] if match else ""


def _quoted(found: str) -> str:
    text = found if len(found) <= _SHOWN else found[:_SHOWN] + "..."
    return text if text[0] == '"' and len(text) > 1 else f'"{text}"'


def _odd(found: str) -> tuple[str, str] | None:
    """(how a character is shown, what to do) for characters that the language has no use for."""
    char = found[0]
    if len(found) > 1 or char.isalnum() or char in "_{}()=<>+-*/%,.:":
        return None
    if char == '"':
        return "'\"'", 'A text in quotes ends on the same line with another ".'
    if char in "“”‘’'":
        return f'"{char}"', 'Use plain double quotes: "file.gconv".'
    if char in ";|&!":
        return f'"{char}"', {";": "Nothing separates fields or statements; leave it out.", "|": "Write or.", "&": "Write and.",
                             "!": "Write not."}[char]
    if char.isprintable() and ord(char) < 128:
        return f'"{char}"', "Comments begin with #."
    return f"U+{ord(char):04X}", "Replace it; it may look like a plain character."


def _in_words(accepts: set[str]) -> str:
    """The terminals that may follow, as a short list in words."""
    left = set(accepts) - ({"DOT", "LPAR", "MINUS", "STAR"} if "OPERATOR" in accepts else set())
    if len(left) > 1 and left & {"RBRACE", "FIELD", "RPAR", "COMMA", "$END", "CLAUSE"}:
        left -= _AFTER_OPERAND
    words = []
    if _OPERAND <= accepts:
        words.append("a value" if "LBRACE" in left else "a number, a name or an expression")
        left -= _OPERAND | {"LBRACE"}
    elif {"NUMBER", "NAME", "LPAR"} <= accepts:
        words.append("a number or a name")
        left -= _OPERAND
    if _STATEMENT <= left:
        words.append("a statement: " + ", ".join(KEYWORDS))
        left -= _STATEMENT | {"$END"}
    order = ["FIELD", "CLAUSE", "NAME", "NUMBER", "SIZE", "STRING"]
    rest = sorted(left, key=lambda t: (order.index(t) if t in order else len(order), t))
    words += [_WORDS.get(terminal, f'"{terminal.lower()}"') for terminal in rest]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _hint(text: str, at: int, found: str, accepts: set[str]) -> str:
    """What the user may have meant."""
    before = text[max(0, at - _SHOWN):at]
    if re.fullmatch(r"x\d*", found) and re.search(r"\d[ \t]*$", before):
        return "Write a size without spaces, such as 28x28."
    if re.fullmatch(r"\d[\dxX*:]*[xX*:][\dxX*:]*", found):
        return "A size is written with a small x between numbers, such as 28x28; a pair of low and high padding as 0:1."
    if "FIELD" in accepts and re.match(r"\w+\s*:", text[at:at + 2 * _SHOWN]):
        return f"Write {found.split(':')[0]} = value."
    if accepts & {"CLAUSE", "FIELD"} and (match := re.match(r"\w+\s*(=(?!=)|in\b)", text[at:at + 2 * _SHOWN])):
        if "CLAUSE" in accepts and match[1] == "=":
            return f"Inside a sweep write {found} in {{ ... }}."
        if "FIELD" in accepts and match[1] == "in":
            return f"Write {found} = value; several values belong into a sweep."
    keywords = [terminal.lower() for terminal in accepts if terminal.isalpha() and terminal not in _WORDS]
    close = difflib.get_close_matches(found.lower()[:_SHOWN], keywords, 1, 0.6)
    if close and close[0] != found:
        return f"Did you mean {close[0]}?"
    if _STATEMENT <= accepts and re.match(r"\w+\s*=(?!=)", text[at:at + 4 * _SHOWN]):
        return f"Outside a block, write let {found} = value."
    if found == "," and "FIELD" in accepts:
        return "Nothing separates fields; leave the comma out."
    return ""


def _unclosed(source: Source, opened: int | None) -> str:
    if opened is None:
        return ""
    return f"The {source.text[opened]} in line {source.loc(opened).line} is not closed."

