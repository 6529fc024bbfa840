"""Calls made ready: the second call like an earlier one skips the whole way and is right; whatever differs takes it again."""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Iterator

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import choose, env, prepared, ready, runner
from gconvdsl.errors import error
from numpy_device import run as on_host

PROBLEM = gconv.ConvProblem(N=2, G=2, C=4, K=6, input=(5, 4), filter=3, pad=1)
VALUES = {"GCONV_ISA": "generic", "GCONV_THREADS": "3", "GCONV_TARGET": "cpu:generic", "GCONV_DEBUG": "1"}


@gconv.kernel
def fused(x, w, bias: gconv.PerK, residual: gconv.LikeY, scale: gconv.Scalar = 1.0):
    return gconv.conv(x, w, pad=1) * scale + bias + residual


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The calls that go the whole way."""
    taken: list[Any] = []
    whole_way = runner._whole_way

    def counted(call: Any, *rest: Any) -> Any:
        taken.append(call)
        return whole_way(call, *rest)

    monkeypatch.setattr(runner, "_whole_way", counted)
    monkeypatch.delenv("GCONV_TARGET", raising=False)
    choose.forget()
    yield taken
    choose.forget()


def whole(shape: tuple[int, ...], seed: int, dtype: str = "f4") -> np.ndarray:
    """Small whole numbers, so that every sum is exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def arrays(seed: int = 0, problem: gconv.ConvProblem = PROBLEM, dtype: str = "f4") -> tuple[np.ndarray, ...]:
    """x, w, bias and residual."""
    shapes = problem.fused_shape("x"), problem.fused_shape("w"), (problem.K,), problem.fused_shape("y")
    return tuple(whole(shape, seed + i, "f4" if i == 2 else dtype) for i, shape in enumerate(shapes))


def by_hand(x: Any, w: Any, bias: Any = 0, residual: Any = 0, scale: float = 1, problem: gconv.ConvProblem = PROBLEM) -> np.ndarray:
    out = np.full(problem.fused_shape("y"), np.nan, np.float32)
    on_host(problem, np.ascontiguousarray(x), np.ascontiguousarray(w), out)
    return out * scale + bias + residual


def test_the_second_call_skips_the_whole_way_and_sees_new_values(ways: list[Any]) -> None:
    results = []
    for seed, scale in enumerate((1, 2, 0.5)):
        given = arrays(10 * seed)
        results.append((fused(*given, scale, target="cpu"), by_hand(*given, scale)))
        out = np.full(PROBLEM.fused_shape("y"), np.nan, np.float32)
        assert fused(*given, scale=scale, out=out, target="cpu") is out
        np.testing.assert_array_equal(out, results[-1][1])
    for found, expected in results:             # checked at the end: no result is the memory of a later one
        np.testing.assert_array_equal(found, expected)
    assert len(ways) == 4, "without and with out, scale an int and a float"


@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_a_runner_and_a_kernel_with_a_problem(ways: list[Any], direction: str) -> None:
    problem = PROBLEM.as_(direction)
    shapes = [problem.fused_shape(t) for t in problem.operands]
    kernel = gconv.Kernel(runner.bare_spec("forward"))
    for seed in range(3):
        a, b = (whole(shape, 2 * seed + i) for i, shape in enumerate(shapes))
        expected = np.full(problem.fused_shape(problem.result), np.nan, np.float32)
        on_host(problem, a, b, expected)
        result = gconv.Runner(target="cpu").run(a, b, problem)
        assert result.time_ms > 0 and result.decision is not None
        np.testing.assert_array_equal(result.output, expected)
        np.testing.assert_array_equal(getattr(kernel, direction)(a, b, problem=PROBLEM, target="cpu"), expected)
    assert len(ways) <= 4, "two kinds of call, twice at most where a default configuration is a new object each time"
    assert kernel.stats[:2] == (2, 1)


@pytest.mark.parametrize("dtype, name", [("f2", "fp16"), ("bfloat16", "bf16")])
def test_other_dtypes(ways: list[Any], dtype: str, name: str) -> None:
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    for seed in range(2):
        x, w = (one.astype(kind) for one in arrays(seed)[:2])
        y = gconv.Kernel(runner.bare_spec("forward"))(x, w, PROBLEM.replace(dtype=name), target="cpu")
        assert y.dtype == kind
        np.testing.assert_array_equal(y.astype("f4"), by_hand(x, w).astype(kind).astype("f4"))


