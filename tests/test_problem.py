"""ConvProblem: sizes, phases, strides, text, and every refusal."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gconvdsl as gconv
from gconvdsl.layouts import LAYOUTS
from gconvdsl.problem import DIRECTIONS, ConvProblem, from_fields
from gconvdsl.problem_text import parse_problem


@st.composite
def problems(draw: Any) -> ConvProblem:
    ndim = draw(st.integers(1, 3))
    ranges = ((1, 20), (1, 5), (1, 6), (1, 4), (0, 4), (0, 4))
    rows = [[draw(st.integers(low, high)) for low, high in ranges] for _ in range(ndim)]
    groups = draw(st.integers(1, 4))
    return ConvProblem(
        N=draw(st.integers(0, 3)), G=groups, C=groups * draw(st.integers(1, 9)), K=groups * draw(st.integers(1, 9)),
        input=[r[0] for r in rows], filter=[min(r[1], (r[0] + r[4] + r[5] - 1) // r[3] + 1) for r in rows],
        stride=[r[2] for r in rows], dilation=[r[3] for r in rows], pad=[(r[4], r[5]) for r in rows],
        dtype=draw(st.sampled_from(["fp32", "fp16", "bf16"])), out_dtype=draw(st.sampled_from([None, "fp32"])),
        direction=draw(st.sampled_from(DIRECTIONS)),
        layout=draw(st.sampled_from([name for name, layout in LAYOUTS.items() if layout.ndim == ndim])))


def positions(size: int, low: int, high: int, reach: int, stride: int) -> int:
    """Output positions, by sliding the filter over the padded axis."""
    return sum(1 for start in range(0, size + low + high, stride) if start + reach <= size + low + high)


@given(problems())
def test_output_counts_the_places_of_the_filter(p: ConvProblem) -> None:
    for axis in range(p.ndim):
        reach = p.dilation[axis] * (p.filter[axis] - 1) + 1
        assert p.output[axis] == positions(p.input[axis], *p.pad[axis], reach, p.stride[axis])


@given(problems())
def test_phases_partition_the_inputs_and_list_exactly_the_taps_that_arrive(p: ConvProblem) -> None:
    seen = np.zeros(p.input, dtype=int)
    for phase in p.phases:
        inputs = [range(f, f + c * s, s) for f, c, s in zip(phase.first, phase.count, p.stride)]
        for place in itertools.product(*inputs):
            seen[place] += 1
            for axis, i in enumerate(place):
                arrive = [t for t in range(p.filter[axis]) if (i + p.pad[axis][0] - t * p.dilation[axis]) % p.stride[axis] == 0]
                assert list(phase.taps[axis]) == arrive
                assert (i + p.pad[axis][0]) % p.stride[axis] == phase.residue[axis]
    assert np.all(seen == 1)


@given(problems())
def test_tap_outputs_are_those_inside_the_input(p: ConvProblem) -> None:
    for axis in range(p.ndim):
        for tap in range(p.filter[axis]):
            inside = [o for o in range(p.output[axis]) if 0 <= p.tap_input(axis, tap, o) < p.input[axis]]
            assert list(p.tap_outputs(axis, tap)) == inside


def live(p: ConvProblem) -> int:
    """How many input positions some output reads, by walking all products."""
    reached = set()
    for o in itertools.product(*map(range, p.output)):
        for t in itertools.product(*map(range, p.filter)):
            i = tuple(p.tap_input(axis, t[axis], o[axis]) for axis in range(p.ndim))
            if all(0 <= i[axis] < p.input[axis] for axis in range(p.ndim)):
                reached.add(i)
    return len(reached)


@pytest.mark.parametrize("size,filter,stride,pad,alive,phases,dead", [
    (12, 2, 3, 0, 64, 9, 5),        # 8 of 12 per axis live: 80 of 144 are zero
    (28, 3, 6, 1, 196, 36, 27),     # 14 of 28 per axis live: 9 of 36 phases
    (2, 1, 2, 0, 1, 4, 3),          # one live pixel of four
    (7, 1, 2, 0, 16, 4, 3),
])
def test_known_phases(size: int, filter: int, stride: int, pad: int, alive: int, phases: int, dead: int) -> None:
    p = ConvProblem(C=1, K=1, input=(size, size), filter=filter, stride=stride, pad=pad, direction="bwd_data")
    assert len(p.phases) == phases
    assert sum(1 for phase in p.phases if not all(phase.taps)) == dead
    assert live(p) == alive


def test_stride_and_dilation_with_a_common_divisor_leave_dead_phases() -> None:
    p = ConvProblem(C=1, K=1, input=(28, 28), filter=2, stride=2, dilation=2, direction="bwd_data")
    assert [phase.taps for phase in p.phases] == [((0, 1), (0, 1)), ((0, 1), ()), ((), (0, 1)), ((), ())]
    assert p.depth == 4


def test_more_phases_than_a_short_table_holds() -> None:
    p = ConvProblem(C=1, K=1, input=(28, 28), filter=6, stride=6, pad=1, direction="bwd_data")
    assert len(p.phases) == 36
    assert all(all(len(taps) == 1 for taps in phase.taps) for phase in p.phases)


def test_small_inputs_have_fewer_phases_than_the_stride() -> None:
    p = ConvProblem(C=1, K=1, input=(2,), filter=1, stride=5, direction="bwd_data")
    assert [(phase.first, phase.count, phase.taps) for phase in p.phases] == [((0,), (1,), ((0,),)), ((1,), (1,), ((),))]


@given(problems())
def test_strides_are_those_of_numpy(p: ConvProblem) -> None:
    for tensor in "xwy":
        array = np.empty(p.shape(tensor), np.int8)
        if array.size:
            assert tuple(p.strides(tensor).values()) == array.strides
        assert math.prod(p.fused_shape(tensor)) == math.prod(p.shape(tensor))


def test_axes_of_every_layout() -> None:
    expected = {"nwgc": ("nwgc", "gkxc", "nwgk"), "nhwgc": ("nhwgc", "gkyxc", "nhwgk"), "ndhwgc": ("ndhwgc", "gkzyxc", "ndhwgk"),
                "ngcw": ("ngcw", "gkcx", "ngkw"), "ngchw": ("ngchw", "gkcyx", "ngkhw"), "ngcdhw": ("ngcdhw", "gkczyx", "ngkdhw")}
    for name, axes in expected.items():
        for spelt in (name, name.replace("g", "")):
            p = ConvProblem(C=4, K=6, G=2, input=5, filter=2, layout=spelt)
            assert tuple(p.axes(t) for t in "xwy") == axes
            assert p.array_shape("x") == (p.shape("x") if "g" in spelt else p.fused_shape("x"))
    assert ConvProblem(C=4, K=6, G=2, input=(5, 7), filter=2, layout="nchw").fused_shape("w") == (6, 2, 2, 2)


def test_views_and_arguments() -> None:
    p = ConvProblem(N=2, G=3, C=6, K=12, input=(5, 7), filter=(2, 3), pad=((1, 0), (2, 3)))
    views = p.views()
    assert views["x"].flat() == (5 * 7 * 6, 2, 0, 7 * 6, 6, 1)
    assert views["w"].flat() == (2 * 3 * 2, 4 * 2 * 3 * 2, 0, 3 * 2, 2, 1)
    args = p.args(splits=4)
    assert (args.N, args.G, args.input, args.output, args.pad, args.splits) == (2, 3, (1, 5, 7), (1, *p.output), (0, 1, 2), 4)


def test_counts_in_the_three_directions() -> None:
    p = ConvProblem(N=2, G=2, C=6, K=8, input=(5, 4), filter=(3, 2), dtype="bf16")
    assert p.output == (3, 3)
    assert p.gemm == (2 * 9, 4, 3 * 6)
    assert p.as_("bwd_data").gemm == (2 * 20, 3, 4 * 6)
    assert p.as_("bwd_weight").gemm == (4, 3 * 6, 2 * 9)
    assert p.flops == 2 * 2 * 9 * 8 * 3 * 6
    elements = 2 * 5 * 4 * 6 + 8 * 3 * 6 + 2 * 9 * 8
    assert p.bytes == 2 * elements
    assert p.as_("bwd_weight").replace(out_dtype="fp32").bytes == 2 * elements + 2 * 8 * 3 * 6
    assert (p.depth, p.as_("bwd_data").depth, p.as_("bwd_weight").depth) == (18, 24, 18)
    assert [q.operands for q in map(p.as_, DIRECTIONS)] == [("x", "w"), ("y", "w"), ("x", "y")]


def test_sizes_past_two_to_the_31() -> None:
    p = ConvProblem(N=1, G=2, C=2, K=2, input=(32800, 32800), filter=3, pad=1)
    assert p.strides("x")["h"] * p.input[0] == 2_151_680_000
    assert p.flops == 2 * 2 * 32800 ** 2 * 9
    assert ConvProblem(N=10 ** 12, C=10 ** 6, K=1, input=(10 ** 6,), filter=1).gemm.m == 10 ** 18


def test_no_images() -> None:
    p = ConvProblem(N=0, C=2, K=3, input=(4, 4), filter=3)
    assert (p.flops, p.shape("y"), p.as_("bwd_weight").depth, p.strides("x")["n"]) == (0, (0, 2, 2, 1, 3), 0, 32)


@pytest.mark.parametrize("fields,code,text", [
    (dict(G=0), "problem.size", "G = 0"), (dict(C=0), "problem.size", "C = 0"), (dict(N=-1), "problem.size", "N = -1"),
    (dict(G=3), "problem.groups", "C = 4 cannot be split into G = 3"), (dict(K=6, G=4), "problem.groups", "K = 6"),
    (dict(input=(0, 5)), "problem.size", "input = 0"), (dict(stride=0), "problem.size", "stride"),
    (dict(dilation=-1), "problem.size", "-1"), (dict(pad=-1), "problem.size", "pad = -1"),
    (dict(pad=((0, -2), 0)), "problem.size", "-2"), (dict(stride=1.0), "problem.size", "1.0"),
    (dict(C=True), "problem.size", "True"), (dict(C="4"), "problem.size", "4"), (dict(C=None), "problem.size", "None"),
    (dict(filter=(6, 1)), "problem.filter", "6 points along axis h"),
    (dict(filter=3, dilation=(1, 3)), "problem.filter", "7 points"),
    (dict(filter=(1, 2, 3)), "problem.rank", "3 axes"), (dict(pad=(1,)), "problem.rank", "1 axes"),
    (dict(input=(1, 2, 3, 4)), "problem.ndim", "4 axes"), (dict(input=()), "problem.ndim", "0 axes"),
    (dict(dtype="fp8"), "problem.dtype", "dtype = 'fp8'"), (dict(dtype=int), "problem.dtype", "int"),
    (dict(out_dtype="int8"), "problem.dtype", "out_dtype = 'int8'"), (dict(direction="fwd"), "problem.direction", "fwd"),
    (dict(layout="ncw"), "problem.layout", "2-D"), (dict(layout="cnhw"), "problem.layout", "nhwgc"),
])
def test_refusals_name_the_value(fields: dict[str, Any], code: str, text: str) -> None:
    base: dict[str, Any] = dict(C=4, K=4, input=(5, 5), filter=1)
    with pytest.raises(gconv.ProblemError) as caught:
        ConvProblem(**{**base, **fields})
    assert caught.value.code == code
    assert text in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_one_number_serves_every_axis() -> None:
    one = ConvProblem(C=2, K=2, input=(8, 8), filter=3, stride=2, pad=1, dilation=1)
    assert one == ConvProblem(C=2, K=2, input=[8, 8], filter=(3, 3), stride=(2, 2), pad=((1, 1), 1), dilation=(np.int64(1), 1))
    assert ConvProblem(C=2, K=2, input=8, filter=(3, 3)).input == (8, 8)
    assert ConvProblem(C=2, K=2, input=8, filter=3, layout="nhwc").input == (8, 8)
    assert ConvProblem(C=2, K=2, input=8, filter=3).layout == "nwgc"
    assert ConvProblem(C=2, K=2, input=(8, 8), filter=3, pad=((0, 1),)).pad == ((0, 1), (0, 1))


def test_dtypes_in_numpys_spelling() -> None:
    assert ConvProblem(C=1, K=1, input=3, filter=1, dtype=np.float16, out_dtype=np.dtype("float32")).out_dtype == "fp32"
    assert ConvProblem(C=1, K=1, input=3, filter=1, dtype="bfloat16").dtype == "bf16"


def test_names_take_no_part_in_equality_but_directions_do() -> None:
    a, b = (ConvProblem(C=1, K=1, input=3, filter=1, name=name) for name in ("a", "b"))
    assert a == b and hash(a) == hash(b) and a.identity() == b.identity()
    assert a != a.as_("bwd_data") and a.identity() != a.as_("bwd_data").identity()
    assert len({a.as_(direction) for direction in DIRECTIONS}) == 3


def test_frozen_and_pickled() -> None:
    p = ConvProblem(C=1, K=1, input=3, filter=1, name="n")
    with pytest.raises(AttributeError):
        p.C = 2  # type: ignore[misc]
    assert p.phases and pickle.loads(pickle.dumps(p)) == p and pickle.loads(pickle.dumps(p)).name == "n"


def test_replace_keeps_a_default_out_dtype_in_step() -> None:
    p = ConvProblem(C=1, K=1, input=3, filter=1)
    assert p.replace(dtype="bf16").out_dtype == "bf16"
    assert p.replace(out_dtype="fp16").replace(dtype="bf16").out_dtype == "fp16"
    with pytest.raises(gconv.ProblemError, match="no field"):
        p.replace(filtre=3)


def test_repr_is_short_and_evaluates_to_an_equal_problem() -> None:
    p = ConvProblem(N=64, G=32, C=256, K=256, input=(28, 28), filter=(3, 3), pad=1, dtype="bf16")
    assert repr(p) == "ConvProblem(N=64, G=32, C=256, K=256, input=(28, 28), filter=(3, 3), pad=1, dtype='bf16')"


@settings(max_examples=200)
@given(problems())
def test_describe_and_identity_are_read_back(p: ConvProblem) -> None:
    assert parse_problem(p.describe()) == p
    assert parse_problem(p.identity()) == p
    assert eval(repr(p), {"ConvProblem": ConvProblem}) == p


def test_the_decorator() -> None:
    @gconv.problem
    class res4:
        """A layer."""

        N, G, C, K, input, filter, pad, dtype = 64, 32, 512, 512, (14, 14), (3, 3), 1, "bf16"

    expected = ConvProblem(N=64, G=32, C=512, K=512, input=(14, 14), filter=(3, 3), pad=1, dtype="bf16")
    assert res4 == expected
    assert isinstance(res4, ConvProblem) and res4.name == "res4"


def test_the_decorator_suggests_names() -> None:
    with pytest.raises(gconv.ProblemError, match="Did you mean stride") as caught:
        @gconv.problem
        class wrong:
            C, K, input, filter, strides = 1, 1, 3, 1, 2
    assert caught.value.code == "problem.field"
    with pytest.raises(gconv.ProblemError, match="needs K"):
        gconv.problem(type("missing", (), {"C": 1, "input": 3, "filter": 1}))
    with pytest.raises(gconv.ProblemError, match="not a class"):
        gconv.problem(len)  # type: ignore[arg-type]


def test_from_fields_names_what_is_missing() -> None:
    with pytest.raises(gconv.ProblemError) as caught:
        from_fields({"C": 1, "K": 1, "filter": 1})
    assert (caught.value.code, caught.value.values["field"]) == ("problem.missing", "input")
