"""Sweeps: every way in which a kernel can fail is a row, nothing is measured twice, and a killed sweep goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fault_target
import pytest

import gconvdsl as gconv
from gconvdsl import cli, processes, results
from gconvdsl.choose import settle
from gconvdsl.measurement import Measurement
from gconvdsl.results import Results
from gconvdsl.runner import bare_spec
from gconvdsl.sweep import Item, Options, Sweep, items_for

PROBLEM = gconv.ConvProblem(C=1, K=1, input=(3, 3), filter=(1, 1), name="tiny")
TILED = settle(PROBLEM, gconv.KernelConfig(pipeline="basic_v1"), "fault", fault_target.ARCH)
FAST = Options("fault:gfx942", workers=1, seconds=0.02, timeout=1.5, hopeless=3.0)


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The measuring processes know the target as well; the launches are logged."""
    monkeypatch.setattr(processes, "IMPORTS", ["fault_target"])
    monkeypatch.setenv("FAULT_LOG", str(tmp_path / "log"))
    (tmp_path / "log").touch()
    yield tmp_path / "log"


@pytest.fixture
def store(tmp_path: Path) -> Results:
    return Results(tmp_path / "results.sqlite3")


def item(kind: int, problem: gconv.ConvProblem = PROBLEM) -> Item:
    return Item(bare_spec(problem.direction), problem, TILED.resolved(block_per_cu=kind))


def measured(store: Results, items: list[Item], options: Options = FAST) -> list[Measurement]:
    with Sweep(options, store) as sweep:
        return list(sweep.run(items))


def launches(log: Path) -> Counter[str]:
    return Counter(log.read_text().splitlines())


def test_every_way_to_fail_is_a_row(store: Results, faults: Path) -> None:
    kinds = range(fault_target.RIGHT, fault_target.SLOW + 1)
    illegal = Item(bare_spec("forward"), PROBLEM, TILED.resolved(num_groups_to_merge=2))
    rows = measured(store, [*map(item, kinds), illegal])
    found = {one.case.config.block_per_cu: one for one in rows}
    expected = {"RIGHT": "PASS", "WRONG": "WRONG", "CRASH": "CRASH", "HANG": "TIMEOUT", "NO_COMPILE": "COMPILE_ERROR",
                "NO_LAUNCH": "LAUNCH_ERROR", "TWIN": "DUPLICATE", "FASTER": "PASS", "SLOW": "SLOW"}
    assert {name: found[getattr(fault_target, name)].status for name in expected} == expected
    assert found[None].status == "ILLEGAL" and "num_groups_to_merge" in found[None].reason
    assert "SIGSEGV" in found[fault_target.CRASH].reason and "1.5 s" in found[fault_target.HANG].reason
    assert "too many registers" in found[fault_target.NO_COMPILE].reason
    assert "block_per_cu=1" in found[fault_target.TWIN].reason and "NaN" in found[fault_target.WRONG].reason
    assert found[fault_target.WRONG].times is None
    right, faster = found[fault_target.RIGHT], found[fault_target.FASTER]
    assert faster.median_ms < right.median_ms and right.error_ratio is not None and right.error_ratio <= 1
    assert right.kernel_hash and right.tflops and right.times and right.times.samples >= 5
    assert {one.case.key for one in store.find()} == {one.case.key for one in rows} and len(store.find()) == len(rows)


def test_what_is_known_is_not_measured_again(store: Results, faults: Path) -> None:
    items = [item(kind) for kind in (fault_target.RIGHT, fault_target.CRASH, fault_target.WRONG, fault_target.TWIN)]
    first, before = measured(store, items), launches(faults)
    with Sweep(FAST, store) as sweep:
        second = sorted(sweep.run([*items, item(fault_target.FASTER)]), key=lambda one: one.made)
        assert sweep.reused == 4
    assert second[:4] == sorted(first, key=lambda one: one.made) and launches(faults) - before == {"8": launches(faults)["8"]}
    measured(store, items[:1], replace(FAST, again=True))
    assert launches(faults)["1"] > before["1"] and store.info()["rows"] == 6


