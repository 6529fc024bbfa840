"""Tracing: what a body becomes, and each illegal use at the user's file, line and columns."""

from __future__ import annotations

import linecache
import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl.config import KernelConfig
from gconvdsl.errors import GconvError, TraceError
from gconvdsl.expr import Expr, apply, const, operand
from gconvdsl.spec import KernelSpec, Operand
from gconvdsl.trace import trace

ACC, X = Expr("acc"), Expr("x")
COLUMNS = sys.version_info >= (3, 11)


def traced(body: Callable[..., Any]) -> KernelSpec:
    return trace(body, KernelConfig())


# --- what a body becomes

def scaled(value: Any, factor: Any) -> Any:
    return value * factor


def test_epilogue_prologue_and_operands() -> None:
    def body(x, w, shift: gconv.PerC, bias: gconv.PerK, residual: gconv.LikeY, alpha: gconv.Scalar):
        acc = gconv.conv(gconv.relu(x + shift), w, stride=(2, 1), pad=((0, 1), 2), groups=4)
        return gconv.silu(scaled(acc, alpha) + bias - residual)

    spec = traced(body)
    assert spec.operands == (Operand("shift", "per_c"), Operand("bias", "per_k"), Operand("residual", "like_y"),
                             Operand("alpha", "scalar"))
    assert spec.prologue == apply("relu", apply("add", X, operand("shift")))
    inner = apply("sub", apply("add", apply("mul", ACC, operand("alpha")), operand("bias")), operand("residual"))
    assert spec.epilogue == apply("silu", inner)
    assert (spec.conv.stride, spec.conv.pad, spec.conv.dilation, spec.conv.groups) == ((2, 1), ((0, 1), 2), None, 4)
    assert spec.name == "body" and spec.direction == "forward"


def test_a_bare_body() -> None:
    assert traced(lambda x, w: gconv.conv(x, w)).is_bare


def test_operand_arithmetic_before_and_after_the_convolution() -> None:
    def body(x, w, a: gconv.PerK, b: gconv.PerK):
        both = a * b                                # neither before nor after: an expression of operands alone
        return gconv.conv(x, w) + both

    assert traced(body).epilogue == apply("add", ACC, apply("mul", operand("a"), operand("b")))


@pytest.mark.parametrize("function, direction", [(gconv.conv_bwd_data, "bwd_data"), (gconv.conv_bwd_weight, "bwd_weight")])
def test_backward_bodies(function: Any, direction: str) -> None:
    spec = traced(lambda a, b: function(a, b, pad=1) * 0.5)
    assert spec.direction == direction and spec.epilogue == apply("mul", ACC, const(0.5))


def test_bias_of_a_transposed_convolution_has_c_values() -> None:
    def body(dy, w, bias: gconv.PerC):
        return gconv.conv_bwd_data(dy, w) + bias

    assert traced(body).kinds == {"bias": "per_c"}


@pytest.mark.parametrize("build, expected", [
    (lambda a: 2 - a, apply("sub", const(2), ACC)),
    (lambda a: 1 / a, apply("div", const(1), ACC)),
    (lambda a: -abs(a), apply("neg", apply("abs", ACC))),
    (lambda a: +a, ACC),
    (lambda a: a**3, apply("mul", apply("mul", ACC, ACC), ACC)),
    (lambda a: a**-1, apply("div", const(1), ACC)),
    (lambda a: np.float64(2) * a, apply("mul", const(2), ACC)),
    (lambda a: np.float32(0.5) - a, apply("sub", const(0.5), ACC)),
    (lambda a: a + np.int64(3), apply("add", ACC, const(3))),
    (lambda a: gconv.where(a > 0, a, 0), apply("where", apply("gt", ACC, const(0)), ACC, const(0))),
    (lambda a: gconv.where(0 < a, a, 0), apply("where", apply("gt", ACC, const(0)), ACC, const(0))),
    (lambda a: gconv.clamp(a, 0, 6), apply("clamp", ACC, const(0), const(6))),
    (lambda a: gconv.leaky_relu(a), apply("leaky_relu", ACC, const(0.01))),
    (lambda a: gconv.gelu(a, approximate="tanh"), apply("gelu_tanh", ACC)),
    (lambda a: gconv.cast(a, "bf16"), apply("cast", ACC, value="bf16")),
    (lambda a: gconv.cast(a, np.float16), apply("cast", ACC, value="fp16")),
    (lambda a: gconv.minimum(gconv.maximum(a, 0), 6), apply("minimum", apply("maximum", ACC, const(0)), const(6))),
    (lambda a: gconv.exp(gconv.log(gconv.sqrt(gconv.rsqrt(a)))), apply("exp", apply("log", apply("sqrt", apply("rsqrt", ACC))))),
    (lambda a: gconv.tanh(gconv.erf(gconv.sigmoid(gconv.neg(gconv.abs(a))))),
     apply("tanh", apply("erf", apply("sigmoid", apply("neg", apply("abs", ACC)))))),
])
def test_operators_and_functions(build: Callable[[Any], Any], expected: Expr) -> None:
    assert traced(lambda x, w: build(gconv.conv(x, w))).epilogue == expected


