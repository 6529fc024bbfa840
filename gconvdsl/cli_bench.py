"""``gconv bench``: measured side by side with a baseline and the machine's limits."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Sequence

from . import choose
from .bench import Baseline, Row, measure, read_problems, summary
from .cli_run import directions
from .cli_table import print_table
from .errors import error
from .problem import ConvProblem
from .roofline import CpuRoofline

__all__ = ["bench"]


def bench(options: argparse.Namespace) -> int:
    """Measure problems in the directions asked for; exit code 1 if any result is wrong. A file, or configurations: a sweep."""
    if options.file or options.configs:
        from .cli_sweep import sweep

        return sweep(options)
    options.direction = options.direction or "all"
    options.seconds = 2.0 if options.seconds is None else options.seconds
    count = 1 if options.cpu_time else options.threads
    if count:
        os.environ["GCONV_THREADS"] = str(count)
    backend, arch = choose.resolve_target(options.target)
    if backend.name == "cuda":
        from .cli_bench_device import bench_device

        return bench_device(options, _cases(options, "gpu"), f"{backend.name}:{arch}")
    if backend.name != "cpu":
        raise error("usage.option", what="bench target", value=backend.name, hint="This version measures the targets cpu and cuda.")
    from .backends.cpu import threads

    cases = _cases(options, "cpu")
    baseline, roofline = _baseline(options.baseline, threads()), CpuRoofline(arch, threads())
    head = _head(backend, arch, threads(), baseline, roofline)
    print(head["text"], file=sys.stderr)
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        _progress(row)
        if options.json:                         # each time: what is measured is not lost if a later row fails
            _write(options.json, head, rows)

    measure(cases, f"{backend.name}:{arch}", roofline, baseline, options.seconds, keep,
            time.thread_time if options.cpu_time else time.perf_counter)
    print_rows(rows)
    return 0 if all(row.ok for row in rows) else 1


def _cases(options: argparse.Namespace, built_in: str) -> list[ConvProblem]:
    """The problems asked for, in their directions; each once, also where the file has it in several dtypes and one is asked for."""
    problems = [problem.replace(dtype=options.dtype, out_dtype=options.dtype) if options.dtype else problem
                for problem in read_problems(options.problems or built_in)
                if not options.only or options.only in (problem.name or "")]
    return [problem.as_(direction) for problem in dict.fromkeys(problems) for direction in directions(options.direction, problem)]


def _baseline(name: str | None, count: int) -> Baseline | None:
    if name is None:
        return None
    from .baseline_torch import TorchBaseline

    return TorchBaseline(count)


def _head(backend: Any, arch: str, count: int, baseline: Any, roofline: CpuRoofline) -> dict[str, Any]:
    """What the figures depend on."""
    device, rates = backend.identity(arch)["device"], {name: rate / 1e9 for _, rate, name in roofline.bandwidths}
    compared = f"{baseline.name} {baseline.version}" if baseline else "nothing"
    text = (f"{device}, {arch}, {count} threads; FMA peak {roofline.peak():.0f} GFLOP/s; copy "
            + ", ".join(f"{rate:.1f} GB/s in {name}" for name, rate in rates.items()) + f"; compared with {compared}")
    return {"text": text, "device": device, "arch": arch, "threads": count, "copy_gbs": rates, "baseline": compared}


def _progress(row: Row) -> None:
    if sys.stderr.isatty() or os.environ.get("CI"):
        print(f"{row.problem.name} {row.problem.direction}: {row.ratio:.2f}", file=sys.stderr, flush=True)


def print_rows(rows: Sequence[Row]) -> None:
    """The table, then the means."""
    columns = ("problem", "direction", "algorithm", "ours ms", "baseline ms", "ratio", "best", "GFLOP/s", "peak", "roofline",
               "bound", "error", "status")
    print_table(columns, [_cells(row) for row in rows], right=(*columns[3:9], "roofline", "error"))
    for name, values in summary(rows).items():
        print(f"{name}: {values['rows']} rows, geometric mean {values['mean']:.2f}, median {values['median']:.2f}, "
              f"lowest {values['lowest']:.2f} (each ratio capped at 6)")


def _cells(row: Row) -> tuple[str, ...]:
    missing = math.isnan(row.baseline_ms)
    return (row.problem.name or row.problem.describe(), row.problem.direction, row.algorithm, f"{row.ours_ms:.3f}",
            *("-" if missing else text for text in (f"{row.baseline_ms:.3f}", f"{row.ratio:.2f}", f"{row.best_ratio:.2f}")),
            f"{row.problem.flops / row.ours_ms / 1e6:.1f}", f"{row.peak:.0f}", f"{row.fraction:.0%}", row.bound,
            f"{row.error_ratio:.3f}", "ok" if row.ok else "WRONG")


def _write(path: str, head: dict[str, Any], rows: Sequence[Row]) -> None:
    document = {**head, "summary": summary(rows), "rows": [row.to_dict() for row in rows]}
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
