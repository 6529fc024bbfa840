"""The file of results: shared by processes, never losing a row, an error where it cannot be used."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gconvdsl as gconv
from gconvdsl import cli, database, results, results_table
from gconvdsl.errors import GconvError, StoreError
from gconvdsl.measurement import STATUSES, Case, Measurement, Times
from gconvdsl.results import Results, fastest
from gconvdsl.results_table import read_table, write_table

PROBLEM = gconv.ConvProblem(N=2, G=4, C=32, K=48, input=(8, 9), filter=3, pad=((0, 1), (2, 1)), dtype="fp16", name="odd")
CONFIG = gconv.KernelConfig(tile=gconv.Tile((64, 16, 64), name="m64"), pipeline="compv4", double_smem_buffer=True)
CASE = Case(PROBLEM, CONFIG, "sim", "gfx942", {"device": "a device", "compiler": "g++ 12, \u201cq\u201d"}, mode="cold")
PASSED = Measurement(CASE, "PASS", "", Times.of([1.0, 2.0, 3.5, 4.0]), 0.5, 0.25, "abc", 1.5, made=1000.0)
SHIFT = replace(CASE, problem=PROBLEM.replace(dilation=2).as_("bwd_data"))
ROWS = [PASSED, *(Measurement(replace(SHIFT, config=gconv.KernelConfig(split_k=i + 1)), status, f'"{status}",\n\u2713 {i}',
                              made=1001.0 + i) for i, status in enumerate(STATUSES))]


@pytest.fixture
def store(tmp_path: Path) -> Results:
    return Results(tmp_path / "results.sqlite3")


# --- rows

def test_median_and_quartiles() -> None:
    assert Times.of([4.0, 1.0, 3.0, 2.0]) == Times(4, 2.5, 1.75, 3.25, 1.0)
    assert Times.of([7.0]) == Times(1, 7.0, 7.0, 7.0, 7.0)


def test_rates_follow_from_the_problem() -> None:
    flops = 2 * 2 * 48 * (7 * 10) * 8 * 9
    one = Measurement(CASE, "PASS", times=Times.of([2.0]))
    assert PROBLEM.output == (7, 10) and one.tflops == pytest.approx(flops / 2e-3 / 1e12)
    nbytes = 2 * (2 * 32 * 72 + 48 * 8 * 9 + 2 * 48 * 70)
    assert one.gbs == pytest.approx(nbytes / 2e-3 / 1e9)
    assert Measurement(CASE, "CRASH").tflops is None and Measurement(CASE, "CRASH").gbs is None


OTHERS = {
    "arch": {"arch": "gfx950"}, "target": {"target": "hip"}, "mode": {"mode": "warm"}, "spec": {"spec": "d1"},
    "package": {"package": "older"}, "device": {"environment": {**CASE.environment, "device": "another"}},
    "compiler": {"environment": {**CASE.environment, "compiler": "g++ 13"}},
    "driver": {"environment": {**CASE.environment, "driver": "1"}}, "config": {"config": CONFIG.resolved(split_k=2)},
    **{name: {"problem": PROBLEM.replace(**change)} for name, change in {
        "dtype": {"dtype": "bf16", "out_dtype": "bf16"}, "out_dtype": {"out_dtype": "fp32"}, "dilation": {"dilation": 2},
        "pad": {"pad": 1}, "N": {"N": 3}, "stride": {"stride": 2}, "layout": {"layout": "ngchw"}}.items()},
    "direction": {"problem": PROBLEM.as_("bwd_data")},
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_key_tells_apart_what_differs(what: str) -> None:
    assert replace(CASE, **OTHERS[what]).key != CASE.key


def test_the_key_is_the_same_for_equal_cases() -> None:
    renamed = replace(CASE, problem=PROBLEM.replace(name="other"), config=CONFIG.resolved(tile=gconv.Tile((64, 16, 64))),
                      environment=dict(reversed(CASE.environment.items())))
    assert renamed.key == CASE.key


# --- the file

def test_rows_come_back_as_they_were_and_are_kept_once(store: Results) -> None:
    assert store.find() == [] and store.info()["rows"] == 0 and not store.path.exists()
    assert store.add(*ROWS) == len(ROWS) and store.add(*ROWS) == 0 and store.add() == 0
    assert store.find() == ROWS and store.info()["rows"] == len(ROWS) and store.info()["PASS"] == 2
    assert [one.case.problem.name for one in store.find(limit=2)] == ["odd", "odd"] and store.find(limit=2) == ROWS[-2:]


def test_filters(store: Results) -> None:
    store.add(*ROWS)
    assert store.find({"status": "CRASH, TIMEOUT"}) == [one for one in ROWS if one.status in ("CRASH", "TIMEOUT")]
    assert store.find({"direction": "forward", "dtype": None}) == [PASSED]
    assert store.find({"problem": "dilation=2"}) == ROWS[1:] and store.find({"problem": "odd"}) == ROWS
    assert store.find({"problem": "%"}) == [] and store.find({"target": "' OR 1=1 --"}) == []
    assert store.find(since=1002.5) == ROWS[3:]
    with pytest.raises(GconvError, match="Use one of"):
        store.find({"rowid": "1"})


def test_what_a_resumed_sweep_does_not_repeat(store: Results) -> None:
    store.add(*ROWS)
    keys = [one.case.key for one in ROWS]
    done = store.done([*keys, "never seen"] * 300)
    assert {one.status for one in done.values()} == set(STATUSES) - {"NO_DEVICE"}
    newer = replace(PASSED, status="WRONG", made=2000.0)
    store.add(newer, replace(PASSED, kind="import", status="CRASH", made=3000.0))
    assert store.done(keys)[CASE.key] == newer


def test_the_fastest_has_passed() -> None:
    slow, quick = (replace(PASSED, times=Times.of([t])) for t in (2.0, 1.0))
    wrong = replace(PASSED, status="WRONG", times=Times.of([0.1]))
    assert fastest([slow, wrong, quick]) is quick and fastest([wrong]) is None


def add_many(path: str, start: int, count: int) -> None:
    for number in range(start, start + count):
        Results(path).add(replace(PASSED, made=float(number)))


def test_several_processes_write_at_once(store: Results) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add_many, args=(str(store.path), 1000 * i, 25)) for i in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 6 and store.info()["rows"] == 150


WRITER = """
import sys
from dataclasses import replace
from tests.test_results import PASSED
from gconvdsl.results import Results
for number in range(10 ** 6):
    Results(sys.argv[1]).add(replace(PASSED, made=float(number)))
    print(number, flush=True)
