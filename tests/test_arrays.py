"""Arrays in and out: forms, strides, dtypes, outputs, and problems inferred from arrays."""

from __future__ import annotations

import ctypes
import itertools
import sys
import types

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import arrays
from gconvdsl.plan import TensorView
from gconvdsl.spec import ConvParams

P2 = gconv.ConvProblem(N=2, G=3, C=6, K=12, input=(5, 4), filter=(3, 2), pad=1)


def read(array: np.ndarray, view: TensorView, problem: gconv.ConvProblem, tensor: str, index: tuple[int, ...]) -> float:
    """The element at (outer, g, d, h, w, c) by address arithmetic from the view."""
    steps = view.n, view.g, *view.s, view.c
    offset = sum(i * s for i, s in zip(index, steps)) * array.itemsize
    return ctypes.c_float.from_address(array.ctypes.data + offset).value


@pytest.mark.parametrize("layout", ["nhwgc", "nhwc", "ngchw", "nchw"])
@pytest.mark.parametrize("fused", [False, True])
def test_both_forms_of_a_layout_reach_every_element(layout: str, fused: bool) -> None:
    problem = P2.replace(layout=layout)
    shape = problem.fused_shape("x") if fused else problem.shape("x")
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    bound = arrays.bind(problem, "x", x, "x")
    split = x.reshape(problem.shape("x"))
    order = [problem.axes("x").index(a) for a in "nghwc"]
    for n, g, h, w, c in itertools.product(range(2), range(3), range(5), range(4), range(2)):
        expected = split.transpose(order)[n, g, h, w, c]
        assert read(x, bound.view, problem, "x", (n, g, 0, h, w, c)) == expected


def test_weights_fused_and_split_give_the_same_strides() -> None:
    split = np.zeros(P2.shape("w"), np.float32)
    fused = split.reshape(P2.fused_shape("w"))
    assert split.shape == (3, 4, 3, 2, 2) and fused.shape == (12, 3, 2, 2)
    assert arrays.bind(P2, "w", split, "w").view == arrays.bind(P2, "w", fused, "w").view


def test_views_are_passed_by_strides_and_odd_bytes_are_copied() -> None:
    big = np.zeros((4, 5, 8, 6), np.float32)
    x = big[::2, :, ::2, :]
    assert arrays.bind(P2, "x", x, "x").array is x
    expanded = np.broadcast_to(np.ones((1, 5, 4, 6), np.float32), (2, 5, 4, 6))
    assert arrays.bind(P2, "x", expanded, "x").view.n == 0
    flipped = np.zeros((2, 5, 4, 6), np.float32)[:, ::-1]
    assert arrays.bind(P2, "x", flipped, "x").view.s[1] == -24
    raw = np.zeros(2 * 5 * 4 * 6 * 6, np.uint8)
    odd = np.lib.stride_tricks.as_strided(raw.view(np.float32), (2, 5, 4, 6), (120, 24, 6, 1))
    assert arrays.bind(P2, "x", odd, "x").array.flags.c_contiguous


@pytest.mark.parametrize("value, code", [
    (np.zeros((2, 5, 4, 6), object), "array.dtype"),
    (np.zeros((2, 5, 4, 6), complex), "array.dtype"),
    (np.zeros((2, 5, 4, 6), np.float64), "array.dtype"),
    (np.zeros((2, 5, 4, 6), ">f4"), "array.dtype"),
    ([[1.0]], "array.kind"),
    (None, "array.kind"),
    (np.ma.zeros((2, 5, 4, 6), np.float32), "array.kind"),
    (np.zeros((2, 5, 24), np.float32), "array.rank"),
    (np.zeros((2, 5, 6, 4), np.float32), "array.shape"),
    (np.zeros((2, 5, 4, 2, 3), np.float32), "array.shape"),
])
def test_what_is_no_fit_is_refused_by_name(value: object, code: str) -> None:
    with pytest.raises(gconv.ArrayError) as caught:
        arrays.bind(P2, "x", value, "x")
    assert caught.value.code == code
    assert caught.value.message.startswith("x ") and "{" not in str(caught.value)


def test_bf16_arrays_are_those_of_ml_dtypes() -> None:
    import ml_dtypes

    problem = P2.replace(dtype="bf16")
    x = np.zeros((2, 5, 4, 6), ml_dtypes.bfloat16)
    assert arrays.bind(problem, "x", x, "x").array is x
    with pytest.raises(gconv.ArrayError, match="bfloat16"):
        arrays.bind(problem, "x", x.astype(np.float16), "x")


