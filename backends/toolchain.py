"""Running compilers: a scrubbed environment, a time limit, errors in the user's words, results from the cache.

    tool = require("cxx", "sim")
    artifact = compile_cached(tool, source, ["-O2", "-shared", "-fPIC"], target="sim", arch="gfx942", kernel="conv_fwd",
                              source_name="kernel.cpp", output_name="kernel.so")

The source is written beside the output and stays in the cache entry, for reading and for debuggers.
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Sequence

from .. import cache, env
from ..errors import GconvError, error
from .base import Artifact
from .compilers import INSTALL, Tool, clean_environment, find, require

if TYPE_CHECKING:
    import subprocess

__all__ = ["INCLUDE", "INSTALL", "Output", "Tool", "clean_environment", "compile_cached", "find", "require", "run"]

INCLUDE = Path(__file__).resolve().parent / "include"
"""The directory of the device headers; always on the include path."""

_DETAIL_LINES, _DETAIL_CHARACTERS = 40, 6000
_ERRORS = (
    re.compile(r"^(?P<file>[^\s:(][^:(]*):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: (?P<text>.+)$", re.MULTILINE),
    re.compile(r"^(?P<file>[^\s:(][^:(]*)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.+)$", re.MULTILINE),
    re.compile(r"^(?P<file>)(?P<line>)(?P<text>.*\b(?:error|fatal)\s*:.+)$", re.MULTILINE | re.IGNORECASE),
)


@dataclass(frozen=True)
class Output:
    """How a process ended: its exit status (None: stopped at the time limit) and everything it printed."""

    status: int | None
    text: str


def run(command: Sequence[str], *, environment: dict[str, str], cwd: Path, limit: float) -> Output:
    """Run a command in a process group of its own, which is killed whole at the time limit (seconds) or on an interrupt."""
    import subprocess
    with subprocess.Popen(list(command), cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            text = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            _kill(process)
            return Output(None, process.communicate()[0].decode(errors="replace"))
        except BaseException:
            _kill(process)
            raise
    return Output(process.returncode, text.decode(errors="replace"))


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@dataclass(frozen=True)
class _Job:
    """One compilation: ``tool FLAGS -I INCLUDE -o output_name source_name``."""

    tool: Tool
    source: str
    flags: tuple[str, ...]
    target: str
    arch: str
    kernel: str
    source_name: str
    output_name: str
    extra: dict[str, Any]

    def key(self) -> str:
        return cache.key({"source": self.source, "tool": self.tool.identity, "flags": self.flags, "target": self.target,
                          "arch": self.arch, "names": [self.source_name, self.output_name], "extra": self.extra})

    def arguments(self, directory: Path, key: str) -> list[str]:
        """The command line after the compiler; debuggers are told the place where the source will lie for good."""
        debug = "-g" in self.flags and self.tool.kind != "nvcc"
        moved = [f"-fdebug-prefix-map={directory}={directory.parent / key}"] if debug else []
        return [*self.flags, *moved, "-I", str(INCLUDE), "-o", self.output_name, self.source_name]


def compile_cached(tool: Tool, source: str, flags: Sequence[str], *, target: str, arch: str, kernel: str, source_name: str,
                   output_name: str, extra: dict[str, Any] | None = None,
                   facts: Callable[[str], dict[str, Any]] = lambda text: {}) -> Artifact:
    """The compiled ``source``, from the cache or from ``tool FLAGS -I INCLUDE -o output_name source_name``.

    ``extra`` holds what else decides the result and so belongs to the key, such as CPU features or nvcc's host compiler.
    ``facts`` reads what the compiler printed into the artifact's ``meta``. Raises `CompileError` if the compiler fails, is too
    slow, or cannot be started.
    """
    start = time.perf_counter()
    job = _Job(tool, source, tuple(flags), target, arch, kernel, source_name, output_name, dict(extra or {}))
    key = job.key()
    entry = cache.get_or_build(key, lambda directory: _build(job, directory, key, facts))
    path = entry.path / output_name
    return Artifact(path, path.stat().st_size, entry.meta, entry.hit, time.perf_counter() - start)


def _build(job: _Job, directory: Path, key: str, facts: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Compile in a directory of the cache that is not published yet; the facts to store with it."""
    (directory / job.source_name).write_text(job.source)
    command, limit = [job.tool.command, *job.arguments(directory, key)], env.get("GCONV_COMPILE_TIMEOUT")
    try:
        done = run(command, environment=clean_environment(job.tool.kind), cwd=directory, limit=limit)
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        raise error("compile.missing", tool=job.tool.command, target=job.target, hint=INSTALL[job.tool.kind]) from None
    if done.status is None:
        raise error("compile.timeout", tool=job.tool.title, limit=f"{limit:g}", kernel=job.kernel, arch=job.arch,
                    details=_trim(done.text))
    if done.status or not (directory / job.output_name).is_file():
        raise _failure(job, command, done)
    return {"kernel": job.kernel, "target": job.target, "arch": job.arch, "tool": job.tool.title, "flags": list(job.flags),
            **facts(done.text)}


def _failure(job: _Job, command: list[str], done: Output) -> GconvError:
    place, line, first = _first_error(done.text)
    hint = f"The first error is: {f'{place}:{line}: ' if line else ''}{first}" if first else "It printed no error message."
    excerpt = _excerpt(job.source, int(line)) if line and os.path.basename(place) == job.source_name else ""
    return error("compile.failed", tool=job.tool.title, kernel=job.kernel, arch=job.arch, status=done.status, hint=hint,
                 command=command, details="\n".join(filter(None, [excerpt, _trim(done.text)])))


def _first_error(text: str) -> tuple[str, str, str]:
    """File, line and text of the first error a compiler printed; empty strings where it named none."""
    for pattern in _ERRORS:
        match = pattern.search(text)
        if match:
            return match["file"], match["line"], match["text"].strip()
    return "", "", ""


def _excerpt(source: str, line: int) -> str:
    lines = source.splitlines()
    shown = range(max(1, line - 2), min(len(lines), line + 2) + 1)
    return "\n".join(f"{'>' if number == line else ' '} {number:4} | {lines[number - 1]}" for number in shown)


def _trim(text: str) -> str:
    lines = text.strip().splitlines()
    kept = "\n".join(lines[:_DETAIL_LINES])[:_DETAIL_CHARACTERS]
    return kept + (f"\n... ({len(lines)} lines in all)" if len(kept) < len(text.strip()) else "")