CHANGES = {"device": {"FAULT_DEVICE": "another"}, "compiler": {"FAULT_COMPILER": "another"}, "mode": {}, "dilation": {},
           "dtype": {}}


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_measured_elsewhere_is_not_known_here(store: Results, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    measured(store, [item(fault_target.RIGHT)])
    for name, value in CHANGES[what].items():
        monkeypatch.setenv(name, value)
    problem = PROBLEM.replace(**{"dilation": {"dilation": 2}, "dtype": {"dtype": "fp16"}}.get(what, {}))
    with Sweep(replace(FAST, mode="cold" if what == "mode" else "warm"), store) as sweep:
        rows = list(sweep.run([item(fault_target.RIGHT, problem)]))
        assert sweep.reused == 0 and len(rows) == 1


def test_without_a_device_the_reason_is_told_and_it_is_tried_again(store: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    from gconvdsl.backends.base import Detection

    with monkeypatch.context() as patch:
        patch.setattr(fault_target.FaultBackend, "detect", lambda self: Detection(False, None, "it is unplugged"))
        assert [(one.status, one.reason) for one in measured(store, [item(1)])] == [("NO_DEVICE", "it is unplugged")]
    assert [one.status for one in measured(store, [item(1)])] == ["PASS"]
    assert [one.status for one in measured(store, [item(1)])] == ["PASS"] and store.info()["rows"] == 2


def test_a_store_that_is_locked_for_long_loses_nothing(store: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add()
    items = [item(fault_target.RIGHT), item(fault_target.WRONG), item(fault_target.FASTER)]
    with Sweep(FAST, store) as sweep:
        running = sweep.run(items)
        assert next(running).status == "PASS"
        monkeypatch.setattr(results, "BUSY_SECONDS", 0.05)
        with closing(sqlite3.connect(store.path)) as other, pytest.warns(RuntimeWarning, match="written later"):
            other.execute("BEGIN EXCLUSIVE")
            assert next(running).status == "WRONG" and store.info()["rows"] == 1
        assert next(running).status == "PASS" and store.info()["rows"] == 3


def test_a_deadline_ends_a_sweep(store: Results) -> None:
    assert measured(store, [item(1), item(8)], replace(FAST, deadline=time.monotonic() - 1)) == []


def test_two_declarations_of_one_problem_have_their_own_rows(store: Results) -> None:
    @gconv.kernel
    def biased(x, w, b: gconv.PerK):      # type: ignore[no-untyped-def]
        return gconv.conv(x, w) + b
    rows = measured(store, [item(1), Item(biased.spec, PROBLEM, TILED.resolved(block_per_cu=1))])
    assert [(one.status, one.case.kernel) for one in rows] == [("PASS", "convolution"), ("PASS", "biased")]


# --- killed in the middle

RUNNER = """
import os, sys
sys.path[:0] = {path!r}
import fault_target
from gconvdsl import processes
processes.IMPORTS.append("fault_target")
from test_sweep import FAST, some_items
from gconvdsl.sweep import Sweep
from gconvdsl.results import Results
with Sweep(FAST, Results(sys.argv[1])) as sweep:
    for one in sweep.run(some_items(int(sys.argv[2]))):
        print(one.case.key, flush=True)
"""


def some_items(count: int) -> list[Item]:
    """Kernels with distinct binaries; every seventh is wrong, every eleventh crashes."""
    odd = {0: fault_target.WRONG, 1: fault_target.CRASH}
    problems = [PROBLEM.replace(N=1 + i // 8, name=f"p{i // 8}") for i in range(count)]
    return [item(odd.get(i % 16, 10 + i), problem) for i, problem in enumerate(problems)]


def start(store: Results, count: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = RUNNER.format(path=[str(Path(__file__).parent)])
    return subprocess.Popen([sys.executable, "-c", code, str(store.path), str(count)], stdout=subprocess.PIPE, text=True, env=environment)


def test_a_sweep_that_is_killed_goes_on_where_it_was(store: Results) -> None:
    count, kills, chance = 40, 3, random.Random(5)
    seen: set[str] = set()
    for _ in range(kills):
        with start(store, count) as process:
            assert process.stdout is not None
            told = [process.stdout.readline().strip() for _ in range(len(seen) + chance.randrange(2, 8))]
            time.sleep(chance.random() * 0.05)
            process.send_signal(signal.SIGKILL)
        assert seen <= set(told) or len(told) < len(seen)
        seen |= set(filter(None, told))
        assert seen <= {one.case.key for one in store.find()}          # what was told was committed before
    with start(store, count) as process:
        assert process.stdout is not None and len(process.stdout.read().splitlines()) == count and process.wait() == 0
    rows = store.find()
    assert len(rows) == count == len({one.case.key for one in rows})    # complete, and nothing twice
    assert Counter(one.status for one in rows) == {"PASS": 34, "WRONG": 3, "CRASH": 3}


def test_two_sweeps_at_once_share_the_work(store: Results, faults: Path) -> None:
    both = [start(store, 24) for _ in range(2)]
    for process in both:
        assert process.stdout is not None and len(process.stdout.read().splitlines()) == 24 and process.wait() == 0
    rows = store.find()
    assert len(rows) == 24 == len({one.case.key for one in rows})


# --- the command, on target cpu

FILE = """
problem a { N = 1  G = 2  C = 8  K = 8  input = 5x6  filter = 3x3  pad = 1 }
problem b { N = 1  G = 2  C = 8  K = 8  input = 7x6  filter = 3x3  pad = 1  direction = bwd_data }
kernel biased for forward (bias: per_k) { epilogue = relu(acc + bias) }
sweep blocks for forward { cpu_algorithm in { direct }  cpu_points in { 2, 4 }  where Cg < 100 }
bench biased, blocks on a -> "a.csv"
bench blocks on b
"""


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main([*arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_bench_statements_are_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.gconv").write_text(FILE)
    place = ("--store", str(tmp_path / "r.sqlite3"), "--target", "cpu", "--seconds", "0.01", "--workers", "1")
    code, out, err = command(capsys, "bench", "f.gconv", *place, "--csv", "all.csv")
    assert code == 0, out + err
    assert "a.csv: 3 rows" in out and "PASS 3" in out and "bwd_data" in out and "relu" not in err
    assert "3 results, 3 of them known before" in command(capsys, "bench", "f.gconv", *place)[1]
    rows = Results(tmp_path / "r.sqlite3").find()
    assert {(one.case.kernel, one.case.problem.direction) for one in rows} == {("biased", "forward"), ("convolution", "forward"),
                                                                               ("convolution", "bwd_data")}
    assert all(one.fraction and one.times and one.error_ratio is not None for one in rows)


def test_problems_and_configurations_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.csv").write_text("name,N,C,K,G,Hi,Wi,Y,X,pad_h,pad_w\nsmall,1,8,8,2,5,6,3,3,1,1\n")
    configs = [{}, {"cpu_algorithm": "direct", "cpu_points": 2}, {"cpu_algorithm": "depthwise"}]
    (tmp_path / "c.json").write_text(json.dumps(configs))
    table = str(tmp_path / "out.csv")
    code, out, err = command(capsys, "bench", "--problems", str(tmp_path / "p.csv"), "--configs", str(tmp_path / "c.json"), "--direction",
                             "forward", "--seconds", "0.01", "--store", str(tmp_path / "r"), "--csv", table, "--workers", "1", "--cold")
    assert code == 0 and "ILLEGAL 1, PASS 2" in out, out + err
    from gconvdsl.results_table import read_table

    assert Counter((one.status, one.case.mode) for one in read_table(table)) == {("PASS", "cold"): 2, ("ILLEGAL", "cold"): 1}


BAD_JSON = {
    "no JSON": ("[{]", "c.json:1:3"), "no object": ("[3]", "configuration 1"), "unknown field": ('[{"pipelin": "mem"}]', "pipelin"),
    "bad value": ('[{}, {"split_k": 0}]', "configuration 2"), "bad tile": ('[{"tile": {"blok": [1, 2, 3]}}]', "blok"),
    "empty": ("[]", "lists no configuration"), "a table without tiles": ('{"trait_config": {}}', "tile_config"),
}


@pytest.mark.parametrize("fault", BAD_JSON)
def test_a_faulty_configuration_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    text, shown = BAD_JSON[fault]
    (tmp_path / "c.json").write_text(text)
    code, _, err = command(capsys, "bench", "--configs", str(tmp_path / "c.json"), "--store", str(tmp_path / "r"))
    assert code == 2 and shown in err and "c.json" in err and not (tmp_path / "r").exists()


def test_other_mistakes_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.gconv").write_text("problem a { C = 8  K = 8  input = 5x6  filter = 3x3 }\n")
    for arguments, shown in (([str(tmp_path / "none.gconv")], "no bench statement"), (["--configs", "everything"], "few"),
                             (["--configs", "few", "--problems", "nothing"], "networks")):
        code, _, err = command(capsys, "bench", *arguments, "--store", str(tmp_path / "r"))
        assert code == 2 and shown in err


def test_only_legal_values_stand_for_a_star() -> None:
    from gconvdsl.search import choices_for

    problem = gconv.ConvProblem(N=4, G=4, C=64, K=64, input=(8, 8), filter=(3, 3), pad=1, dtype="fp16")
    names = {arch: [one["pipeline"][0] for one in choices_for(problem, "hip", arch)("pipeline")] for arch in ("gfx942", "gfx1100")}
    assert "comp_async" in names["gfx942"] and "comp_async" not in names["gfx1100"] and "compv4" in names["gfx1100"]
    compv4 = next(one for one in choices_for(problem, "hip", "gfx942")("pipeline") if one["pipeline"] == ("compv4",))
    assert compv4["double_smem_buffer"] is True


@pytest.mark.parametrize("name", ["default", "pipelines", "few"])
@pytest.mark.parametrize("target, arch", [("cpu", "avx2"), ("cuda", "sm_90"), ("hip", "gfx942"), ("hip", "gfx1100")])
def test_the_sets_hold_legal_configurations_in_full(name: str, target: str, arch: str) -> None:
    from gconvdsl.rules import check
    from gconvdsl.search import config_set

    problem = gconv.ConvProblem(N=4, G=4, C=64, K=64, input=(8, 8), filter=(3, 3), pad=1, dtype="fp16")
    configs = config_set(name)(problem, target, arch)
    assert len(set(configs)) == len(configs) >= 1
    legal = [one for one in configs if not check(problem, one, "cpu" if target == "cpu" else arch)]
    assert len(legal) == len(configs) or name == "pipelines"
    assert all(one.tile for one in configs if one.pipeline)


def test_items_are_distinct() -> None:
    from gconvdsl.search import config_set

    items = items_for([PROBLEM, PROBLEM.replace(name="again")], config_set("default"), "cpu", bare_spec)
    assert len(items) == 1


# --- 200 kernels x 20 problems

def cpu_items(count: int) -> list[Item]:
    """``count`` register blocks on 20 problems that share their binaries."""
    configs = [gconv.KernelConfig(cpu_algorithm="direct", cpu_points=points, cpu_vectors=vectors)
               for points in range(1, 25) for vectors in (1, 2, 3)][:count]
    problems = [gconv.ConvProblem(N=1 + i % 2, G=2, C=32, K=32, input=(5 + i, 6), filter=(3, 3), pad=1, name=f"p{i}")
                for i in range(20)]
    return [Item(bare_spec("forward"), problem, config) for problem in problems for config in configs]


CPU_RUNNER = """
import sys
sys.path[:0] = {path!r}
from test_sweep import cpu_items
from gconvdsl.sweep import Options, Sweep
from gconvdsl.results import Results
for isa in sys.argv[3:]:
    with Sweep(Options("cpu:" + isa, workers=2, seconds=0.002), Results(sys.argv[1])) as sweep:
        for one in sweep.run(cpu_items(int(sys.argv[2]))):
            pass
print("complete", flush=True)
"""


@pytest.mark.nightly
def test_200_kernels_on_20_problems_killed_10_times(store: Results) -> None:
    """200 kernels: register blocks of every instruction set that the processor has."""
    from gconvdsl.backends.cpu import host_isas

    isas = host_isas()
    blocks = min(72, -(-200 // len(isas)))
    items = len(cpu_items(blocks)) * len(isas)
    code = CPU_RUNNER.format(path=[str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    chance, kills, told = random.Random(int(os.environ.get("GCONV_TEST_SEED", "1"))), 0, ""
    while not told:
        with subprocess.Popen([sys.executable, "-c", code, str(store.path), str(blocks), *isas], stdout=subprocess.PIPE,
                              text=True, env=environment) as process:
            before, step = store.info()["rows"], chance.randrange(1, items // 10)
            while process.poll() is None and (kills >= 10 or store.info()["rows"] < before + step):
                time.sleep(0.05)
            if process.poll() is None:
                time.sleep(chance.random())
                process.send_signal(signal.SIGKILL)
                kills += 1
            else:
                assert process.stdout is not None
                told = process.stdout.read()
                assert process.returncode == 0
    rows: list[Any] = store.find()
    print(f"{len(rows)} rows, {kills} kills, {Counter(one.status for one in rows)}")
    assert told == "complete\n" and kills == 10
    assert len(rows) == items == len({one.case.key for one in rows})
    assert {one.status for one in rows} <= {"PASS", "DUPLICATE"}
