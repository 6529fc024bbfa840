"""Arrays in GPU memory as arguments and results, on the stand-in for the driver (fake_cuda.cpp): protocols, torch, streams."""

from __future__ import annotations

import ctypes
import gc
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import pytest

import gconvdsl as gconv
from cuda_harness import PROBLEM, TILE, DeviceValues, Fake, case, run, view
from gconvdsl import devicearrays, dlpack, runner
from gconvdsl.errors import ArrayError, GconvError, LaunchError


# --- arrays of a device

def test_device_arrays_are_read_and_written_in_place(fake: Fake) -> None:
    fake.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    x, w, y = fake.array(a), fake.array(b), fake.array(np.full_like(expected, np.nan))
    assert run(PROBLEM, x, w, out=y).output is y
    np.testing.assert_array_equal(y.numpy(), expected)
    assert not fake.log("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemAllocFromPoolAsync")
    made = run(PROBLEM, x, w).output
    assert isinstance(made, devicearrays.DeviceArray) and made.shape == expected.shape
    np.testing.assert_array_equal(view(made.address, made.shape, made.strides, made.dtype), expected)


def test_the_device_of_the_arrays_is_the_device_of_the_call(fake: Fake) -> None:
    fake.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    x, w = fake.array(a, 1), fake.array(b, 1)
    result = run(PROBLEM, x, w, timed=False)
    assert result.target == "cuda:sm_80" and result.output.device == 1 and result.time_ms == 0.0
    assert not fake.log("cuStreamSynchronize", "cuEventRecord"), "nothing waits"
    with pytest.raises(LaunchError) as caught:
        run(PROBLEM, x, w, target="cuda:sm_90")
    assert caught.value.code == "launch.device" and "A100 (sm_80)" in str(caught.value)


@pytest.mark.parametrize("strange", ["x", "w", "out", "bias"])
def test_arrays_in_different_places_are_refused(fake: Fake, strange: str) -> None:
    @gconv.kernel(tile=TILE, pipeline="basic_v1")
    def biased(x, w, bias: gconv.PerK):
        return gconv.conv(x, w) + bias

    a, b, expected = case(PROBLEM)
    values = {"x": a, "w": b, "bias": np.ones(6, np.float32), "out": expected.copy()}
    for place, other in ((0, None), (0, 1), (None, 0)):
        put = {name: value if where is None else fake.array(value, where) for name, value in values.items()
               for where in [other if name == strange else place]}
        if strange == "x":                      # the first array decides, so the next one is strange
            with pytest.raises(ArrayError) as caught:
                biased(put["x"], put["w"], put["bias"], problem=PROBLEM, out=put["out"], target="cuda")
            assert caught.value.values["name"] == "w"
        else:
            with pytest.raises(ArrayError) as caught:
                biased(put["x"], put["w"], put["bias"], problem=PROBLEM, out=put["out"], target="cuda")
            assert caught.value.values["name"] == strange
        assert caught.value.code == "array.device"
    with pytest.raises(ArrayError) as caught:
        run(PROBLEM, fake.array(a), fake.array(b), target="cpu")
    assert caught.value.code == "array.device" and "cuda:0" in str(caught.value)
    assert not fake.log("cuLaunchKernel")


def test_operands_on_the_device(fake: Fake) -> None:
    @gconv.kernel(tile=TILE, pipeline="basic_v1")
    def biased(x, w, bias: gconv.PerK, scale: gconv.Scalar = 1.0):
        return gconv.conv(x, w) + bias

    fake.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    bias = np.arange(6, dtype=np.float32)
    for given in (bias, np.repeat(bias, 2)[::2], bias.astype(np.float16)):
        y = biased(fake.array(a), fake.array(b), fake.array(given), problem=PROBLEM)
        np.testing.assert_array_equal(view(y.address, y.shape, y.strides, y.dtype), expected + bias)


def test_strides_that_the_kernel_cannot_take_are_copied(fake: Fake) -> None:
    fake.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    x = fake.array(np.repeat(a, 2, axis=-1)[..., ::2])
    y = fake.array(np.full((*expected.shape[:-1], 12), np.nan, np.float32)[..., ::2])
    run(PROBLEM, x, fake.array(b), out=y)
    np.testing.assert_array_equal(y.numpy(), expected)


def test_an_output_that_cannot_be_written(fake: Fake) -> None:
    a, b, expected = case(PROBLEM)
    x, w, y = fake.array(a), fake.array(b), fake.array(expected)
    same = fake.array(np.zeros(a.size + expected.size, np.float32))
    same.shape, same.strides = expected.shape, expected.strides
    x.address = same.address + 16
    closed = types.SimpleNamespace(__cuda_array_interface__={**y.__cuda_array_interface__, "data": (y.address, True)})
    for out, word in ((same, "shares memory"), (closed, "read-only")):
        with pytest.raises(ArrayError) as caught:
            run(PROBLEM, x, w, out=out)
        assert caught.value.code == "array.out" and word in str(caught.value)


