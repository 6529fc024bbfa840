"""The file of decisions: shared by processes, never in the way."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any, Callable

import pytest

from gconvdsl import cache, records
from gconvdsl.errors import StoreError

FAILED = {"stage": "compile", "reason": "error: \u201ctoo many registers\u201d", "codes": [1, 2]}


@pytest.fixture
def file(new_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The records of a process that has none yet."""
    monkeypatch.setattr(records, "_memory", {})
    return new_cache / "records.sqlite3"


def watched(action: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        value = action()
    return value, [str(one.message) for one in seen]


def use() -> Any:
    """What every run does; it must work whatever the file is like."""
    assert records.recall("never seen") is None
    records.remember("problem A", FAILED)
    records.remember("problem A", {**FAILED, "codes": []})
    records.forget("problem B")
    return records.recall("problem A")


def in_child(action: Callable[[], Any]) -> Any:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(action)


def recall_a() -> Any:
    return records.recall("problem A")


def test_a_decision_is_remembered_by_the_next_process(file: Path) -> None:
    assert use() == {**FAILED, "codes": []}
    assert in_child(recall_a) == {**FAILED, "codes": []}
    records.forget("problem A")
    assert records.recall("problem A") is None and in_child(recall_a) is None


def test_identities_are_compared_whole(file: Path) -> None:
    for identity in ("a", "A", "a ", "ab", "a" * 5000, "\N{SNOWMAN}"):
        assert records.recall(identity) is None
        records.remember(identity, {"for": identity})
    assert records.recall("a ") == {"for": "a "} and records.recall("a" * 5000) == {"for": "a" * 5000}
    assert records.info()["decisions"] == 6 and records.clear() == 6 and records.info()["decisions"] == 0


def test_a_changed_package_decides_afresh(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records.remember("problem A", FAILED)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "decision_hash", lambda: "of another version")
        assert records.recall("problem A") is None
        records.remember("problem A", {"stage": "launch"})
    assert records.recall("problem A") == FAILED


def _write_many(start: int) -> None:
    for number in range(start, start + 20):
        records.remember(f"problem {number}", {"number": number})


def test_several_processes_write_at_once(file: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_many, args=(100 * index,)) for index in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 6
    assert records.info()["decisions"] == 120 and records.recall("problem 519") == {"number": 519}


def test_several_threads_write_at_once(file: Path) -> None:
    threads = [threading.Thread(target=_write_many, args=(100 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert records.info()["decisions"] == 80


def test_a_forked_child_may_use_what_its_parent_used(file: Path) -> None:
    records.remember("problem A", FAILED)
    process = multiprocessing.get_context("fork").Process(target=_write_many, args=(0,))
    process.start()
    process.join(60)
    assert process.exitcode == 0 and records.info()["decisions"] == 21


def _overwrite_middle(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4096:8192] = os.urandom(4096)
    file.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "random bytes": lambda file: file.write_bytes(os.urandom(20_000)),
    "text": lambda file: file.write_text("not a database, but long enough to be read as the header of one: " * 20),
    "damaged page": _overwrite_middle,
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:5000]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_costs_one_warning_and_is_repaired(file: Path, damage: str) -> None:
    _write_many(0)
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)
    DAMAGE[damage](file)
    found, seen = watched(use)
    assert found == {**FAILED, "codes": []}
    assert len(seen) == 1 and str(file) in seen[0] or damage == "truncated" and not seen    # SQLite may see an empty table there
    assert in_child(recall_a) == found      # begun anew, not only in memory


def test_an_empty_file_is_a_new_one(file: Path) -> None:
    file.write_bytes(b"")
    found, seen = watched(use)
    assert found == {**FAILED, "codes": []} and seen == []


def test_a_directory_in_its_place(file: Path) -> None:
    file.mkdir()
    found, seen = watched(use)
    assert found == {**FAILED, "codes": []} and len(seen) == 1 and records.recall("problem A") == found


UNUSABLE = ["attempt to write a readonly database", "database or disk is full", "locking protocol", "disk I/O error"]


@pytest.mark.parametrize("message", UNUSABLE)
def test_a_file_that_cannot_be_used_is_replaced_by_memory(file: Path, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError(message)
    monkeypatch.setattr(sqlite3, "connect", refuse)
    found, seen = watched(use)
    assert found == {**FAILED, "codes": []} and len(seen) == 1 and message in seen[0]
    records.forget("problem A")
    assert records.recall("problem A") is None


def test_a_writer_that_holds_the_file_too_long(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records.remember("problem B", FAILED)
    monkeypatch.setattr(records, "BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN EXCLUSIVE")
        found, seen = watched(use)
    assert found == {**FAILED, "codes": []} and len(seen) == 1


def test_a_newer_file_is_left_alone_and_a_run_goes_on(file: Path) -> None:
    records.remember("problem A", FAILED)
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"PRAGMA user_version = {records.SCHEMA + 1}")
    before = file.read_bytes()
    with pytest.raises(StoreError) as caught:
        records.info()
    assert caught.value.code == "store.newer" and str(records.SCHEMA + 1) in str(caught.value)
    found, seen = watched(use)
    assert found == {**FAILED, "codes": []} and len(seen) == 1 and file.read_bytes() == before


def test_an_unwritable_cache_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_CACHE_DIR", "/proc/no/such")
    found, seen = watched(use)
    assert found == {**FAILED, "codes": []} and len(seen) == 1 and not file.exists()


def test_no_descriptor_is_left_open(file: Path) -> None:
    use()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        use()
    assert len(os.listdir("/proc/self/fd")) == before
