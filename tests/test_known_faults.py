"""Problems at which other convolution libraries have gone wrong, as their public reports give them; huge sizes are scaled down.

Each is verified; where a report or a short calculation gives the right value itself, that value is asserted as well.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl.config import KernelConfig
from gconvdsl.expr import Expr, apply, operand
from gconvdsl.problem import ConvProblem
from gconvdsl.problem_text import parse_problem
from gconvdsl.runner import bare_spec, execute
from gconvdsl.spec import ConvParams, KernelSpec, Operand
from gconvdsl.verify import verify

Array = np.ndarray[Any, Any]
TARGETS = ("cpu", "sim:gfx942")

# What went wrong -> the problem. D/H/W, filters, strides and paddings are those of the reports.
FAULTS = {
    "depthwise, an image that cannot be cut along N": "G=2 C=2 K=2 input=67x71 filter=3x3 pad=1",
    "1x1 with few outputs": "C=128 K=3 input=19x23 filter=1x1 dtype=fp16",
    "flat 3-D filter": "C=16 K=16 input=3x21x17 filter=1x3x3 dtype=bf16",
    "group forgotten in the stride of N": "N=4 G=3 C=24 K=36 input=9x7 filter=3x3 pad=1 dtype=fp16 direction=bwd_data",
    "many images of one channel": "N=523 C=1 K=1 input=37x1 filter=3x1 stride=2x1",
    "bf16 partial sums over images": "N=8 C=16 K=16 input=9x9x9 filter=1x1x1 dtype=bf16 direction=bwd_weight",
    "trailing output channels": "N=2 C=16 K=13 input=9x9 filter=3x3 pad=1 dtype=fp16 direction=bwd_data",
    "the last 4 of 324 pixels": "N=8 C=32 K=32 input=1x18x18 filter=1x1x1 direction=bwd_data",
    "outputs of 1x1, reduced over N only": "N=40 C=64 K=48 input=7x7 filter=7x7 direction=bwd_weight",
    "a sequence of 129": "N=1 C=40 K=40 G=40 input=129 filter=4 pad=3:0 dtype=bf16 layout=nwc",
    "padding 2 on filter 5": "N=1 C=16 K=24 input=14x14 filter=5x5 pad=2",
    "only the first stride phase": "N=3 C=20 K=24 input=10x35 filter=5x5 stride=2 pad=1 dtype=fp16 direction=bwd_data",
    "three strides of a 3x3 filter": "N=4 C=16 K=24 input=28x28 filter=3x3 stride=3 pad=1 dtype=fp16 direction=bwd_data",
    "asymmetric everything":
        "N=2 G=2 C=8 K=8 input=16x12 filter=4x8 stride=4x8 pad=1:2x3:0 dtype=fp16 direction=bwd_data",
    "filter 2, stride 2, dilation 2":
        "G=2 N=2 C=32 K=32 input=12x12 filter=2x2 stride=2 dilation=2 dtype=fp16 direction=bwd_data",
    "filter 8 on one channel": "C=1 K=1 input=16x16 filter=8x8 pad=1 dtype=fp16 direction=bwd_data",
    "3-D with strides and pads that differ":
        "N=2 G=2 C=6 K=10 input=5x7x9 filter=2x3x1 stride=2x1x3 pad=1:0x2:1x0:1 direction=bwd_weight",
    "NHWC padding on the wrong axes": "N=2 C=128 K=128 G=128 input=16x16 filter=5x5 stride=2 pad=1:2 dtype=fp16",
    "C = 3 with asymmetric padding": "N=2 C=3 K=64 input=32x32 filter=7x7 stride=2 pad=3:2 dtype=fp16",
    "depthwise with a channel multiplier": "N=2 G=6 C=6 K=18 input=9x9 filter=3x3 pad=1",
    "one channel of two groups": "N=1 G=2 C=4 K=4 input=1x1 filter=1x1 dtype=fp16 layout=nchw",
    "channels padded to 4": "N=1 C=1 K=1 input=4x4 filter=3x3 pad=1 dtype=fp16",
    "K = 4 of a vector of 8": "N=16 C=16 K=4 input=14x14 filter=3x3 stride=2 pad=1 dtype=fp16 direction=bwd_data",
    "a filter of 21x11": "N=1 C=4 K=4 input=46x24 filter=21x11 stride=2x1",
}


def run(problem: ConvProblem, arrays: tuple[Array, Array], target: str, spec: KernelSpec | None = None,
        **operands: Any) -> Array:
    """The result in float64, from memory that was full of NaN."""
    spec = spec or bare_spec(problem.direction)
    out = np.full(problem.array_shape(problem.result), np.nan, _numpy(problem.out_dtype))
    execute(spec, KernelConfig(), problem, arrays, operands, out, target, poison=True)
    return out.astype(np.float64)


def _numpy(dtype: str) -> Any:
    return {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]


def _ones(problem: ConvProblem) -> tuple[Array, Array]:
    first, second = (np.ones(problem.array_shape(tensor), _numpy(problem.dtype)) for tensor in problem.operands)
    return first, second


def check(name: str, target: str) -> None:
    problem = parse_problem(FAULTS[name])

    def launch(a: Array, b: Array, out: Array) -> None:
        execute(bare_spec(problem.direction), KernelConfig(), problem, (a, b), out=out, target=target, poison=True)

    report = verify(problem, launch)
    assert report.ok, f"{target}: {report}"


@pytest.mark.parametrize("name", FAULTS)
def test_known_fault(name: str) -> None:
    check(name, "sim:gfx942")


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
def test_known_fault_on_other_targets(name: str) -> None:
    for target in ("cpu", "sim:gfx1100", "sim:sm_90"):
        check(name, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("text", "zeros"), [
    # 12 inputs, filter 2, stride 3: 8 of 12 live per axis
    ("G=2 N=2 C=32 K=32 input=12x12 filter=2x2 stride=3 dtype=fp16", 12 * 12 - 8 * 8),
    # 28 inputs, filter 3, stride 6, padding 1: windows begin at -1, 5, 11, 17, 23: 2 + 3 + 3 + 3 + 3 = 14 live per axis
    ("G=2 N=2 C=16 K=16 input=28x28 filter=3x3 stride=6 pad=1 dtype=fp16", 28 * 28 - 14 * 14),
    ("N=8 C=128 K=64 input=2x2 filter=1x1 stride=2 dtype=fp16", 3),
    ("G=2 N=2 C=24 K=16 input=7x7 filter=1x1 stride=2 dtype=fp16", 7 * 7 - 4 * 4),
])
def test_inputs_that_no_output_reads_have_a_gradient_of_zero(text: str, zeros: int, target: str) -> None:
    problem = parse_problem(text + " direction=bwd_data")
    dx = run(problem, _ones(problem), target)
    dead = np.all(dx == 0, axis=(0, 3, 4))
    assert dead.sum() == zeros and np.all(dx[:, ~dead] >= problem.Kg)
    assert not np.signbit(dx[:, dead]).any()


@pytest.mark.parametrize("target", TARGETS)
def test_outputs_that_see_only_padding_equal_the_bias(target: str) -> None:
    problem = ConvProblem(N=5, C=2, K=3, input=(11, 14), filter=(3, 3), pad=4)
    added = apply("add", Expr("acc"), operand("bias"))
    biased = KernelSpec("biased", ConvParams(), (Operand("bias", "per_k"),), Expr("x"), added)
    bias = np.array([0.5, -3.0, 7.25], np.float32)
    y = run(problem, _ones(problem), target, biased, bias=bias)
    assert y.shape == (5, 17, 20, 1, 3)
    only_padding = np.all(y == bias, axis=(0, 3, 4))
    assert only_padding.sum() == 132                # of 340
    assert np.all(y[:, ~only_padding] > bias)


@pytest.mark.parametrize("target", TARGETS)
def test_all_ones_weight_gradient_counts_its_terms(target: str) -> None:
    """A sum of ones stalls at 256 in bf16 and 2048 in fp16: 8 x 16 x 16 x 16 terms show any narrow accumulator."""
    configs = (("bf16", KernelConfig()), ("fp16", KernelConfig(split_k=8)), ("bf16", KernelConfig(split_k=7, two_stage=True)))
    for dtype, config in configs:
        problem = ConvProblem(N=8, C=16, K=16, input=(16, 16, 16), filter=(1, 1, 1), dtype=dtype, direction="bwd_weight")
        out = np.full(problem.shape("w"), np.nan, _numpy(dtype))
        execute(bare_spec("bwd_weight"), config, problem, _ones(problem), out=out, target=target, poison=True)
        assert np.all(out.astype(np.float64) == 32768)


@pytest.mark.parametrize("target", TARGETS)
def test_one_pixel_reaches_the_centre_tap_only(target: str) -> None:
    problem = ConvProblem(N=25, G=2, C=6, K=10, input=(1, 1), filter=(3, 3), pad=1, dtype="fp16", direction="bwd_weight")
    dw = run(problem, _ones(problem), target)
    assert np.all(dw[:, :, 1, 1] == 25)
    dw[:, :, 1, 1] = 0
    assert not dw.any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_no_images(direction: str, target: str) -> None:
    problem = ConvProblem(N=0, G=2, C=4, K=6, input=(5, 4), filter=(3, 2), direction=direction)
    result = run(problem, _ones(problem), target)
    assert result.shape == problem.shape(problem.result) and not result.any()


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 256, 257])
def test_causal_sequences_of_every_edge_length(length: int) -> None:
    """Depthwise of width 4 with ones: output l sums its last min(l + 1, 4) inputs, in every one of them."""
    for direction in ("forward", "bwd_data"):
        problem = ConvProblem(N=2, G=40, C=40, K=40, input=length, filter=4, pad=((3, 0),), dtype="bf16", layout="nwc",
                              direction=direction)
        counts = np.minimum(np.arange(length) + 1, 4)
        expected = counts if direction == "forward" else counts[::-1]
        for target in TARGETS:
            found = run(problem, _ones(problem), target)
            assert np.array_equal(found, np.broadcast_to(expected[None, :, None], (2, length, 40)))


def test_a_filter_beyond_the_padded_input_is_refused() -> None:
    with pytest.raises(gconv.ProblemError) as caught:
        ConvProblem(G=2, C=6, K=4, input=(2, 2), filter=(3, 3))
    assert caught.value.code == "problem.filter"


@pytest.mark.parametrize("target", TARGETS)
def test_subnormal_gradients_are_not_flushed(target: str) -> None:
    """Four fifths of dY are subnormal in fp16. The result is exact in fp32, so scaling dY by 2^4 scales it exactly."""
    problem = ConvProblem(N=2, G=2, C=16, K=16, input=(7, 7), filter=(3, 3), pad=1, dtype="fp16", out_dtype="fp32",
                          direction="bwd_data")
    rng = np.random.default_rng(0)
    steps = rng.integers(-1280, 1281, problem.shape("y"))
    dy, w = np.ldexp(steps, -24).astype(np.float16), rng.integers(-8, 9, problem.shape("w")).astype(np.float16)
    assert 0.75 < np.mean(np.abs(steps) < 1024) < 0.85
    small, large = run(problem, (dy, w), target), run(problem, ((dy * 16).astype(np.float16), w), target)
    assert np.array_equal(np.ldexp(small, 4), large) and np.array_equal(small, gconv.reference(problem, dy, w))


@pytest.mark.parametrize("target", TARGETS)
def test_expanded_gradients(target: str) -> None:
    """dY of y.sum(): every stride is 0."""
    problem = ConvProblem(N=3, G=2, C=4, K=6, input=(6, 5), filter=(3, 2), stride=(2, 1))
    ones = np.broadcast_to(np.float32(1), problem.shape("y"))
    w = np.random.default_rng(1).integers(-9, 10, problem.shape("w")).astype(np.float32)
    dx = run(problem.as_("bwd_data"), (ones, w), target)
    assert np.array_equal(dx, gconv.reference(problem.as_("bwd_data"), np.ascontiguousarray(ones), w))
    x = np.ones(problem.shape("x"), np.float32)
    dw = run(problem.as_("bwd_weight"), (x, ones), target)
    assert np.all(dw == 3 * math.prod(problem.output))
