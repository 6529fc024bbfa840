"""Expressions: identity, evaluation, C++ that means the same, and an error bound that holds."""

from __future__ import annotations

import ctypes
import math
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable

import numpy as np
import pytest

from gconvdsl.errors import GconvError
from gconvdsl.expr import MAX_TERMS, OPS, Expr, apply, const, operand

INCLUDE = Path(__file__).parent.parent / "gconvdsl" / "backends" / "include"
ACC, BIAS = Expr("acc"), operand("bias")


def doubled(times: int) -> Expr:
    """A DAG of ``times`` + 1 nodes whose tree has 2^(times + 1) - 1."""
    node = ACC
    for _ in range(times):
        node = apply("add", node, node)
    return node


# --- identity

def test_equal_trees_are_equal_and_hash_alike() -> None:
    one, two = (apply("relu", apply("add", Expr("acc"), operand("bias"))) for _ in range(2))
    assert one == two and hash(one) == hash(two) and len({one, two}) == 1
    assert one != apply("relu", apply("add", operand("bias"), Expr("acc")))


@pytest.mark.parametrize("a, b", [
    (const(0.5), const(0.25)), (operand("a"), operand("b")), (const(1), operand("1x")), (ACC, Expr("x")),
])
def test_different_leaves_differ(a: Expr, b: Expr) -> None:
    assert a != b and a.digest != b.digest


def test_cast_depends_on_its_dtype() -> None:
    assert apply("cast", ACC, value="fp16") != apply("cast", ACC, value="bf16")


def test_digest_is_the_same_in_another_process() -> None:
    text = "from gconvdsl.expr import *; print(apply('gelu', apply('mul', Expr('acc'), const(0.1))).digest)"
    root = INCLUDE.parent.parent
    other = subprocess.run([sys.executable, "-c", text], cwd=root, capture_output=True, text=True, check=True).stdout
    assert other.strip() == apply("gelu", apply("mul", ACC, const(0.1))).digest


def test_pickles_to_an_equal_tree_even_when_shared() -> None:
    deep = doubled(100)
    assert pickle.loads(pickle.dumps(deep)) == deep


def test_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        ACC.op = "x"


# --- what is refused

@pytest.mark.parametrize("make, code", [
    (lambda: Expr("sinh", (ACC,)), "trace.op"),
    (lambda: Expr("add", (ACC,)), "trace.args"),
    (lambda: Expr("acc", (ACC,)), "trace.args"),
    (lambda: apply("clamp", ACC, const(0)), "trace.args"),
    (lambda: const(math.inf), "trace.const"),
    (lambda: const(math.nan), "trace.const"),
    (lambda: const(1e39), "trace.const"),
    (lambda: const(10**400), "trace.const"),
    (lambda: const(True), "trace.const"),
    (lambda: const("1"), "trace.const"),  # type: ignore[arg-type]
    (lambda: apply("cast", ACC, value="fp8"), "trace.args"),
    (lambda: apply("add", apply("lt", ACC, BIAS), BIAS), "trace.condition"),
    (lambda: apply("where", ACC, ACC, BIAS), "trace.condition"),
    (lambda: apply("where", apply("lt", ACC, BIAS), apply("lt", ACC, BIAS), BIAS), "trace.condition"),
])
def test_refused(make: Callable[[], Expr], code: str) -> None:
    with pytest.raises(GconvError) as caught:
        make()
    assert caught.value.code == code


def test_terms_are_counted_once_and_limited() -> None:
    assert doubled(MAX_TERMS - 1).terms == MAX_TERMS
    with pytest.raises(GconvError) as caught:
        doubled(MAX_TERMS)
    assert caught.value.code == "trace.terms" and caught.value.values["count"] == MAX_TERMS + 1


# --- evaluation

def test_evaluates_in_float64_and_broadcasts() -> None:
    expr = apply("relu", apply("add", ACC, BIAS))
    value = expr.evaluate({"acc": np.float32([[1e-9, -3.0], [2.0, 1.0]]), "bias": np.array([1.0, 1.0])})
    np.testing.assert_array_equal(value, [[1.0 + float(np.float32(1e-9)), 0.0], [3.0, 2.0]])


