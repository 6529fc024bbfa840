"""`load`, `loads`, `check_file` and `check_text`: text in, declarations or errors out. Nothing is declared elsewhere or run."""

from __future__ import annotations

import os

from ..errors import GconvError
from .builder import Builder
from .diagnostics import Report, TooMany
from .parser import parse
from .statements import Module
from .text import Source, decode, read

__all__ = ["check_file", "check_syntax", "check_text", "load", "loads"]


def load(path: str | os.PathLike[str]) -> Module:
    """The declarations of a ``.gconv`` file and of those it includes.

    Raises `GconvError`: the one fault, or a `GconvSyntaxError` whose ``others`` holds the further faults (20 at most).
    """
    source = read(path)
    return _result(source, *_build(source, os.path.realpath(path)))


def loads(text: str, name: str = "<string>") -> Module:
    """The declarations in ``text``; ``name`` is shown in errors, and includes are relative to its directory."""
    source = _source(text, name)
    return _result(source, *_build(source, _path(name)))


def check_file(path: str | os.PathLike[str]) -> list[GconvError]:
    """The faults of a file in the order of the text; empty when `load` would succeed."""
    try:
        return _build(read(path), os.path.realpath(path))[1].ordered()
    except GconvError as fault:
        return [fault]


def check_text(text: str, name: str = "<string>") -> list[GconvError]:
    """The faults of a text; empty when `loads` would succeed."""
    try:
        return _build(_source(text, name), _path(name))[1].ordered()
    except GconvError as fault:
        return [fault]


def check_syntax(text: str, name: str = "<string>") -> None:
    """Raise what the parser finds, without looking at names and values: includes are not read."""
    report = Report()
    try:
        parse(_source(text, name), report)
    except TooMany:
        pass
    report.raise_first()


def _path(name: str) -> str | None:
    return None if name.startswith("<") else os.path.realpath(name)


def _source(text: str, name: str) -> Source:
    """Text within the limits of a file; lone surrogates, which UTF-8 cannot hold, become marks that no rule accepts."""
    return decode(text.encode("utf-8", "replace") if not _is_utf8(text) else text.encode("utf-8"), name)


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _build(source: Source, path: str | None) -> tuple[Builder, Report]:
    report = Report()
    builder = Builder(report)
    try:
        builder.add(source, path)
    except TooMany:
        pass
    return builder, report


def _result(source: Source, builder: Builder, report: Report) -> Module:
    report.raise_first()
    return Module(tuple(builder.statements), source.file)
