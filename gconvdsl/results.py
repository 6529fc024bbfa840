"""The results: every measurement, failure and verification, in one SQLite file that several processes write.

Unlike decisions (records.py), results are the user's data: they outlive `gconv cache clear`, and a file that cannot be used is an
error and is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from . import env
from .cachedir import roots
from .config import KernelConfig
from .database import connect
from .errors import error
from .measurement import FINAL, Case, Measurement, Times
from .problem_text import parse_problem

if TYPE_CHECKING:
    import sqlite3

__all__ = ["FILTERS", "Results", "default_path", "fastest"]

BUSY_SECONDS = 30.0
_FIELDS: dict[str, Callable[[Measurement], Any]] = {
    "key": lambda one: one.case.key, "made": lambda one: one.made, "kind": lambda one: one.kind,
    "status": lambda one: one.status, "reason": lambda one: one.reason, "name": lambda one: one.case.problem.name or "",
    "problem": lambda one: one.case.problem.identity(), "direction": lambda one: one.case.problem.direction,
    "dtype": lambda one: one.case.problem.dtype, "groups": lambda one: one.case.problem.G,
    "kernel": lambda one: one.case.kernel, "spec": lambda one: one.case.spec, "config": lambda one: one.case.config.to_json(),
    "target": lambda one: one.case.target, "arch": lambda one: one.case.arch,
    "environment": lambda one: json.dumps(dict(one.case.environment), sort_keys=True), "mode": lambda one: one.case.mode,
    "package": lambda one: one.case.package, "kernel_hash": lambda one: one.kernel_hash,
    "samples": lambda one: one.times and one.times.samples, "median_ms": lambda one: one.times and one.times.median_ms,
    "q1_ms": lambda one: one.times and one.times.q1_ms, "q3_ms": lambda one: one.times and one.times.q3_ms,
    "best_ms": lambda one: one.times and one.times.best_ms, "tflops": lambda one: one.tflops, "gbs": lambda one: one.gbs,
    "roofline": lambda one: one.fraction, "error_ratio": lambda one: one.error_ratio, "compile_s": lambda one: one.compile_s,
    "version": lambda one: one.version,
}
_SCHEMA = (
    """CREATE TABLE results (
        key TEXT NOT NULL, made REAL NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL, name TEXT NOT NULL,
        problem TEXT NOT NULL, direction TEXT NOT NULL, dtype TEXT NOT NULL, groups INTEGER NOT NULL, kernel TEXT NOT NULL,
        spec TEXT NOT NULL, config TEXT NOT NULL, target TEXT NOT NULL, arch TEXT NOT NULL, environment TEXT NOT NULL,
        mode TEXT NOT NULL, package TEXT NOT NULL, kernel_hash TEXT NOT NULL, samples INTEGER, median_ms REAL, q1_ms REAL,
        q3_ms REAL, best_ms REAL, tflops REAL, gbs REAL, roofline REAL, error_ratio REAL, compile_s REAL NOT NULL,
        version TEXT NOT NULL)""",
    "CREATE UNIQUE INDEX results_once ON results (key, made, kind, status)",
)
FILTERS = ("problem", "direction", "dtype", "target", "arch", "status", "kernel", "kind", "mode")
"""What `Results.find` filters by. ``problem`` is found in the name or the text; ``kernel`` in the name; the others are equal."""


def default_path() -> Path:
    """GCONV_RESULTS, else results.sqlite3 in the directory of the caches."""
    chosen = env.get("GCONV_RESULTS")
    return Path(chosen) if chosen else roots()[-1] / "results.sqlite3"


class Results:
    """A file of results. Threads and processes may use it at once; a row is committed when `add` returns.

    Raises `StoreError`: ``store.newer``, ``store.locked`` (after 30 s), ``store.damaged``, ``store.unusable``.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path else default_path()

    def add(self, *measurements: Measurement) -> int:
        """Keep measurements in one transaction; how many were new (a row is never kept twice)."""
        if not measurements:
            return 0
        rows = [tuple(read(one) for read in _FIELDS.values()) for one in measurements]
        marks = ", ".join("?" * len(_FIELDS))
        with self._database() as database:
            before = database.total_changes
            database.executemany(f"INSERT OR IGNORE INTO results ({', '.join(_FIELDS)}) VALUES ({marks})", rows)
            database.commit()
            return database.total_changes - before

    def find(self, filters: Mapping[str, str | None] | None = None, since: float = 0.0,
             limit: int | None = None) -> list[Measurement]:
        """The measurements that pass every filter, the newest ``limit`` of them, oldest first."""
        clauses: list[str] = ["made >= ?"]
        values: list[Any] = [since]
        for name, value in (filters or {}).items():
            if value is not None:
                clause, given = _clause(name, value)
                clauses.append(clause)
                values += given
        return self._select(f"WHERE {' AND '.join(clauses)} ORDER BY made DESC, rowid DESC LIMIT ?",
                            [*values, -1 if limit is None else limit])

    def done(self, keys: Sequence[str]) -> dict[str, Measurement]:
        """Of these cases' keys those that have a final row (`FINAL`), with the newest one."""
        found: dict[str, Measurement] = {}
        for start in range(0, len(keys), 500):      # SQLite limits the values of a statement
            part = keys[start:start + 500]
            marks = ", ".join("?" * len(part))
            final = ", ".join(f"'{status}'" for status in sorted(FINAL))
            rows = self._select(f"WHERE key IN ({marks}) AND kind IN ('sweep', 'tune') AND status IN ({final}) "
                                "ORDER BY made DESC, rowid DESC", list(part))
            found.update((one.case.key, one) for one in rows)
        return found

    def info(self) -> dict[str, Any]:
        """Path, rows by status, bytes."""
        if not self.path.exists():
            return {"path": str(self.path), "rows": 0, "bytes": 0}
        with self._database() as database:
            counts = dict(database.execute("SELECT status, count(*) FROM results GROUP BY status ORDER BY status").fetchall())
        return {"path": str(self.path), "rows": sum(counts.values()), **counts, "bytes": self.path.stat().st_size}

    def _select(self, clause: str, values: Sequence[Any]) -> list[Measurement]:
        if not self.path.exists():
            return []
        with self._database() as database:
            rows = database.execute(f"SELECT {', '.join(_FIELDS)} FROM results {clause}", values).fetchall()
        return [_measurement(dict(zip(_FIELDS, row))) for row in reversed(rows)]

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        import sqlite3
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(connect(self.path, _SCHEMA, BUSY_SECONDS)) as database:
                yield database
        except sqlite3.OperationalError as failure:
            if "locked" in str(failure) or "busy" in str(failure):
                raise error("store.locked", path=str(self.path), limit=f"{BUSY_SECONDS:g}") from None
            raise error("store.unusable", path=str(self.path), reason=failure) from None
        except sqlite3.DatabaseError as failure:
            raise error("store.damaged", path=str(self.path), reason=failure) from None
        except TimeoutError:                       # of the lock that is held while a file is made
            raise error("store.locked", path=str(self.path), limit=f"{BUSY_SECONDS:g}") from None
        except OSError as failure:
            raise error("store.unusable", path=str(self.path), reason=failure.strerror or failure) from None


