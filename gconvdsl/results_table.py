"""Measurements as the rows of tables: CSV and Parquet, both ways without loss.

The first columns are those of the seed system's benchmark (kernel, problem_idx, sizes, latency_ms, tflops, non_zero); the rest
holds the whole identity, the spread of the samples, and what failed why.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable

from . import problem_columns
from .choose import describe_config
from .config import KernelConfig
from .errors import GconvError, error
from .measurement import STATUSES, Case, Measurement, Times
from .problem_columns import from_columns, require_columns

__all__ = ["COLUMNS", "from_row", "read_table", "to_row", "write_table"]

_SIZES = problem_columns.COLUMNS[:problem_columns.COLUMNS.index("dilation_w") + 1]
_TIMES = ("samples", "latency_ms", "q1_ms", "q3_ms", "best_ms")
_WORDS = ("target", "arch", "device", "driver", "compiler", "threads", "environment", "spec", "mode", "package")
COLUMNS = ("kernel", "problem_idx", *_SIZES, "latency_ms", "tflops", "non_zero",
           *(name for name in problem_columns.COLUMNS if name not in _SIZES), "status", "reason", *_WORDS, "config",
           "kernel_hash",
           "samples", "q1_ms", "q3_ms", "best_ms", "gbs", "roofline", "error_ratio", "compile_s", "kind", "made", "version")
_NEEDED = ("N", "C", "K", "Hi", "Wi", "Y", "X", "direction", "dtype", "status", "target", "arch", "config", "environment")


def to_row(one: Measurement, index: int = 0) -> dict[str, Any]:
    """Column -> value; None and "" where there is none. ``kernel`` is the declaration and its configuration in words,
    ``non_zero`` the elements of a verified result, which has no unwritten ones."""
    case, times = one.case, one.times
    sizes, words = problem_columns.to_columns(case.problem), dict(case.environment)
    passed = one.status in ("PASS", "SLOW")
    row = {**sizes, "kernel": f"{case.kernel}: {describe_config(case.config)}", "problem_idx": index,
           "non_zero": math.prod(case.problem.shape(case.problem.result)) if passed else None,
           "status": one.status, "reason": one.reason, "target": case.target, "arch": case.arch,
           **{name: words.get(name, "") for name in ("device", "driver", "compiler", "threads")},
           "environment": json.dumps(words, sort_keys=True), "spec": case.spec and f"{case.kernel}:{case.spec}",
           "mode": case.mode, "package": case.package,
           "config": case.config.to_json(), "kernel_hash": one.kernel_hash, "gbs": one.gbs,
           "tflops": one.tflops, "roofline": one.fraction, "error_ratio": one.error_ratio, "compile_s": one.compile_s,
           "kind": one.kind, "made": one.made, "version": one.version}
    values = (times.samples, times.median_ms, times.q1_ms, times.q3_ms, times.best_ms) if times else (None,) * len(_TIMES)
    row.update(zip(_TIMES, values))
    return {name: row[name] for name in COLUMNS}


def from_row(row: Mapping[str, Any], path: str, line: int) -> Measurement:
    """The inverse of `to_row`. Raises ``table.value`` naming file, line and column."""
    given = {name: value for name, value in row.items() if value not in (None, "") and not _is_nan(value)}
    problem = from_columns(given, path, line)
    if given.get("status") not in STATUSES:
        raise error("table.value", path=path, line=line, column="status", value=given.get("status", ""),
                    expected=f"one of: {', '.join(STATUSES)}")

    def read(column: str, parse: Callable[[Any], Any], expected: str, default: Any = None) -> Any:
        if column not in given:
            return default
        try:
            return parse(given[column])
        except (ValueError, TypeError, GconvError):
            raise error("table.value", path=path, line=line, column=column, value=given[column], expected=expected) from None
    kernel, _, digest = str(given.get("spec", "convolution")).partition(":")
    case = Case(problem, read("config", KernelConfig.from_json, "a configuration in JSON", KernelConfig()),
                str(given.get("target", "")), str(given.get("arch", "")),
                read("environment", _words, "a JSON object of texts", {}),
                kernel, digest, str(given.get("mode", "warm")), str(given.get("package", "")))
    samples, *values = (read(name, float, "a number") for name in _TIMES)
    times = Times(int(samples), *values) if samples is not None and None not in values else None
    numbers = {name: read(name, float, "a number") for name in ("error_ratio", "compile_s", "made")}
    return Measurement(case, str(given["status"]), str(given.get("reason", "")), times, numbers["error_ratio"],
                       read("roofline", float, "a number"), str(given.get("kernel_hash", "")), numbers["compile_s"] or 0.0,
                       str(given.get("kind", "import")), numbers["made"] or 0.0, str(given.get("version", "")))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _words(text: Any) -> dict[str, str]:
    plain = json.loads(text)
    if not isinstance(plain, dict) or not all(isinstance(value, str) for value in plain.values()):
        raise ValueError(text)
    return plain


# --- files

def write_table(path: str, measurements: Iterable[Measurement]) -> int:
    """Write a .csv, or a .parquet (extra [ml]), beside the place and renamed at the end; how many rows."""
    indices: dict[str, int] = {}
    rows = [to_row(one, indices.setdefault(one.case.problem.identity(), len(indices))) for one in measurements]
    part = f"{path}.part-{os.getpid()}"
    try:
        (_write_parquet if _is_parquet(path) else _write_csv)(part, rows)
        os.replace(part, path)
    except OSError as failure:
        Path(part).unlink(missing_ok=True)
        raise error("table.write", path=path, reason=failure.strerror or str(failure), hint="") from None
    return len(rows)


def read_table(path: str) -> list[Measurement]:
    """The measurements of a .csv or .parquet that `write_table` wrote. Raises ``table.*`` naming file, line and column."""
    try:
        names, rows = _read_parquet(path) if _is_parquet(path) else _read_csv(path)
    except OSError as failure:
        raise error("table.file", path=path, reason=failure.strerror or str(failure), hint="") from None
    except (UnicodeDecodeError, csv.Error) as failure:
        raise error("table.file", path=path, reason=str(failure), hint="It must be a CSV file in UTF-8.") from None
    require_columns(path, names, _NEEDED, COLUMNS)
    return [from_row(row, path, line) for line, row in enumerate(rows, 2)]


def _is_parquet(path: str) -> bool:
    return path.endswith((".parquet", ".pq"))


def _write_csv(path: str, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _read_csv(path: str) -> tuple[list[str], list[dict[str, Any]]]:
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        rows = list(reader)
    for line, row in enumerate(rows, 2):
        if None in row:
            raise error("table.value", path=path, line=line, column="the last", value=",".join(row[None]),
                        expected="the end of the row")
    return list(reader.fieldnames or ()), rows


def _arrow(path: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise error("table.file", path=path, reason="Parquet needs pyarrow, which is not installed here",
                    hint='Install it: pip install "gconvdsl[ml]". Or use a .csv.') from None
    return pyarrow


def _write_parquet(path: str, rows: list[dict[str, Any]]) -> None:
    arrow = _arrow(path)
    whole = {"problem_idx", "non_zero", "samples", "ndim", *_SIZES, *(f"pad_{axis}_hi" for axis in "dhw")}
    real = {"latency_ms", "tflops", "q1_ms", "q3_ms", "best_ms", "gbs", "roofline", "error_ratio", "compile_s", "made"}
    kinds = {name: arrow.int64() if name in whole else arrow.float64() if name in real else arrow.string() for name in COLUMNS}
    schema = arrow.schema(list(kinds.items()))
    arrow.parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), path)


def _read_parquet(path: str) -> tuple[list[str], list[dict[str, Any]]]:
    arrow = _arrow(path)
    try:
        table = arrow.parquet.read_table(path)
    except (arrow.ArrowException, ValueError) as failure:
        raise error("table.file", path=path, reason=str(failure).splitlines()[0], hint="It must be a Parquet file.") from None
    return list(table.column_names), table.to_pylist()