@pytest.mark.parametrize("name, args, expected", [
    ("sub", (3, 5), -2), ("div", (1, 8), 0.125), ("neg", (2,), -2), ("abs", (-2,), 2), ("minimum", (1, 2), 1),
    ("maximum", (1, 2), 2),
    ("clamp", (7, -1, 6), 6), ("clamp", (-7, -1, 6), -1), ("leaky_relu", (-4, 0.25), -1), ("leaky_relu", (4, 0.25), 4),
    ("exp", (1,), math.e),
    ("log", (2,), math.log(2)), ("sqrt", (2,), math.sqrt(2)), ("rsqrt", (4,), 0.5), ("tanh", (0.5,), math.tanh(0.5)),
    ("erf", (0.5,), math.erf(0.5)),
    ("sigmoid", (-2,), 1 / (1 + math.exp(2))), ("silu", (-2,), -2 / (1 + math.exp(2))), ("relu", (-1,), 0),
    ("gelu", (-1.5,), -1.5 * 0.5 * (1 + math.erf(-1.5 / math.sqrt(2)))),
    ("gelu_tanh", (-1.5,), -1.5 * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (-1.5 + 0.044715 * -1.5**3)))),
])
def test_meaning_of_each_function(name: str, args: tuple[float, ...], expected: float) -> None:
    names = [f"a{i}" for i in range(len(args))]
    value = apply(name, *map(operand, names)).evaluate(dict(zip(names, args)))
    assert float(value) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("name, truth", [("lt", 0), ("le", 1), ("gt", 0), ("ge", 1), ("eq", 1), ("ne", 0)])
def test_comparisons_select(name: str, truth: int) -> None:
    expr = apply("where", apply(name, ACC, const(2)), const(1), const(0))
    assert float(expr.evaluate({"acc": 2.0})) == truth


def test_nan_is_kept_by_every_function_of_one_argument() -> None:
    for op in OPS.values():
        if op.arity == 1:
            expr = apply(op.name, ACC, value="bf16" if op.name == "cast" else None)
            assert np.isnan(expr.evaluate({"acc": np.nan})), op.name


def test_cast_rounds_once_to_nearest_even() -> None:
    value = apply("cast", ACC, value="bf16").evaluate({"acc": np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-30])})
    np.testing.assert_array_equal(value, [1.0, 1 + 2**-6, 1 + 2**-7])


def test_defaults_aliases_and_negative_constants() -> None:
    assert apply("leaky_relu", ACC) == apply("leaky_relu", ACC, const(0.01))
    assert apply("max", ACC, BIAS) == apply("maximum", ACC, BIAS)
    assert apply("neg", const(2)) == const(-2)


# --- text

@pytest.mark.parametrize("expr, text", [
    (apply("mul", apply("add", ACC, BIAS), const(2)), "(acc + bias) * 2"),
    (apply("sub", ACC, apply("sub", BIAS, const(0.5))), "acc - (bias - 0.5)"),
    (apply("sub", apply("sub", ACC, BIAS), const(1)), "acc - bias - 1"),
    (apply("add", ACC, const(-1)), "acc + (-1)"),
    (apply("neg", apply("mul", ACC, BIAS)), "-(acc * bias)"),
    (apply("mul", apply("neg", ACC), BIAS), "-acc * bias"),
    (apply("where", apply("ge", ACC, const(0)), ACC, apply("exp", ACC)), "where(acc >= 0, acc, exp(acc))"),
    (apply("cast", ACC, value="bf16"), "cast(acc, bf16)"),
    (apply("div", const(1), apply("div", ACC, BIAS)), "1 / (acc / bias)"),
])
def test_text_has_the_fewest_parentheses(expr: Expr, text: str) -> None:
    assert expr.text() == text


def test_text_of_an_enormous_tree_is_an_error_but_repr_is_short() -> None:
    with pytest.raises(GconvError):
        doubled(60).text()
    assert len(repr(doubled(60))) < 50


# --- the error bound

def test_bound_is_infinite_only_near_the_switch() -> None:
    step = apply("where", apply("gt", ACC, const(0)), const(100), const(1))
    _, bound = step.evaluate_with_error({"acc": (np.array([-1.0, 1e-9, 1.0]), 1e-6)})
    assert bound[0] == 0 and bound[2] == 0 and 99 <= bound[1] < 101


def test_bound_is_infinite_at_a_pole_and_at_the_edge_of_a_domain() -> None:
    env = {"acc": (np.array([1e-9, 1.0]), 1e-6)}
    for name in ("log", "rsqrt", "sqrt"):
        _, bound = apply(name, ACC).evaluate_with_error(env)
        assert np.isinf(bound[0]) and bound[1] < 1e-5, name
    _, bound = apply("div", const(1), ACC).evaluate_with_error(env)
    assert np.isinf(bound[0]) and bound[1] < 1e-5


def test_bound_is_infinite_where_float32_overflows() -> None:
    _, bound = apply("exp", ACC).evaluate_with_error({"acc": (np.array([80.0, 89.0]), 0.0)})
    assert np.isfinite(bound[0]) and np.isinf(bound[1])


