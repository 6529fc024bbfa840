"""``gconv results``: what was measured, and what failed why."""

from __future__ import annotations

import argparse
import json
from typing import Sequence

from .choose import describe_config
from .cli_table import print_table
from .measurement import Measurement
from .results import FILTERS, Results

__all__ = ["first_line", "print_measurements", "results"]


def results(options: argparse.Namespace) -> int:
    """Read tables into the store, then list, or write, the rows that pass the filters."""
    from .results_table import read_table, write_table

    store = Results(options.store)
    for path in options.read or ():
        rows = read_table(path)
        print(f"{path}: {store.add(*rows)} of {len(rows)} rows were new")
    filters = {name: getattr(options, name) for name in FILTERS}
    limit = None if options.all or options.csv or options.parquet or options.json else options.limit
    found = store.find(filters, limit=limit)
    for path in filter(None, (options.csv, options.parquet)):
        print(f"{path}: {write_table(path, found)} rows")
    if options.json:
        for one in found:
            print(json.dumps(one.to_dict()))
    elif not (options.csv or options.parquet or options.read):
        print_measurements(found)
        total = store.info()["rows"]
        print(f"{len(found)} of {total} rows of {store.path}")
    return 0


def print_measurements(found: Sequence[Measurement]) -> None:
    """A table of measurements, and the reasons of what failed below it."""
    columns = ("problem", "direction", "target", "config", "ms", "+-", "TFLOP/s", "roofline", "error", "status")
    print_table(columns, [_cells(one) for one in found], right=(*columns[4:9],))
    for one in found:
        if one.reason:
            print(f"{one.status}: {one.case.title}, {describe_config(one.case.config)}: {first_line(one.reason)}")


def _cells(one: Measurement) -> tuple[str, ...]:
    case, times = one.case, one.times
    spread = f"{(times.q3_ms - times.q1_ms) / 2:.4f}" if times else "-"
    return (case.problem.name or case.problem.describe(), case.problem.direction, f"{case.target}:{case.arch}",
            describe_config(case.config), f"{times.median_ms:.4f}" if times else "-", spread,
            "-" if one.tflops is None else f"{one.tflops:.3f}", "-" if one.fraction is None else f"{one.fraction:.0%}",
            "-" if one.error_ratio is None else f"{one.error_ratio:.3f}", one.status)


def first_line(text: str, most: int = 160) -> str:
    """The first line of a message, shortened."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= most else line[:most - 3] + "..."
