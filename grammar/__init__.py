"""The ``.gconv`` language: a parser (`load`, `loads`), a printer (`dumps`), a formatter and a checker.

``gconv.lark`` is the grammar, parser.py runs it and goes on after faults, builder.py makes the objects, printer.py writes them.
"""

from __future__ import annotations

from .conditions import Condition
from .files import check_file, check_text, load, loads
from .formatter import format_text
from .printer import dumps
from .statements import Bench, Clause, Epilogue, Let, Module, Run, Sweep

__all__ = [
    "Bench", "Clause", "Condition", "Epilogue", "Let", "Module", "Run", "Sweep", "check_file", "check_text", "dumps",
    "format_text", "load",
    "loads",
]
