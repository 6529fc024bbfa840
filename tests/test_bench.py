from __future__ import annotations

import json
import math

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import bench, cli
from gconvdsl.errors import GconvError
from gconvdsl.roofline import Roofline

HEADER = ("name,N,G,C,K,D,H,W,Z,Y,X,stride_d,stride_h,stride_w,dilation_d,dilation_h,dilation_w,"
          "pad_d,pad_h,pad_w,pad_d_hi,pad_h_hi,pad_w_hi,ndim\n")
SMALL = HEADER + "small,2,4,16,16,1,8,9,1,3,3,1,1,2,1,1,1,0,1,1,0,1,1,2\nline,1,1,4,6,1,1,20,1,1,5,1,1,1,1,1,2,0,0,2,0,0,3,1\n"


class FixedRoofline(Roofline):
    """1000 operations a call, and 100 bytes a second."""

    def __init__(self) -> None:
        self.fma_loop, self.fma_flops = (lambda: None), 1000.0
        self.bandwidths = [(1e9, 100.0, "cache"), (math.inf, 10.0, "memory")]


class Slow:
    """A baseline with a form that is hopeless."""

    name = "slow"

    def __init__(self) -> None:
        self.calls = {"good": 0, "hopeless": 0}

    def contenders(self, problem, a, b):
        def work(form, size):
            def call():
                self.calls[form] += 1
                return np.ones(size).sum()
            return call
        return {"good": work("good", 1_000_000), "hopeless": work("hopeless", 30_000_000)}


@pytest.fixture
def small_file(tmp_path):
    path = tmp_path / "problems.csv"
    path.write_text(SMALL)
    return str(path)


def test_problems_of_a_file(small_file):
    small, line = bench.read_problems(small_file)
    assert small == gconv.ConvProblem(N=2, G=4, C=16, K=16, input=(8, 9), filter=(3, 3), stride=(1, 2), pad=1)
    assert line == gconv.ConvProblem(C=4, K=6, input=20, filter=5, dilation=2, pad=((2, 3),)) and line.name == "line"


def test_problems_of_the_package_are_real_layers():
    problems = {problem.name: problem for problem in bench.read_problems("cpu")}
    assert problems["replk31_dw_128c_56"].taps == 961 and problems["x3d_dw_108c"].ndim == 3
    assert sum(problem.G == 1 for problem in problems.values()) == 3


@pytest.mark.parametrize("text", [None, "name,N\na,1\n"])
def test_a_bad_problem_file(tmp_path, text):
    path = tmp_path / "bad.csv"
    if text:
        path.write_text(text)
    with pytest.raises(GconvError, match="bad.csv"):
        bench.read_problems(str(path))


def test_a_case_is_verified_and_compared_with_the_better_form(small_file):
    baseline, problem = Slow(), bench.read_problems(small_file)[0]
    row = bench.measure_case(problem, "cpu", FixedRoofline(), baseline, seconds=0.05)
    assert row.ok and 0 < row.error_ratio <= 1 and row.algorithm == "merged_groups"
    assert row.baseline_form == "good" and row.ratio == row.baseline_ms / row.ours_ms
    assert baseline.calls["hopeless"] <= 2 < baseline.calls["good"]


def test_without_a_baseline_there_is_no_ratio(small_file):
    row = bench.measure_case(bench.read_problems(small_file)[1], "cpu", FixedRoofline(), seconds=0.01)
    assert math.isnan(row.ratio) and row.to_dict()["ratio"] is None and json.dumps(row.to_dict())


def test_the_limit_is_the_larger_of_the_two_times():
    problem = gconv.ConvProblem(C=1, K=1, input=10, filter=1)
    assert (problem.flops, problem.bytes) == (20, 84)
    assert FixedRoofline().limit(problem, 1e-9 * 10) == (2.0, "fma")
    assert FixedRoofline().limit(problem, 1e-9 * 100) == (0.84, "cache")


def test_the_summary_caps_ratios():
    def row(groups, ratio):
        problem = gconv.ConvProblem(G=groups, C=4, K=4, input=4, filter=1)
        return bench.Row(problem, "", True, 0.0, 1.0, ratio, "", (1.0, ratio), 1.0, 1.0, "", 7)
    values = bench.summary([row(4, 2.0), row(2, 100.0), row(1, 0.5)])
    assert values["forward grouped"] == {"rows": 2, "mean": pytest.approx(math.sqrt(12)), "median": 4.0, "lowest": 2.0}
    assert values["forward dense"]["lowest"] == 0.5


def test_the_command(small_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GCONV_THREADS", "2")         # put back afterwards: the option sets it
    out = tmp_path / "rows.json"
    command = ["bench", "--problems", small_file, "--only", "small", "--seconds", "0.01", "--json", str(out), "--threads", "1"]
    assert cli.main(command) == 0
    printed = capsys.readouterr()
    assert printed.out.count("small") == 3 and "FMA peak" in printed.err
    document = json.loads(out.read_text())
    assert [row["direction"] for row in document["rows"]] == ["forward", "bwd_data", "bwd_weight"]
    assert all(row["ok"] and row["peak_gflops"] > 0 for row in document["rows"]) and document["threads"] == 1


def test_cpu_time_is_that_of_one_thread(small_file, tmp_path, monkeypatch):
    monkeypatch.setenv("GCONV_THREADS", "2")
    out = tmp_path / "rows.json"
    command = ["bench", "--problems", small_file, "--only", "line", "--direction", "forward", "--seconds", "0.01", "--cpu-time"]
    assert cli.main([*command, "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["threads"] == 1 and document["rows"][0]["ours_ms"] > 0


def test_the_command_measures_cpu_only(small_file, capsys):
    assert cli.main(["bench", "--problems", small_file, "--target", "sim:gfx942"]) == 2
    assert "cpu" in capsys.readouterr().err
