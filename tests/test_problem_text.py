"""Problems from text: fields, and MIOpenDriver commands in the forms that bug reports quote."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gconvdsl as gconv
from gconvdsl.problem import ConvProblem
from gconvdsl.problem_text import parse_problem

SIZE = "-n 64 -c 256 -H 28 -W 28 -k 256 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -g 32"
RES3 = ConvProblem(N=64, G=32, C=256, K=256, input=(28, 28), filter=(3, 3), pad=1, dtype="bf16", layout="nchw")


def test_fields() -> None:
    assert parse_problem("N=2 G=4 C=32 K=48 input=13x11 filter=3x3 stride=2x1 pad=1 dtype=fp16") == ConvProblem(
        N=2, G=4, C=32, K=48, input=(13, 11), filter=(3, 3), stride=(2, 1), pad=1, dtype="fp16")


def test_defaults_and_one_number_for_every_axis() -> None:
    p = parse_problem("C=3 K=5 input=7x8x9 filter=2")
    assert (p.N, p.G, p.stride, p.dilation, p.pad, p.dtype, p.direction, p.layout) == (
        1, 1, (1, 1, 1), (1, 1, 1), ((0, 0),) * 3, "fp32", "forward", "ndhwgc")
    assert p.filter == (2, 2, 2)
    assert parse_problem("C=3 K=5 input=7 filter=2").layout == "nwgc"


@pytest.mark.parametrize("text,pad", [
    ("0:1x2:2", ((0, 1), (2, 2))), ("0:1", ((0, 1), (0, 1))), ("1x2:0", ((1, 1), (2, 0))), ("3", ((3, 3),) * 2)])
def test_pads(text: str, pad: Any) -> None:
    assert parse_problem(f"C=1 K=1 input=8x8 filter=3 pad={text}").pad == pad


def test_a_whole_statement_and_loose_spacing() -> None:
    p = parse_problem("problem res3 {\n  N = 64  G = 32, C = 256; K = 256\n input = 28x28 filter=3x3 pad = 1 "
                      "dtype = bf16 layout = NCHW }\n")
    assert (p, p.name) == (RES3, "res3")
    assert parse_problem("C=1 K=1 input=3 filter=1 direction=bwd_weight out_dtype=fp32 name=last").name == "last"


@pytest.mark.parametrize("text,code,shown", [
    ("hello", "problem.text", "hello"), ("", "problem.text", "neither"), ("C=1 K=2 and more", "problem.text", "and more"),
    ("C=1 K=2 input=3 fliter=1", "problem.field", "Did you mean filter"), ("C=1 K=2 filter=1", "problem.missing", "input"),
    ("C=1 K=2 input=3xx2 filter=1", "syntax.value", "3xx2"), ("C=1 K=2 input=0:3 filter=1", "syntax.value", "0:3"),
    ("C=1 K=2 input=3 filter=1.5", "syntax.value", "1.5"), ("C=1 C=2", "syntax.duplicate", "'C'"),
    ("C=1 K=2 input=3 filter=-2", "problem.size", "filter = -2"), ("C=4 G=0 K=4 input=3 filter=1", "problem.size", "G = 0"),
    ("C=4 G=3 K=4 input=3 filter=1", "problem.groups", "C = 4"), ("C=1 K=1 input=3 filter=1 dtype=fp64", "problem.dtype", "fp64"),
    ("C=1 K=1 input=3x3 filter=5", "problem.filter", "5 points"),
    ("C=1 K=1 input=3 filter=1 layout=nhwc2", "problem.layout", "nhwc2"),
    ("C=2x2 K=1 input=3 filter=1", "problem.size", "(2, 2)"), ("problem a { C=1 ", "problem.text", "problem a"),
    ("C=1 " * 2000, "problem.text", "C=1"),
])
def test_refused_fields(text: str, code: str, shown: str) -> None:
    with pytest.raises(gconv.GconvError) as caught:
        parse_problem(text)
    assert caught.value.code == code
    assert shown in str(caught.value)


def test_an_error_points_at_the_field() -> None:
    with pytest.raises(gconv.GconvError) as caught:
        parse_problem("C=4 K=4\n  input=3x3 filter=5")
    loc = caught.value.loc
    assert (loc.line, loc.column, loc.end_column) == (2, 13, 21)


WORDS = ["C=1", "K=2", "input=3x3", "filter=1", "pad=0:1", "=", "x", ":", "conv", "-n", "3", "-F", "MIOpenDriver", "{", "}",
         "problem"]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_gives_a_problem_or_a_catalogued_error(text: str) -> None:
    try:
        assert isinstance(parse_problem(text), ConvProblem)
    except gconv.GconvError as caught:
        assert str(caught)


# --- MIOpenDriver


@pytest.mark.parametrize("prefix", [
    "", "MIOpenDriver ", "./bin/MIOpenDriver ", "/opt/rocm/bin/MIOpenDriver ", "$ ./bin/MIOpenDriver ",
    "MIOPEN_FIND_MODE=1 MIOPEN_LOG_LEVEL=5 ./bin/MIOpenDriver ", "MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver ",
])
def test_the_places_a_command_is_pasted_from(prefix: str) -> None:
    assert parse_problem(f"{prefix}convbfp16 {SIZE} -l 1 -j 1 -m conv -F 1 -t 1 -V 0 -i 10 -w 1 -s 0") == RES3
    assert parse_problem(f'"{prefix}convbfp16 {SIZE} \\\n  -F 1"') == RES3


@pytest.mark.parametrize("forw,direction", [
    (0, "forward"), (1, "forward"), (2, "bwd_data"), (4, "bwd_weight"), (3, "forward"), (6, "bwd_data"), (5, "forward")])
def test_directions(forw: int, direction: str) -> None:
    assert parse_problem(f"convbfp16 {SIZE} -F {forw}") == RES3.as_(direction)


@pytest.mark.parametrize("operation,dtype", [("conv", "fp32"), ("convfp16", "fp16"), ("convbfp16", "bf16")])
def test_dtypes(operation: str, dtype: str) -> None:
    assert parse_problem(f"{operation} {SIZE}") == RES3.replace(dtype=dtype)


def test_long_flags() -> None:
    text = ("MIOpenDriver convfp16 --batchsize 42 --spatial_dim 2 --pad_h 0 --pad_w 2 --pad_d 0 --conv_stride_h 2 "
            "--conv_stride_w 1 --conv_stride_d 0 --dilation_h 1 --dilation_w 3 --dilation_d 0 --group_count 2 --mode conv "
            "--pad_mode default "
            "--trans_output_pad_h 0 --out_layout NHWC --in_layout NHWC --fil_layout NHWC --in_d 1 --in_h 28 --in_w 27 --fil_d 1 "
            "--fil_h 1 --fil_w 5 --in_channels 512 --out_channels 1024 --forw=2")
    assert parse_problem(text) == ConvProblem(
        N=42, G=2, C=512, K=1024, input=(28, 27), filter=(1, 5), stride=(2, 1), pad=(0, 2), dilation=(1, 3), dtype="fp16",
        direction="bwd_data", layout="nhwc")


def test_three_dimensions() -> None:
    short = "conv -_ 3 -n 2 -c 16 -! 5 -H 6 -W 7 -k 8 -@ 1 -y 2 -x 3 -$ 3 -p 1 -q 2 -# 4 -u 1 -v 2 -^ 5 -l 1 -j 2 -g 4 -F 4"
    expected = ConvProblem(N=2, G=4, C=16, K=8, input=(5, 6, 7), filter=(1, 2, 3), pad=(3, 1, 2), stride=(4, 1, 2),
                           dilation=(5, 1, 2), direction="bwd_weight", layout="ncdhw")
    assert parse_problem(short) == expected
    longer = short.replace("-_", "--spatial_dim").replace("-!", "--in_d") + " -I NDHWC"
    assert parse_problem(longer) == expected.replace(layout="ndhwc")


def test_the_drivers_own_defaults_fill_what_is_left_out() -> None:
    assert parse_problem("MIOpenDriver conv") == ConvProblem(N=100, C=3, K=32, input=(32, 32), filter=3, layout="nchw")


def test_transposed_convolutions_are_bwd_data() -> None:
    """Its output of 10x13 is the x of a convolution that leads back to the 5x6 of its input."""
    text = "conv -n 2 -c 16 -H 5 -W 6 -k 8 -y 4 -x 4 -p 1 -q 1 -u 2 -v 2 -X 1 -g 2 -m trans -F "
    forward = parse_problem(text + "1")
    assert forward == ConvProblem(N=2, G=2, C=8, K=16, input=(10, 13), filter=4, stride=2, pad=1, direction="bwd_data",
                                  layout="nchw")
    assert forward.output == (5, 6)
    assert parse_problem(text + "2") == forward.as_("forward")
    assert parse_problem(text + "4") == forward.as_("bwd_weight")


@pytest.mark.parametrize("size,filter,stride,pad", [(28, 3, 1, 1), (28, 5, 2, 1), (27, 5, 2, 2), (8, 1, 2, 0)])
def test_same_padding_follows_the_drivers_rule(size: int, filter: int, stride: int, pad: int) -> None:
    text = f"conv -n 1 -c 1 -k 1 -H {size} -W {size} -y {filter} -x {filter} -u {stride} -v {stride} -p 9 -q 9 -z "
    assert parse_problem(text + "same").pad == ((pad, pad),) * 2
    assert parse_problem(text + "valid").pad == ((0, 0),) * 2
    assert parse_problem(text + "default").pad == ((9, 9),) * 2


@pytest.mark.parametrize("rest,shown", [
    ("conv -n", "-n without a value"), ("conv -Q 3", "-Q"), ("conv 3", "flag 3"), ("conv --batchsise 3", "--batchsize"),
    ("convint8 -n 1", "convint8"), ("conv -n many", "many"), ("conv -_ 4", "4"), ("conv -m deconv", "deconv"), ("conv -F 9", "9"),
    ("conv -r 1", "pad_val"), ("conv -Z 1", "tensor_vect"), ("conv -I CHWN", "CHWN"), ("conv -I NHWC -f NCHW", "NHWC"),
    ("conv -I NCDHW", "NCDHW"), ("conv -m trans -X 1", "trans_output_pad"), ("conv -z mirror", "mirror"), ("", "nothing after"),
])
def test_refused_commands(rest: str, shown: str) -> None:
    with pytest.raises(gconv.ProblemError) as caught:
        parse_problem(f"./bin/MIOpenDriver {rest}")
    assert caught.value.code == "problem.driver"
    assert shown in str(caught.value)


@pytest.mark.parametrize("rest", ["-g 0", "-g 5", "-y 40", "-u 0", "-H 0", "-p -1"])
def test_impossible_problems_of_commands_are_problem_errors(rest: str) -> None:
    with pytest.raises(gconv.ProblemError):
        parse_problem(f"MIOpenDriver conv -c 32 {rest}")
