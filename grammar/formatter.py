"""`format_text`: the canonical spelling of ``.gconv`` text, with comments, order and line breaks of the user.

Only spaces, indentation, blank lines and line ends change, so the meaning cannot. Fields on one line stand two spaces apart; the
opening braces of one-line blocks in consecutive lines stand in one column.
"""

from __future__ import annotations

import re
from itertools import groupby

from ..source import display_width
from .files import check_syntax

__all__ = ["format_text"]

_TOKEN = re.compile(
    r'(?P<comment>\#[^\n]*)|"[^"\n]*"|->|[<>=!]=|\d[\w.:]*(?:(?<=[eE])[+-]\d+)?|\.\d[\w.]*(?:(?<=[eE])[+-]\d+)?|\w+|\n|[^\s]')
_TIGHT_AFTER = ("(", ".")
_TIGHT_BEFORE = (")", ",", ".", ":")
_WORDS_BEFORE_VALUE = ("and", "or", "not", "where", "in", "for", "on")
_ONE_LINE = re.compile(r"(problem|tile) \w+ \{.*\}$")


def format_text(text: str, name: str = "<string>") -> str:
    """The text in canonical style. Formatting twice changes nothing more. Raises the first syntax fault, as `loads` does."""
    check_syntax(text, name)
    lines, depth = [], 0
    for tokens in _token_lines(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")):
        closing = len(tokens) - len(list(_drop_closers(tokens)))
        lines.append("  " * max(0, depth - closing) + _line(tokens) if tokens else "")
        depth += sum((token in "{(") - (token in "})") for token in tokens if len(token) == 1)
    return _without_extra_blanks(_aligned(lines))


def _token_lines(text: str) -> list[list[str]]:
    """The tokens of each line."""
    lines: list[list[str]] = [[]]
    for match in _TOKEN.finditer(text):
        if match[0] == "\n":
            lines.append([])
        else:
            lines[-1].append(match[0].rstrip())
    return lines


def _drop_closers(tokens: list[str]) -> list[str]:
    count = next((i for i, token in enumerate(tokens) if token not in ("}", ")")), len(tokens))
    return tokens[count:]


def _line(tokens: list[str]) -> str:
    """The tokens of one line with canonical spaces."""
    out = tokens[0]
    for i in range(1, len(tokens)):
        out += _space(tokens, i) + tokens[i]
    return out


def _space(tokens: list[str], i: int) -> str:
    """The space before token ``i``."""
    before, token = tokens[i - 1], tokens[i]
    if token[0] == "#" or _begins_item(tokens, i):
        return "  "
    if before in _TIGHT_AFTER or token in _TIGHT_BEFORE or _is_sign(tokens, i - 1):
        return ""
    if token == "(":
        return "" if _is_function(tokens, i - 1) and not _is_kernel_head(tokens, i) else " "
    return " "


def _begins_item(tokens: list[str], i: int) -> bool:
    """Whether token ``i`` begins a field, a clause or a condition after another one on the same line."""
    before, after = tokens[i - 1], tokens[i + 1] if i + 1 < len(tokens) else ""
    if not re.fullmatch(r"[^\W\d]\w*", tokens[i]) or before in ("{", "(", "let", "=", ",", "->", "in"):
        return False
    if before == "}" or after in ("=", ":"):
        return True
    if _is_clause(tokens, i) or (tokens[i] == "conv" and after == "{"):
        return True
    return after == "in" and before not in _WORDS_BEFORE_VALUE


def _is_clause(tokens: list[str], i: int) -> bool:
    """Whether token ``i`` is the where of a sweep and not the function: it follows a value, or begins a line."""
    before = tokens[i - 1] if i else "}"
    return tokens[i] == "where" and (bool(re.fullmatch(r"[\w.:]*\w|[)}]", before)) or (before == "*" and tokens[i - 2] == "in"))


def _is_function(tokens: list[str], i: int) -> bool:
    """Whether token ``i``, before a parenthesis, is a name that is called."""
    word = tokens[i]
    return bool(re.fullmatch(r"\w+", word)) and not _is_clause(tokens, i) and (word == "where" or word not in _WORDS_BEFORE_VALUE)


def _is_sign(tokens: list[str], i: int) -> bool:
    """Whether token ``i`` is a minus that belongs to what follows it."""
    if tokens[i] != "-":
        return False
    before = tokens[i - 1] if i else ""
    return not re.fullmatch(r"[\w.:]*\w|\)", before) or before in _WORDS_BEFORE_VALUE


def _is_kernel_head(tokens: list[str], i: int) -> bool:
    """Whether the parenthesis ``i`` opens the operands of a kernel, which stand apart from its name."""
    return tokens[0] == "kernel" and "{" not in tokens[:i]


def _aligned(lines: list[str]) -> list[str]:
    """The braces of consecutive one-line blocks in one column."""
    out: list[str] = []
    for is_block, group in groupby(lines, lambda line: bool(_ONE_LINE.match(line.split("  #")[0]))):
        block = list(group)
        width = max(display_width(line.partition(" {")[0]) for line in block) if is_block else 0
        for line in block:
            head, brace, rest = line.partition(" {")
            out.append(head + " " * (width - display_width(head)) + brace + rest if is_block else line)
    return out


def _without_extra_blanks(lines: list[str]) -> str:
    """One blank line at most between lines, none at both ends, and a line end after the last."""
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in lines))
    return text.strip("\n") + "\n" if text.strip() else ""
