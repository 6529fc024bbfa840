"""Places in the user's Python source: of the running operation, of an exception, of a parameter or a return statement."""

from __future__ import annotations

import ast
import itertools
import linecache
import os
import sys
from types import CodeType, FrameType, TracebackType
from typing import Any, Iterator

from .source import Loc

__all__ = ["of_code", "of_exception", "of_parameter", "of_return", "of_user", "stacklevel"]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _is_foreign(code: CodeType) -> bool:
    """Whether the code is this package's or NumPy's, which may call back into it."""
    numpy = sys.modules.get("numpy")
    own = (_PACKAGE, os.path.dirname(numpy.__file__) + os.sep if numpy and numpy.__file__ else _PACKAGE)
    return code.co_filename.startswith(own) or code.co_filename.startswith("<__array_function__")


def of_user() -> Loc | None:
    """The expression that is being evaluated in the innermost frame outside the package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_foreign(frame.f_code):
        frame = frame.f_back
    return _of(frame.f_code, frame.f_lasti, frame.f_lineno, frame.f_globals) if frame else None


def stacklevel() -> int:
    """What `warnings.warn`, called by the caller, needs to name the innermost frame outside the package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_foreign(frame.f_code):
        level, frame = level + 1, frame.f_back
    return level


def of_exception(exception: BaseException, within: CodeType) -> Loc:
    """Where the exception left the user's code: the innermost such frame below ``within``, else the start of ``within``."""
    found, inside = None, False
    tb: TracebackType | None = exception.__traceback__
    while tb is not None:
        inside = inside or tb.tb_frame.f_code is within
        if inside and not _is_foreign(tb.tb_frame.f_code):
            found = tb
        tb = tb.tb_next
    if found is None:
        return of_code(within)
    return _of(found.tb_frame.f_code, found.tb_lasti, found.tb_lineno, found.tb_frame.f_globals)


def _of(code: CodeType, instruction: int, line: int, module: dict[str, Any]) -> Loc:
    """The place of one instruction: its columns where Python keeps them (3.11 and later), else the whole line."""
    text = linecache.getline(code.co_filename, line, module) or None
    if hasattr(code, "co_positions"):
        first, last, start, end = next(itertools.islice(code.co_positions(), instruction // 2, None), (None,) * 4)
        if first == line and start is not None and end is not None:
            return _from_bytes(code.co_filename, line, start, end if last == line else None, text)
    return _whole_line(code.co_filename, line, text)


def _from_bytes(file: str, line: int, start: int, end: int | None, text: str | None) -> Loc:
    """Python counts columns in UTF-8 bytes from 0; ``end`` None is the end of the line."""
    if text is None:
        return Loc(file, line, start + 1, None if end is None else end + 1)
    raw = text.rstrip("\r\n").encode()
    column, stop = (len(raw[:cut].decode(errors="ignore")) + 1 for cut in (start, len(raw) if end is None else end))
    return Loc(file, line, column, stop, text)


def _whole_line(file: str, line: int, text: str | None) -> Loc:
    if text is None:
        return Loc(file, line)
    bare = text.strip()
    start = text.find(bare) + 1
    return Loc(file, line, start, start + max(1, len(bare)), text)


# --- places found in the syntax tree, for faults of a declaration

_Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _definition(code: CodeType) -> Any:
    """The syntax tree of the function that ``code`` belongs to, or None where the source is not at hand."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, _Function) and _name(node) == code.co_name and code.co_firstlineno in _first_lines(node):
            return node
    return None


def _name(node: Any) -> str:
    return str(getattr(node, "name", "<lambda>"))


def _first_lines(node: Any) -> list[int]:
    return [node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]


def _of_node(code: CodeType, node: Any) -> Loc:
    text = linecache.getline(code.co_filename, node.lineno) or None
    end = node.end_col_offset if node.end_lineno == node.lineno else None
    return _from_bytes(code.co_filename, node.lineno, node.col_offset, end, text)


def of_code(code: CodeType) -> Loc:
    """The line on which a function is defined (its ``def``, not its decorators, where the source is at hand)."""
    node = _definition(code)
    line = node.lineno if node is not None else code.co_firstlineno
    return _whole_line(code.co_filename, line, linecache.getline(code.co_filename, line) or None)


def of_parameter(code: CodeType, name: str) -> Loc:
    """A parameter of a function."""
    node = _definition(code)
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg] if node else []
    return next((_of_node(code, one) for one in every if one is not None and one.arg == name), of_code(code))


def of_return(code: CodeType) -> Loc:
    """The last return statement of a function, or its definition when there is none."""
    node = _definition(code)
    if isinstance(node, ast.Lambda):
        return _of_node(code, node.body)
    found = list(_returns(node)) if node is not None else []
    return _of_node(code, found[-1]) if found else of_code(code)


def _returns(node: Any) -> Iterator[Any]:
    """The return statements of this function, not of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, (*_Function, ast.ClassDef)):
            yield from _returns(child)
