"""SQLite files that several processes write: made once, in WAL mode, with a versioned schema that only grows.

A file's version is the number of statements of its schema that it has run. An older file is brought up to date when it is
opened; one that a newer version wrote is an error and is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import error

if TYPE_CHECKING:
    import sqlite3

    from filelock import FileLock

__all__ = ["BUSY_SECONDS", "connect", "lock"]

BUSY_SECONDS = 10.0     # how long one process waits for another's write


def connect(file: Path, schema: Sequence[str], busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """A connection of its own for each use: nothing is shared with threads or forked children.

    ``schema``: the statements of version 1, 2, ... A committed row survives the death of the process. Raises ``store.newer`` and
    the errors of sqlite3.
    """
    import sqlite3
    database = sqlite3.connect(file, timeout=busy_seconds)
    try:
        if _version(database) < len(schema):
            with lock(file, busy_seconds):       # SQLite does not wait when two processes switch a new file to WAL at once
                _migrate(database, schema)
        found = _version(database)
        if found > len(schema):
            raise error("store.newer", path=str(file), found=found, known=len(schema))
        database.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        database.close()
        raise
    return database


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _migrate(database: sqlite3.Connection, schema: Sequence[str]) -> None:
    """Run what is missing; each statement and its version number become visible together."""
    if _version(database) == 0:
        database.execute("PRAGMA journal_mode = WAL")
    for number in range(_version(database), len(schema)):
        database.execute("BEGIN IMMEDIATE")
        database.execute(schema[number])
        database.execute(f"PRAGMA user_version = {number + 1}")
        database.commit()


def lock(file: Path, busy_seconds: float = BUSY_SECONDS) -> FileLock:
    """Held to make or replace a file, which SQLite's own locks do not cover."""
    from filelock import FileLock
    return FileLock(f"{file}.lock", timeout=busy_seconds, fallback_to_soft=False)
