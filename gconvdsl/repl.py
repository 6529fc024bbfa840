"""``gconv repl``: declare, run and explain line by line. Works from a pipe as well, then without prompts."""

from __future__ import annotations

import difflib
import re
import sys
from typing import TYPE_CHECKING, Any, Iterable

from . import choose
from .cases import Outcome, check_case
from .cli_run import print_outcomes, run_cases
from .errors import GconvError, error
from .grammar import loads
from .repl_commands import COMMANDS
from .repl_complete import candidates
from .repl_expr import assignment, evaluate
from .repl_input import reader

if TYPE_CHECKING:
    from .memo import Memo

__all__ = ["Repl"]

_STATEMENT = re.compile(r"(problem|tile|kernel|epilogue|sweep|include|run|bench)\s+[\w\"]|let\s+\w")


class Repl:
    """One session: the statements so far, as texts, values of expressions, the target, and an optional memo of results."""

    def __init__(self, target: str | None = None) -> None:
        self.chunks: list[str] = []
        self.values: dict[str, Any] = {}
        self.target, self.failed = target, False
        self.memo: Memo | None = None
        self._left = False
        self._undone: list[list[str]] = []

    def loop(self) -> int:
        """Read until the end of input; the exit code is 1 if a piped session had an error."""
        tty = sys.stdin.isatty()
        if tty:
            print("gconv: declare, run, explain; :help, :quit")
        read = reader(tty, self.complete)
        while not self._left:
            try:
                text = read()
                if text is None:
                    break
                self.enter(text)
            except GconvError as failure:
                self._report(str(failure))
            except KeyboardInterrupt:
                if not tty:
                    raise
                print("\nstopped")
        return int(self.failed and not tty)

    def _report(self, text: str) -> None:
        self.failed = True
        sys.stdout.flush()
        print(text, file=sys.stderr, flush=True)

    def leave(self) -> None:
        """End the loop."""
        self._left = True

    def enter(self, text: str) -> None:
        """One statement, command or expression."""
        word, _, rest = text.strip().partition(" ")
        if not word or word.startswith("#"):
            return
        if word in (":q", ":exit"):
            self.leave()
        elif word.startswith(":"):
            self._command(word, rest.strip())
        elif word == "explain":
            COMMANDS[":explain"].run(self, rest)
        elif _STATEMENT.match(text.strip()):
            self._statements(text)
        else:
            self._expression(text)

    def _command(self, word: str, rest: str) -> None:
        if word not in COMMANDS:
            close = difflib.get_close_matches(word, COMMANDS, 1)
            raise error("usage.option", what="command", value=word, hint=f"Did you mean {close[0]}?" if close else "See :help.")
        COMMANDS[word].run(self, rest)

    # --- statements

    def _statements(self, text: str) -> None:
        module = self._load(text)
        if module.runs:
            print_outcomes(list(self._run(module, module.runs)))
        elif module.benches:
            from .cli_sweep import run_benches
            from .sweep import Options

            run_benches(module, module.benches, Options(self.target_text()))
        else:
            self.chunks.append(text.rstrip())

    def jobs(self, text: str) -> list[tuple[Any, Any]]:
        """(kernel, problem) of each case that ``KERNEL on PROBLEM [for DIRECTIONS]`` means."""
        module = self._load(f"run {text}")
        return [job for run in module.runs for job in module.jobs(run)]

    def outcomes(self, text: str) -> list[tuple[str, Outcome]]:
        """(title, outcome) of each case of ``KERNEL on PROBLEM [for DIRECTIONS]``, run now."""
        module = self._load(f"run {text}")
        return list(self._run(module, module.runs))

    def _run(self, module: Any, runs: Iterable[Any]) -> Iterable[tuple[str, Outcome]]:
        check = check_case
        if self.memo is not None:
            from .memo import remembered

            check = remembered(self.memo, check_case)
        return run_cases(module, runs, self.target_text(), check=check)

    def target_text(self) -> str:
        """The target with its arch."""
        backend, arch = choose.resolve_target(self.target)
        return f"{backend.name}:{arch}"

    def _load(self, text: str) -> Any:
        """The module with this text added; an earlier statement that declares the same name makes way."""
        before = list(self.chunks)
        while True:
            try:
                module = loads("\n".join([*self.chunks, text]), name="<repl>")
            except GconvError as failure:
                first = failure.values.get("line")
                if failure.code != "syntax.duplicate" or not isinstance(first, int) or not self._drop(first):
                    self.chunks = before
                    raise
            else:
                self._undone.append(before)
                return module

    def _drop(self, line: int) -> bool:
        """Forget the statement that holds a line of the joined text, unless that line is of the new text."""
        for index, chunk in enumerate(self.chunks):
            line -= chunk.count("\n") + 1
            if line <= 0:
                del self.chunks[index]
                return True
        return False

    def undo(self) -> str:
        """Go back to the statements before the last declaration; what was forgotten."""
        while self._undone:
            before = self._undone.pop()
            if before != self.chunks:
                gone = [one for one in self.chunks if one not in before]
                self.chunks = before
                return gone[-1].splitlines()[0] if gone else "a replacement"
        raise error("usage.empty", what="undo", reason="nothing was declared", hint="")

    # --- expressions

    def _expression(self, text: str) -> None:
        name, expression = assignment(text)
        try:
            value = evaluate(expression, self.names())
        except GconvError:
            raise
        except Exception as failure:         # a user's expression may fail in any way
            raise error("usage.expression", text=expression, reason=f"{type(failure).__name__}: {failure}") from failure
        if name is not None:
            self.values[name] = value
        elif value is not None:
            show(value)

    def names(self) -> dict[str, Any]:
        """What expressions may use: gconv, np, what is declared, and kept values, later ones first."""
        import numpy as np

        import gconvdsl
        from .kernel import Kernel

        module = loads("\n".join(self.chunks), name="<repl>")
        kernels = {name: Kernel(spec) for name, spec in module.kernels.items()}
        return {"gconv": gconvdsl, "np": np, **module.lets, **module.tiles, **module.problems, **kernels, **self.values}

    def complete(self, text: str) -> list[str]:
        """Words that may follow the text up to the cursor."""
        try:
            module = loads("\n".join(self.chunks), name="<repl>")
            names = {"problem": list(module.problems), "tile": list(module.tiles), "kernel": list(module.kernels)}
            return candidates(text, names, COMMANDS, self.names())
        except GconvError:
            return []


def show(value: Any) -> None:
    """A value as a table on a terminal where it can be shown as one, else its short text."""
    if sys.stdout.isatty() and hasattr(value, "__rich__"):
        from rich.console import Console

        Console().print(value)
    else:
        print(short(value))


def short(value: Any) -> str:
    """The text of a value, with the middle of large arrays left out."""
    import numpy as np

    with np.printoptions(threshold=16, edgeitems=2):
        return repr(value)
