"""`@gconv.kernel`: forms of declaration, binding of arguments, pickling, threads, Numba's habits; run on target cpu."""

from __future__ import annotations

import inspect
import pickle
import threading
from typing import Any, Callable

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl.config import KernelConfig
from gconvdsl.errors import ConfigError, GconvError, TraceError
from gconvdsl.expr import Expr, apply, operand
from gconvdsl.kernel import Kernel, Stats
from gconvdsl.spec import ConvParams, KernelSpec, Operand

FACTOR = 1.0
M64 = gconv.Tile(block=(64, 16, 64), waves=(2, 1, 1), wave_tile=(16, 16, 16))


@gconv.kernel
def bias_relu(x, w, bias: gconv.PerK, scale: gconv.Scalar = 1.0):
    """Scaled convolution with bias and ReLU."""
    return gconv.relu(gconv.conv(x, w, pad=1) * scale + bias)


@gconv.kernel(tile=M64, pipeline="compv4 -> basic_v1", scheduler="intrawave", double_smem_buffer=True)
def configured(x, w):
    return gconv.conv(x, w)


PROBLEM = gconv.ConvProblem(N=1, G=2, C=4, K=6, input=(5, 4), filter=3, pad=1)


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, w and bias of PROBLEM, fused channels-last, small whole numbers so that every sum is exact."""
    rng = np.random.default_rng(seed)
    x, w, bias = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 5, 4, 4), (6, 3, 3, 2), (6,)))
    return x, w, bias


def by_hand(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The forward convolution of PROBLEM, by definition."""
    y = np.zeros((1, 5, 4, 6))
    for i, j, k, r, s, c in np.ndindex(5, 4, 6, 3, 3, 2):
        if 0 <= i + r - 1 < 5 and 0 <= j + s - 1 < 4:
            y[0, i, j, k] += float(x[0, i + r - 1, j + s - 1, 2 * (k // 3) + c]) * float(w[k, r, s, c])
    return y


# --- declaring

def test_without_and_with_parentheses() -> None:
    assert isinstance(bias_relu, Kernel) and bias_relu.spec.config == KernelConfig()
    assert configured.spec.config == KernelConfig(M64, "compv4 -> basic_v1", scheduler="intrawave", double_smem_buffer=True)
    assert isinstance(gconv.kernel()(configured.py_func), Kernel)


def test_wraps_the_function() -> None:
    assert (bias_relu.__name__, bias_relu.__module__) == ("bias_relu", __name__)
    assert bias_relu.__doc__ == "Scaled convolution with bias and ReLU."
    assert bias_relu.__wrapped__ is bias_relu.py_func  # type: ignore[attr-defined]
    assert list(inspect.signature(bias_relu.py_func).parameters) == ["x", "w", "bias", "scale"]


def test_spec_is_that_of_the_text_form() -> None:
    acc = apply("mul", Expr("acc"), operand("scale"))
    expected = KernelSpec("bias_relu", ConvParams(pad=1), (Operand("bias", "per_k"), Operand("scale", "scalar")),
                          epilogue=apply("relu", apply("add", acc, operand("bias"))))
    assert bias_relu.spec == expected and bias_relu.spec.digest() == expected.digest()


def test_equality_of_specs_sees_everything_but_the_place() -> None:
    spec = bias_relu.spec
    changed = {"name": "other", "conv": ConvParams(pad=2), "config": KernelConfig(pipeline="mem"), "epilogue": Expr("acc")}
    for field, value in changed.items():
        names = ("name", "conv", "operands", "prologue", "epilogue", "config", "directions")
        fields = {name: getattr(spec, name) for name in names}
        assert KernelSpec(**fields) == spec != KernelSpec(**{**fields, field: value}), field


@pytest.mark.parametrize("declare, code", [
    (lambda: gconv.kernel(bias_relu), "trace.again"),
    (lambda: gconv.kernel(pipeline="mem")(bias_relu), "trace.again"),
    (lambda: gconv.kernel(M64), "trace.function"),
    (lambda: gconv.kernel(print), "trace.function"),
    (lambda: gconv.kernel(pipline="mem"), "config.field"),
    (lambda: gconv.kernel(pipeline="compv9"), "config.value"),
])
def test_wrong_declarations(declare: Callable[[], Any], code: str) -> None:
    with pytest.raises((TraceError, ConfigError)) as info:
        declare()
    assert info.value.code == code and info.value.loc.file == __file__


def test_redecorating_names_py_func() -> None:
    with pytest.raises(TraceError, match=r"bias_relu\.py_func"):
        gconv.kernel(bias_relu)


@pytest.mark.parametrize("make, code", [
    (lambda: ConvParams("backward"), "problem.direction"),
    (lambda: ConvParams(stride=0), "trace.params"),
    (lambda: ConvParams(stride=1.5), "trace.params"),  # type: ignore[arg-type]
    (lambda: ConvParams(dilation=(1, 1, 1, 1)), "trace.params"),
    (lambda: ConvParams(pad=-1), "trace.params"),
    (lambda: ConvParams(groups=0), "trace.params"),
    (lambda: Operand("two words", "per_k"), "trace.name"),
    (lambda: Operand("acc", "per_k"), "trace.name"),
    (lambda: Operand("b", "per_n"), "trace.operand"),
    (lambda: KernelSpec("a b"), "trace.name"),
    (lambda: KernelSpec("k", operands=(Operand("b", "per_k"),) * 2), "trace.name"),
    (lambda: KernelSpec("k", operands=tuple(Operand(f"b{i}", "per_k") for i in range(9))), "trace.args"),
    (lambda: KernelSpec("k", epilogue=operand("b")), "trace.operand"),
    (lambda: KernelSpec("k", epilogue=Expr("x")), "trace.operand_place"),
    (lambda: KernelSpec("k", ConvParams("bwd_data"), prologue=apply("relu", Expr("x"))), "trace.operand_place"),
    (lambda: KernelSpec("k", ConvParams("bwd_data"), (Operand("b", "per_k"),), epilogue=operand("b")), "trace.operand_place"),
    (lambda: KernelSpec("k", epilogue=apply("relu", Expr("acc")), directions=("forward", "bwd_data")), "trace.directions"),
    (lambda: KernelSpec("k", directions=("bwd_data",)), "trace.directions"),
])
def test_specs_that_cannot_exist(make: Callable[[], Any], code: str) -> None:
    with pytest.raises(GconvError) as info:
        make()
    assert info.value.code == code


# --- binding

@pytest.mark.parametrize("args, named, code", [
    ((1,), {}, "array.missing"),
    ((1, 2), {}, "array.missing"),
    ((1, 2, 3, 4, 5), {}, "array.extra"),
    ((1, 2, 3), {"residual": 4}, "array.extra"),
    ((1, 2, 3), {"x": 4}, "kernel.bind"),
    ((1, 2, 3), {"problem": "N=1"}, "kernel.bind"),
])
def test_calls_that_do_not_fit(args: tuple[Any, ...], named: dict[str, Any], code: str) -> None:
    with pytest.raises(GconvError) as info:
        bias_relu(*args, **named)
    assert info.value.code == code
    assert code == "kernel.bind" or "bias_relu(x, w, bias: per_k, scale: scalar = 1.0)" in str(info.value)


def test_positional_named_and_default_arguments_agree() -> None:
    x, w, bias = arrays()
    expected = np.maximum(by_hand(x, w) + bias, 0)
    np.testing.assert_array_equal(bias_relu(x, w, bias, target="cpu"), expected)
    np.testing.assert_array_equal(bias_relu(bias=bias, w=w, x=x, target="cpu"), expected)
    np.testing.assert_array_equal(bias_relu(x, w, bias, scale=2, target="cpu"), np.maximum(2 * by_hand(x, w) + bias, 0))


def test_out_and_problem() -> None:
    x, w, bias = arrays()
    out = np.full((1, 5, 4, 6), np.nan, np.float32)
    assert bias_relu(x, w, bias, out=out, problem=PROBLEM, target="cpu") is out
    np.testing.assert_array_equal(out, np.maximum(by_hand(x, w) + bias, 0))
    np.testing.assert_array_equal(bias_relu(x, w, bias, PROBLEM, target="cpu"), out)      # as bwd_data and bwd_weight take it
    with pytest.raises(GconvError) as info:
        bias_relu(x, w, bias, PROBLEM.replace(N=3), target="cpu")
    assert info.value.code == "array.shape"


def test_stream_form() -> None:
    x, w, bias = arrays()
    np.testing.assert_array_equal(bias_relu[None](x, w, bias, target="cpu"), np.maximum(by_hand(x, w) + bias, 0))


def test_gradients_are_those_of_the_bare_convolution() -> None:
    x, w, _ = arrays()
    dy = arrays(1)[0][..., :1] * np.ones(6, np.float32)
    dx, dw = bias_relu.bwd_data(dy, w, PROBLEM, target="cpu"), bias_relu.bwd_weight(x, dy, PROBLEM, target="cpu")
    # <conv(x, w), dy> = <x, dx> = <w, dw>, exactly, since all are small whole numbers
    inner = float((by_hand(x, w) * dy).sum())
    assert float((x * dx).sum()) == inner and float((w * dw).sum()) == inner
    with pytest.raises(GconvError) as info:
        bias_relu.bwd_data(dy, w, PROBLEM, bias=np.zeros(6, np.float32))
    assert info.value.code == "array.extra"


def test_backward_kernel_takes_a_forward_problem_as_its_own() -> None:
    @gconv.kernel
    def deconv(dy, w, bias: gconv.PerC):
        return gconv.conv_bwd_data(dy, w, pad=1) + bias

    _, w, _ = arrays()
    dy, bias = np.ones((1, 5, 4, 6), np.float32), np.arange(4, dtype=np.float32)
    result = deconv(dy, w, bias, problem=PROBLEM, target="cpu")
    np.testing.assert_array_equal(result, bias_relu.bwd_data(dy, w, PROBLEM, target="cpu") + bias)


# --- Numba's habits

def fresh() -> Kernel:
    @gconv.kernel
    def plain(x, w):
        return gconv.conv(x, w, pad=1) * FACTOR

    return plain


def test_signatures_and_stats() -> None:
    plain, (x, w, _) = fresh(), arrays()
    assert plain.stats == Stats() and plain.signatures == []
    for _ in range(3):
        plain(x, w, target="cpu")
    assert (plain.stats.hits, plain.stats.misses) == (2, 1)
    (signature,) = plain.signatures
    assert signature.problem == PROBLEM and signature.target.startswith("cpu:")
    plain(x[:, :4], w, target="cpu")
    assert plain.stats.misses == 2 and plain.signatures[1].problem.input == (4, 4)


def test_recompile_sees_changed_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, (x, w, _) = fresh(), arrays()
    np.testing.assert_array_equal(plain(x, w, target="cpu"), by_hand(x, w))
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    np.testing.assert_array_equal(plain(x, w, target="cpu"), by_hand(x, w))        # as with Numba: frozen until asked
    plain.recompile()
    assert len(plain.signatures) == 1
    np.testing.assert_array_equal(plain(x, w, target="cpu"), 2 * by_hand(x, w))
    assert plain.stats.hits == 1


def test_threads_share_one_specialisation() -> None:
    plain, (x, w, _) = fresh(), arrays()
    results: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: results.append(plain(x, w, target="cpu"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(np.array_equal(r, by_hand(x, w)) for r in results)
    assert plain.stats.hits + plain.stats.misses == 8 and plain.stats.misses == 1


def test_pickles_by_name_where_importable_else_by_its_declaration() -> None:
    assert pickle.loads(pickle.dumps(bias_relu)) is bias_relu
    x, w, _ = arrays()
    again = pickle.loads(pickle.dumps(fresh()))
    assert again.spec == fresh().spec and again.py_func is None
    np.testing.assert_array_equal(again(x, w, target="cpu"), by_hand(x, w))


def test_a_kernel_made_of_a_spec_runs_without_a_body() -> None:
    x, w, bias = arrays()
    plus_bias = apply("add", Expr("acc"), operand("b"))
    kernel = Kernel(KernelSpec("k", ConvParams(pad=1), (Operand("b", "per_k"),), epilogue=plus_bias))
    np.testing.assert_array_equal(kernel(x, w, b=bias, target="cpu"), by_hand(x, w) + bias)
    assert kernel.__name__ == "k"


# --- looking without running

def test_source_and_explain_take_a_problem_or_arrays() -> None:
    x, w, bias = arrays()
    source = bias_relu.inspect_source(PROBLEM, target="cpu")
    assert source == bias_relu.inspect_source(x, w, bias, target="cpu") and "gconv::math::relu" in source
    assert "forward on cpu" in str(bias_relu.explain(x, w, bias, target="cpu"))


def test_is_supported() -> None:
    assert bias_relu.is_supported(PROBLEM, target="cpu")
    assert not bias_relu.is_supported(PROBLEM.replace(pad=0), target="cpu")         # the declaration fixes pad = 1
    alone = gconv.kernel(pipeline="compv5", num_wave_groups=1)(configured.py_func)   # compv5 needs 2
    assert not alone.is_supported(PROBLEM, target="sim:gfx942")


@pytest.mark.parametrize("problem", ["N=1", None, np.zeros(3)])
def test_only_a_problem_is_compiled(problem: Any) -> None:
    for ask in (bias_relu.compile, bias_relu.is_supported):
        with pytest.raises(GconvError, match="problem is") as info:
            ask(problem)
        assert info.value.code == "kernel.bind"


def test_compiles_ahead_of_time_for_an_absent_arch(require_tool: Callable[..., Any]) -> None:
    require_tool("clang", "gfx950")
    decision = bias_relu.compile(PROBLEM, arch="gfx950")
    assert decision.target_text == "hip:gfx950" and decision.built.artifact.path.is_file()
    assert bias_relu.resources(PROBLEM, arch="gfx950")


@pytest.mark.parametrize("tool, arch", [("clang", "gfx950"), ("nvcc", "sm_80")])
def test_resources_know_the_shared_memory(require_tool: Callable[..., Any], tool: str, arch: str) -> None:
    require_tool(tool, arch)
    staged = configured.resources(PROBLEM, arch=arch)["gconv_main"]["lds_bytes"]
    tile = configured.compile(PROBLEM, arch=arch).config.tile
    assert isinstance(tile, gconv.Tile)
    assert staged >= 4 * (tile.block[0] + tile.block[1]) * tile.block[2], "both tiles in fp32"
    assert "s_endpgm" in bias_relu.inspect_asm(PROBLEM, arch="gfx950")
