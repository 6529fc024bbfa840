"""``gconv repl``: declare, run and explain line by line. Works from a pipe as well, then without prompts."""

from __future__ import annotations

import sys
from typing import Any

from . import choose
from .cli_run import print_outcomes, run_cases
from .errors import GconvError
from .explain import explain
from .grammar import loads

__all__ = ["Repl"]

_HELP = """Statements of the .gconv language declare problems, tiles, kernels and epilogues; a repeated name replaces the old one.
run KERNEL on PROBLEM [for DIRECTIONS]        run on random data, verified and timed
explain KERNEL on PROBLEM [for DIRECTIONS]    what would run, and why
:list   what is declared         :target T   choose a target such as sim:gfx942
:help   this text                :quit       leave (or end of input)"""


class Repl:
    """One session: the statements so far, as texts, and the target."""

    def __init__(self, target: str | None = None) -> None:
        self.chunks: list[str] = []
        self.target, self.failed = target, False

    def loop(self) -> int:
        """Read until the end of input; the exit code is 1 if a piped session had an error."""
        tty = sys.stdin.isatty()
        if tty:
            _line_editing()
            print("gconv: declare, run, explain; :help, :quit")
        while True:
            try:
                text = _read(tty)
                if text is None or text.strip() in (":quit", ":q", ":exit"):
                    return int(self.failed and not tty)
                self.enter(text)
            except GconvError as failure:
                self.failed = True
                sys.stdout.flush()
                print(failure, file=sys.stderr, flush=True)
            except KeyboardInterrupt:
                if not tty:
                    raise
                print()

    def enter(self, text: str) -> None:
        """One statement or command."""
        word, _, rest = text.strip().partition(" ")
        if word == ":help":
            print(_HELP)
        elif word == ":list":
            print("\n".join(self.chunks) or "nothing is declared")
        elif word == ":target":
            choose.resolve_target(rest.strip())
            self.target = rest.strip()
        elif word.startswith(":"):
            print(f"{word} is not known; see :help")
        elif word == "explain":
            self._explain(text.replace("explain", "run    ", 1))
        elif word:
            self._statements(text)

    def _statements(self, text: str) -> None:
        module = self._load(text)
        if not module.runs:
            self.chunks.append(text.rstrip())
            return
        backend, arch = choose.resolve_target(self.target)
        print_outcomes(list(run_cases(module, module.runs, f"{backend.name}:{arch}")))

    def _explain(self, text: str) -> None:
        module = self._load(text)
        for run in module.runs:
            for spec, problem in module.jobs(run):
                print(explain(spec, problem, target=self.target))

    def _load(self, text: str) -> Any:
        """The module with this text added; an earlier statement that declares the same name makes way."""
        while True:
            try:
                return loads("\n".join([*self.chunks, text]), name="<repl>")
            except GconvError as failure:
                first = failure.values.get("line")
                if failure.code != "syntax.duplicate" or not isinstance(first, int) or not self._drop(first):
                    raise

    def _drop(self, line: int) -> bool:
        """Forget the statement that holds a line of the joined text, unless that line is of the new text."""
        for index, chunk in enumerate(self.chunks):
            line -= chunk.count("\n") + 1
            if line <= 0:
                del self.chunks[index]
                return True
        return False


def _line_editing() -> None:
    """Arrow keys and history, where the library for it is there."""
    try:
        import readline  # noqa: F401
    except ImportError:
        pass


def _read(tty: bool) -> str | None:
    """One statement: further lines while a brace is open. None at the end of input."""
    lines: list[str] = []
    while True:
        line = _line("   ... " if lines else "gconv> ", tty)
        if line is None:
            return "\n".join(lines) if lines else None
        lines.append(line)
        code = "\n".join(part.partition("#")[0] for part in lines)
        if code.count("{") <= code.count("}"):
            return "\n".join(lines)


def _line(prompt: str, tty: bool) -> str | None:
    """The next line without its end; prompts only on a terminal."""
    if not tty:
        sys.stdout.flush()                       # input() would do so too, but swallows an interrupt that comes meanwhile
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
    try:
        return input(prompt)
    except EOFError:
        print()
        return None
