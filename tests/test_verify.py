"""compare and verify: the bound itself, exactness, zeros, non-finite values, reports, inputs."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from numpy_device import run

import gconvdsl as gconv
from gconvdsl.dtypes import DTYPES
from gconvdsl.expr import Expr, const, operand
from gconvdsl.inputs import KINDS, kinds_for
from gconvdsl.problem import ConvProblem
from gconvdsl.reference import reference
from gconvdsl.spec import KernelSpec, Operand
from gconvdsl.verify import compare, make_inputs, make_operands, verify

ONE = ConvProblem(C=3, K=1, input=(1,), filter=1)      # a single sum of three products


def single(problem: ConvProblem, result: float, a: list[float], b: list[float], **options: Any) -> Any:
    dtype = DTYPES[problem.dtype].numpy
    x, w = np.array(a).reshape(problem.shape("x")).astype(dtype), np.array(b).reshape(problem.shape("w")).astype(dtype)
    return compare(problem, np.array(result).reshape(1, 1, 1, 1).astype(DTYPES[problem.out_dtype].numpy), x, w, **options)


@pytest.mark.parametrize("lam, options", [(3, {}), (1, {"lam": 1})])
@pytest.mark.parametrize("dtype,unit", [("fp32", 2.0 ** -24), ("fp16", 2.0 ** -11), ("bf16", 2.0 ** -8)])
def test_the_ratio_is_the_error_over_the_documented_bound(dtype: str, unit: float, lam: float, options: dict[str, float]) -> None:
    problem = ONE.replace(dtype=dtype)
    total, magnitude = 2.0, 6.0          # 2 * 2 - 1 - 1
    bound = 1.01 * (unit * total + (2 + lam * math.sqrt(3)) * 2.0 ** -24 * magnitude + DTYPES[dtype].smallest_subnormal / 2)
    step = {"fp32": 2.0 ** -22, "fp16": 2.0 ** -9, "bf16": 2.0 ** -6}[dtype]      # one unit in the last place of 2
    for steps in (0, 1, 2, 8):
        report = single(problem, total + steps * step, [2, 1, 1], [2, -1, -1], **options)
        assert report.error_ratio == pytest.approx(steps * step / bound, rel=1e-12)
        assert report.ok == (steps * step <= bound)


def test_exact_mode_allows_nothing() -> None:
    ok = single(ONE, 2.0, [2, 1, 1], [2, -1, -1], exact=True)
    off = single(ONE, np.nextafter(np.float32(2), np.float32(3)), [2, 1, 1], [2, -1, -1], exact=True)
    assert ok.ok and ok.error_ratio == 0
    assert not off.ok and off.error_ratio == math.inf and "exact" in off.reason


def test_exact_mode_rounds_once_and_to_even() -> None:
    bf16 = ONE.replace(dtype="bf16")
    assert single(bf16, 256.0, [256, 1, 0], [1, 1, 1], exact=True).ok            # 257 is a tie: to even
    assert not single(bf16, 258.0, [256, 1, 0], [1, 1, 1], exact=True).ok
    assert single(bf16, 260.0, [256, 3, 0], [1, 1, 1], exact=True).ok            # 259 is a tie: to even


def test_sums_too_large_to_be_exact_fall_back_to_the_bound() -> None:
    big = 2.0 ** 24
    assert single(ONE, big, [big, 1, 0], [1, 1, 1], exact=True).ok


def test_overflow_must_be_infinite() -> None:
    fp16 = ONE.replace(dtype="fp16")
    assert single(fp16, np.inf, [60000, 60000, 0], [1, 1, 1]).ok
    assert not single(fp16, 65504.0, [60000, 60000, 0], [1, 1, 1]).ok
    assert not single(fp16, -np.inf, [60000, 60000, 0], [1, 1, 1]).ok
    assert not single(fp16, np.inf, [60000, 0, 0], [1, 1, 1]).ok
    edge = [65504, 15.99, 0]                                                     # either side of the edge is a right rounding
    assert single(fp16, np.inf, edge, [1, 1, 1]).ok and single(fp16, 65504.0, edge, [1, 1, 1]).ok


def test_sums_beyond_float32_may_be_anything() -> None:
    huge = [3e38, 3e38, -3e38]
    for result in (3e38, np.inf, np.nan, -np.inf):
        report = single(ONE, result, huge, [1, 1, 1])
        assert report.ok == (not math.isnan(result)), result


def test_nan_is_unwritten_and_infinity_is_never_finite() -> None:
    report = single(ONE, np.nan, [1, 1, 1], [1, 1, 1])
    assert not report.ok and report.unwritten == 1 and "not written" in report.reason
    for lost in (0.0, 3e38, -np.inf):
        report = single(ONE, lost, [np.inf, 1, 1], [1, 1, 1])
        assert not report.ok and not report.nonfinite_ok
    assert single(ONE, np.inf, [np.inf, 1, 1], [1, 1, 1]).ok
    assert single(ONE, np.nan, [np.inf, 1, 1], [1, 1, 1]).ok                     # packed with a zero weight
    assert single(ONE, np.nan, [np.inf, 1, 1], [0, 1, 1]).ok
    assert not single(ONE, 2.0, [np.nan, 1, 1], [0, 1, 1]).ok


def spread(problem: ConvProblem, at: tuple[int, ...], strict: bool) -> bool:
    x, w = make_inputs(problem)
    x[0, 1, 0, 0] = np.nan
    out = reference(problem, x, w).astype(np.float32)
    out[at] = np.nan
    return compare(problem, out, x, w, strict_nonfinite=strict).ok


def test_non_finite_values_may_spread_over_channels_of_their_pixel_only() -> None:
    problem = ConvProblem(N=2, G=2, C=4, K=4, input=(4,), filter=1)
    assert spread(problem, (0, 1, 1, 0), strict=False)
    assert not spread(problem, (0, 1, 1, 0), strict=True)
    assert not spread(problem, (0, 2, 0, 0), strict=False)
    assert not spread(problem, (1, 1, 0, 0), strict=False)


def test_non_finite_weights_also_meet_padding_zeros() -> None:
    problem = ConvProblem(C=1, K=1, input=(3,), filter=3, pad=1)
    x, w = make_inputs(problem)
    w[0, 0, 0, 0] = np.nan                                                       # the first output reads padding through it
    assert np.isfinite(reference(problem, x, w)).sum() == 1
    assert compare(problem, np.full((1, 3, 1, 1), np.nan, np.float32), x, w).ok
    assert not compare(problem, np.full((1, 3, 1, 1), np.nan, np.float32), x, w, strict_nonfinite=True).ok


def test_elements_that_no_product_reaches_are_exactly_zero() -> None:
    problem = ConvProblem(C=2, K=2, input=(12, 12), filter=2, stride=3, direction="bwd_data")
    dy, w = make_inputs(problem)
    out = reference(problem, dy, w).astype(np.float32)
    assert np.sum(np.all(out == 0, axis=(0, 3, 4))) == 80
    assert compare(problem, out, dy, w).zeros_exact
    out[0, 2, 2, 0, 1] = 1e-45
    report = compare(problem, out, dy, w)
    assert not report.ok and not report.zeros_exact and report.index == (0, 2, 2, 0, 1)


def test_the_index_is_that_of_the_array_that_was_given() -> None:
    for layout in ("nhwgc", "nhwc", "ngchw", "nchw"):
        problem = ConvProblem(N=2, G=2, C=4, K=6, input=(5, 4), filter=(2, 3), layout=layout)
        x, w = make_inputs(problem)
        out = reference(problem, x, w).astype(np.float32)
        assert out.shape == problem.array_shape("y")
        where = tuple(size // 2 for size in out.shape)
        out[where] += 1
        report = compare(problem, out, x, w)
        assert report.index == where and report.got == out[where]
        assert report.expected == pytest.approx(out[where] - 1, abs=1e-5)
        fused = compare(problem, out.reshape(problem.fused_shape("y")), x.reshape(problem.fused_shape("x")), w)
        assert fused.index == tuple(np.argwhere(out.reshape(problem.fused_shape("y")) == out[where])[0])


def test_epilogues_carry_the_error_of_the_sum() -> None:
    """100 x allows a hundredfold error; relu of a clearly negative sum allows none."""
    times = KernelSpec("k", epilogue=Expr("mul", (Expr("acc"), const(100.0))))
    assert single(ONE, 200 * (1 + 2.0 ** -23), [2, 1, 1], [2, -1, -1], spec=times).ok
    assert not single(ONE, 200 * (1 + 2.0 ** -15), [2, 1, 1], [2, -1, -1], spec=times).ok
    relu = KernelSpec("k", epilogue=Expr("relu", (Expr("acc"),)))
    assert single(ONE, 0.0, [-2, -1, -1], [2, 1, 1], spec=relu).ok
    assert not single(ONE, 1e-6, [-2, -1, -1], [2, 1, 1], spec=relu).ok
    assert not single(ONE, -6.0, [-2, -1, -1], [2, 1, 1], spec=relu).ok


def test_unreached_elements_hold_the_epilogue_of_zero() -> None:
    problem = ConvProblem(C=1, K=2, input=(2,), filter=1, pad=1)
    spec = KernelSpec("k", operands=(Operand("bias", "per_k"),), epilogue=Expr("add", (Expr("acc"), operand("bias"))))
    operands = {"bias": np.array([0.1, 3.0], np.float32)}
    x, w = make_inputs(problem)
    out = reference(problem, x, w, spec, operands).astype(np.float32)
    assert out[0, 0, 0].tolist() == [np.float32(0.1), 3.0]
    assert compare(problem, out, x, w, spec, operands).ok
    out[0, 0, 0, 1] = 3.0 + 2.0 ** -20
    assert not compare(problem, out, x, w, spec, operands).zeros_exact


def test_arrays_that_do_not_fit_are_refused() -> None:
    x, w = make_inputs(ONE)
    with pytest.raises(gconv.ArrayError, match="result"):
        compare(ONE, np.zeros((2, 1, 1, 1), np.float32), x, w)
    with pytest.raises(gconv.ArrayError, match="float64"):
        compare(ONE, np.zeros((1, 1, 1, 1)), x, w)


@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_no_images(direction: str) -> None:
    problem = ConvProblem(N=0, C=2, K=3, input=(4,), filter=2, direction=direction)
    assert verify(problem, lambda a, b, out: out.fill(0)).ok
    refused = verify(problem, lambda a, b, out: None)
    assert refused.ok == (direction != "bwd_weight"), "dW of no images is zero, and must be written"


def test_verify_fills_outputs_with_nan_and_reports_each_kind() -> None:
    problem = ConvProblem(N=2, G=2, C=4, K=6, input=(5, 4), filter=2, dtype="bf16", direction="bwd_weight", out_dtype="fp32",
                          layout="nchw")
    seen = []

    def record(a: Any, b: Any, out: Any) -> None:
        seen.append((a.dtype, a.shape, b.shape, out.dtype, out.shape, bool(np.isnan(out).all())))
        run(problem, a, b, out)

    report = verify(problem, record)
    assert report.ok and tuple(part.kind for part in report.parts) == kinds_for(problem)
    assert set(seen) == {(DTYPES["bf16"].numpy, (2, 4, 5, 4), (2, 6, 4, 3), np.dtype("float32"), (6, 2, 2, 2), True)}
    assert len(seen) == len(report.parts)
    assert report.error_ratio == max(part.error_ratio for part in report.parts)


def test_verify_takes_a_returned_array_and_names_the_kind_that_failed() -> None:
    problem = ConvProblem(C=2, K=2, input=(5,), filter=2)
    assert verify(problem, lambda a, b, out: reference(problem, a, b).astype(np.float32)).ok
    report = verify(problem, lambda a, b, out: np.nan_to_num(reference(problem, a, b).astype(np.float32)))
    assert not report and report.kind == "nonfinite" and "nonfinite inputs" in report.summary()
    assert [part.kind for part in report.parts if not part.ok] == ["nonfinite"]


def test_reports_read_well_and_pickle() -> None:
    good = single(ONE, 2.0, [2, 1, 1], [2, -1, -1])
    bad = single(ONE, 3.0, [2, 1, 1], [2, -1, -1], kind="normal")
    assert str(good).startswith("ok: worst error 0 of the bound")
    assert "at (0, 0, 0, 0): got 3, expected 2" in str(bad) and "normal" in str(bad)
    assert pickle.loads(pickle.dumps(bad)) == bad


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("kind", list(KINDS))
def test_inputs_are_reproducible_exact_where_promised_and_of_the_problems_dtype(kind: str, dtype: str) -> None:
    for depth in (1, 50, 30_000):
        problem = ConvProblem(C=2, K=3, input=(depth,), filter=1, direction="bwd_weight", dtype=dtype)
        a, b = make_inputs(problem, kind, seed=3)
        again = make_inputs(problem, kind, seed=3)
        assert a.dtype == b.dtype == DTYPES[dtype].numpy
        assert a.shape == problem.shape("x") and b.shape == problem.shape("y")
        assert np.array_equal(a.astype(float), again[0].astype(float), equal_nan=True)
        if KINDS[kind].exact and kind in kinds_for(problem):
            magnitude = reference(problem, np.abs(a.astype(float)), np.abs(b.astype(float)))
            assert np.all(magnitude < 2 ** 24) and np.all(a.astype(float) % 1 == 0) and np.all(b.astype(float) % 1 == 0)


def test_seeds_and_kinds_differ() -> None:
    problem = ConvProblem(C=4, K=4, input=(9,), filter=3)
    normal = make_inputs(problem)[0]
    assert not np.array_equal(normal, make_inputs(problem, seed=1)[0])
    assert abs(np.mean(make_inputs(ConvProblem(C=64, K=1, input=(500,), filter=1))[0])) < 0.02
    with pytest.raises(gconv.UsageError, match="uniform"):
        make_inputs(problem, "uniform")
    with pytest.raises(gconv.UsageError):
        verify(problem, lambda a, b, out: None, kinds=())


def test_operands_have_the_shapes_of_their_kinds() -> None:
    problem = ConvProblem(N=2, G=2, C=4, K=6, input=(5,), filter=2, dtype="fp16", layout="ncw")
    kinds = {"b": "per_k", "r": "like_y", "s": "scalar", "c": "per_c"}
    spec = KernelSpec("k", operands=tuple(Operand(name, kind) for name, kind in kinds.items()),
                      prologue=Expr("mul", (Expr("x"), operand("c"))),
                      epilogue=Expr("add", (Expr("mul", (Expr("acc"), operand("s"))), Expr("add", (operand("b"), operand("r"))))))
    made = make_operands(problem, spec)
    assert made["b"].shape == (6,) and made["c"].shape == (4,) and made["r"].shape == (2, 6, 4) and isinstance(made["s"], float)
    assert made["r"].dtype == np.float16 and made["b"].dtype == np.float32
    x, w = make_inputs(problem)
    assert compare(problem, reference(problem, x, w, spec, made).astype(np.float16), x, w, spec, made).ok


def test_a_wrong_report_can_be_demanded_right() -> None:
    assert single(ONE, 2.0, [2, 1, 1], [2, -1, -1]).require().ok
    with pytest.raises(gconv.VerifyError) as caught:
        single(ONE, 2.5, [2, 1, 1], [2, -1, -1]).require()
    assert caught.value.code == "verify.failed" and "got 2.5, expected 2" in str(caught.value)


def test_the_bound_holds_for_data_whose_partial_sums_stay_large() -> None:
    problem = ConvProblem(C=400, K=32, input=(24, 24), filter=(1, 1))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (problem.fused_shape("x"), problem.fused_shape("w")))
    x[..., 0], w[..., 0] = 1100, 1                                     # just above a power of two: the coarsest rounding
    chain = np.zeros(problem.fused_shape("y"), np.float32)
    for c in range(400):
        dropped = chain
        chain = (chain + x[..., c, None].astype(np.float64) * w[:, 0, 0, c]).astype(np.float32)
    assert compare(problem, chain, x, w).ok
    assert compare(problem, chain, x, w, lam=1).error_ratio > 1
    assert not compare(problem, dropped, x, w).ok


def test_an_infinity_that_the_epilogue_hides_may_have_spread() -> None:
    @gconv.kernel
    def positive(x: Any, w: Any) -> Any:
        return gconv.relu(gconv.conv(x, w))

    problem = ConvProblem(G=2, C=2, K=2, input=(1,), filter=1, dtype="fp16")
    x, w = (np.array(values, np.float16).reshape(problem.shape(name)) for name, values in (("x", [np.inf, 1]), ("w", [-1, 1])))
    result = np.array([0, np.nan], np.float16).reshape(problem.shape("y"))      # -inf, whose relu is 0, times a zero of the other
    assert compare(problem, result, x, w, positive.spec).ok
    assert not compare(problem, result, x, w, positive.spec, strict_nonfinite=True).ok
    assert not compare(problem, result[..., ::-1, :], x, w, positive.spec, strict_nonfinite=True).ok
