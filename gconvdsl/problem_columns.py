"""A problem as the columns of a table: one row of a problem file, or the problem's part of a table of results.

The columns are those of the seed system's tables (C and K over all groups, d, h, w for axes, 1 on axes that a problem does not
have) and more: paddings after the last element (``pad_h_hi``), ``ndim``, dtype, direction, layout. ``D H W`` are also spelt
``Di Hi Wi``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .errors import GconvError, error
from .problem import DIRECTIONS, ConvProblem

__all__ = ["COLUMNS", "NOTES", "from_columns", "require_columns", "to_columns"]

_AXES = "dhw"
_SIZES = {"input": ("Di", "Hi", "Wi"), "filter": ("Z", "Y", "X")}
_SPELLINGS = {"D": "Di", "H": "Hi", "W": "Wi"}
COLUMNS = ("N", "C", "K", "G", "Di", "Hi", "Wi", "Z", "Y", "X", *(f"{name}_{axis}" for name in ("stride", "pad", "dilation")
                                                                  for axis in _AXES),
           *(f"pad_{axis}_hi" for axis in _AXES), "ndim", "dtype", "out_dtype", "direction", "layout", "name")
"""In the order in which tables are written."""

_NEEDED = ("N", "C", "K", "Hi", "Wi", "Y", "X")
NOTES = ("source", "count", "counted", "kind")
"""Further columns of problem files, which say where a problem comes from and how often it occurs."""


def require_columns(path: str, found: Iterable[str] | None, needed: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``table.column`` for a column that is missing, or that nobody knows. Names that begin with _ are the user's own."""
    names, allowed = [_spelling(name) for name in found or ()], {*needed, *known}
    for name in needed:
        if name not in names:
            raise error("table.column", path=path, column=name, reason="is missing", hint="Add it.")
    for name in found or ():
        if _spelling(name) not in allowed and not str(name).startswith("_"):
            raise error("table.column", path=path, column=name, reason="is not known here",
                        hint=f"Remove it, or let its name begin with _ to have it ignored. Known: {', '.join(sorted(allowed))}.")


def _spelling(name: str) -> str:
    return _SPELLINGS.get(name, name)


def problem_header(path: str, found: Iterable[str] | None) -> None:
    """`require_columns` for a problem file."""
    require_columns(path, found, _NEEDED, (*COLUMNS, *NOTES))


def to_columns(problem: ConvProblem) -> dict[str, Any]:
    """The row of a problem."""
    missing = 3 - problem.ndim
    row: dict[str, Any] = {"N": problem.N, "C": problem.C, "K": problem.K, "G": problem.G}
    for name, columns in _SIZES.items():
        row.update(zip(columns, (1,) * missing + getattr(problem, name)))
    for name, absent in (("stride", 1), ("dilation", 1)):
        row.update(zip((f"{name}_{axis}" for axis in _AXES), (absent,) * missing + getattr(problem, name)))
    for axis, (low, high) in zip(_AXES, ((0, 0),) * missing + problem.pad):
        row.update({f"pad_{axis}": low, f"pad_{axis}_hi": high})
    words = {name: getattr(problem, name) for name in ("ndim", "dtype", "out_dtype", "direction", "layout")}
    row.update(words, name=problem.name or "")
    return {name: row[name] for name in COLUMNS}


def from_columns(row: Mapping[str, Any], path: str, line: int) -> ConvProblem:
    """The problem of a row; what is left out or empty is the default (G, strides and dilations 1, pads 0 and alike on both sides,
    2 axes unless Di or Z says 3). Raises ``table.value`` naming file, line and column.
    """
    given = {_spelling(name): value for name, value in row.items() if value not in (None, "")}
    read = _Reader(given, path, line)
    ndim = read.number("ndim", 3 if (read.number("Di", 1) > 1 or read.number("Z", 1) > 1) else 2)
    if ndim not in (1, 2, 3):
        raise error("table.value", path=path, line=line, column="ndim", value=ndim, expected="1, 2 or 3")
    axes = _AXES[3 - ndim:]
    fields: dict[str, Any] = {name: read.number(name) for name in "NCK"}
    fields["G"] = read.number("G", 1)
    fields.update({name: tuple(read.number(column, 1 if column in "DiZ" else None) for column in columns[3 - ndim:])
                   for name, columns in _SIZES.items()})
    fields.update({name: tuple(read.number(f"{name}_{axis}", 1) for axis in axes) for name in ("stride", "dilation")})
    low = {axis: read.number(f"pad_{axis}", 0) for axis in axes}
    fields["pad"] = tuple((low[axis], read.number(f"pad_{axis}_hi", low[axis])) for axis in axes)
    fields.update({name: str(given[name]) for name in ("dtype", "out_dtype", "layout", "name") if name in given})
    fields["direction"] = _direction(given, path, line)
    try:
        return ConvProblem(**fields)
    except GconvError as fault:
        column = str(fault.values.get("field", "filter" if fault.code == "problem.filter" else "problem"))
        raise error("table.value", path=path, line=line, column=column, value=fault.values.get("value", ""),
                    expected=f"possible: {fault.message.rstrip(chr(46))}") from None


def _direction(given: Mapping[str, Any], path: str, line: int) -> str:
    direction = str(given.get("direction", "forward"))
    if direction not in DIRECTIONS:
        raise error("table.value", path=path, line=line, column="direction", value=direction, expected=", ".join(DIRECTIONS))
    return direction


class _Reader:
    """Whole numbers of one row."""

    def __init__(self, row: Mapping[str, Any], path: str, line: int) -> None:
        self.row, self.path, self.line = row, path, line

    def number(self, column: str, default: int | None = None) -> int:
        value = self.row.get(column, default)
        try:
            if value is not None and int(value) == float(value):
                return int(value)
        except (TypeError, ValueError, OverflowError):
            pass
        raise error("table.value", path=self.path, line=self.line, column=column, value="" if value is None else value,
                    expected="a whole number")
