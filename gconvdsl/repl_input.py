"""Lines for the REPL: from a pipe, from a terminal with readline, or with prompt_toolkit where it is installed (extra ``repl``)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Callable

__all__ = ["reader"]

_HISTORY = "repl_history"
_PROMPTS = ("gconv> ", "   ... ")
Complete = Callable[[str], list[str]]


def reader(tty: bool, complete: Complete) -> Callable[[], str | None]:
    """A function that reads one statement, further lines while a bracket is open; None at the end of input."""
    line = _terminal(complete) if tty else _piped
    return lambda: _statement(line)


def _statement(line: Callable[[str], str | None]) -> str | None:
    lines: list[str] = []
    while True:
        found = line(_PROMPTS[bool(lines)])
        if found is None:
            return "\n".join(lines) if lines else None
        lines.append(found)
        code = re.sub(r"\"[^\"\n]*\"|'[^'\n]*'|#[^\n]*", "", "\n".join(lines))
        if all(code.count(opening) <= code.count(closing) for opening, closing in ("{}", "()", "[]")):
            return "\n".join(lines)


def _piped(prompt: str) -> str | None:
    sys.stdout.flush()                       # input() would do so too, but swallows an interrupt that comes meanwhile
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None


def _terminal(complete: Complete) -> Callable[[str], str | None]:
    try:
        return _with_prompt_toolkit(complete)
    except ImportError:
        return _with_readline(complete)


def _history_file() -> Path | None:
    """Beside the caches; None where nothing can be kept."""
    from . import cachedir

    root = cachedir.roots()[-1]
    return None if cachedir.is_temporary(root) else root / _HISTORY


def _with_prompt_toolkit(complete: Complete) -> Callable[[str], str | None]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class _Words(Completer):  # type: ignore[misc]
        def get_completions(self, document: Any, event: Any) -> Any:
            text = document.text_before_cursor
            begun = re.search(r"[:\w.]*$", text)
            length = len(begun[0]) if begun else 0
            return [Completion(word, start_position=-length) for word in complete(text)]

    file = _history_file()
    session = PromptSession(history=FileHistory(str(file)) if file else InMemoryHistory(), completer=_Words(), complete_while_typing=False)

    def line(prompt: str) -> str | None:
        try:
            return str(session.prompt(prompt))
        except EOFError:
            return None
    return line


def _with_readline(complete: Complete) -> Callable[[str], str | None]:
    try:
        import readline
    except ImportError:                      # not on every system; then without history and completion
        return _plain
    found: list[str] = []

    def completer(text: str, state: int) -> str | None:
        if state == 0:
            found[:] = complete(readline.get_line_buffer()[:readline.get_endidx()])
        return found[state] if state < len(found) else None

    readline.set_completer(completer)
    readline.set_completer_delims(" \t\n={}()[],+-*/")
    readline.parse_and_bind("tab: complete")
    _keep_history(readline)
    return _plain


def _keep_history(readline: Any) -> None:
    import atexit

    file = _history_file()
    if file is None:
        return
    try:
        readline.read_history_file(file)
    except OSError:
        pass
    atexit.register(_write_history, readline, file)


def _write_history(readline: Any, file: Path) -> None:
    try:
        readline.write_history_file(file)
    except OSError:
        pass


def _plain(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        print()
        return None