def test_a_producer_on_another_stream_is_waited_for(fake: Fake) -> None:
    fake.expect(PROBLEM)
    a, b, _ = case(PROBLEM)
    x, w = fake.array(a), fake.array(b)
    x.ready, w.ready = 9, 8
    run(PROBLEM, x, w, timed=False)
    assert fake.log("cuEventRecord", "cuStreamWaitEvent") == ["cuEventRecord stream 8", "cuStreamWaitEvent stream 9"]
    fake.clear()
    run(PROBLEM, x, w, stream=7, timed=False)
    assert fake.log("cuStreamWaitEvent") == ["cuStreamWaitEvent stream 7"] * 2
    assert fake.log("cuLaunchKernel")[0].endswith("stream 7")


class DlpackValues:
    """The same memory, spoken of in DLPack only."""

    def __init__(self, values: DeviceValues) -> None:
        self.values, self.streams = values, []  # type: ignore[var-annotated]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.values.device

    def __dlpack__(self, stream: Any) -> Any:
        self.streams.append(stream)
        v = self.values
        return dlpack.export(v.address, v.shape, v.strides, v.dtype, (2, v.device), v)


def test_dlpack_in_and_out(fake: Fake) -> None:
    fake.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    x, w = DlpackValues(fake.array(a)), DlpackValues(fake.array(b))
    made = run(PROBLEM, x, w, timed=False).output
    assert x.streams == [1] and run(PROBLEM, x, w, stream=7).output.stream == 7 and x.streams == [1, 7]
    gc.collect()
    assert len(dlpack._given) == 0, "what was lent is given back"
    fake.clear()
    address, shape, strides, dtype, owner = dlpack.take(made.__dlpack__(stream=12))
    assert fake.log("cuStreamWaitEvent") == ["cuStreamWaitEvent stream 12"]
    del made
    gc.collect()
    np.testing.assert_array_equal(view(address, shape, strides, dtype), expected)
    del owner


# --- torch, played by a few lines

class Device(NamedTuple):
    """As torch's: equal and hashable by value."""

    type: str
    index: int


class Tensor:
    """A torch tensor on the stand-in's memory."""

    def __init__(self, values: DeviceValues, dtype: str = "torch.float32") -> None:
        self.values, self.dtype, self.layout = values, dtype, "strided"
        self.device = Device("cuda", values.device)
        self.shape = values.shape

    def detach(self) -> Tensor:
        return self

    resolve_neg = detach

    def is_neg(self) -> bool:
        return False

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // 4 for stride in self.values.strides)

    def data_ptr(self) -> int:
        return self.values.address

    def copy_(self, source: Tensor) -> None:
        self.values.numpy()[...] = source.values.numpy()


Tensor.__module__ = "torch"