def _clause(name: str, value: str) -> tuple[str, list[str]]:
    if name not in FILTERS:
        raise error("usage.option", what="The filter", value=name, hint=f"Use one of: {', '.join(FILTERS)}.")
    if name == "problem":
        return "(instr(name, ?) OR instr(problem, ?))", [value, value]
    if name == "kernel":
        return "instr(kernel, ?)", [value]
    names = [one.strip() for one in value.split(",")]
    return f"{name} IN ({', '.join('?' * len(names))})", names


def _measurement(row: Mapping[str, Any]) -> Measurement:
    problem = parse_problem(row["problem"]).replace(name=row["name"] or None)
    case = Case(problem, KernelConfig.from_json(row["config"]), row["target"], row["arch"], json.loads(row["environment"]),
                row["kernel"], row["spec"], row["mode"], row["package"])
    times = None
    if row["samples"]:
        times = Times(row["samples"], row["median_ms"], row["q1_ms"], row["q3_ms"], row["best_ms"])
    return Measurement(case, row["status"], row["reason"], times, row["error_ratio"], row["roofline"], row["kernel_hash"],
                       row["compile_s"], row["kind"], row["made"], row["version"])


def fastest(measurements: Iterable[Measurement]) -> Measurement | None:
    """The fastest that passed, or None."""
    return min((one for one in measurements if one.passed), key=lambda one: one.median_ms, default=None)
