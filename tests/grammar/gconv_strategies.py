"""Generated problems, tiles, kernels and sweeps for the property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gconvdsl.config import FAMILIES, OPTIONS, KernelConfig, Tile
from gconvdsl.expr import OPS, Expr, apply, const, operand
from gconvdsl.grammar import Bench, Clause, Epilogue, Let, Module, Run, Sweep
from gconvdsl.grammar.conditions import Condition
from gconvdsl.layouts import LAYOUTS
from gconvdsl.pipelines import PIPELINES
from gconvdsl.problem import DIRECTIONS, ConvProblem
from gconvdsl.spec import PLACES, ConvParams, KernelSpec, Operand

KEYWORDS = ("problem", "tile", "kernel", "epilogue", "let", "sweep", "bench", "run", "include", "conv", "for", "in", "on",
            "where", "and", "or")
RESERVED = ("x", "w", "y", "dy", "acc")

words = st.sampled_from(["a", "b1", "_c", "größe", "tile64", "N", *KEYWORDS[:9]])
names = st.one_of(words, st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True))
operand_names = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(lambda name: name not in (*RESERVED, "not"))
counts = st.integers(1, 9)
_BIG = st.integers(1, 2**40)
lists_of_directions = st.lists(st.sampled_from(DIRECTIONS), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def problems(draw: Any) -> ConvProblem:
    ndim = draw(st.integers(1, 3))
    layout = draw(st.sampled_from([name for name, one in LAYOUTS.items() if one.ndim == ndim]))
    groups, filters = draw(counts), [draw(st.integers(1, 4)) for _ in range(ndim)]
    dilation = [draw(st.integers(1, 3)) for _ in range(ndim)]
    inputs = [d * f + draw(st.integers(0, 2**33)) for d, f in zip(dilation, filters)]
    pads = [(draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(ndim)]
    dtypes = st.sampled_from(["fp32", "fp16", "bf16"])
    return ConvProblem(N=draw(st.integers(0, 9)), G=groups, C=groups * draw(counts), K=groups * draw(counts), input=inputs,
                       filter=filters,
                       stride=[draw(st.integers(1, 3)) for _ in range(ndim)], pad=pads, dilation=dilation, dtype=draw(dtypes),
                       direction=draw(st.sampled_from(DIRECTIONS)), layout=layout, out_dtype=draw(dtypes),
                       name=draw(st.none() | names))


@st.composite
def tiles(draw: Any) -> Tile:
    if draw(st.booleans()):
        return Tile(block=tuple(draw(st.sampled_from([16, 32, 48, 64])) for _ in range(3)))  # type: ignore[arg-type]
    sizes: Any = [tuple(draw(counts) for _ in range(3)) for _ in range(4)]
    return Tile(*sizes, name=draw(st.none() | names))


_VALUES = [op for op in OPS.values() if not op.condition]
_COMPARISONS = st.sampled_from([op.name for op in OPS.values() if op.condition])
_FRESH = st.integers(0, 5 + 2 * len(_VALUES))
_NUMBERS = st.one_of(st.integers(-20, 20), st.floats(-1e30, 1e30))
_CASTS = st.sampled_from(["fp16", "bf16", "fp32"])


@st.composite
def expressions(draw: Any, leaf: str, operands: tuple[str, ...], depth: int = 4) -> Expr:
    """Value expressions over the leaf, constants and operands."""
    return _expr(draw, [Expr(leaf), *map(operand, operands)], depth)


def _expr(draw: Any, leaves: list[Expr], depth: int) -> Expr:
    pick = draw(_FRESH) if depth else 0
    if pick < 5:
        return const(draw(_NUMBERS)) if pick == 1 else leaves[draw(counts) % len(leaves)]
    op = _VALUES[pick % len(_VALUES)]
    if op.name == "cast":
        return apply("cast", _expr(draw, leaves, depth - 1), value=draw(_CASTS))
    if op.name == "where":
        condition = Expr(draw(_COMPARISONS), (_expr(draw, leaves, 1), _expr(draw, leaves, 1)))
        return Expr("where", (condition, _expr(draw, leaves, depth - 1), _expr(draw, leaves, depth - 1)))
    return Expr(op.name, tuple(_expr(draw, leaves, depth - 1) for _ in range(op.arity)))


@st.composite
def configs(draw: Any) -> KernelConfig:
    chosen = {name: draw(_option_values(name)) for name in draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=4,
                                                                         unique=True))}
    families = st.dictionaries(st.sampled_from(FAMILIES), tiles(), min_size=1, max_size=3)
    pipeline = draw(st.lists(st.sampled_from(sorted(PIPELINES)), max_size=4, unique=True))
    return KernelConfig(tile=draw(st.one_of(st.none(), tiles(), families)), pipeline=pipeline, **chosen)


def _option_values(name: str) -> st.SearchStrategy[Any]:
    kind = OPTIONS[name].kind
    return st.sampled_from(kind) if isinstance(kind, tuple) else st.booleans() if kind == "bool" else _BIG


@st.composite
def conv_params(draw: Any, direction: str) -> ConvParams:
    steps = st.one_of(st.none(), counts, st.lists(counts, min_size=1, max_size=3).map(tuple))
    entries = st.one_of(st.integers(0, 5), st.tuples(st.integers(0, 5), st.integers(0, 5)))
    pads = st.one_of(st.none(), st.integers(0, 5), st.lists(entries, min_size=1, max_size=3).map(tuple))
    return ConvParams(direction, draw(steps), draw(pads), draw(steps), draw(st.none() | counts))


@st.composite
def kernels(draw: Any) -> KernelSpec:
    directions = draw(lists_of_directions)
    direction = draw(st.sampled_from(directions))
    conv = draw(conv_params(direction))
    operands: list[Operand] = []
    expressions_of = {"prologue": Expr("x"), "epilogue": Expr("acc")}
    if len(directions) == 1:
        places = PLACES[direction]
        kinds = sorted({kind for kinds in places.values() for kind in kinds})
        operands = [Operand(name,
                            draw(st.sampled_from(kinds))) for name in draw(st.lists(operand_names, max_size=3, unique=True))]
        for place, leaf in (("prologue", "x"), ("epilogue", "acc")):
            if place == "epilogue" or direction == "forward":
                usable = tuple(one.name for one in operands if one.kind in places[place])
                expressions_of[place] = draw(expressions(leaf, usable))
    return KernelSpec(draw(names), conv, tuple(operands), expressions_of["prologue"], expressions_of["epilogue"],
                      draw(configs()), directions)


@st.composite
def clauses(draw: Any, field: str) -> Clause:
    if draw(st.integers(0, 3)) == 0:
        return Clause(field, None)
    values: Any = tiles() if field == "tile" else st.lists(st.sampled_from(sorted(PIPELINES)), min_size=1, max_size=3,
                                                           unique=True).map(
        tuple) if field == "pipeline" else _option_values(field)
    return Clause(field, tuple(draw(st.lists(values, min_size=1, max_size=3, unique=True))))


_NAMES = st.sampled_from(["N", "K", "Cg", "gemm.m", "tile.n"])
_LITERALS = st.one_of(st.integers(-99, 99), st.floats(-9.0, 9.0))
_EQUAL = st.sampled_from(["==", "!="])
_ORDER = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])


def _name(name: str) -> Condition:
    return Condition("name", value=name)


@st.composite
def conditions(draw: Any, depth: int = 2) -> Condition:
    """Well-typed conditions that read the problem, so that no sweep is empty from the outset."""
    pick = draw(st.integers(0, 5))
    if depth and pick == 0:
        return Condition("not", (draw(conditions(depth - 1)),))
    if depth and pick == 1:
        return Condition(draw(st.sampled_from(["and", "or"])), (draw(conditions(depth - 1)), draw(conditions(depth - 1))))
    if pick == 2:
        size = Condition("size", value=tuple(draw(st.lists(counts, min_size=1, max_size=3))))
        return Condition(draw(_EQUAL), (_name(draw(st.sampled_from(["filter", "stride"]))), size))
    if pick == 3:
        return Condition(draw(_EQUAL), (_name("dtype"), Condition("word", value=draw(st.sampled_from(["fp16", "bf16"])))))
    return Condition(draw(_ORDER), (Condition("+", (_name("G"), _sum(draw, 2))), _sum(draw, 2)))


def _sum(draw: Any, depth: int) -> Condition:
    pick = draw(st.integers(0, 6)) if depth else draw(st.integers(0, 1))
    if pick == 0:
        return _name(draw(_NAMES))
    if pick == 1:
        return Condition("number", value=draw(_LITERALS))
    inner = _sum(draw, depth - 1)
    if pick == 2:
        return Condition("neg", (inner,)) if inner.op != "number" else inner
    return Condition("+-*/%"[pick - 2] if pick < 6 else "-", (inner, _sum(draw, depth - 1)))


@st.composite
def sweeps(draw: Any) -> Sweep:
    fields = draw(st.lists(st.sampled_from(["tile", "pipeline", *sorted(OPTIONS)]), min_size=1, max_size=4, unique=True))
    return Sweep(draw(names), draw(st.just(()) | lists_of_directions), tuple(draw(clauses(field)) for field in fields),
                 tuple(draw(st.lists(conditions(), max_size=2))))


@st.composite
def modules(draw: Any) -> Module:
    """Statements with distinct names, among them a run and a bench of what is declared."""
    statements: list[Any] = list({one.name: one for one in draw(st.lists(problems(), max_size=2)) if one.name}.values())
    statements += draw(st.lists(kernels() | sweeps(), max_size=2, unique_by=lambda one: one.name))
    values = st.one_of(st.integers(0, 99), st.floats(0.0, 9.0), st.lists(counts, min_size=1, max_size=3).map(tuple),
                       expressions("acc", ()))
    statements += [Let("value", draw(values.filter(lambda value: not isinstance(value, Expr) or value.uses("acc")))),
                   Epilogue("act", (Operand("bias", "per_k"),), draw(expressions("acc", ("bias",))))]
    known = [one.name for one in statements if isinstance(one, ConvProblem)]
    for kernel in (one for one in statements[:] if isinstance(one, (KernelSpec, Sweep))):
        if known and isinstance(kernel, KernelSpec):
            statements.append(Run(kernel.name, tuple(known), draw(st.just(()) | st.just(kernel.directions))))
        if known:
            statements.append(Bench((kernel.name,), tuple(known), draw(st.just(()) | lists_of_directions),
                                    draw(st.sampled_from([None, "out.parquet"]))))
    return Module(tuple(statements))
