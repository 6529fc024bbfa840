"""The command line: what it prints, its exit codes, and that a user's mistake is never a traceback."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gconvdsl import cases, choose, cli, cli_run, runner
from gconvdsl.cli_table import plain

PROBLEM = "N=2 G=2 C=8 K=8 input=6x5 filter=3x3 pad=1"
FILE = """\
problem small { N = 2  G = 2  C = 8  K = 8  input = 6x5  filter = 3x3  pad = 1 }
kernel plain for forward, bwd_weight { }
run plain on small
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.gconv"
    path.write_text(FILE)
    return path


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases run here rather than in a worker, and on the default target of a machine without a GPU."""
    monkeypatch.setattr(cli_run, "Worker", _Here)
    monkeypatch.setenv("GCONV_TARGET", "cpu")
    monkeypatch.chdir(Path(__file__).parent.parent)


class _Here:
    check_case = staticmethod(cases.check_case)

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def gconv(*arguments: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "gconvdsl.cli", *arguments], input=text, capture_output=True, text=True,
                          env={**os.environ, **environment}, timeout=120)


def test_help_is_quick_because_it_imports_nothing() -> None:
    code = ("import sys; from gconvdsl.cli import build_parser; build_parser().format_help(); "
            "print([m for m in ('numpy', 'lark', 'rich', 'cffi', 'sqlite3') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
    shown = gconv("--help")
    assert shown.returncode == 0 and all(name in shown.stdout for name in cli.COMMANDS)


def test_run_lists_every_direction_with_its_error_and_exits_0(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "kernel and problem" and "error" in lines[0]
    assert [re.split(r"  +", line)[1] for line in lines[1:]] == ["forward", "bwd_weight"]
    for line in lines[1:]:
        ratio, status = re.split(r"  +", line)[-2:]
        assert 0 < float(ratio) <= 1 and status == "ok"


def test_a_wrong_result_is_exit_1_and_says_where(file: Path, capsys: pytest.CaptureFixture[str],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: object, **named: object) -> runner.Result:
        result = runner.execute(*args, **named)  # type: ignore[arg-type]
        result.output[..., -1] = 0
        return result

    monkeypatch.setattr(cases, "execute", wrong)
    assert cli.main(["run", str(file)]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("WRONG") == 2 and "plain on small forward" in shown.err
    assert cli.main(["verify", "--problem", PROBLEM, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False and report["reason"]


def test_verify_prints_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "--problem", PROBLEM, "--direction", "all", "--target", "cpu", "--json"]) == 0
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [report["direction"] for report in reports] == ["forward", "bwd_data", "bwd_weight"]
    for report in reports:
        assert set(report) >= {"ok", "error_ratio", "zeros_exact", "config", "fallbacks", "compile_s", "run_s", "target"}
        assert report["ok"] is True and 0 < report["error_ratio"] <= 1 and report["zeros_exact"] is True and report["run_s"] > 0
        assert report["target"].startswith("cpu:")


def test_verify_reads_driver_commands_and_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    command = "./bin/MIOpenDriver conv -n 2 -c 8 -H 6 -W 5 -k 8 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -l 1 -j 1 -g 2 -F 4"
    assert cli.main(["verify", "--problem", command]) == 0
    out = capsys.readouterr().out
    assert "bwd_weight" in out and out.splitlines()[1].rstrip().endswith("ok")


@pytest.mark.parametrize("arguments, code", [
    (["run", "missing.gconv"], "syntax.file"),
    (["run", "."], "syntax.file"),
    (["run", "{file}", "--target", "tpu"], "launch.target"),
    (["run", "{file}", "--target", "sim:gfx000"], "compile.arch"),
    (["verify", "--problem", "N=1 C=8 K=8 input=4x4 filter=9x9"], "problem.filter"),
    (["verify", "--problem", "N=1 G=3 C=8 K=9 input=4 filter=1"], "problem.groups"),
    (["verify", "--problem", "N=1 C=8 K=8 input=4x4 filter=3x3 strid=2"], "problem.field"),
    (["verify", "--problem", "something else"], "problem.text"),
    (["verify", "--problem", PROBLEM, "--direction", "backwards"], "problem.direction"),
    (["explain", "{file}", "--kernel", "nope"], "usage.option"),
    (["explain", "{file}", "--problem", "nope"], "usage.option"),
    (["explain"], "usage.empty"),
    (["inspect", "--problem", PROBLEM, "--arch", "gfx1"], "compile.arch"),
    (["inspect", "--problem", PROBLEM, "--target", "cpu", "--what", "resources"], "usage.empty"),
    (["fmt", "missing.gconv"], "syntax.file"),
])
def test_mistakes_are_errors_with_a_code(arguments: list[str], code: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([argument.replace("{file}", str(file)) for argument in arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error[{code}]: ") and "Traceback" not in err and "{" not in err


def test_a_bad_variable_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_THREADS", "many")
    assert cli.main(["verify", "--problem", PROBLEM]) != 0
    assert "GCONV_THREADS" in "".join(capsys.readouterr())
    assert cli.main(["env"]) == 2
    assert "GCONV_THREADS" in capsys.readouterr().out


def test_errors_of_a_file_have_a_line_and_a_caret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.gconv"
    bad.write_text("problem p { N = 1  C = 4  K = 4  input = 5  filter = 3 }\nkernel k for forwrd { }\n")
    assert cli.main(["run", str(bad)]) == 2
    err = capsys.readouterr().err
    assert "bad.gconv:2:14" in err and "^^^^^^" in err
    bad.write_bytes(b"problem p \xff")
    assert cli.main(["check", str(bad)]) == 1
    assert "syntax.encoding" in capsys.readouterr().err


def test_check_finds_several_errors(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.gconv"
    bad.write_text("problem p { N = 1  C = 4  K = 4  input = 5  fliter = 3 }\nrun k on q\n")
    assert cli.main(["check", str(file)]) == 0
    assert cli.main(["check", str(file), str(bad)]) == 1
    assert capsys.readouterr().err.count("error[") >= 2


def test_fmt_keeps_meaning_and_permissions(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gconvdsl.grammar import load

    before = load(file)
    file.write_text("# a comment\n" + FILE.replace("  ", " ").replace("= ", "=   "))
    file.chmod(0o640)
    assert cli.main(["fmt", "--check", str(file)]) == 1
    assert cli.main(["fmt", str(file)]) == 0
    assert cli.main(["fmt", "--check", str(file)]) == 0
    assert load(file) == before and file.read_text().startswith("# a comment") and file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in file.parent.iterdir()] == ["small.gconv"]


def test_explain_and_inspect(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--problem", PROBLEM, "--direction", "bwd_data"]) == 0
    out = capsys.readouterr().out
    assert "bwd_data on cpu" in out and "m = 60, n = 4, k = 36" in out and "workspace" in out
    assert cli.main(["inspect", str(file)]) == 0
    assert "gconv" in capsys.readouterr().out
    assert cli.main(["inspect", "--problem", PROBLEM, "--arch", "gfx950"]) == 0
    assert "GCONV_KERNEL" in capsys.readouterr().out


def test_rules_env_doctor_and_cache(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["rules", "--arch", "gfx1100", "--dtype", "bf16"]) == 0
    assert "direct global-to-LDS" in capsys.readouterr().out
    assert cli.main(["env"]) == 0
    assert "GCONV_CACHE_DIR" in capsys.readouterr().out
    assert cli.main(["doctor", "--json"]) == 0
    json.loads(capsys.readouterr().out)
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path / "cache"))
    choose.forget()
    assert cli.main(["verify", "--problem", PROBLEM]) == 0
    capsys.readouterr()
    assert cli.main(["cache", "info"]) == 0 and cli.main(["cache", "verify"]) == 0
    assert "sound" in capsys.readouterr().out
    assert cli.main(["cache", "clear"]) == 0
    assert re.match(r"[1-9]\d* compiled", capsys.readouterr().out)


def test_the_repl_declares_runs_explains_and_goes_on_after_errors() -> None:
    session = ("problem p {\n  N = 1  C = 8  K = 8  # half of it\n  input = 5x5  filter = 3x3\n}\nkernel k for forward { }\n"
               "run k on q\nrun k on p\nproblem p { C = 4  K = 4  input = 9  filter = 3 }\nexplain k on p\n:list\n:quit\n"
               "run k on p\n")
    done = gconv("repl", text=session)
    assert done.returncode == 1, "there was an error"
    assert "syntax.unknown" in done.stderr and "^" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout.count("k on p") == 1 and "m = 7, n = 4, k = 12" in done.stdout
    assert "N = 1" not in done.stdout.partition("explain")[2]
    assert gconv("repl", text="kernel k for forward { }").returncode == 0


def heed_interrupts() -> None:
    """In the child: a shell starts background jobs, such as a whole test run, with SIGINT ignored, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_reader_that_leaves_and_an_interrupt_are_quiet() -> None:
    with subprocess.Popen([sys.executable, "-m", "gconvdsl.cli", "rules"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
    with subprocess.Popen([sys.executable, "-m", "gconvdsl.cli", "repl"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, preexec_fn=heed_interrupts) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(b":help\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130 and process.stderr.read() == b""


def test_a_worker_leaves_no_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gconvdsl.config import KernelConfig
    from gconvdsl.problem_text import parse_problem
    from gconvdsl.worker import Worker

    (tmp_path / "no directory").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path / "no directory"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with Worker() as worker, pytest.warns(RuntimeWarning, match="cannot be used"):
        assert worker.check_case(runner.bare_spec("forward"), KernelConfig(), parse_problem(PROBLEM), "cpu", kinds=("normal",)).ok
        assert list((tmp_path / "temporary").glob("gconvdsl-*"))
    assert not list((tmp_path / "temporary").glob("gconvdsl-*"))


def test_a_negative_seed_and_a_lack_of_memory_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    done = gconv("verify", "--problem", PROBLEM, "--seed", "-1")
    assert done.returncode == 2 and "-1 is not a whole number of at least 0" in done.stderr and "Traceback" not in done.stderr

    def full(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 38.1 GiB")

    from gconvdsl.config import KernelConfig
    from gconvdsl.problem_text import parse_problem

    monkeypatch.setattr(importlib.import_module("gconvdsl.verify"), "verify", full)    # the package has a function of this name
    lost = cases.check_case(runner.bare_spec("forward"), KernelConfig(), parse_problem(PROBLEM), "cpu")
    assert not lost.ok and "verify.memory" in lost.error and "38.1 GiB" in lost.error


def test_a_kernel_that_crashes_costs_one_case() -> None:
    from gconvdsl.config import KernelConfig
    from gconvdsl.problem_text import parse_problem
    from gconvdsl.worker import Worker

    problem = parse_problem(PROBLEM)
    with Worker() as worker:
        worker.start()
        threading.Timer(0.1, os.kill, (worker.process.pid, signal.SIGSEGV)).start()
        lost = worker.check_case(runner.bare_spec("forward"), KernelConfig(), problem, "cpu")
        assert not lost.ok and "SIGSEGV" in lost.error
        assert worker.check_case(runner.bare_spec("forward"), KernelConfig(), problem, "cpu").ok


def test_plain_tables_are_aligned() -> None:
    text = plain(("name", "ms"), [("a", "1.0"), ("long name", "10.0")], right=("ms",))
    assert text.splitlines() == ["name         ms", "a           1.0", "long name  10.0"]
