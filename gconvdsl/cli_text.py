"""``gconv check``, ``gconv fmt`` and ``gconv repl``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from .errors import error

__all__ = ["check", "fmt", "repl"]


def check(options: argparse.Namespace) -> int:
    """Print every error of every file; exit code 1 if there is one."""
    from .grammar import check_file

    found = 0
    for path in options.files:
        errors = check_file(path)
        found += len(errors)
        for failure in errors:
            print(f"{failure}\n", file=sys.stderr)
        if not errors:
            print(f"{path}: ok")
    return 1 if found else 0


def fmt(options: argparse.Namespace) -> int:
    """Rewrite files in canonical form; with --check only tell which would change."""
    changed = [path for path in options.files if _format(path, options.check)]
    if options.check:
        for path in changed:
            print(f"{path}: not in canonical form", file=sys.stderr)
        return 1 if changed else 0
    return 0


def _format(path: str, check_only: bool) -> bool:
    from .grammar import format_text

    if path == "-":
        text = sys.stdin.read()
        formatted = format_text(text, name="<stdin>")
        if not check_only:
            sys.stdout.write(formatted)
        return formatted != text
    text = _read(path)
    formatted = format_text(text, name=path)
    if formatted != text and not check_only:
        _replace(Path(path), formatted)
        print(f"{path}: formatted")
    return formatted != text


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8")
    except OSError as reason:
        raise error("syntax.file", path=path, reason=reason.strerror or str(reason)) from None
    except UnicodeDecodeError as reason:
        raise error("syntax.encoding", value=f"0x{reason.object[reason.start]:02x}", offset=reason.start) from None


def _replace(path: Path, text: str) -> None:
    """Write beside the file and rename, so that an interruption never leaves half a file; permissions are kept."""
    path = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
        os.chmod(temporary, path.stat().st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def repl(options: argparse.Namespace) -> int:
    """The read-eval-print loop."""
    from .repl import Repl

    return Repl().loop()