def test_quoted_and_renamed_annotations() -> None:
    from gconvdsl import PerK as Bias

    def body(x, w, a: "gconv.PerK", b: Bias):
        return gconv.conv(x, w) + a + b

    body.__globals__["Bias"] = Bias
    try:
        assert traced(body).kinds == {"a": "per_k", "b": "per_k"}
    finally:
        del body.__globals__["Bias"]


# --- illegal uses: (code, body with the guilty expression between « and »)

ILLEGAL: dict[str, tuple[str, str]] = {
    "branch": ("trace.branch", "if «acc > 0»:\n        return acc\n    return -acc"),
    "truth": ("trace.branch", "return acc «or» 1"),
    "chain": ("trace.branch", "return gconv.where(«0 < acc < 6», acc, 0)"),
    "builtin max": ("trace.branch", "return «max(acc, 0)»"),
    "ufunc": ("trace.numpy", "return «np.exp(acc)»"),
    "ufunc with out of order": ("trace.numpy", "return «np.add(acc, 1)»"),
    "array function": ("trace.numpy", "return «np.concatenate([acc, acc])»"),
    "to array": ("trace.numpy", "return «np.asarray(acc)»"),
    "array constant": ("trace.array", "return «acc + np.ones(3)»"),
    "array first": ("trace.array", "return «np.ones(3) * acc»"),
    "text constant": ("trace.const", "return «acc + 'one'»"),
    "infinite constant": ("trace.const", "return «acc * math.inf»"),
    "index": ("trace.iterate", "return «acc[0]»"),
    "len": ("trace.iterate", "return acc * «len(acc)»"),
    "loop": ("trace.iterate", "return sum(«[v for v in acc]»)"),
    "contains": ("trace.iterate", "return acc * («1 in acc»)"),
    "store": ("trace.iterate", "«acc[0]» = 1\n    return acc"),
    "float": ("trace.op", "return «math.exp(acc)»"),
    "int": ("trace.op", "return acc * «int(acc)»"),
    "in place": ("trace.op", "«acc += 1»\n    return acc"),
    "matmul": ("trace.op", "return «acc @ acc»"),
    "power": ("trace.op", "return «acc ** 0.5»"),
    "power of traced": ("trace.op", "return «2 ** acc»"),
    "modulo": ("trace.op", "return «acc % 2»"),
    "attribute": ("trace.op", "return «acc.sum»()"),
    "weights": ("trace.op", "return acc + «w * 2»"),
    "comparison as a value": ("trace.condition", "return «(acc > 0) * acc»"),
    "where on a value": ("trace.condition", "return «gconv.where(acc, acc, 0)»"),
    "and of comparisons": ("trace.op", "return gconv.where(«(acc > 0) & (acc < 6)», acc, 0)"),
    "second convolution": ("trace.conv_count", "return acc + «gconv.conv(x, w)»"),
    "convolution of the result": ("trace.conv_count", "return «gconv.conv(acc, w)»"),
    "x after conv": ("trace.operand_place", "return «acc + x»"),
    "x alone after conv": ("trace.operand_place", "return acc + «x * 2»"),
    "wrong cast": ("problem.dtype", "return «gconv.cast(acc, 'int7')»"),
    "wrong gelu": ("trace.args", "return «gconv.gelu(acc, approximate='fast')»"),
    "outside": ("trace.outside", "return acc + «gconv.exp(2.0)»"),
    "user error": ("trace.source", "return acc + «1 / 0»"),
    "too large": ("trace.terms", "for i in range(300):\n        acc = «acc + bias * i»\n    return acc"),
    "returns a tuple": ("trace.return", "«return acc, bias»"),
    "returns a number": ("trace.return", "«return 1.0»"),
    "returns a comparison": ("trace.return", "«return acc > 0»"),
    "returns an operand": ("trace.return", "«return bias»"),
}