@pytest.mark.parametrize("name", [
    "relu", "abs", "tanh", "sigmoid", "erf", "gelu", "silu", "exp", "sqrt", "log", "rsqrt", "gelu_tanh", "neg",
])
def test_bound_covers_every_shift_of_the_argument(name: str) -> None:
    a = np.linspace(-4, 4, 801) if name not in ("sqrt", "log", "rsqrt") else np.linspace(0.1, 8, 801)
    shift = 0.05
    value, bound = apply(name, ACC).evaluate_with_error({"acc": (a, shift)})
    for part in (-1.0, -0.5, 0.5, 1.0):
        moved = apply(name, ACC).evaluate({"acc": a + part * shift})
        assert np.all(np.abs(moved - value) <= bound + 1e-12)      # the shift itself is rounded
    assert np.median(bound / (np.abs(np.gradient(value, a)) * shift + 1e-3)) < 5, "a bound this loose would see nothing"


# --- C++: random expressions, compiled, stay within their own bound

LEAF_NAMES = {"acc": "acc[i]", "bias": "bias[i]", "scale": "scale"}


def random_expr(rng: random.Random, depth: int) -> Expr:
    if depth == 0:
        return rng.choice([ACC, ACC, BIAS, operand("scale"), const(rng.choice([0.5, -0.1, 3, 1e-3]))])
    op = OPS[rng.choice([name for name, op in OPS.items() if not op.condition])]
    if op.name == "where":
        condition = apply(rng.choice(["lt", "ge", "ne"]), random_expr(rng, depth - 1), random_expr(rng, depth - 1))
        return apply("where", condition, random_expr(rng, depth - 1), random_expr(rng, depth - 1))
    args = [random_expr(rng, depth - 1) for _ in range(op.arity)]
    if rng.random() < 0.3:
        args = [args[0]] * op.arity             # shared, so that temporaries appear
    return apply(op.name, *args, value=rng.choice(["fp16", "bf16", "fp32"]) if op.name == "cast" else None)


@pytest.fixture(scope="module")
def host_compiler() -> str:
    return shutil.which("g++") or pytest.skip("g++ is not here")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, host_compiler: str) -> tuple[list[Expr], ctypes.CDLL]:
    rng = random.Random(7)
    exprs = [random_expr(rng, 1 + i % 4) for i in range(120)] + [doubled(20)]
    lines = ['#include "gconv/math.hpp"']
    for index, expr in enumerate(exprs):
        lines.append(f'extern "C" void f{index}(const float* acc, const float* bias, float scale, float* out, int n) {{')
        lines.append("for (int i = 0; i < n; ++i) {")
        lines.append(expr.cpp_body(LEAF_NAMES, "y") + "\nout[i] = y;\n}\n}")
    folder = tmp_path_factory.mktemp("expr")
    (folder / "e.cpp").write_text("\n".join(lines))
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", f"-I{INCLUDE}"]
    subprocess.run([host_compiler, *flags, "e.cpp", "-o", "e.so"], cwd=folder, check=True)
    return exprs, ctypes.CDLL(str(folder / "e.so"))


def test_cpp_stays_within_the_error_bound(compiled: tuple[list[Expr], ctypes.CDLL]) -> None:
    exprs, library = compiled
    rng = np.random.default_rng(3)
    acc, bias = (rng.normal(size=2000).astype(np.float32) * 3 for _ in range(2))
    scale, checked = np.float32(0.7), 0
    for index, expr in enumerate(exprs):
        out = np.empty_like(acc)
        a, b, y = (ctypes.c_void_p(array.ctypes.data) for array in (acc, bias, out))
        library[f"f{index}"](a, b, ctypes.c_float(scale), y, 2000)
        value, bound = expr.evaluate_with_error({"acc": (acc, 0.0), "bias": (bias, 0.0), "scale": (scale, 0.0)})
        value, bound = np.broadcast_to(value, acc.shape), np.broadcast_to(bound, acc.shape)
        finite = np.isfinite(bound)
        checked += int(finite.sum())
        assert np.all(np.abs(out - value)[finite] <= bound[finite]), expr
    assert checked > 0.6 * len(exprs) * 2000, "most of the sample must really be checked"


def test_shared_nodes_become_temporaries() -> None:
    shared = apply("exp", ACC)
    body = apply("div", shared, apply("add", const(1), shared)).cpp_body({"acc": "a"}, "y")
    assert body == "const float t0 = gconv::math::exp(a);\nconst float y = t0 / (1.0f + t0);"
    assert len(doubled(150).cpp_body({"acc": "a"}, "return").splitlines()) == 150


def test_cpp_of_a_tree_is_one_plain_expression() -> None:
    assert apply("relu", apply("add", ACC, BIAS)).cpp({"acc": "v", "bias": "b[k]"}) == "gconv::math::relu(v + b[k])"
    assert Expr("acc").cpp({"acc": "v"}) == "v"