def variants() -> dict[str, Callable[[], Any]]:
    """Calls that each differ from the plain one in one thing that decides what runs, or how arguments are taken."""
    x, w, bias, residual = arrays()
    wide = np.zeros((2, 5, 4, 8), np.float32)
    strided = wide[..., 2:6]
    strided[...] = x
    out = np.empty(PROBLEM.fused_shape("y"), np.float32)
    other = arrays(0, PROBLEM.replace(N=1))
    same = gconv.Kernel(fused.spec)
    return {
        "strides": lambda: fused(strided, w, bias, residual, target="cpu"),
        "shape": lambda: fused(*other, target="cpu")[:1],
        "out": lambda: fused(x, w, bias, residual, out=out, target="cpu"),
        "scalar": lambda: fused(x, w, bias, residual, np.float32(1), target="cpu"),
        "operand": lambda: fused(x, w, bias, np.asfortranarray(residual), target="cpu"),
        "target": lambda: fused(x, w, bias, residual, target="cpu:generic"),
        "problem": lambda: fused(x, w, bias, residual, PROBLEM, target="cpu"),
        "out_dtype": lambda: same(x, w, bias, residual.astype("f2"), 1.0, out_dtype="fp16", target="cpu"),
    }


@pytest.mark.parametrize("name", list(variants()))
def test_what_differs_goes_the_whole_way(ways: list[Any], name: str) -> None:
    given = arrays()
    expected = by_hand(*given) if name != "shape" else by_hand(*arrays(0, PROBLEM.replace(N=1)), problem=PROBLEM.replace(N=1))
    for _ in range(2):
        fused(*given, target="cpu")
    assert len(ways) == 1
    np.testing.assert_array_equal(variants()[name](), expected)
    assert len(ways) == 2
    np.testing.assert_array_equal(fused(*given, target="cpu"), by_hand(*given))
    assert len(ways) == 2, "the first is still there"


