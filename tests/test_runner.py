"""The path from arrays to a result: forms, strides, outputs, operands, fallback at launch, devices with memory of their own."""

from __future__ import annotations

import pickle
import threading
import warnings
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import choose, runner
from gconvdsl.backends.base import Artifact
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.expr import Expr, apply, operand
from gconvdsl.operands import bind_operands
from gconvdsl.spec import ConvParams, KernelSpec, Operand
from tests.stub_target import ARCH, StubBackend

PROBLEM = gconv.ConvProblem(N=2, G=2, C=4, K=6, input=(4, 5), filter=(3, 2), stride=(2, 1), pad=((1, 0), (0, 2)))
TILE = Tile(block=(64, 16, 16), waves=(1, 1, 1), wave_tile=(16, 16, 4))
BASIC = KernelConfig(tile=TILE, pipeline="basic_v1")


@pytest.fixture(params=[True, False], ids=["host", "device"])
def stub(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StubBackend]:
    backend = StubBackend(host=request.param)
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(choose, "lower", backend.lower)
    monkeypatch.setattr(choose, "resolve_target", lambda target=None, arch=None: (backend, ARCH))
    monkeypatch.setattr(choose, "_warned", set())
    choose.forget()
    yield backend
    choose.forget()


def data(problem: gconv.ConvProblem, fused: bool = False, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Small integers, for which fp32 sums are exact."""
    rng = np.random.default_rng(seed)
    shapes = [problem.fused_shape(t) if fused else problem.shape(t) for t in problem.operands]
    return tuple(rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)  # type: ignore[return-value]


def direct(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Forward for PROBLEM's stride and padding in fused channels-last form, by plain loops."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 0), (0, 2), (0, 0)))
    n, groups, per_group, outs = x.shape[0], 2, w.shape[-1], w.shape[0] // 2
    rows, columns = (padded.shape[1] - 3) // 2 + 1, padded.shape[2] - 2 + 1
    y = np.zeros((n, rows, columns, w.shape[0]))
    for r in range(rows):
        for c in range(columns):
            window = padded[:, 2 * r:2 * r + 3, c:c + 2, :]
            for g in range(groups):
                part = window[..., g * per_group:(g + 1) * per_group].reshape(n, -1)
                y[:, r, c, g * outs:(g + 1) * outs] = part @ w[g * outs:(g + 1) * outs].reshape(outs, -1).T
    return y


@pytest.mark.parametrize("layout", ["nhwgc", "ngchw"])
def test_forward_in_both_forms_and_layouts(stub: StubBackend, layout: str) -> None:
    problem = PROBLEM.replace(layout=layout)
    x, w = data(PROBLEM, fused=True)
    expected = direct(x, w)
    for fused in (True, False):
        shape = (lambda t: problem.fused_shape(t)) if fused else (lambda t: problem.shape(t))
        a, b = (x, w) if layout == "nhwgc" else (np.ascontiguousarray(each.transpose(0, 3, 1, 2)) for each in (x, w))
        result = gconv.Runner(BASIC).run(a.reshape(shape("x")), b.reshape(shape("w")), problem)
        assert result.success, result.error
        y = result.output.reshape(problem.fused_shape("y"))
        assert np.array_equal(y if layout == "nhwgc" else y.transpose(0, 2, 3, 1), expected)


@pytest.mark.parametrize("direction", ["bwd_data", "bwd_weight"])
def test_backward_is_the_adjoint_of_forward(stub: StubBackend, direction: str) -> None:
    x, w = data(PROBLEM, fused=True)
    dy = np.random.default_rng(1).integers(-4, 5, PROBLEM.fused_shape("y")).astype(np.float32)
    arrays = (dy, w) if direction == "bwd_data" else (x, dy)
    found = gconv.Runner(BASIC).run(*arrays, PROBLEM.as_(direction)).output
    other = x if direction == "bwd_data" else w
    assert found.shape == other.shape
    assert np.vdot(found.astype(np.float64), other) == np.vdot(direct(x, w), dy)


def test_strided_inputs_and_outputs(stub: StubBackend) -> None:
    x, w = data(PROBLEM, fused=True)
    expected = direct(x, w)
    wide = np.full((2, 4, 10, 8), np.nan, np.float32)
    for view in (wide[:, :, ::2, 2:6], wide[:, ::-1, :5, ::2], wide[:, :, 5:, 4:]):
        view[:] = x
        holder = np.full((2, 2, 12, 7), np.nan, np.float32)
        out = holder.transpose(0, 1, 3, 2)[:, :, 1:, ::2]
        result = runner.execute(runner.bare_spec("forward"), BASIC, PROBLEM, (view, w), out=out[:, :, :, :])
        assert result.output is not None and np.array_equal(out, expected)
        assert np.isnan(holder[:, :, 1::2]).all() and np.isnan(holder[:, :, :, 0]).all(), "only out is written"
    broadcast = np.broadcast_to(x[:1], x.shape)
    assert np.array_equal(gconv.Runner(BASIC).run(broadcast, w, PROBLEM).output, direct(broadcast, w))


def test_out_is_what_comes_back_and_inputs_stay(stub: StubBackend) -> None:
    x, w = data(PROBLEM)
    kept = x.copy(), w.copy()
    out = np.empty(PROBLEM.shape("y"), np.float32)
    assert gconv.Runner(BASIC).run(x, w, PROBLEM, out).output is out
    assert np.array_equal(x, kept[0]) and np.array_equal(w, kept[1])


def test_operands_reach_the_kernel_by_position(stub: StubBackend) -> None:
    spec = KernelSpec("biased", ConvParams(), (Operand("bias", "per_k"),), Expr("x"), apply("add", Expr("acc"), operand("bias")))
    x, w = data(PROBLEM, fused=True)
    bias = np.arange(12, dtype=np.float64)[::2]
    y = runner.execute(spec, BASIC, PROBLEM, (x, w), {"bias": bias}).output
    assert np.array_equal(y, direct(x, w) + bias)
    for wrong, code in (({}, "array.missing"), ({"bias": bias, "scale": 1}, "array.extra"), ({"bias": bias[:5]}, "array.shape"),
                        ({"bias": bias.astype(complex)}, "array.dtype"), ({"bias": 3}, "array.kind")):
        with pytest.raises(gconv.ArrayError) as caught:
            runner.execute(spec, BASIC, PROBLEM, (x, w), wrong)
        assert caught.value.code == code and "{" not in str(caught.value)


@pytest.mark.parametrize("value, expected", [
    (3, 3.0), (np.float64(0.1), float(np.float32(0.1))), (np.array(-2.5), -2.5), (np.int64(7), 7.0), (float("-inf"), -np.inf),
    (1e300, None), (10**400, None), (True, None), (1j, None), ("3", None), (np.ones(1, np.float32), None),
])
def test_scalars_are_numbers_that_fp32_holds(value: object, expected: float | None) -> None:
    spec = KernelSpec("scaled", ConvParams(), (Operand("s", "scalar"),), Expr("x"), apply("add", Expr("acc"), operand("s")))
    if expected is not None:
        assert bind_operands(spec, PROBLEM, {"s": value}).scalars == {0: expected}
        return
    with pytest.raises(gconv.ArrayError) as caught:
        bind_operands(spec, PROBLEM, {"s": value})
    assert caught.value.code == "array.scalar" and "{" not in str(caught.value)


def test_result_holds_time_rate_config_and_target(stub: StubBackend) -> None:
    result = gconv.Runner(BASIC).run(*data(PROBLEM), PROBLEM)
    assert result.time_ms > 0 and result.target == f"stub:{ARCH}" and result.config.pipeline == ("basic_v1",)
    # 2 images, 6 output channels, 2 x 6 outputs, 2 channels of a group, 6 taps, 2 operations each
    assert result.tflops == pytest.approx(2 * 2 * 6 * 12 * 2 * 6 / (result.time_ms * 1e-3) / 1e12)


def test_a_runner_reports_what_is_no_problem(stub: StubBackend) -> None:
    assert "problem is a str" in gconv.Runner(BASIC).run(*data(PROBLEM), "N=1").error  # type: ignore[arg-type]


def test_results_pickle(stub: StubBackend) -> None:
    result = gconv.Runner(BASIC, target="cpu").run(*data(PROBLEM), PROBLEM)
    again = pickle.loads(pickle.dumps(result))
    assert np.array_equal(again.output, result.output) and again.config == result.config and again.time_ms == result.time_ms


def test_a_runner_reports_errors_and_a_kernel_call_raises_them(stub: StubBackend) -> None:
    x, w = data(PROBLEM)
    result = gconv.Runner(BASIC).run(x.astype(np.float64), w, PROBLEM)
    assert not result.success and "array.dtype" in result.error and result.output is None
    with pytest.raises(gconv.ArrayError):
        runner.execute(runner.bare_spec("forward"), BASIC, PROBLEM, (x.astype(np.float64), w))
    assert stub.launched == []


def test_a_failed_launch_falls_back_and_is_remembered(stub: StubBackend) -> None:
    stub.unlaunchable = {"mem"}
    chain = KernelConfig(tile=TILE, pipeline="mem -> basic_v1")
    x, w = data(PROBLEM, fused=True)
    with pytest.warns(choose.FallbackWarning, match="it was asked to"):
        result = gconv.Runner(chain).run(x, w, PROBLEM)
    assert np.array_equal(result.output, direct(x, w))
    assert [(f.stage, f.config.pipeline) for f in result.fallbacks] == [("launch", ("mem",))]
    choose.forget()
    with pytest.warns(choose.FallbackWarning, match="remembered"):
        gconv.Runner(chain).run(x, w, PROBLEM)
    assert stub.launched == ["mem", "basic_v1", "basic_v1"]


def test_a_demand_whose_launch_fails_raises(stub: StubBackend) -> None:
    stub.unlaunchable = {"mem"}
    result = gconv.Runner(KernelConfig(tile=TILE, pipeline="mem")).run(*data(PROBLEM), PROBLEM)
    assert not result.success and "launch.failed" in result.error


def test_no_images_need_no_launch(stub: StubBackend) -> None:
    problem = PROBLEM.replace(N=0)
    result = gconv.Runner(BASIC).run(*data(problem), problem)
    assert result.success and result.output.shape == problem.shape("y") and stub.launched == []


def test_a_target_that_only_compiles_says_so(stub: StubBackend) -> None:
    stub.can_launch = False
    result = gconv.Runner(BASIC).run(*data(PROBLEM), PROBLEM)
    assert not result.success and "does not launch" in result.error


def test_many_threads_get_one_decision_and_right_results(stub: StubBackend) -> None:
    x, w = data(PROBLEM, fused=True)
    expected, results = direct(x, w), []

    def work() -> None:
        results.append(gconv.Runner(BASIC).run(x, w, PROBLEM).output)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(np.array_equal(y, expected) for y in results)
    assert stub.compiled == ["basic_v1"]


def test_threads_with_different_problems_compile_at_the_same_time(stub: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, compiled = threading.Barrier(2), []
    compile_alone = stub.compile

    def compile_together(source: str, arch: str, kernel: str) -> Artifact:
        meeting.wait(60)                # broken, and an error, if one compilation waits for the end of the other
        compiled.append(source)
        return compile_alone(source, arch, kernel)

    monkeypatch.setattr(stub, "compile", compile_together)
    def decide(images: int) -> None:
        choose.decide(runner.bare_spec("forward"), PROBLEM.replace(N=images), BASIC, stub, ARCH)

    threads = [threading.Thread(target=decide, args=(images,)) for images in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 2


def test_a_kernel_in_another_direction_is_the_bare_gradient(stub: StubBackend) -> None:
    spec = KernelSpec("biased", ConvParams(), (Operand("bias", "per_k"),), Expr("x"), apply("add", Expr("acc"), operand("bias")))
    settled, problem = runner.plan_call(spec, PROBLEM.as_("bwd_data"), ())
    assert settled.is_bare and settled.direction == problem.direction == "bwd_data"


def test_warnings_are_not_hidden_by_success(stub: StubBackend) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gconv.Runner(BASIC).run(*data(PROBLEM), PROBLEM).success


@pytest.mark.parametrize("target", ["cpu", "sim:gfx942", "sim:gfx1100"])
def test_real_targets_read_and_write_any_strides(target: str) -> None:
    problem = gconv.ConvProblem(N=2, G=2, C=16, K=16, input=(5, 6), filter=(3, 3), pad=((0, 1), (2, 0)), dtype="fp16")
    epilogue = apply("add", apply("mul", Expr("acc"), operand("scale")), operand("residual"))
    spec = KernelSpec("strided", ConvParams(), (Operand("residual", "like_y"), Operand("scale", "per_k")), Expr("x"), epilogue)
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((2, 5, 14, 40)).astype(np.float16)
    w = rng.standard_normal((3, 3, 8, 16)).astype(np.float16).transpose(3, 0, 1, 2)
    residual = np.broadcast_to(rng.standard_normal((1, 4, 6, 1)).astype(np.float16), problem.fused_shape("y"))
    scale = rng.standard_normal(16).astype(np.float32)
    given = {"residual": residual, "scale": scale}
    for x in (wide[:, :, :6, 8:24], wide[:, ::-1, 7:13, 1:17], wide[..., ::2][:, :, :6, :16], wide[:, :, :6, 24:].repeat(1, 0)):
        for first in (None, 0, 3, 8):
            holder = np.full((2, 4, 6, 24), np.nan, np.float16)
            out = None if first is None else holder[:, ::-1, :, first:first + 16]
            y = runner.execute(spec, None, problem, (x, w), given, out, target, poison=True).output
            report = gconv.compare(problem, y, x, w, spec, given)
            assert report.ok, f"{x.strides} {report}"
            assert np.isnan(holder).sum() == holder.size - (0 if out is None else out.size), "only out is written"
