"""parse(print(x)) == x, print(parse(print(x))) == print(x), and formatting keeps the meaning."""

from __future__ import annotations

from typing import Any

import gconv_strategies as strategies
import pytest
from hypothesis import HealthCheck, given, settings

from gconvdsl.config import KernelConfig, Tile
from gconvdsl.errors import GconvError
from gconvdsl.expr import Expr, const
from gconvdsl.grammar import Module, dumps, format_text, loads
from gconvdsl.problem import ConvProblem
from gconvdsl.spec import KernelSpec

_quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def _back(what: Any, kind: str) -> list[Any]:
    text = dumps(what)
    read = loads(text)
    assert dumps(read) == text
    return list(getattr(read, kind).values())


@_quick
@given(strategies.problems())
def test_problems(problem: ConvProblem) -> None:
    (read,) = _back(problem, "problems")
    assert read == problem
    assert problem.name is None or read.name == problem.name


@_quick
@given(strategies.tiles())
def test_tiles(tile: Tile) -> None:
    (read,) = _back(tile, "tiles")
    assert read == tile
    assert tile.name is None or read.name == tile.name


@settings(_quick, max_examples=150)
@given(strategies.kernels())
def test_kernels(spec: KernelSpec) -> None:
    (read,) = _back(spec, "kernels")
    assert read == spec


@_quick
@given(strategies.sweeps())
def test_sweeps(sweep: Any) -> None:
    (read,) = _back(sweep, "sweeps")
    assert read == sweep


@settings(_quick, max_examples=40)
@given(strategies.modules())
def test_modules(module: Module) -> None:
    text = dumps(module)
    read = loads(text)
    tiles = [one for one in read if isinstance(one, Tile)]
    assert Module(tuple(one for one in read if not isinstance(one, Tile))) == module
    assert loads(dumps(read)) == read
    assert all(tile.name for tile in tiles)


@settings(_quick, max_examples=40)
@given(strategies.modules())
def test_format_keeps_the_meaning(module: Module) -> None:
    text = dumps(module)
    squeezed = text.replace("  ", " ").replace("{ ", "{").replace(" }", "}")
    formatted = format_text(squeezed)
    assert loads(formatted) == loads(text)
    assert format_text(formatted) == formatted


@pytest.mark.parametrize("expr", [
    Expr("neg", (const(1),)), Expr("sub", (Expr("acc"), const(-1))), Expr("neg", (Expr("neg", (Expr("acc"),)),)),
    Expr("sub", (Expr("acc"), Expr("sub", (Expr("acc"), const(2))))),
    Expr("div", (const(1e-30), Expr("mul", (Expr("acc"), const(-0.0))))),
])
def test_awkward_expressions(expr: Expr) -> None:
    assert loads(dumps(KernelSpec("k", epilogue=expr))).kernels["k"].epilogue == expr


def test_iterables_and_shared_tiles() -> None:
    m64 = Tile((64, 16, 64), name="m64")
    other = Tile((32, 16, 64), name="m64")
    kernels = [KernelSpec(name, config=KernelConfig(tile=tile)) for name, tile in (("a", m64), ("b", m64), ("c", other))]
    read = loads(dumps(kernels))
    assert list(read.kernels.values()) == kernels
    assert list(read.tiles.values()) == [m64, other]


def test_a_tile_keeps_its_name_when_a_kernel_before_it_uses_another_of_that_name() -> None:
    first, second = Tile((32, 16, 64), name="t"), Tile((64, 16, 64), name="t")
    read = loads(dumps([KernelSpec("k", config=KernelConfig(tile=first)), second]))
    assert read.kernels["k"].config.tile == first
    assert read.tiles["t"] == second


def test_an_expression_that_could_not_be_read_back_is_not_written() -> None:
    expr = Expr("acc")
    for _ in range(63):
        expr = Expr("relu", (expr,))
    assert loads(dumps(KernelSpec("k", epilogue=expr))).kernels["k"].epilogue == expr
    with pytest.raises(GconvError) as caught:
        dumps(KernelSpec("k", epilogue=Expr("relu", (expr,))))
    assert caught.value.code == "syntax.deep"


@pytest.mark.parametrize("what", [3, "text", None, [object()]])
def test_what_cannot_be_written(what: Any) -> None:
    with pytest.raises(GconvError) as caught:
        dumps(what)
    assert caught.value.code == "syntax.object"
