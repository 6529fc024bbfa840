"""The REPL: expressions, commands, completion, undo, the memo of results, input of several lines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import memo, repl_expr, repl_input
from gconvdsl.cases import Outcome
from gconvdsl.errors import GconvError
from gconvdsl.repl import Repl
from gconvdsl.repl_commands import COMMANDS
from gconvdsl.repl_complete import candidates

SMALL = "problem small { N = 1  G = 2  C = 8  K = 8  input = 6x5  filter = 3x3  pad = 1 }"
FUSED = "kernel fused for forward (bias: per_k) { epilogue = relu(acc + bias) }"


@pytest.fixture
def session() -> Repl:
    made = Repl("cpu")
    made.enter(SMALL)
    made.enter(FUSED)
    return made


# --- expressions

@pytest.mark.parametrize(("text", "value"), [
    ("1 + 2 * 3", 7), ("-(2 ** 10) // 3", -342), ("[1, 2][-1]", 2), ("'ab'.upper()", "AB"), ("(1, *[2, 3])[1:]", (2, 3)),
    ("{'a': 1}['a'] if 1 < 2 <= 2 else 0", 1), ("not (0 or [])", True), ("max(4, n)", 5), ("sum(range(4))", 6), ("dict(a=1, **{'b': 2})", {"a": 1, "b": 2}),
    ("3 in (1, 3) and n", 5),
])
def test_expressions(text: str, value: Any) -> None:
    assert repl_expr.evaluate(text, {"n": 5}) == value


@pytest.mark.parametrize("text", ["x.__class__", "(1).__class__", "__import__('os')", "lambda: 1", "[a for a in 'ab']", "open('f')", "1 +", "n = 2",
                                  "exec('1')", "eval('1')", "getattr(1, '__class__')", "2 ** 99999999", "f'{1}'", "(yield)"])
def test_what_is_not_an_expression_of_data_is_refused(text: str) -> None:
    with pytest.raises(GconvError) as caught:
        repl_expr.evaluate(text, {"x": 1})
    assert caught.value.code == "usage.expression"


def test_declared_names_and_kept_values(session: Repl, capsys: pytest.CaptureFixture[str]) -> None:
    session.enter("small.flops")
    session.enter("x = np.ones(small.shape('x'), 'float32')")
    session.enter("fused(x, np.ones(small.shape('w'), 'float32'), np.zeros(8, 'float32'), problem=small).shape")
    assert capsys.readouterr().out.splitlines() == [str(2 * 30 * 8 * 4 * 9), "(1, 6, 5, 2, 4)"]
    session.enter(":list")
    assert "x = ndarray of shape (1, 6, 5, 2, 4)" in capsys.readouterr().out
    with pytest.raises(GconvError, match="ZeroDivisionError"):
        session.enter("1 / 0")


# --- commands

def test_every_command_is_in_the_help(session: Repl, capsys: pytest.CaptureFixture[str]) -> None:
    session.enter(":help")
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    with pytest.raises(GconvError, match=":source"):
        session.enter(":sorce fused on small")


@pytest.mark.parametrize(("line", "words"), [
    (":run fused on small", "ok"), (":bench fused on small", "ok"), (":explain fused on small", "algorithm"), ("explain fused on small", "algorithm"),
    (":source fused on small", "gconv_convolve"), (":compare fused, fused on small", "ms"), (":target", "cpu:"), (":arch", "arch here"),
    (":tune fused on small within 1ms", "@gconv.kernel"),
])
def test_commands(session: Repl, capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    session.enter(line)
    assert words in capsys.readouterr().out


def test_targets(session: Repl, capsys: pytest.CaptureFixture[str]) -> None:
    session.enter(":target sim:gfx942")
    session.enter(":arch gfx950")
    assert session.target == "sim:gfx950" and "sim:gfx950" in capsys.readouterr().out
    with pytest.raises(GconvError):
        session.enter(":target nowhere")
    assert session.target == "sim:gfx950"


def test_undo_and_save(session: Repl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session.enter("problem small { C = 4  K = 4  input = 4x4  filter = 1x1 }")
    session.enter(":undo")
    assert "problem small" in capsys.readouterr().out and session.chunks == [SMALL, FUSED]
    path = tmp_path / "kept.gconv"
    session.enter(f":save {path}")
    assert list(gconv.load(str(path)).problems) == ["small"] and list(gconv.load(str(path)).kernels) == ["fused"]
    for _ in range(2):
        session.enter(":undo")
    assert session.chunks == []
    with pytest.raises(GconvError, match="undo"):
        session.enter(":undo")
    with pytest.raises(GconvError, match="no/such"):
        session.enter(":save /no/such/place.gconv")


def test_a_failed_declaration_changes_nothing(session: Repl) -> None:
    with pytest.raises(GconvError):
        session.enter("problem small { C = 4  K = 4  input = 4x4  filter = 9x9 }")
    assert session.chunks == [SMALL, FUSED]


# --- the memo

def test_a_repeated_run_is_known(session: Repl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path))
    session.enter(":memo on")
    session.enter("run fused on small")
    assert session.memo is not None and (session.memo.hits, session.memo.misses) == (0, 1)
    monkeypatch.setattr("gconvdsl.repl.check_case", None)               # nothing may compute now
    session.enter("run fused on small")
    assert (session.memo.hits, session.memo.misses) == (1, 1) and capsys.readouterr().out.count("ok") == 2
    session.enter(":memo clear")
    assert "1 results forgotten" in capsys.readouterr().out


def test_the_memo_tells_what_matters_apart(tmp_path: Path) -> None:
    kept = memo.Memo(tmp_path)
    problem = gconv.ConvProblem(C=4, K=4, input=4, filter=3)
    spec, config = gconv.KernelSpec("k"), gconv.KernelConfig()
    base = kept.key(spec, problem, config, "cpu", {"a": np.zeros(2)})
    assert base == kept.key(gconv.KernelSpec("other"), problem.replace(name="named"), config, "cpu", {"a": np.zeros(2)})
    others = [kept.key(spec, problem.replace(pad=1), config, "cpu", {"a": np.zeros(2)}),
              kept.key(spec, problem, gconv.KernelConfig(strict_nonfinite=True), "cpu", {"a": np.zeros(2)}),
              kept.key(spec, problem, config, "cpu", {"a": np.zeros(2, np.float32)}), kept.key(spec, problem, config, "cpu", {"a": np.zeros((1, 2))}),
              kept.key(spec, problem, config, "cpu", {"a": np.ones(2)}), kept.key(spec, problem, config, "cpu", {"b": np.zeros(2)})]
    assert len({base, *others}) == 7


def test_wrong_results_and_damaged_entries_are_not_remembered(tmp_path: Path) -> None:
    kept = memo.Memo(tmp_path)
    problem, calls = gconv.ConvProblem(C=4, K=4, input=4, filter=3), []

    def check(spec: Any, config: Any, problem: Any, target: str, **options: Any) -> Outcome:
        calls.append(target)
        return Outcome(problem, target, len(calls) > 1, 0.5, True, config)

    checked = memo.remembered(kept, check)
    arguments = gconv.KernelSpec("k"), gconv.KernelConfig(), problem, "cpu"
    assert not checked(*arguments).ok and checked(*arguments).ok and checked(*arguments).ok and len(calls) == 2
    next(tmp_path.glob("*.json")).write_text("[")
    assert checked(*arguments).ok and len(calls) == 3


# --- completion

NAMES = {"problem": ["small"], "kernel": ["fused"], "tile": ["m64"]}


@pytest.mark.parametrize(("text", "expected"), [
    ("", "problem"), (":ex", ":explain"), ("run fu", "fused"), ("run fused on sm", "small"), ("run fused on small for bw", "bwd_data"),
    ("problem p { di", "dilation"), ("problem p { dtype = b", "bf16"), ("kernel k for forward { tile = m", "m64"),
    ("kernel k for forward { pipeline = compv4 -> c", "compv3"), ("kernel k for forward { double_smem_buffer = t", "true"),
    ("kernel k for forward { conv { str", "stride"), ("small.fl", "small.flops"), (":explain f", "fused"),
])
def test_completion(text: str, expected: str) -> None:
    values = {"small": gconv.ConvProblem(C=1, K=1, input=1, filter=1)}
    assert expected in candidates(text, NAMES, COMMANDS, values)


def test_completion_of_a_session_survives_anything(session: Repl) -> None:
    assert "small" in session.complete("run fused on ") and session.complete("kernel { { ) = ") is not None


# --- input

def test_statements_of_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("problem p {  # an open { in a comment\n  C = 1\n}\n'a { in text'\nmax(1,\n 2)\nlast {"))
    read = repl_input.reader(False, lambda text: [])
    assert [read() for _ in range(5)] == ["problem p {  # an open { in a comment\n  C = 1\n}", "'a { in text'", "max(1,\n 2)", "last {", None]


def test_readline_completes_and_keeps_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readline = pytest.importorskip("readline")
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("atexit.register", lambda *arguments: arguments[0](*arguments[1:]))
    repl_input._with_readline(lambda text: ["fused", "fuse"])
    completer = readline.get_completer()
    assert [completer("fu", state) for state in range(3)] == ["fused", "fuse", None]
    assert (tmp_path / "cache" / "repl_history").exists()
    readline.set_completer(None)


def test_an_interrupt_stops_a_run_and_not_the_session(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["1 + 1", "stop", "2 + 2", None])
    monkeypatch.setattr("gconvdsl.repl.reader", lambda tty, complete: lambda: next(lines))
    monkeypatch.setattr("sys.stdin", type("Tty", (), {"isatty": lambda self: True})())
    session = Repl("cpu")
    enter = session.enter

    def interrupted(text: str) -> None:
        if text == "stop":
            raise KeyboardInterrupt
        enter(text)

    monkeypatch.setattr(session, "enter", interrupted)
    assert session.loop() == 0
    assert "2\n\nstopped\n4" in capsys.readouterr().out
