"""The reference against plain loops over indices, and against a device that gathers through tables."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy_device import run

import gconvdsl as gconv
from gconvdsl.dtypes import round_to
from gconvdsl.expr import Expr, const, operand
from gconvdsl.layouts import LAYOUTS
from gconvdsl.problem import DIRECTIONS, ConvProblem
from gconvdsl.reference import canonical, reached, reference, restore
from gconvdsl.spec import ConvParams, KernelSpec, Operand


def loops(p: ConvProblem, a: Any, b: Any) -> Any:
    """The definition, one product at a time, with every array addressed by axis letters."""
    arrays = {t: np.asarray(v).reshape(p.shape(t)) for t, v in zip(p.operands, (a, b))}
    arrays[p.result] = np.zeros(p.shape(p.result))

    def at(t: str, **index: int) -> tuple[int, ...]:
        return tuple(index[letter] for letter in p.axes(t))

    space, taps = "dhw"[3 - p.ndim:], "zyx"[3 - p.ndim:]
    for n, g, c, k in itertools.product(range(p.N), range(p.G), range(p.C // p.G), range(p.K // p.G)):
        for o in itertools.product(*map(range, p.output)):
            for t in itertools.product(*map(range, p.filter)):
                i = [o[d] * p.stride[d] + t[d] * p.dilation[d] - p.pad[d][0] for d in range(p.ndim)]
                if not all(0 <= i[d] < p.input[d] for d in range(p.ndim)):
                    continue
                where = {"x": at("x", n=n, g=g, c=c, **dict(zip(space, i))), "w": at("w", g=g, k=k, c=c, **dict(zip(taps, t))),
                         "y": at("y", n=n, g=g, k=k, **dict(zip(space, o)))}
                one, two = p.operands
                arrays[p.result][where[p.result]] += arrays[one][where[one]] * arrays[two][where[two]]
    return arrays[p.result]


@st.composite
def problems(draw: Any) -> ConvProblem:
    ndim = draw(st.integers(1, 3))
    few = {1: 7, 2: 5, 3: 3}[ndim]
    axis = st.tuples(*(st.integers(low, high) for low, high in ((1, few), (1, 3), (1, 3), (1, 2), (0, 2), (0, 2))))
    rows = draw(st.lists(axis, min_size=ndim, max_size=ndim))
    filters = [min(f, (size + lo + hi - 1) // d + 1) for size, f, _, d, lo, hi in rows]
    groups = draw(st.integers(1, 3))
    return ConvProblem(
        N=draw(st.integers(0, 2)), G=groups, C=groups * draw(st.integers(1, 3)), K=groups * draw(st.integers(1, 3)),
        input=[r[0] for r in rows], filter=filters, stride=[r[2] for r in rows], dilation=[r[3] for r in rows],
        pad=[(r[4], r[5]) for r in rows], direction=draw(st.sampled_from(DIRECTIONS)),
        layout=draw(st.sampled_from([each.name for each in LAYOUTS.values() if each.ndim == ndim])))


def integers(p: ConvProblem, seed: int = 0, fused: bool = False) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    shapes = [p.fused_shape(t) if fused else p.shape(t) for t in p.operands]
    return rng.integers(-4, 5, shapes[0]), rng.integers(-4, 5, shapes[1])


@settings(max_examples=60, deadline=None)
@given(problems(), st.booleans())
def test_agrees_with_loops_exactly(p: ConvProblem, fused: bool) -> None:
    a, b = integers(p, fused=fused)
    found = reference(p, a, b)
    assert found.dtype == np.float64
    assert found.shape == (p.fused_shape(p.result) if fused else p.shape(p.result))
    assert np.array_equal(found.reshape(p.shape(p.result)), loops(p, a, b))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_reached_is_where_products_of_ones_arrive(p: ConvProblem) -> None:
    ones = [np.ones(p.shape(t)) for t in p.operands]
    counted = canonical(p, p.result, loops(p, *ones))
    assert np.array_equal(np.broadcast_to(reached(p), counted.shape), counted > 0)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_numpy_device_agrees(p: ConvProblem) -> None:
    a, b = integers(p)
    out = np.full(p.shape(p.result), np.nan, np.float32)
    run(p, a, b, out)
    assert np.array_equal(out, reference(p, a, b))


def test_directions_are_adjoint() -> None:
    """<conv(x, w), dy> = <x, bwd_data(dy, w)> = <w, bwd_weight(x, dy)>, exactly on integers."""
    p = ConvProblem(N=2, G=3, C=6, K=9, input=(6, 7), filter=(3, 2), stride=(2, 1), pad=((1, 0), (0, 2)), dilation=(1, 2))
    rng = np.random.default_rng(1)
    x, w, dy = (rng.integers(-3, 4, p.shape(t)) for t in "xwy")
    forward = np.sum(reference(p, x, w) * dy)
    assert forward == np.sum(reference(p.as_("bwd_data"), dy, w) * x) == np.sum(reference(p.as_("bwd_weight"), x, dy) * w) != 0


def test_split_and_fused_shapes_are_the_same_memory() -> None:
    for name in ("nhwgc", "ngchw"):
        p = ConvProblem(N=2, G=2, C=4, K=6, input=(3, 4), filter=(2, 2), layout=name)
        a, b = integers(p)
        fused = reference(p, a.reshape(p.fused_shape("x")), b.reshape(p.fused_shape("w")))
        assert np.array_equal(fused.reshape(p.shape("y")), reference(p, a, b))


@pytest.mark.parametrize("tensor", "xwy")
def test_canonical_and_restore_are_inverse(tensor: str) -> None:
    for name in LAYOUTS:
        p = ConvProblem(N=2, G=3, C=6, K=12, input=5, filter=2, layout=name)
        array = np.arange(np.prod(p.shape(tensor)), dtype=np.float64).reshape(p.fused_shape(tensor))
        moved = canonical(p, tensor, array)
        assert moved.shape[0] == p.G
        assert np.array_equal(restore(p, tensor, moved, fused=True), array)


SCALE_SHIFT_BIAS = KernelSpec(
    "k", ConvParams("forward"),
    (Operand("scale", "per_c"), Operand("shift", "per_c"), Operand("bias", "per_k"), Operand("res", "like_y"),
     Operand("alpha", "scalar")),
    Expr("add", (Expr("mul", (Expr("x"), operand("scale"))), operand("shift"))),
    Expr("relu", (Expr("add", (Expr("add", (Expr("mul", (Expr("acc"), operand("alpha"))), operand("bias"))), operand("res"))),)))


@pytest.mark.parametrize("layout", ["nhwgc", "nhwc", "ngchw", "nchw"])
def test_prologue_before_padding_and_epilogue_after_the_sum(layout: str) -> None:
    p = ConvProblem(N=2, G=2, C=4, K=6, input=(4, 3), filter=(3, 3), pad=1, layout=layout)
    rng = np.random.default_rng(3)
    x, w, res = (rng.integers(-3, 4, p.array_shape(t)).astype(float) for t in "xwy")
    scale, shift, bias = rng.integers(-3, 4, p.C), rng.integers(1, 4, p.C), rng.integers(-3, 4, p.K)
    found = reference(p, x, w, SCALE_SHIFT_BIAS, dict(scale=scale, shift=shift, bias=bias, res=res, alpha=2.0))

    def per_channel(values: Any, t: str, letter: str) -> Any:
        return values.reshape([{"g": p.G, letter: values.size // p.G}.get(axis, 1) for axis in p.axes(t)])

    moved = x.reshape(p.shape("x")) * per_channel(scale, "x", "c") + per_channel(shift, "x", "c")
    acc = loops(p, moved, w)
    expected = np.maximum(acc * 2.0 + per_channel(bias, "y", "k") + res.reshape(p.shape("y")), 0)
    assert np.array_equal(found.reshape(p.shape("y")), expected)


def test_a_spec_of_another_direction_leaves_gradients_bare() -> None:
    p = ConvProblem(C=2, K=2, input=(4,), filter=2, direction="bwd_data")
    a, b = integers(p)
    assert np.array_equal(reference(p, a, b, SCALE_SHIFT_BIAS), reference(p, a, b))


def test_an_epilogue_of_bwd_data_reads_one_value_for_each_of_the_c_channels() -> None:
    p = ConvProblem(G=2, C=4, K=2, input=(4,), filter=2, direction="bwd_data")
    added = Expr("add", (Expr("acc"), operand("bias")))
    spec = KernelSpec("k", ConvParams("bwd_data"), (Operand("bias", "per_c"),), epilogue=added)
    a, b = integers(p)
    bias = np.array([1.0, 20.0, 300.0, 4000.0])
    assert np.array_equal(reference(p, a, b, spec, {"bias": bias}), reference(p, a, b) + bias.reshape(1, 1, 2, 2))


def test_a_constant_epilogue_fills_the_result() -> None:
    p = ConvProblem(C=2, K=3, input=(4,), filter=2)
    spec = KernelSpec("k", epilogue=const(2.5))
    assert np.array_equal(reference(p, *integers(p), spec), np.full((1, 3, 1, 3), 2.5))


def test_padding_takes_no_part_even_next_to_nan() -> None:
    p = ConvProblem(C=1, K=1, input=(3,), filter=3, pad=1)
    w = np.array([np.nan, 1.0, 1.0]).reshape(1, 1, 3, 1)
    assert np.isnan(reference(p, np.ones((1, 3, 1, 1)), w).ravel()).tolist() == [False, True, True]


def test_wrong_arrays_are_named() -> None:
    p = ConvProblem(G=2, C=4, K=6, input=(5, 5), filter=3)
    x, w = np.zeros(p.shape("x")), np.zeros(p.shape("w"))
    for a, b, code in ((x[0], w, "array.shape"), (x[..., 0, 0], w, "array.rank"), (x, w.astype(complex), "array.dtype"),
                       (x.astype(object), w, "array.dtype"), (x.transpose(0, 2, 1, 4, 3)[:, :4], w, "array.shape")):
        with pytest.raises(gconv.ArrayError) as caught:
            reference(p, a, b)
        assert caught.value.code == code
        assert ("x" if b is w else "w") == caught.value.values["name"]
    with pytest.raises(gconv.ArrayError, match="bias"):
        reference(p, x, w, KernelSpec("k", operands=(Operand("bias", "per_k"),), epilogue=operand("bias")), {"bias": np.zeros(5)})
    with pytest.raises(gconv.ArrayError) as caught:
        reference(p, x, w, KernelSpec("k", operands=(Operand("bias", "per_k"),), epilogue=operand("bias")))
    assert caught.value.code == "array.missing"


@pytest.mark.parametrize("name,cast", [("fp32", np.float32), ("fp16", np.float16)])
def test_round_to_is_numpys_rounding(name: str, cast: Any) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(2000) * 10.0 ** rng.integers(-50, 45, 2000)
    values = np.concatenate([values, [0.0, -0.0, np.inf, np.nan, 65519.9, 65520]])
    with np.errstate(all="ignore"):
        expected = values.astype(cast).astype(np.float64)
    assert np.array_equal(round_to(values, name), expected, equal_nan=True)


def test_round_to_bf16_rounds_once() -> None:
    """1 + 2^-8 + 2^-40 is above the tie; through float32 it would fall on it and go to even, which is 1."""
    assert round_to(1 + 2.0 ** -8 + 2.0 ** -40, "bf16") == 1 + 2.0 ** -7
    assert round_to([1 + 2.0 ** -8, 1 + 3 * 2.0 ** -8, 2.0 ** -134, 3.3965e38, 3.395e38], "bf16").tolist() == [
        1.0, 1 + 2.0 ** -6, 0.0, np.inf, (2 - 2.0 ** -7) * 2.0 ** 127]