@pytest.fixture
def torch(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with what the package uses of torch; the current stream is a plain attribute."""
    module: Any = types.ModuleType("torch")
    module.strided, module.float32, module.version, module.made = "strided", "torch.float32", types.SimpleNamespace(hip=None), []
    module.Tensor, module.cuda = Tensor, types.SimpleNamespace(now=21)
    module.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=module.cuda.now)
    module.cuda.default_stream = lambda device: types.SimpleNamespace(cuda_stream=0)
    module.cuda.ExternalStream = lambda handle, device: types.SimpleNamespace(cuda_stream=handle)

    class Scope:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            self.before, module.cuda.now = module.cuda.now, self.stream.cuda_stream

        def __exit__(self, *_: Any) -> None:
            module.cuda.now = self.before

    def empty_strided(shape: Any, strides: Any, dtype: str, device: Any) -> Tensor:
        values = np.lib.stride_tricks.as_strided(np.empty(4096, np.float32), shape, [4 * stride for stride in strides])
        module.made.append((Tensor(fake.array(values, device.index)), module.cuda.now))
        return module.made[-1][0]  # type: ignore[no-any-return]

    module.cuda.stream, module.empty_strided = Scope, empty_strided
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.mark.parametrize("last", [True, False])
def test_torch_tensors_on_the_current_stream(fake: Fake, torch: Any, last: bool) -> None:
    fake.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    first = np.ascontiguousarray(a.transpose(0, 3, 1, 2))
    x = Tensor(fake.array(a.transpose(0, 3, 1, 2) if last else first, 1))
    w = Tensor(fake.array(b.transpose(0, 3, 1, 2), 1))
    result = run(PROBLEM, x, w, timed=False)
    y = result.output
    assert (y, 21) in torch.made and result.target == "cuda:sm_80"
    np.testing.assert_array_equal(y.values.numpy().transpose(0, 2, 3, 1), expected)
    assert (y.stride()[1] == 1) == last, "the memory format of the input"
    assert fake.log("cuLaunchKernel")[0].endswith("stream 21") and not fake.log("cuStreamSynchronize", "cuMemcpyHtoDAsync_v2")
    y = run(PROBLEM, x, w, stream=types.SimpleNamespace(cuda_stream=33)).output
    assert (y, 33) in torch.made and torch.cuda.now == 21 and fake.log("cuLaunchKernel")[-1].endswith("stream 33")


# --- calls made ready

def test_a_call_like_an_earlier_one_only_launches(fake: Fake, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, expected = case(PROBLEM)

    def tensors(device: int) -> tuple[Tensor, Tensor]:
        x, w = (fake.array(one.transpose(0, 3, 1, 2), device) for one in (a, b))
        return Tensor(x), Tensor(w)

    fake.expect(PROBLEM)
    for device in (0, 1):
        run(PROBLEM, *tensors(device), timed=False)
    monkeypatch.setattr(runner, "_whole_way", lambda *_: pytest.fail("a call like this one has been made"))
    for device, stream in ((0, 21), (1, 22), (0, 23)):
        torch.cuda.now = stream
        given = tensors(device)
        fake.clear()
        y = run(PROBLEM, *given, timed=False).output
        assert torch.made[-1] == (y, stream) and y.device.index == device
        np.testing.assert_array_equal(y.values.numpy().transpose(0, 2, 3, 1), expected)
        assert [line.split()[0] for line in fake.log()] == ["cuLaunchKernel"], "of what the stand-in writes down"
        assert fake.log("cuLaunchKernel")[0].endswith(f"stream {stream}")


def test_device_arrays_made_ready_keep_the_order_of_streams(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    @gconv.kernel(tile=TILE, pipeline="basic_v1")
    def biased(x, w, bias: gconv.PerK):
        return gconv.conv(x, w) + bias

    fake.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    bias = np.arange(6, dtype=np.float32)
    x, w, vector = fake.array(a), fake.array(b), fake.array(bias)
    out = fake.array(np.full_like(expected, np.nan))
    biased[7](x, w, vector, problem=PROBLEM)
    biased[7](x, w, vector, problem=PROBLEM, out=out)
    monkeypatch.setattr(runner, "_whole_way", lambda *_: pytest.fail("a call like this one has been made"))
    x.ready, w.ready, vector.ready = 9, 8, 7
    fake.clear()
    y = biased[8](x, w, vector, problem=PROBLEM)
    assert y.stream == 8 and fake.log("cuStreamWaitEvent") == ["cuStreamWaitEvent stream 8"] * 2, "w is ready on that stream"
    assert fake.log("cuLaunchKernel")[0].endswith("stream 8")
    np.testing.assert_array_equal(view(y.address, y.shape, y.strides, y.dtype), expected + bias)
    out.numpy()[...] = np.nan
    assert biased[7](x, w, vector, problem=PROBLEM, out=out) is out
    np.testing.assert_array_equal(out.numpy(), expected + bias)


def test_an_address_that_is_not_aligned_takes_the_whole_way(fake: Fake) -> None:
    fake.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    x, w = fake.array(a), fake.array(b)
    run(PROBLEM, x, w, timed=False)
    odd = fake.array(np.zeros(a.nbytes + 4, np.uint8))
    odd.shape, odd.strides, odd.dtype, odd.address = x.shape, x.strides, x.dtype, odd.address + 2
    for _ in range(2):
        y = run(PROBLEM, odd, w, timed=False).output
        np.testing.assert_array_equal(view(y.address, y.shape, y.strides, y.dtype), np.zeros_like(expected))


# --- streams

def test_handles_of_streams() -> None:
    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 5

    for stream, handle in ((None, None), (3, 3), (types.SimpleNamespace(cuda_stream=4), 4), (types.SimpleNamespace(ptr=6), 6),
                           (types.SimpleNamespace(handle=ctypes.c_void_p(7)), 7),
                           (types.SimpleNamespace(handle=ctypes.c_void_p(0)), 0), (Protocol(), 5)):
        assert devicearrays.stream_handle(stream) == handle
    with pytest.raises(GconvError) as caught:
        devicearrays.stream_handle("fast")
    assert caught.value.code == "kernel.bind"