@pytest.mark.parametrize("body, fix", [
    ("gconv.conv(x, w, padding=1)", "Call it as gconv.conv(x, w, stride, pad, dilation, groups)."),
    ("gconv.clamp(gconv.conv(x, w), 3)", "Call it as gconv.clamp(a, low, high)."),
    ("gconv.conv(x, w) > 0", "Write gconv.where(condition, 1, 0)."),
    ("gconv.conv(x, w) + (1 / 0)", ""),
])
def test_a_wrong_call_says_how_it_is_right(tmp_path: Path, body: str, fix: str) -> None:
    path = tmp_path / "user.py"
    path.write_text(f"import gconvdsl as gconv\n\n@gconv.kernel\ndef k(x, w):\n    return {body}\n")
    assert caught(path).fix == fix


def write(tmp_path: Path, text: str) -> tuple[Path, int, int, int]:
    """The file without its marks, and line, column and end column of what they enclose."""
    before, _, rest = text.partition("«")
    inside, _, after = rest.partition("»")
    path = tmp_path / "user.py"
    path.write_text(before + inside + after)
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return path, line, column, column + len(inside)


def load(path: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "user"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def caught(path: Path) -> GconvError:
    with pytest.raises(GconvError) as info:
        load(path)
    return info.value


HEAD = "import gconvdsl as gconv, numpy as np, math\n@gconv.kernel\n"


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_use_is_an_error_at_its_place(tmp_path: Path, name: str) -> None:
    code, body = ILLEGAL[name]
    text = f"{HEAD}def k(x, w, bias: gconv.PerK):\n    acc = gconv.conv(x, w)\n    {body}\n"
    path, line, column, end = write(tmp_path, text)
    failure = caught(path)
    assert failure.code == code
    assert (failure.loc.file, failure.loc.line) == (str(path), line)
    if COLUMNS and name not in ("truth", "loop"):   # Python marks only a of "a or b", and versions differ on comprehensions
        assert (failure.loc.column, failure.loc.end_column) == (column, end)
    assert "^" in str(failure)


DECLARATIONS: dict[str, tuple[str, str]] = {
    "unannotated": ("trace.operand", "def k(x, w, «bias»):\n    return gconv.conv(x, w) + bias\n"),
    "wrongly annotated": ("trace.operand", "def k(x, w, «bias: float»):\n    return gconv.conv(x, w) + bias\n"),
    "reserved": ("trace.name", "def k(x, w, «out: gconv.PerK»):\n    return gconv.conv(x, w) + out\n"),
    "default of an array": ("trace.parameter", "def k(x, w, «r: gconv.LikeY» = None):\n    return gconv.conv(x, w) + r\n"),
    "default that is no number": ("trace.parameter",
                                 "def k(x, w, «s: gconv.Scalar» = 'a'):\n    return gconv.conv(x, w) * s\n"),
    "star": ("trace.parameter", "def k(x, w, *«rest»):\n    return gconv.conv(x, w)\n"),
    "no weights": ("trace.tensors", "«def k(x):»\n    return x\n"),
    "first is an operand": ("trace.tensors", "«def k(bias: gconv.PerK, x, w):»\n    return gconv.conv(x, w)\n"),
    "no convolution": ("trace.conv_count", "«def k(x, w):»\n    return gconv.relu(x)\n"),
    "no return": ("trace.return", "«def k(x, w):»\n    gconv.conv(x, w)\n"),
    "swapped": ("trace.conv_arg", "def k(x, w):\n    return «gconv.conv(w, x)»\n"),
    "weights changed": ("trace.op", "def k(x, w):\n    return gconv.conv(x, «w * 2»)\n"),
    "operand as x": ("trace.conv_arg", "def k(x, w, b: gconv.PerC):\n    return «gconv.conv(b, w)»\n"),
    "number as x": ("trace.conv_arg", "def k(x, w):\n    return «gconv.conv(1, w)»\n"),
    "per_k in a prologue": ("trace.operand_place", "def k(x, w, b: gconv.PerK):\n    return gconv.conv(«x + b», w)\n"),
    "like_y in a prologue": ("trace.operand_place", "def k(x, w, r: gconv.LikeY):\n    return gconv.conv(«x * r», w)\n"),
    "per_c in an epilogue": ("trace.operand_place", "def k(x, w, b: gconv.PerC):\n    return «gconv.conv(x, w) + b»\n"),
    "prologue of bwd_data": ("trace.conv_arg", "def k(dy, w):\n    return «gconv.conv_bwd_data(gconv.relu(dy), w)»\n"),
    "zero stride": ("trace.params", "def k(x, w):\n    return «gconv.conv(x, w, stride=0)»\n"),
    "pad of three": ("trace.params", "def k(x, w):\n    return «gconv.conv(x, w, pad=((1, 2, 3), 1))»\n"),
    "generator": ("trace.function", "«def k(x, w):»\n    yield gconv.conv(x, w)\n"),
    "wide characters before": ("trace.op",
                               "def k(x, w):\n    größe, 幅 = 1, gconv.conv(x, w)\n    return (größe, '幅幅', «幅 % 2»)\n"),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_wrong_declaration_is_an_error_at_its_place(tmp_path: Path, name: str) -> None:
    code, text = DECLARATIONS[name]
    path, line, column, end = write(tmp_path, HEAD + text)
    failure = caught(path)
    assert failure.code == code
    assert (failure.loc.file, failure.loc.line) == (str(path), line)
    if COLUMNS:
        assert (failure.loc.column, failure.loc.end_column) == (column, end)


def test_error_inside_a_helper_is_at_the_helpers_line(tmp_path: Path) -> None:
    text = "import gconvdsl as gconv\ndef helper(a):\n    return «a // 2»\n@gconv.kernel\n"
    text += "def k(x, w):\n    return helper(gconv.conv(x, w))\n"
    path, line, _, _ = write(tmp_path, text)
    assert caught(path).loc.line == line


def test_escaped_value() -> None:
    kept: list[Any] = []

    def body(x, w):
        kept.append(gconv.conv(x, w))
        return kept[0]

    traced(body)
    with pytest.raises(TraceError) as info:
        kept[0] + 1
    assert info.value.code == "trace.escaped" and info.value.loc.file == __file__
    with pytest.raises(TraceError) as info:
        traced(lambda x, w: gconv.conv(x, w) + kept[0])
    assert info.value.code == "trace.escaped"


def test_value_used_in_another_thread() -> None:
    failures: list[BaseException] = []

    def use(acc: Any) -> None:
        try:
            acc + 1
        except TraceError as failure:
            failures.append(failure)

    def body(x, w):
        acc = gconv.conv(x, w)
        thread = threading.Thread(target=use, args=(acc,))
        thread.start()
        thread.join()
        return acc

    traced(body)
    assert [f.code for f in failures] == ["trace.escaped"]


def test_the_users_own_exception_is_the_cause() -> None:
    def body(x, w):
        raise KeyError("mine")

    with pytest.raises(TraceError) as info:
        traced(body)
    assert isinstance(info.value.__cause__, KeyError) and "mine" in str(info.value)


def test_keyboard_interrupt_passes_through() -> None:
    def body(x, w):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        traced(body)


def test_math_on_plain_arrays_outside_of_a_body() -> None:
    with pytest.raises(TraceError) as info:
        gconv.relu(np.ones(3))  # type: ignore[arg-type]
    assert info.value.code == "trace.outside" and info.value.loc.file == __file__


# --- source that is not a file

BAD = "import gconvdsl as gconv\n@gconv.kernel\ndef k(x, w):\n    return gconv.conv(x, w) % 2\n"


def test_exec_without_source_still_names_file_and_line() -> None:
    with pytest.raises(TraceError) as info:
        exec(compile(BAD, "<nowhere>", "exec"), {})
    assert (info.value.loc.file, info.value.loc.line) == ("<nowhere>", 4)
    assert "<nowhere>:4" in str(info.value)


def test_exec_with_linecache_shows_the_line() -> None:
    linecache.cache["<cell 7>"] = (len(BAD), None, BAD.splitlines(True), "<cell 7>")
    try:
        with pytest.raises(TraceError) as info:
            exec(compile(BAD, "<cell 7>", "exec"), {})
    finally:
        del linecache.cache["<cell 7>"]
    assert "    return gconv.conv(x, w) % 2" in str(info.value) and "^" in str(info.value)


def test_plain_repl() -> None:
    typed = BAD.replace("% 2\n", "% 2\n\n")
    done = subprocess.run([sys.executable, "-i", "-q"], input=typed, capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parent.parent, env={**os.environ, "PYTHONSTARTUP": ""})
    assert "error[trace.op]" in done.stderr and re.search(r"<[^>]+>(-\d+)?:3\b", done.stderr)   # 3.13 numbers inputs


def test_errors_pickle_with_their_place() -> None:
    with pytest.raises(TraceError) as info:
        traced(lambda x, w: gconv.conv(x, w) % 2)
    again = pickle.loads(pickle.dumps(info.value))
    assert str(again) == str(info.value) and again.loc == info.value.loc


def test_a_file_that_changed_after_import_does_not_break_the_report(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text("x = (\n")
    with pytest.raises(TraceError) as info:
        exec(compile(HEAD + "def k(x, w, bias):\n    return gconv.conv(x, w)\n", str(path), "exec"), {})
    assert info.value.code == "trace.operand" and info.value.loc.file == str(path)
