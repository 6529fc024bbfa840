"""Tables on standard output: by rich on a terminal, as plain aligned columns elsewhere."""

from __future__ import annotations

import sys
from typing import Sequence

__all__ = ["plain", "print_table"]

_STYLES = {"ok": "green", "WRONG": "bold red", "failed": "red"}


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print rows of texts under their column names; those in ``right`` are aligned to the right."""
    if sys.stdout.isatty():
        _rich(columns, rows, right)
    else:
        print(plain(columns, rows, right))


def _rich(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    Console().print(table)


def plain(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """The table as lines of aligned columns."""
    cells = [list(columns), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = []
    for row in cells:
        padded = [cell.rjust(width) if name in right else cell.ljust(width) for cell, width, name in zip(row, widths, columns)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