@pytest.mark.parametrize("name", list(env.VARIABLES))
def test_every_variable_is_a_part_of_the_signature(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = env.snapshot()
    assert before == env.snapshot()
    monkeypatch.setenv(name, "17")
    assert env.snapshot() != before
    monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    plain = env.snapshot()
    os.environ[name] = "17"
    assert env.snapshot() != plain


@pytest.mark.parametrize("name", list(VALUES))
def test_a_changed_variable_takes_effect_at_once(ways: list[Any], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    given = arrays()
    kernel = gconv.Kernel(fused.spec)
    for value in (None, VALUES[name], None):
        monkeypatch.setenv(name, value or "")
        np.testing.assert_array_equal(kernel(*given, 1.0), by_hand(*given))
    assert len(ways) == 3 if os.environ.get(name) is None else 2
    targets = [one.target for one in kernel.signatures]
    assert ("cpu:generic" in targets) == (name in ("GCONV_ISA", "GCONV_TARGET"))


def test_dropped_decisions_are_not_used(ways: list[Any]) -> None:
    given = arrays()
    kernel = gconv.Kernel(fused.spec)
    for i, drop in enumerate((lambda: None, kernel.recompile, choose.forget, lambda: choose.forget(fused.spec)), 1):
        drop()
        for _ in range(2):
            kernel(*given, 1.0, target="cpu")
        assert len(ways) == i
        assert kernel.stats[:2] == ((1, 1), (2, 1), (3, 2), (4, 3))[i - 1], "recompile counts anew, and decides itself"


def test_what_addresses_decide_is_looked_at_in_each_call(ways: list[Any]) -> None:
    memory, w = np.zeros((3, 6, 6, 4), np.float32), whole((4, 1, 1, 4), 1)
    memory[...] = whole(memory.shape, 0)
    kernel = gconv.Kernel(runner.bare_spec("forward"))
    for i in (2, 2):
        kernel(memory[:1], w, out=memory[i:i + 1], target="cpu")
    assert len(ways) == 1
    with pytest.raises(gconv.ArrayError, match="shares memory"):
        kernel(memory[:1], w, out=memory[:1], target="cpu")
    closed = memory[1:2]
    closed.setflags(write=False)
    with pytest.raises(gconv.ArrayError, match="read-only"):
        kernel(memory[:1], w, out=closed, target="cpu")
    # Interleaved with the input, so that only a closer look tells that they are apart.
    inner, outer = np.zeros((1, 6, 6, 8), np.float32), np.full((1, 6, 6, 8), np.nan, np.float32)
    inner[..., ::2] = memory[:1]
    expected = np.einsum("nhwc,kc->nhwk", memory[:1].astype(float), w[:, 0, 0])
    for place in (outer[..., 1::2], inner[..., 1::2]):
        kernel(inner[..., ::2], w, out=place, target="cpu")
        np.testing.assert_array_equal(place, expected)


def test_an_odd_address(ways: list[Any]) -> None:
    x, w = arrays()[:2]
    kernel = gconv.Kernel(runner.bare_spec("forward"))
    raw = np.zeros(x.nbytes + 1, np.uint8)
    for start in (0, 1):
        odd = raw[start:start + x.nbytes].view(np.float32).reshape(x.shape)
        odd[...] = x
        np.testing.assert_array_equal(kernel(odd, w, PROBLEM, target="cpu"), by_hand(x, w))
    assert len(ways) == 2, "the copy of the second takes the whole way"


def test_a_scalar_is_checked_in_each_call(ways: list[Any]) -> None:
    given = arrays()
    fused(*given, 2.0, target="cpu")
    with pytest.raises(gconv.ArrayError) as caught:
        fused(*given, 1e300, target="cpu")
    assert caught.value.code == "array.scalar" and len(ways) == 1


def test_conversions_stay_right(ways: list[Any]) -> None:
    x, w, bias, residual = arrays()
    for _ in range(2):
        y = fused(x, w, bias.astype(np.float64), np.broadcast_to(residual[:1], residual.shape), target="cpu")
        np.testing.assert_array_equal(y, by_hand(x, w, bias, residual[:1]))
    assert len(ways) == 2


def test_a_failed_launch_goes_the_whole_way(ways: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given = arrays()
    fused(*given, target="cpu")

    def failing(one: Any, *_: Any) -> None:
        raise error("launch.failed", kernel="k", target="cpu", reason="it was asked to", hint="")

    found = [one for one in {**prepared._older, **prepared._recent}.values() if one.generation == choose.generation()]
    assert len(found) == 1
    monkeypatch.setattr(found[0], "_launch", failing)
    np.testing.assert_array_equal(fused(*given, target="cpu"), by_hand(*given))
    assert len(ways) == 2


def test_kept_calls_are_bounded(ways: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "KEPT", 8)
    monkeypatch.setattr(prepared, "_recent", {})
    monkeypatch.setattr(prepared, "_older", {})
    w = arrays()[1]
    kernel = gconv.Kernel(fused.spec.bare())
    for width in range(1, 21):
        kernel(whole((1, 5, 4, 4), 0), w, target="cpu")             # always in use, so never dropped
        kernel(whole((1, 5, width, 4), 0), w, target="cpu")
        assert len(prepared._recent) + len(prepared._older) <= 8
    assert len(ways) == 20, "19 other widths, and that of the first call once"


def test_threads_do_not_share_a_call(ways: list[Any]) -> None:
    given = [arrays(100 * i) for i in range(6)]
    expected = [by_hand(*one, i) for i, one in enumerate(given)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            if not np.array_equal(fused(*given[i], float(i), target="cpu"), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(ways) <= 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_runs_what_its_parent_made_ready(ways: list[Any]) -> None:
    given = arrays()
    expected = by_hand(*given)
    for _ in range(2):
        fused(*given, target="cpu")
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(fused(*given, target="cpu"), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_kinds_without_a_signature() -> None:
    class Mine(np.ndarray):
        pass

    x, w = arrays()[:2]
    for strange in (x.view(Mine), np.ma.array(x), [1.0]):
        call = ready.Call(fused.spec, None, None, (strange, w), {}, None, "cpu", None, None, None, False)
        assert prepared.signature(call) is None
    y = gconv.Kernel(runner.bare_spec("forward"))(x.view(Mine), w, PROBLEM, target="cpu")
    np.testing.assert_array_equal(y, by_hand(x, w))


def test_torch_tensors(ways: list[Any]) -> None:
    torch = pytest.importorskip("torch")
    x, w = arrays()[:2]
    weight = torch.nn.Parameter(torch.from_numpy(w.transpose(0, 3, 1, 2).copy()))
    kernel = gconv.Kernel(fused.spec.bare())
    for _ in range(2):
        for last in (True, False):
            tensor = torch.from_numpy(x).permute(0, 3, 1, 2)
            tensor = tensor if last else tensor.contiguous()
            y = kernel(tensor, weight, target="cpu")
            assert isinstance(y, torch.Tensor) and not y.requires_grad and (y.stride(1) == 1) == last
            np.testing.assert_array_equal(y.permute(0, 2, 3, 1).numpy(), by_hand(x, w))
    assert len(ways) == 2