"""


def test_a_killed_writer_loses_no_committed_row(store: Results) -> None:
    for _ in range(3):
        before = store.info()["rows"]
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(store.path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(before + 12)]
        os.kill(process.pid, signal.SIGKILL)
        said += process.stdout.readlines()
        process.wait()
        numbers = [int(line) for line in said if line.endswith("\n")]
        kept = {int(one.made) for one in store.find()}
        assert kept >= set(numbers) and len(kept) > before


def test_an_older_file_is_brought_up_to_date(store: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(results, "_SCHEMA", results._SCHEMA[:1])
        store.add(PASSED)
    monkeypatch.setattr(results, "_SCHEMA", (*results._SCHEMA, "ALTER TABLE results ADD COLUMN later TEXT"))
    assert store.find() == [PASSED] and store.add(PASSED) == 0
    with closing(sqlite3.connect(store.path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (3,)


def test_a_failed_migration_changes_nothing(store: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(PASSED)
    with monkeypatch.context() as patch:
        patch.setattr(results, "_SCHEMA", (*results._SCHEMA, "ALTER TABLE nothing ADD COLUMN later TEXT"))
        with pytest.raises(StoreError):
            store.find()
    assert store.find() == [PASSED]


def test_a_newer_file_is_an_error_and_left_alone(store: Results) -> None:
    store.add(PASSED)
    with closing(sqlite3.connect(store.path)) as file:
        file.execute(f"PRAGMA user_version = {len(results._SCHEMA) + 1}")
    before = store.path.read_bytes()
    for use in (store.find, store.info, lambda: store.add(*ROWS)):
        with pytest.raises(StoreError) as caught:
            use()
        assert caught.value.code == "store.newer" and str(store.path) in str(caught.value)
    assert store.path.read_bytes() == before


def test_a_locked_file_is_an_error_that_names_it(store: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(PASSED)
    monkeypatch.setattr(results, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError) as caught:
            store.add(*ROWS)
        assert caught.value.code == "store.locked" and str(store.path) in str(caught.value)
        assert store.find() == [PASSED]                 # readers of a file in WAL mode do not wait
    assert store.add(*ROWS) == len(ROWS) - 1


def test_a_file_that_is_being_made_is_waited_for(store: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "BUSY_SECONDS", 0.05)
    with database.lock(store.path), pytest.raises(StoreError) as caught:
        store.add(PASSED)
    assert caught.value.code == "store.locked"


@pytest.mark.parametrize("content", [b"not a database, but long enough for a header of one: " * 20, os.urandom(20_000)])
def test_a_damaged_file_is_an_error_and_left_alone(store: Results, content: bytes) -> None:
    store.path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        store.add(PASSED)
    assert caught.value.code == "store.damaged" and store.path.read_bytes() == content


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (Path("/proc/no/such/results"), tmp_path / "file" / "results", tmp_path):
        with pytest.raises(StoreError) as caught:
            Results(place).add(PASSED)
        assert caught.value.code == "store.unusable" and str(place) in str(caught.value)


def test_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert results.default_path().parent == Path(os.environ["GCONV_CACHE_DIR"])
    monkeypatch.setenv("GCONV_RESULTS", str(tmp_path / "mine"))
    assert results.default_path() == tmp_path / "mine"


# --- tables

@pytest.fixture(params=["csv", "parquet"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    return str(tmp_path / f"rows.{request.param}")


def test_tables_both_ways_without_loss(table: str) -> None:
    assert write_table(table, ROWS) == len(ROWS) and read_table(table) == ROWS
    assert write_table(table, []) == 0 and read_table(table) == []


def test_the_columns_of_the_seed_system_come_first() -> None:
    seed = ("kernel, problem_idx, N, C, K, G, Di, Hi, Wi, Z, Y, X, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, "
            "dilation_d, dilation_h, dilation_w, latency_ms, tflops, non_zero")
    assert ", ".join(results_table.COLUMNS[:24]) == seed
    row = results_table.to_row(PASSED, 5)
    assert (row["problem_idx"], row["pad_w"], row["pad_w_hi"], row["latency_ms"]) == (5, 2, 1, 2.75)
    assert row["non_zero"] == 2 * 48 * 70


def changed(path: str, **columns: str) -> None:
    import csv
    with open(path, newline="", encoding="utf-8") as file:
        rows = [{**row, **columns} for row in csv.DictReader(file)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


TABLE_FAULTS = {
    "status": ("FINE", "line 2: status = 'FINE'"), "config": ("{", "line 2: config = '{'"),
    "samples": ("many", "samples = 'many'"),
    "environment": ('{"device": 1}', "environment"), "roofline": ("all", "roofline = 'all'"), "G": ("5", "C = 32"),
    "extra": ("1", "'extra'"),
}


@pytest.mark.parametrize("column", TABLE_FAULTS)
def test_a_fault_of_a_table_names_file_line_and_column(tmp_path: Path, column: str) -> None:
    path, (value, shown) = str(tmp_path / "rows.csv"), TABLE_FAULTS[column]
    write_table(path, [PASSED])
    changed(path, **{column: value})
    with pytest.raises(GconvError) as caught:
        read_table(path)
    assert shown in str(caught.value) and path in str(caught.value)


def test_tables_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    for path in (tmp_path / "bad.parquet", tmp_path / "absent.csv"):
        with pytest.raises(GconvError) as caught:
            read_table(str(path))
        assert caught.value.code == "table.file" and str(path) in str(caught.value)
    with pytest.raises(GconvError) as caught:
        write_table("/proc/no/such.csv", ROWS)
    assert caught.value.code == "table.write"


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(GconvError, match=r"gconvdsl\[ml\]"):
        write_table(str(tmp_path / "a.parquet"), ROWS)


# --- the command

def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert cli.main(["results", *arguments]) == 0
    return capsys.readouterr().out


def test_the_command(store: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.add(*ROWS)
    place = ("--store", str(store.path))
    shown = listed(capsys, *place)
    assert f"{len(ROWS)} of {len(ROWS)} rows" in shown and "TIMEOUT: odd bwd_data" in shown and "2.7500" in shown
    assert "1 of 11 rows" in listed(capsys, *place, "--direction", "forward")
    documents = [json.loads(line) for line in listed(capsys, *place, "--json", "--status", "PASS").splitlines()]
    assert len(documents) == 2 and documents[0]["latency_ms"] == 2.75 and "reason" not in documents[0]
    table, other = str(tmp_path / "a.csv"), str(tmp_path / "other.sqlite3")
    assert f"{len(ROWS)} rows" in listed(capsys, *place, "--csv", table)
    assert "11 of 11 rows were new" in listed(capsys, "--store", other, "--read", table)
    assert "0 of 11 rows were new" in listed(capsys, "--store", other, "--read", table)
    assert Results(other).find() == ROWS


def test_the_command_says_what_is_wrong(store: Results, capsys: pytest.CaptureFixture[str]) -> None:
    store.path.write_text("no database " * 100)
    assert cli.main(["results", "--store", str(store.path)]) == 2
    assert "store.damaged" in capsys.readouterr().err


def test_an_empty_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "0 of 0 rows" in listed(capsys, "--store", str(tmp_path / "none"))
    assert time.time() > 0 and not (tmp_path / "none").exists()


def test_every_field_is_a_column_of_the_file(store: Results) -> None:
    store.add(PASSED)
    with closing(sqlite3.connect(store.path)) as file:
        columns: list[Any] = [row[1] for row in file.execute("PRAGMA table_info(results)")]
    assert columns == list(results._FIELDS)
