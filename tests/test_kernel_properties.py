"""Properties of every kernel: the same bits whatever the order of work and the strides of the arrays, exact scaling, and no
infinity or NaN that turns finite; and minimal cases of faults that random problems have found."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import choose, rules
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.expr import Expr, apply, operand
from gconvdsl.pipelines import PIPELINES
from gconvdsl.problem import DIRECTIONS, ConvProblem
from gconvdsl.runner import bare_spec, execute
from gconvdsl.spec import ConvParams, KernelSpec, Operand
from gconvdsl.verify import make_inputs, make_operands, verify

Array = np.ndarray[Any, Any]
TARGETS = ("cpu", "sim:gfx942", "sim:gfx1100")
NUMPY = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}

PROBLEM = ConvProblem(N=5, G=3, C=15, K=21, input=(11, 13), filter=(3, 2), stride=(2, 1), pad=((1, 0), (0, 2)),
                      dtype="fp16", out_dtype="fp32")


def run(problem: ConvProblem, arrays: Any, target: str, config: KernelConfig | None = None, out: Any = None) -> Array:
    result = execute(bare_spec(problem.direction), config or KernelConfig(), problem, arrays, out=out, target=target, poison=True)
    return np.asarray(result.output)


def bits(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_any_number_of_threads_gives_the_same_bits(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one filter tap sees very little and where the reduction is long enough to be cut."""
    problem = PROBLEM.as_(direction)
    for problem in (problem, problem.replace(N=41, dtype="bf16", out_dtype="bf16"), problem.replace(N=1, dtype="fp32")):
        arrays, results = make_inputs(problem, "normal", 3), set()
        for threads in (1, 2, 7):
            monkeypatch.setenv("GCONV_THREADS", str(threads))
            results.add(bits(run(problem, arrays, "cpu")))
        assert len(results) == 1


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_any_order_of_simulated_lanes_gives_the_same_bits(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two waves, two blocks in m and n and an odd number of steps: a missing barrier shows in one of the orders."""
    tile = Tile((32, 16, 16), (2, 1, 1), (16, 16, 16), (8, 8, 8))
    problem = ConvProblem(N=3, G=2, C=26, K=40, input=(5, 6), filter=(3, 2), pad=1, dtype="fp16")
    arrays, results = make_inputs(problem), set()
    for order in ("forward", "reverse", "random:1", "random:2", "random:3"):
        monkeypatch.setenv("GCONV_SIM_ORDER", order)
        monkeypatch.setenv("GCONV_THREADS", "2" if order == "reverse" else "1")
        results.add(bits(run(problem, arrays, "sim:gfx942", KernelConfig(tile=tile, pipeline=pipeline))))
    assert len(results) == 1
    assert gconv.compare(problem, np.frombuffer(results.pop(), np.float16).reshape(problem.shape("y")), *arrays).ok


@pytest.mark.parametrize("direction", ["bwd_data", "bwd_weight"])
def test_order_does_not_change_split_sums(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, results = PROBLEM.replace(direction=direction), set()
    arrays = make_inputs(problem)
    for order in ("forward", "reverse", "random:1"):
        monkeypatch.setenv("GCONV_SIM_ORDER", order)
        results.add(bits(run(problem, arrays, "sim:gfx942", KernelConfig(tile=Tile((16, 16, 16)), split_k=2))))
    assert len(results) == 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_scaling_an_input_scales_the_result_exactly(direction: str, target: str) -> None:
    """Powers of two change no mantissa: fp32 results stay exact multiples, also from fp16 inputs that are subnormal (2^-18)."""
    problem = PROBLEM.as_(direction)
    a, b = make_inputs(problem, "integers")
    small = np.clip(a.astype(np.float64), -8, 8)
    first = run(problem, (np.ldexp(small, -20).astype(np.float16), b), target)
    for power in (-24, -10, 3):
        scaled = np.ldexp(small, power).astype(np.float16)
        assert np.array_equal(scaled.astype(np.float64), np.ldexp(small, power)), "the inputs themselves are exact"
        assert np.array_equal(run(problem, (scaled, b), target), np.ldexp(first, power + 20))


def _views(array: Array) -> list[Array]:
    """The same values in other memory: a transpose, a slice with steps, reversed axes, an odd offset, zero and odd strides."""
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 3), array.dtype)
    wide[..., 1:1 + 2 * array.shape[-1]:2] = array
    moved = np.ascontiguousarray(np.moveaxis(array, -1, 0))
    turned = np.ascontiguousarray(array[::-1, :, ::-1])
    flat = np.zeros(array.size + 1, array.dtype)
    flat[1:] = array.reshape(-1)
    return [wide[..., 1:1 + 2 * array.shape[-1]:2], np.moveaxis(moved, 0, -1), turned[::-1, :, ::-1],
            flat[1:].reshape(array.shape), np.asfortranarray(array)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_views_give_the_bits_of_contiguous_arrays(direction: str, target: str) -> None:
    problem = PROBLEM.as_(direction)
    a, b = make_inputs(problem)
    expected = bits(run(problem, (a, b), target))
    for first, second in zip(_views(a), reversed(_views(b))):
        assert np.array_equal(first, a) and np.array_equal(second, b)
        assert bits(run(problem, (first, second), target)) == expected
    for out in _views(np.full(problem.shape(problem.result), np.nan, np.float32)):
        run(problem, (a, b), target, out=out)
        assert bits(out) == expected
    one = np.broadcast_to(a[:1], a.shape)
    assert bits(run(problem, (one, b), target)) == bits(run(problem, (one.copy(), b), target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_single_infinity_or_nan_never_turns_finite(direction: str, target: str) -> None:
    """At the first and last element and others; where the reference is not finite the result is not; only channels spread."""
    for problem in (PROBLEM.as_(direction), PROBLEM.replace(direction=direction, layout="nchw", dtype="bf16", out_dtype="bf16")):
        a, b = make_inputs(problem, "integers")
        used = 0                                    # the stride leaves some pixels of x unread
        for place, value in ((0, np.nan), (a.size - 1, np.inf), (a.size // 2, -np.inf), (a.size // 3 + 1, np.nan)):
            spoilt = a.copy()
            spoilt.reshape(-1)[place] = value
            want, got = gconv.reference(problem, spoilt, b), run(problem, (spoilt, b), target).astype(np.float64)
            bad = ~np.isfinite(want)
            used += bool(bad.any())
            assert not np.isfinite(got[bad]).any()
            report = gconv.compare(problem, got.astype(NUMPY[problem.out_dtype]), spoilt, b)
            assert report.ok, f"{place}: {report}"
        assert used >= 3


# --- minimal cases of what random problems found


def verified(problem: ConvProblem, spec: KernelSpec, config: KernelConfig, target: str) -> None:
    operands = make_operands(problem, spec)

    def launch(a: Any, b: Any, out: Any) -> None:
        execute(spec, config, problem, (a, b), operands, out, target, poison=True)

    report = verify(problem, launch, spec=spec, operands=operands)
    assert report.ok, report


SMALL = Tile((32, 32, 32), (2, 1, 1), (16, 16, 16), (8, 8, 8))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_prologue_reaches_every_channel_of_channels_first_arrays(dtype: str) -> None:
    """16-bit elements are moved four channels at a time; once only the first of them was transformed."""
    problem = ConvProblem(N=1, C=5, K=2, input=4, filter=3, pad=1, dtype=dtype, layout="ngcw")
    spec = KernelSpec("activated", ConvParams(), (), apply("sigmoid", Expr("x")), Expr("acc"))
    verified(problem, spec, KernelConfig(tile=SMALL, pipeline="basic_v1"), "sim:gfx942")
    # sigmoid(0) = 1/2, over 5 channels and the 2 or 3 taps inside the image, with filters of ones
    zeros, ones = np.zeros(problem.shape("x"), NUMPY[dtype]), np.ones(problem.shape("w"), NUMPY[dtype])
    y = execute(spec, KernelConfig(tile=SMALL, pipeline="basic_v1"), problem, (zeros, ones), target="sim:gfx942").output
    assert np.array_equal(y.astype(np.float64), np.broadcast_to([5.0, 7.5, 7.5, 5.0], problem.shape("y")))


@pytest.mark.parametrize("target", ["sim:gfx942", "sim:gfx1100"])
def test_a_prologue_leaves_padding_alone_however_many_rows_a_thread_moves(target: str) -> None:
    """One wave and single elements make 64 rows a thread, more than the 32 whose place in the image was once remembered."""
    tile = Tile((64, 16, 64), (1, 1, 1), (16, 16, 16), (1, 1, 8))
    problem = ConvProblem(N=2, C=7, K=16, input=(9, 9), filter=(3, 3), pad=2, dtype="fp16")
    spec = KernelSpec("activated", ConvParams(), (), apply("sigmoid", Expr("x")), Expr("acc"))
    config = KernelConfig(tile=tile, pipeline="basic_v1")
    verified(problem, spec, config, target)
    zeros, ones = np.zeros(problem.shape("x"), np.float16), np.ones(problem.shape("w"), np.float16)
    y = execute(spec, config, problem, (zeros, ones), target=target).output
    inside = np.array([1, 2, 3, 3, 3, 3, 3, 3, 3, 2, 1])        # taps of an axis inside an image of 9 with padding 2
    assert np.array_equal(y[0, :, :, 0, 0].astype(np.float64), 3.5 * np.outer(inside, inside))


def test_a_prologue_reads_the_channel_of_its_own_merged_group() -> None:
    """In channels-first arrays merged groups lie along the rows of a tile; once all read the operand of the first."""
    problem = ConvProblem(N=1, G=2, C=6, K=4, input=5, filter=1, dtype="fp16", layout="ncw")
    scaled = apply("mul", Expr("x"), operand("scale"))
    spec = KernelSpec("scaled", ConvParams(), (Operand("scale", "per_c"),), scaled, Expr("acc"))
    config = KernelConfig(tile=SMALL, pipeline="basic_v1", num_groups_to_merge=2)
    ones = [np.ones(problem.array_shape(tensor), np.float16) for tensor in "xw"]
    scale = np.array([1, 2, 3, 10, 20, 30], np.float32)
    y = execute(spec, config, problem, ones, {"scale": scale}, target="sim:gfx942").output
    assert np.array_equal(y[0, :, 0].astype(np.float64), [6, 6, 60, 60])


def test_a_tile_is_judged_by_the_pipeline_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline may need fewer registers than basic_v1, by which alone tiles were once judged."""
    def crowded(problem: ConvProblem, config: KernelConfig, arch: str) -> list[rules.Violation]:
        fits = config.pipeline == ("basic_async_v1",)
        return [] if fits else [rules.Violation("tile.registers", "tile.block", 300, 255, "", "too many registers")]

    monkeypatch.setattr(rules, "check", crowded)
    problem = ConvProblem(C=80, K=3, input=(6, 9), filter=(2, 2), dtype="fp16")
    backend, arch = choose.resolve_target("sim:gfx942")
    config = KernelConfig(tile=SMALL, pipeline="basic_async_v1")
    decision = choose.decide(bare_spec("forward"), problem, config, backend, arch, compiled=False)
    assert not decision.fallbacks and isinstance(decision.config.tile, Tile) and decision.config.tile.block == SMALL.block


def test_hundreds_of_simulated_kernels_share_the_stacks_of_their_lanes() -> None:
    """Each stack takes two of the mappings that a process may have; stacks of their own would take 128 or more a kernel."""
    def mappings() -> int:
        with open("/proc/self/maps", encoding="utf-8") as lines:
            return sum(1 for _ in lines)

    def launch(channels: int) -> None:
        problem = ConvProblem(C=channels, K=1, input=2, filter=1)
        run(problem, make_inputs(problem), "sim:gfx942")

    launch(1)
    before = mappings()
    launch(2)
    launch(3)
    assert mappings() - before < 64