def test_a_new_result_has_the_form_of_the_first_input() -> None:
    for shape, expected in ((P2.shape("x"), P2.shape("y")), (P2.fused_shape("x"), P2.fused_shape("y"))):
        first = arrays.bind(P2, "x", np.zeros(shape, np.float32), "x")
        assert arrays.bind_out(P2, None, first, [first]).array.shape == expected
    half = P2.replace(out_dtype="fp16")
    assert arrays.bind_out(half, None, first, [first]).array.dtype == np.float16


def test_out_is_checked_before_anything_is_written() -> None:
    x = np.zeros(P2.fused_shape("x"), np.float32)
    first = arrays.bind(P2, "x", x, "x")
    good = np.zeros(P2.fused_shape("y"), np.float32)
    assert arrays.bind_out(P2, good, first, [first]).array is good
    assert arrays.bind_out(P2, np.zeros((2, 5, 6, 24), np.float32)[:, ::1, 1:, ::2], first, [first])
    locked = good.copy()
    locked.setflags(write=False)
    same = np.lib.stride_tricks.as_strided(good[:1].copy(), good.shape, (0, *good.strides[1:]))
    for bad, reason in ((good.astype(np.float16), "dtype"), (locked, "read-only"), (same, "share memory")):
        with pytest.raises(gconv.ArrayError) as caught:
            arrays.bind_out(P2, bad, first, [first])
        assert caught.value.code == "array.out" and reason in str(caught.value)
    with pytest.raises(gconv.ArrayError, match="shape"):
        arrays.bind_out(P2, good[:1], first, [first])


def test_out_may_not_share_memory_with_an_input() -> None:
    problem = gconv.ConvProblem(N=1, C=4, K=4, input=(6, 6), filter=(1, 1))
    memory = np.zeros((2, 6, 6, 4), np.float32)
    first = arrays.bind(problem, "x", memory[:1], "x")
    assert arrays.bind_out(problem, memory[1:], first, [first])
    with pytest.raises(gconv.ArrayError, match="shares memory"):
        arrays.bind_out(problem, memory[:1], first, [first])
    interleaved = np.zeros((1, 6, 6, 8), np.float32)
    first = arrays.bind(problem, "x", interleaved[..., ::2], "x")
    assert arrays.bind_out(problem, interleaved[..., 1::2], first, [first])


def test_what_a_kernel_takes_in_place() -> None:
    plan, sizes = P2.views()["x"], (2, 3, 1, 5, 4, 2)
    wide = np.zeros((2, 5, 4, 24), np.float32)

    def takes(array: np.ndarray, *limits: int) -> bool:
        return arrays.kernel_takes(arrays.bind(P2, "x", array, "x"), plan, sizes, *limits)

    assert takes(wide[..., 1:7]) and takes(wide[..., 2:8], 8) and not takes(wide[..., 1:7], 8)
    assert not takes(wide[..., :12:2]), "the channels are apart"
    assert not takes(np.zeros((2, 5, 4, 7), np.float32)[..., :6], 8), "rows of 28 bytes are no multiple of 8"
    flipped = wide[:, ::-1, :, :6]
    assert takes(flipped) and not takes(flipped, 1, 32)
    far = np.lib.stride_tricks.as_strided(np.zeros(6, np.float32), (2, 5, 4, 6), (2**31, 0, 0, 4))
    assert takes(far) and not takes(far, 1, 32)
    assert takes(np.zeros((2, 5, 4, 6), np.float32), 1, 32)


def test_compact_keeps_values_and_takes_the_order_of_the_layout() -> None:
    x = np.arange(240, dtype=np.float32).reshape(2, 6, 5, 4).transpose(0, 2, 3, 1)
    bound = arrays.compact(arrays.bind(P2, "x", x, "x"), P2, "x")
    assert bound.view == P2.views()["x"]
    assert np.array_equal(bound.array, x)


def test_a_problem_is_inferred_from_channels_last_arrays() -> None:
    x, w = np.zeros((2, 9, 8, 12), np.float16), np.zeros((6, 3, 2, 4), np.float16)
    found = arrays.infer_problem(ConvParams("forward", stride=2, pad=((0, 1), (2, 2))), x, w)
    assert found == gconv.ConvProblem(N=2, G=3, C=12, K=6, input=(9, 8), filter=(3, 2), stride=2, pad=((0, 1), (2, 2)),
                                      dtype="fp16")
    one = arrays.infer_problem(ConvParams("forward"), np.zeros((1, 7, 4), np.float32), np.zeros((4, 3, 1), np.float32))
    assert (one.ndim, one.G, one.layout) == (1, 4, "nwgc")


def test_a_transposed_convolution_takes_the_smallest_input() -> None:
    dy, w = np.zeros((1, 4, 4, 6), np.float32), np.zeros((6, 3, 3, 2), np.float32)
    found = arrays.infer_problem(ConvParams("bwd_data", stride=2, pad=1, groups=3), dy, w)
    assert found.input == (7, 7) and found.C == 6 and found.output == (4, 4)


