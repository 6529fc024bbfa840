"""``gconv bench --target cuda``: the table and the JSON of `bench_device`."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, Sequence

from .backends import base
from .baseline_torch import TorchBaseline
from .bench import summary
from .bench_device import DeviceLimits, DeviceRow, measure_device, prepare
from .cli_table import print_table
from .errors import GconvError
from .problem import ConvProblem

__all__ = ["bench_device"]


def bench_device(options: argparse.Namespace, cases: Sequence[ConvProblem], target: str) -> int:
    """Measure each case; a case that fails is a line on standard error. Exit code 1 if any failed or is wrong."""
    versions, limits = prepare(), DeviceLimits.measured()
    baseline = TorchBaseline(None) if options.baseline else None
    head = _head(target, versions, limits)
    print(head["text"], file=sys.stderr)
    rows: list[DeviceRow] = []
    failed = 0
    for case in cases:
        try:
            rows.append(measure_device(case, target, limits, baseline, options.rounds))
        except (GconvError, RuntimeError) as failure:
            failed += 1
            print(f"{case.name} {case.direction}: {failure}", file=sys.stderr, flush=True)
            continue
        if os.environ.get("CI") or sys.stderr.isatty():
            print(" ".join(_cells(rows[-1])), file=sys.stderr, flush=True)
        if options.json:                         # each time: what is measured is not lost if a later row fails
            _write(options.json, head, rows)
    _print(rows)
    return 0 if not failed and all(row.ok for row in rows) else 1


def _head(target: str, versions: str, limits: DeviceLimits) -> dict[str, Any]:
    """What the figures depend on."""
    backend, arch = base.parse_target(target)
    driver = backend.identity(arch or "").get("driver", "")
    rates = ", ".join(f"{dtype} {rate / 1e12:.0f}" for dtype, rate in limits.flops.items())
    text = f"{limits.device}, driver {driver}; TFLOP/s: {rates}; copy {limits.bandwidth / 1e12:.2f} TB/s; beside {versions}"
    return {"text": text, "device": limits.device, "driver": driver, "date": datetime.date.today().isoformat(),
            "baseline": versions, "flops": dict(limits.flops), "bandwidth": limits.bandwidth, "command": " ".join(sys.argv[1:]),
            "method": "cold second-level cache, delay on the device before each timed call, events, medians, calls in turn"}


def _print(rows: Sequence[DeviceRow]) -> None:
    columns = ("problem", "direction", "family", "ours us", "baseline us", "ratio", "floor us", "copy us", "of line", "error", "status")
    print_table(columns, [_cells(row) for row in rows], right=columns[3:10])
    for name, values in summary(rows).items():
        print(f"{name}: {values['rows']} rows, geometric mean {values['mean']:.2f}, median {values['median']:.2f}, "
              f"lowest {values['lowest']:.2f} (each ratio capped at 6)")


def _cells(row: DeviceRow) -> tuple[str, ...]:
    missing = math.isnan(row.baseline_ms)
    return (row.problem.name or row.problem.describe(), row.problem.direction, row.family.split(":")[0][:40], f"{row.time_ms * 1e3:.1f}",
            *("-" if missing else text for text in (f"{row.baseline_ms * 1e3:.1f}", f"{row.ratio:.2f}")),
            f"{row.floor_ms * 1e3:.1f}", f"{row.copy_ms * 1e3:.1f}", f"{row.line_ratio:.2f}", f"{row.error_ratio:.3f}",
            "ok" if row.ok else "WRONG")


def _write(path: str, head: dict[str, Any], rows: Sequence[DeviceRow]) -> None:
    document = {**head, "summary": summary(rows), "rows": [row.to_dict() for row in rows]}
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
