"""Places in a user's source, and how they are shown.

A `Loc` names a stretch of one line of Python or ``.gconv`` text. `Loc.render` prints ``file:line:column``, the line, and a row of
carets under the stretch. Wide characters, combining marks and tabs keep the carets in place; long lines are cut around them.
"""

from __future__ import annotations

import linecache
import unicodedata
from dataclasses import dataclass, field

__all__ = ["Loc", "display_width"]

_TAB = 4
_WIDEST = 130      # columns of a line that are shown


@dataclass(frozen=True)
class Loc:
    """A stretch of one source line.

    ``line`` and ``column`` count from 1, columns in characters; ``end_column`` is one past the stretch (default: one
    character). ``text`` is the line itself; without it the line is looked up in linecache, which also knows the lines of a
    REPL or a notebook. Equal places are equal whatever text they carry.
    """

    file: str
    line: int
    column: int = 1
    end_column: int | None = None
    text: str | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def source_line(self) -> str:
        """The line without its line end; empty when it cannot be found."""
        text = self.text if self.text is not None else linecache.getline(self.file, self.line)
        return text.rstrip("\r\n")

    def render(self) -> str:
        """``file:line:column``, the line, and a row of carets (the first row alone when the line is unknown)."""
        line = self.source_line()
        if not line.strip() and self.text is None:
            return str(self)
        start = max(self.column - 1, 0)
        end = max(start + 1, (self.end_column or self.column + 1) - 1)
        line, start, end = _cut(line, start, end)
        left, marked = _plain(line[:start]), line[start:end]
        width = max(1, display_width(_plain(marked, display_width(left))))
        shown = _plain(line).rstrip()
        return f"{self}\n    {shown}\n    {' ' * (display_width(left) + max(0, start - len(line)))}{'^' * width}"


def display_width(text: str) -> int:
    """Terminal columns that ``text`` takes: 2 for wide East Asian characters, 0 for combining marks."""
    return sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _plain(text: str, at: int = 0) -> str:
    """``text``, which begins at terminal column ``at``, with tabs as spaces and control characters as a visible mark."""
    out, column = [], at
    for char in text:
        if char == "\t":
            char = " " * (_TAB - column % _TAB)
        elif unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp"):
            char = "\N{REPLACEMENT CHARACTER}"
        out.append(char)
        column += display_width(char)
    return "".join(out)


def _cut(line: str, start: int, end: int) -> tuple[str, int, int]:
    """The part of a long line around the stretch [start, end), and the stretch within it."""
    if len(line) <= _WIDEST:
        return line, start, end
    end = min(end, start + _WIDEST // 2)
    first = max(0, min(start, len(line)) - _WIDEST // 3)
    head, tail = ("… " if first else ""), (" …" if first + _WIDEST < len(line) else "")
    shift = len(head) - first
    return head + line[first:first + _WIDEST] + tail, start + shift, end + shift