@pytest.mark.parametrize("x, w, direction, code", [
    (np.zeros((1, 9, 12), np.float32), np.zeros((6, 3, 5), np.float32), "forward", "array.shape"),
    (np.zeros((1, 9, 12), np.float32), np.zeros((6, 3, 3, 4), np.float32), "forward", "array.rank"),
    (np.zeros((1, 9, 12), np.float64), np.zeros((6, 3, 4), np.float64), "forward", "array.dtype"),
    (np.zeros((1, 9, 12), np.float32), np.zeros((6, 3, 4), np.float16), "forward", "array.dtype"),
    (np.zeros((9, 12), np.float32), np.zeros((6, 3, 4), np.float32), "forward", "array.rank"),
    (np.zeros((1, 9, 12), np.float32), np.zeros((1, 9, 12), np.float32), "bwd_weight", "kernel.bind"),
])
def test_arrays_that_give_no_problem(x: np.ndarray, w: np.ndarray, direction: str, code: str) -> None:
    with pytest.raises(gconv.GconvError) as caught:
        arrays.infer_problem(ConvParams(direction), x, w)
    assert caught.value.code == code and "{" not in str(caught.value)


def test_the_array_with_the_wrong_byte_order_is_the_one_named() -> None:
    x, w = np.zeros((1, 9, 12), ">f4"), np.zeros((6, 3, 4), np.float32)
    with pytest.raises(gconv.ArrayError) as caught:
        arrays.infer_problem(ConvParams("forward"), x, w)
    assert caught.value.code == "array.dtype" and caught.value.message.startswith("x has dtype >f4")


def test_a_declaration_and_a_problem_must_agree() -> None:
    arrays.check_declared(ConvParams("forward", pad=1, groups=3), P2, "k")
    with pytest.raises(gconv.GconvError, match="stride") as caught:
        arrays.check_declared(ConvParams("forward", stride=2), P2, "k")
    assert caught.value.code == "kernel.bind"


# --- torch, played by a stand-in with the few methods that are used

class _Device:
    def __init__(self, kind: str) -> None:
        self.type = kind

    def __str__(self) -> str:
        return self.type


class _Tensor:
    """As much of torch.Tensor as is needed here, on top of a NumPy array in logical NC<spatial>."""

    def __init__(self, array: np.ndarray, dtype: str = "", device: str = "cpu") -> None:
        self._array, self.device, self.layout = array, _Device(device), "strided"
        self.dtype = dtype or f"torch.{array.dtype}"

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def detach(self) -> _Tensor:
        return self

    resolve_conj = resolve_neg = detach

    def view(self, dtype: str) -> _Tensor:
        return _Tensor(self._array, dtype)

    def numpy(self) -> np.ndarray:
        return self._array


_Tensor.__module__ = "torch"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    fake = types.ModuleType("torch")
    fake.strided, fake.int16, fake.bfloat16 = "strided", "torch.int16", "torch.bfloat16"  # type: ignore[attr-defined]
    fake.from_numpy = _Tensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_torch_tensors_are_channels_first_by_meaning_in_any_strides(torch: types.ModuleType) -> None:
    memory = np.zeros((2, 5, 4, 6), np.float32)
    for array, layout in ((memory.transpose(0, 3, 1, 2), "nhwgc"), (np.zeros((2, 6, 5, 4), np.float32), "ngchw")):
        bound = arrays.bind(P2, "x", _Tensor(array), "x")
        problem = arrays.kernel_problem(P2, bound)
        assert problem.layout == layout
        assert bound.view == problem.views()["x"]
        out = arrays.bind_out(problem, None, bound, [bound])
        assert out.array.shape == (2, 12, 5, 5) and out.view == problem.views()["y"]
        assert isinstance(arrays.to_caller(out), _Tensor)


def test_torch_bf16_and_inference(torch: types.ModuleType) -> None:
    bits = np.zeros((2, 6, 5, 4), np.int16)
    x = _Tensor(bits, "torch.bfloat16")
    bound = arrays.bind(P2.replace(dtype="bf16"), "x", x, "x")
    assert bound.array.dtype.name == "bfloat16" and bound.address == bits.ctypes.data
    w = _Tensor(np.zeros((12, 2, 3, 2), np.int16), "torch.bfloat16")
    assert arrays.infer_problem(ConvParams("forward", pad=1), x, w) == P2.replace(dtype="bf16")


def test_a_tensor_on_another_kind_of_device_is_refused(torch: types.ModuleType) -> None:
    with pytest.raises(gconv.ArrayError) as caught:
        arrays.bind(P2, "x", _Tensor(np.zeros((2, 6, 5, 4), np.float32), device="mps"), "x")
    assert caught.value.code == "array.device"
