"""Text to trees by Lark (LALR, contextual lexer), with recovery at field and statement boundaries."""

from __future__ import annotations

import functools
import importlib.resources
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .diagnostics import Report, explain
from .scan import check_depth, cut, head_name, pieces
from .text import Source

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

__all__ = ["Parsed", "parse"]


@dataclass
class Parsed:
    """The statements of a text. ``damaged``: names of statements of which some part, or all, could not be read."""

    statements: list[Tree[Token]] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)


@functools.lru_cache(maxsize=1)
def _lark() -> Lark:
    """The parser, built once a process."""
    from lark import Lark

    grammar = importlib.resources.files(__package__).joinpath("gconv.lark").read_text("utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", maybe_placeholders=False, keep_all_tokens=True)


def parse(source: Source, report: Report) -> Parsed:
    """Parse a whole text; faults go to the report. Raises ``syntax.deep`` before anything is parsed."""
    from lark.exceptions import UnexpectedInput

    deep = check_depth(source)
    if deep:
        report.add(deep)
        return Parsed()
    try:
        return Parsed(list(_lark().parse(source.text).children))  # type: ignore[arg-type]
    except UnexpectedInput:
        return _parse_pieces(source, report)


def _parse_pieces(source: Source, report: Report) -> Parsed:
    result = Parsed()
    for start, end in pieces(source.text):
        _parse_piece(source, start, source.text[start:end], result, report)
    return result


def _parse_piece(source: Source, offset: int, piece: str, result: Parsed, report: Report) -> None:
    """Parse one piece; after a fault, again without the faulty field, until it parses or nothing can be cut out."""
    from lark.exceptions import UnexpectedInput

    text: str | None = piece
    while text is not None:
        try:
            tree: Any = _lark().parse(text)
        except UnexpectedInput as fault:
            at, accepts = _place(fault, len(text)), _accepts(fault)
            at, accepts = _before_name(text, at, accepts)
            report.add(explain(source, _skip_blank(source.text, offset + at), accepts, _value_words(text, at, accepts),
                               _opened(source, offset, text[:at])))
            shorter = cut(text, at, complete=bool(accepts & {"FIELD", "CLAUSE"})) if at < len(text) else None
            whole = [] if shorter else _whole(text[:at])
            if not whole:
                result.damaged |= {name for name in [head_name(piece)] if name}
            result.statements += [_moved(statement, offset) for statement in whole]
            text = shorter
        else:
            result.statements += [_moved(statement, offset) for statement in tree.children]
            return


def _whole(text: str) -> list[Any]:
    """The statements before a fault between statements; none when the fault is inside one."""
    from lark.exceptions import UnexpectedInput

    try:
        return list(_lark().parse(text).children)
    except UnexpectedInput:
        return []


def _place(fault: Any, length: int) -> int:
    """The offset of the token or character that could not be read; the length at the end."""
    token = getattr(fault, "token", None)
    if token is not None:
        return length if token.type == "$END" else int(token.start_pos)
    place = getattr(fault, "pos_in_stream", None)
    return length if place is None else int(place)


def _accepts(fault: Any) -> set[str]:
    """The terminals that the parser would really have taken there."""
    state = getattr(fault, "interactive_parser", None)
    return set(state.accepts()) if state is not None else set()


def _before_name(text: str, at: int, accepts: set[str]) -> tuple[int, set[str]]:
    """In ``C = K = 4`` the fault is that C has no value, not the second =."""
    match = re.search(r"=\s*(?=([^\W\d]\w*)\s*$)", text[max(0, at - 200):at]) if text.startswith("=", at) else None
    return (at - len(text[max(0, at - 200):at]) + match.end(), {"NAME", "NUMBER"}) if match else (at, accepts)


def _skip_blank(text: str, at: int) -> int:
    match = re.compile(r"(?:\s|#[^\n]*)*").match(text, at)
    return match.end() if match else at


def _value_words(text: str, at: int, accepts: set[str]) -> str | None:
    """What a field must be, when the fault stands where its value should begin."""
    from .fields import expected_of

    match = re.search(r"([^\W\d]\w*)\s*=\s*$", text[max(0, at - 200):at])
    return expected_of(match[1]) if match and "NUMBER" in accepts else None


def _opened(source: Source, offset: int, text: str) -> int | None:
    """The place of the innermost brace or parenthesis left open before the fault."""
    stack: list[int] = []
    for match in re.finditer(r'#[^\n]*|"[^"\n]*"|[{}()]', text):
        if match[0] in "{(":
            stack.append(match.start())
        elif match[0] in "})" and stack:
            stack.pop()
    return offset + stack[-1] if stack else None


def _moved(statement: Tree[Token], offset: int) -> Tree[Token]:
    """The statement with its tokens' places counted from the beginning of the file."""
    token: Any
    for token in statement.scan_values(lambda value: hasattr(value, "start_pos")):
        token.start_pos += offset
        token.end_pos += offset
    return statement
