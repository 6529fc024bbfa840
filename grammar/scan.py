"""A coarse reading of ``.gconv`` text that never fails: brackets, comments, where statements and fields begin.

The parser uses it to protect the stack from deep nesting, and to go on after an error: the faulty field or statement is cut
out and the rest is parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import GconvError, error
from .text import Source

__all__ = ["KEYWORDS", "MAX_DEPTH", "check_depth", "cut", "head_name", "pieces"]

MAX_DEPTH = 64
KEYWORDS = ("problem", "tile", "kernel", "epilogue", "let", "sweep", "bench", "run", "include")

_NAME = r"[^\W\d]\w*"
_LEXEME = re.compile(rf'#[^\n]*|"[^"\n]*"|[{{}}()]|\n|(?P<word>{_NAME})')
_HEAD = re.compile(
    rf'(?:problem|tile)\s+{_NAME}\s*\{{|kernel\s+{_NAME}\s*(?:[({{]|for\b)|sweep\s+{_NAME}\s*(?:\{{|for\b)'
    rf'|epilogue\s+{_NAME}\s*\(|let\s+{_NAME}\s*=(?!=)|run\s+{_NAME}\s+on\b|bench\s+{_NAME}\s*(?:,|on\b)|include\s*"')
_ITEM = re.compile(rf"{_NAME}(?=\s*=(?!=))|{_NAME}(?=\s+in\b)|where\b|conv(?=\s*\{{)")
_NAMED = re.compile(rf"\s*(\w+)\s+({_NAME})")


def _lexemes(text: str) -> Iterator[re.Match[str]]:
    """Brackets, words and line ends outside comments and strings."""
    return (match for match in _LEXEME.finditer(text) if match[0][0] not in '#"')


def check_depth(source: Source) -> GconvError | None:
    """The ``syntax.deep`` error of text nested more than 64 levels deep."""
    depth = deepest = where = 0
    for match in _lexemes(source.text):
        depth = max(0, depth + (match[0] in "{(") - (match[0] in "})"))
        if depth > deepest:
            deepest = depth
            where = match.start() if depth == MAX_DEPTH + 1 else where
    return error("syntax.deep", value=deepest, limit=MAX_DEPTH, loc=source.loc(where)) if deepest > MAX_DEPTH else None


def pieces(text: str) -> list[tuple[int, int]]:
    """(start, end) of stretches that begin with a statement.

    A statement begins at a keyword that is the first word of a line and either stands outside brackets or can only be the
    head of a statement, so an unclosed brace spoils one statement and not the rest of the file.
    """
    starts, depth, fresh = [0], 0, True
    for match in _lexemes(text):
        if fresh and match["word"] in KEYWORDS and (depth == 0 or _HEAD.match(text, match.start())):
            starts.append(match.start())
            depth = 0
        fresh = match[0] == "\n"
        depth = max(0, depth + (match[0] in "{(") - (match[0] in "})"))
    return [(a, b) for a, b in zip(starts, [*starts[1:], len(text)]) if text[a:b].strip()]


def head_name(piece: str) -> str | None:
    """The name that the first statement of a piece declares, as far as it can be told."""
    match = _NAMED.match(piece)
    return match[2] if match and match[1] in KEYWORDS else None


def cut(piece: str, at: int, complete: bool) -> str | None:
    """The piece with the field around the fault at ``at`` blanked out; None when the fault is not inside a field.

    ``complete``: what precedes the fault is a whole field, so the fault begins a new one.
    """
    marks = _marks(piece)
    before = [mark for mark in marks if mark[0] < at]
    if not before:
        return None
    start, level = (at, before[-1][1] - before[-1][2]) if complete else max(mark for mark in before if not mark[2])[:2]
    end = next((place for place, depth, _ in marks if place >= at + complete and depth <= level), None)
    if level < 1 or end is None or not piece[start:end].strip():
        return None
    return piece[:start] + re.sub(r"[^\n]", " ", piece[start:end]) + piece[end:]


def _marks(piece: str) -> list[tuple[int, int, bool]]:
    """(place, depth, closing) of what bounds fields: the head, items and braces; a closing brace has the depth of its block."""
    marks, depth = [(0, 0, False)], 0
    for match in _lexemes(piece):
        if match[0] == "{":
            depth += 1
            marks.append((match.start(), depth, False))
        elif match[0] == "}":
            marks.append((match.start(), depth, True))
            depth -= 1
        elif match["word"] and depth and _ITEM.match(piece, match.start()):
            marks.append((match.start(), depth, False))
    return marks
