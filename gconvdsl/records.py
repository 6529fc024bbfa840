"""Decisions that outlive a process, in one SQLite file: which kernel was chosen, and which could not be built or launched.

A decision is a small JSON object under an identity: a string that names everything it depends on. Records are a convenience: a
file that is damaged is set aside and begun anew, one that cannot be written is replaced by memory, each with one warning.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from . import cache
from .cachedir import roots, warn_once
from .database import BUSY_SECONDS, connect, lock
from .errors import StoreError

if TYPE_CHECKING:
    import sqlite3

__all__ = ["SCHEMA", "clear", "forget", "info", "path", "recall", "remember"]

SCHEMA = 1
_TABLE = ("CREATE TABLE IF NOT EXISTS decisions (identity TEXT PRIMARY KEY, decision TEXT NOT NULL, made REAL NOT NULL) "
          "WITHOUT ROWID")

_T = TypeVar("_T")
_memory: dict[str, dict[str, Any]] = {}
_mutex = threading.Lock()


def path() -> Path:
    """The file."""
    return roots()[-1] / "records.sqlite3"


def _key(identity: str) -> str:
    """The identity with this package's kernels and rules named, so that a changed package decides afresh."""
    return f"{SCHEMA}:{cache.decision_hash()}:{identity}"


def recall(identity: str) -> dict[str, Any] | None:
    """The decision remembered for an identity, or None. ``identity`` names everything outside the package that it depends on:
    problem with direction, config, target, arch, device, driver, compiler, threads, ISA."""
    key = _key(identity)

    def read(database: sqlite3.Connection) -> dict[str, Any] | None:
        row = database.execute("SELECT decision FROM decisions WHERE identity = ?", (key,)).fetchone()
        return dict(json.loads(row[0])) if row else None
    with _mutex:
        return _memory.get(key) or _guarded(read, lambda: None)


def remember(identity: str, decision: dict[str, Any]) -> None:
    """Keep a decision, replacing an earlier one of the same identity."""
    key, text = _key(identity), json.dumps(decision)

    def write(database: sqlite3.Connection) -> None:
        database.execute("INSERT OR REPLACE INTO decisions VALUES (?, ?, ?)", (key, text, time.time()))
    with _mutex:
        _guarded(write, lambda: _memory.update({key: json.loads(text)}))


def forget(identity: str) -> None:
    """Drop a decision, if there is one."""
    key = _key(identity)
    with _mutex:
        _memory.pop(key, None)
        _guarded(lambda database: database.execute("DELETE FROM decisions WHERE identity = ?", (key,)), lambda: None)


def clear() -> int:
    """Drop all decisions; how many there were."""
    with _mutex:
        gone = len(_memory)
        _memory.clear()
        return gone + _guarded(lambda database: database.execute("DELETE FROM decisions").rowcount, lambda: 0)


def info() -> dict[str, Any]:
    """Where the file is and how full: path, decisions, bytes. Raises `StoreError` if a newer version wrote it."""
    import sqlite3
    file, decisions = path(), len(_memory)
    if not file.exists():
        return {"path": str(file), "decisions": decisions, "bytes": 0}
    with suppress(sqlite3.Error), closing(_open(file)) as database:
        decisions += database.execute("SELECT count(*) FROM decisions").fetchone()[0]
    return {"path": str(file), "decisions": decisions, "bytes": file.stat().st_size}


# --- the file

def _open(file: Path) -> sqlite3.Connection:
    return connect(file, (_TABLE,), BUSY_SECONDS)


def _use(action: Callable[[sqlite3.Connection], _T]) -> _T:
    with closing(_open(path())) as database, database:
        return action(database)


def _guarded(action: Callable[[sqlite3.Connection], _T], otherwise: Callable[[], _T]) -> _T:
    """``action`` on the file, ``otherwise`` where the file cannot be used."""
    import sqlite3
    try:
        try:
            return _use(action)
        except sqlite3.OperationalError:
            raise               # busy, read-only, full: the content is sound
        except (sqlite3.DatabaseError, ValueError, TypeError) as err:
            warn_once(f"records {path()}", f"The records {path()} are damaged ({err}); they are begun anew.")
            _set_aside(path())
            return _use(action)
    except StoreError as err:
        _to_memory(err.message)
    except (sqlite3.Error, OSError, RuntimeError, ValueError, TypeError) as err:
        _to_memory(f"The records {path()} cannot be used ({err}).")
    return otherwise()


def _to_memory(reason: str) -> None:
    warn_once(f"records {path()}", f"{reason} Decisions are kept only until this process ends.")


def _set_aside(file: Path) -> None:
    """Move a damaged file away, unless another process has already begun a new one."""
    with lock(file, BUSY_SECONDS):
        if not _sound(file):
            os.replace(file, f"{file}.damaged")
            for suffix in ("-wal", "-shm"):
                Path(f"{file}{suffix}").unlink(missing_ok=True)


def _sound(file: Path) -> bool:
    import sqlite3
    try:
        with closing(sqlite3.connect(file, timeout=BUSY_SECONDS)) as database:
            return bool(database.execute("PRAGMA quick_check").fetchone()[0] == "ok")
    except sqlite3.DatabaseError:
        return False
