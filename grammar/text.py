"""The text of a ``.gconv`` file: reading within limits, and places in it."""

from __future__ import annotations

import bisect
import os
import stat
from dataclasses import dataclass
from functools import cached_property

from ..errors import GconvError, error
from ..source import Loc

__all__ = ["MAX_BYTES", "Source", "decode", "read"]

MAX_BYTES = 256 * 1024


@dataclass(frozen=True)
class Source:
    """Text and the name it is shown under; offsets count characters from 0."""

    text: str
    file: str

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(i + 1 for i, char in enumerate(self.text) if char == "\n")]

    def loc(self, start: int, end: int | None = None) -> Loc:
        """The stretch from ``start`` to ``end`` (default: one character), cut at the end of its line."""
        start = min(max(start, 0), len(self.text))
        line = bisect.bisect_right(self._starts, start)
        first = self._starts[line - 1]
        last = self._starts[line] - 1 if line < len(self._starts) else len(self.text)
        stop = min(max(start + 1 if end is None else end, start + 1), max(last, start + 1))
        return Loc(self.file, line, start - first + 1, stop - first + 1, self.text[first:last].rstrip("\r"))

    def end(self) -> Loc:
        """The place just after the last visible character."""
        return self.loc(len(self.text.rstrip()))


def read(path: str | os.PathLike[str]) -> Source:
    """The text of a file. ``syntax.file``, ``syntax.large`` or ``syntax.encoding`` when it cannot be read as one."""
    shown = os.fspath(path)
    try:
        if stat.S_ISDIR(os.stat(shown).st_mode):
            raise error("syntax.file", path=shown, reason="it is a directory")
        if not stat.S_ISREG(os.stat(shown).st_mode):
            raise error("syntax.file", path=shown, reason="it is not a regular file")
        with open(shown, "rb") as handle:
            data = handle.read(MAX_BYTES + 1)
            size = max(len(data), os.fstat(handle.fileno()).st_size)
    except GconvError:
        raise
    except (OSError, ValueError) as failure:
        raise error("syntax.file", path=shown, reason=_reason(failure)) from None
    return decode(data, shown, size)


def _reason(failure: Exception) -> str:
    if isinstance(failure, FileNotFoundError):
        return "there is no such file"
    return (getattr(failure, "strerror", None) or str(failure)).lower()


def decode(data: bytes, file: str, size: int | None = None) -> Source:
    """UTF-8 bytes as a `Source`; a leading byte order mark is dropped."""
    if max(len(data), size or 0) > MAX_BYTES:
        raise error("syntax.large", value=max(len(data), size or 0), limit=MAX_BYTES, loc=Loc(file, 1, 1, 1, ""))
    try:
        return Source(data.decode("utf-8-sig"), file)
    except UnicodeDecodeError as failure:
        raise _not_utf8(data, file, failure.start) from None


def _not_utf8(data: bytes, file: str, offset: int) -> GconvError:
    good = Source(data[:offset].decode("utf-8", "replace") + "\N{REPLACEMENT CHARACTER}", file)
    return error("syntax.encoding", value=f"0x{data[offset]:02x}", offset=offset, loc=good.loc(len(good.text) - 1))
