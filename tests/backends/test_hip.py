"""Target hip without a GPU: a stand-in for the runtime (fake_hip.cpp) checks every call and computes what is launched, and the
real runtime, where it is installed, says that there is no device."""

from __future__ import annotations

import gc
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gconvdsl as gconv
from cuda_harness import PROBLEM, DeviceValues, Fake, case, run as run_on_cuda, view
from test_cuda_arrays import Tensor
from gconvdsl import choose, devicearrays, dlpack
from gconvdsl.backends import base, hip, hip_driver
from gconvdsl.errors import LaunchError
from gconvdsl.plan import Launch, Plan

TILE = {"cdna": gconv.Tile(block=(16, 16, 16), waves=(1, 1, 1), wave_tile=(16, 16, 4)),
        "rdna": gconv.Tile(block=(16, 16, 16), waves=(1, 1, 1), wave_tile=(16, 16, 1))}
CONFIG = gconv.KernelConfig(tile=TILE, pipeline="basic_v1", split_k=1)


def run(problem: gconv.ConvProblem, a: Any, b: Any, **options: Any) -> Any:
    return run_on_cuda(problem, a, b, CONFIG, **options)


# --- detection

def test_devices_and_the_default_target(fake_hip: Fake) -> None:
    found = base.get("hip").detect()
    assert found.available and found.arch == "gfx942" and base.get("hip").can_launch
    assert [(one.name, one.arch) for one in found.devices] == [("MI300X", "gfx942"), ("RX 7900 XTX", "gfx1100")]
    assert found.devices[0].driver == "HIP 6.4" and found.devices[0].memory == 1 << 20
    assert choose.default_target() == "hip" and choose.detect_arch() == "gfx942"


@pytest.mark.parametrize("layout", [1, 2])
def test_the_arch_where_the_properties_have_another_layout(fake_hip: Fake, layout: int) -> None:
    """Wherever it stands among the properties; else the kernel driver names it, found by the address on the bus."""
    fake_hip.lib.fake_properties(layout)
    assert [one.arch for one in base.get("hip").detect().devices] == ["gfx942", "gfx1100"]


def test_a_device_that_no_kernel_is_built_for(fake_hip: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip.HipBackend, "archs", lambda self: ("gfx1100",))
    found = base.get("hip").detect()
    assert not found.available and found.reason == "MI300X is gfx942, which no kernel here is built for"


def test_no_device(fake_hip: Fake) -> None:
    fake_hip.fail("hipGetDeviceCount", 100)
    found = base.get("hip").detect()
    assert not found.available and "HIP error 100" in found.reason and "HIP_VISIBLE_DEVICES" in found.reason
    assert choose.default_target() == "cpu"
    a, b, _ = case(PROBLEM)
    with pytest.raises(LaunchError) as caught:
        run(PROBLEM, a, b, target="hip:gfx942")
    assert caught.value.code == "launch.device" and "/dev/kfd" in caught.value.fix


def test_no_runtime(fake_hip: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip, "_LIBRARIES", ("/nowhere/libamdhip64.so",))
    assert not base.get("hip").can_launch and "the HIP runtime is not" in base.get("hip").detect().reason
    a, b, _ = case(PROBLEM)
    with pytest.raises(LaunchError) as caught:
        run(PROBLEM, a, b, target="hip:gfx942")
    assert caught.value.code == "launch.device" and "runtime" in str(caught.value)
    with pytest.raises(LaunchError) as caught:
        base.get("hip").allocate(1)
    assert caught.value.code == "launch.device" and "not installed" in str(caught.value)


def test_without_a_gpu_the_runtime_is_not_opened(fake_hip: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hip, "_KFD", tmp_path / "none")
    monkeypatch.setattr(hip_driver, "HipDriver", None)
    assert not base.get("hip").can_launch and "no AMD GPU" in base.get("hip").detect().reason


def test_the_library_that_the_process_has_loaded_comes_first(fake_hip: Fake, monkeypatch: pytest.MonkeyPatch,
                                                             tmp_path: Path) -> None:
    """torch brings a runtime of its own; a second one in the process would know nothing of its pointers."""
    (tmp_path / "maps").write_text("7f00-7f01 r-xp 0 08:01 5   /usr/lib/libc.so.6\n"
                                   "7f02-7f03 r-xp 0 08:01 7   /torch lib/libamdhip64.so.6\n" * 2)
    monkeypatch.setenv("ROCM_PATH", "/rocm")
    tried: list[str] = []

    def opened(library: str, nodes: dict[str, str]) -> None:
        tried.append(library)
        raise OSError
    monkeypatch.setattr(hip_driver, "HipDriver", opened)
    assert "not" in base.get("hip").detect().reason
    assert tried[:2] == ["/torch lib/libamdhip64.so.6", "/rocm/lib/libamdhip64.so"] and tried[2:] == list(hip._LIBRARIES)


def test_the_installed_runtime_says_that_there_is_no_device() -> None:
    """Debian's ROCm 5.2, for example."""
    try:
        driver = hip_driver.open_driver(hip._LIBRARIES, {})
    except OSError:
        pytest.skip("libamdhip64 is not installed")
    if hip.read_kfd(hip._KFD):
        pytest.skip("there is an AMD GPU")
    with pytest.raises(LaunchError) as caught:
        _ = driver.devices
    assert caught.value.code == "launch.device" and "HIP error 100" in str(caught.value)
    assert driver.version_text.startswith("HIP ") and driver.version >= 50000000
    missing = [name for name in hip_driver.HipDriver.spelling if not callable(driver.function(name))]
    assert not missing
    for name in ("StreamIsCapturing", "StreamWaitEvent", "EventElapsedTime", "ModuleLoadData", "MemPoolSetAttribute",
                 "PointerGetAttribute", "MemGetInfo", "MemcpyHtoDAsync", "MemcpyDtoHAsync"):
        assert callable(driver.function(name))


# --- calls

@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_arrays_of_the_host_travel(fake_hip: Fake, direction: str) -> None:
    problem = PROBLEM.as_(direction)
    fake_hip.expect(problem)
    a, b, expected = case(problem)
    result = run(problem, a[..., ::-1].copy()[..., ::-1], b, target="hip")
    np.testing.assert_array_equal(np.where(expected == 0, 0, result.output), np.nan_to_num(expected))
    assert result.target == "hip:gfx942" and result.time_ms == 1.0
    assert fake_hip.lib.fake_blocks() == 0, "everything is freed"
    assert len(fake_hip.log("hipMemcpyHtoDAsync")) == 2 and len(fake_hip.log("hipMemcpyDtoHAsync")) == 1


def test_everything_is_in_the_order_of_the_stream(fake_hip: Fake) -> None:
    fake_hip.expect(PROBLEM)
    a, b, _ = case(PROBLEM)
    run(PROBLEM, a, b, target="hip:gfx1100", stream=77)
    assert fake_hip.log("hipMemPoolCreate") == ["hipMemPoolCreate type 1 handles 0 location 1 1"], "on the device of that arch"
    for name in ("hipMallocFromPoolAsync", "hipMemcpyHtoDAsync", "hipModuleLaunchKernel", "hipMemcpyDtoHAsync", "hipFreeAsync"):
        assert fake_hip.log(name) and all(line.endswith("stream 77") for line in fake_hip.log(name)), name
    assert fake_hip.log("hipSetDevice")[-1] == "hipSetDevice 0", "the thread has its device again"


@pytest.mark.parametrize("old", [False, True])
def test_without_pools(fake_hip: Fake, monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    """A device that has none, and a runtime from before they were finished."""
    if old:
        monkeypatch.setattr(hip_driver, "_FIRST_POOLS", 70000000)
    else:
        fake_hip.lib.fake_pools(0)
    fake_hip.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    np.testing.assert_array_equal(run(PROBLEM, a, b, target="hip").output, expected)
    assert len(fake_hip.log("hipMalloc")) == len(fake_hip.log("hipFree")) == 3 and fake_hip.lib.fake_blocks() == 0


def test_what_is_launched(fake_hip: Fake) -> None:
    backend = base.get("hip")
    module = backend.load(backend.compile("", "gfx942", "k"))
    plan = Plan((Launch("gconv_a", (7, 2, 3), 256), Launch("gconv_b", (0, 1, 1), 64)), PROBLEM.args())
    for arch in ("gfx942", "gfx942", "gfx1100"):
        with backend.activate(arch, None, 5):
            backend.launch(module, plan, plan.args.pack(0, 0, 0))
    assert fake_hip.log("hipModuleLaunchKernel") == ["hipModuleLaunchKernel gconv_a grid 7 2 3 block 256 shared 0 stream 5"] * 3
    assert fake_hip.log("hipModuleLoadData") == ["hipModuleLoadData 0", "hipModuleLoadData 1"], "once for each device"


def test_an_arch_that_is_not_here(fake_hip: Fake) -> None:
    a, b, _ = case(PROBLEM)
    with pytest.raises(LaunchError) as caught:
        run(PROBLEM, a, b, target="hip:gfx90a")
    assert caught.value.code == "launch.device"
    assert "hip:0 MI300X (gfx942), hip:1 RX 7900 XTX (gfx1100)" in str(caught.value)


@pytest.mark.parametrize(("function", "status", "code", "word"), [
    ("hipMallocFromPoolAsync", 2, "launch.memory", "1000 of 1048576"),
    ("hipModuleLaunchKernel", 9, "launch.failed", "gconv_main"),
    ("hipModuleLaunchKernel", 701, "launch.failed", "gconv_main"),
    ("hipModuleLaunchKernel", 900, "launch.runtime", "before the capture"),
    ("hipModuleLaunchKernel", 400, "launch.runtime", "hipModuleLaunchKernel"),
    ("hipModuleLoadData", 209, "launch.load", "HIP error 209"),
    ("hipStreamSynchronize", 719, "launch.broken", "Restart the process"),
])
def test_failures_are_told_apart(fake_hip: Fake, function: str, status: int, code: str, word: str) -> None:
    a, b, _ = case(PROBLEM)
    fake_hip.expect(PROBLEM)
    fake_hip.fail(function, status)
    with pytest.raises(LaunchError) as caught:
        run(PROBLEM, a, b, target="hip")
    assert caught.value.code == code and word in f"{caught.value} {caught.value.fix}" and "{" not in str(caught.value)


def test_a_runtime_that_is_too_old_for_the_code_object(fake_hip: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip_driver, "_FIRST_CODE_OBJECT_5", 70000000)
    a, b, _ = case(PROBLEM)
    fake_hip.fail("hipModuleLoadData", 209)
    with pytest.raises(LaunchError) as caught:
        run(PROBLEM, a, b, target="hip")
    assert caught.value.code == "launch.driver" and "HIP 6.4" in str(caught.value) and "newer ROCm" in caught.value.fix


def test_a_function_that_the_runtime_lacks(fake_hip: Fake) -> None:
    driver = base.get("hip").open_driver()      # type: ignore[attr-defined]
    with pytest.raises(LaunchError) as caught:
        driver.call("Init", 0)
    assert caught.value.code == "launch.driver" and "hipInit" in str(caught.value)


# --- arrays on the device

class RocmValues:
    """An array in the stand-in's memory that says in DLPack that it is ROCm's."""

    def __init__(self, values: DeviceValues) -> None:
        self.values = values

    def __dlpack_device__(self) -> tuple[int, int]:
        return 10, self.values.device

    def __dlpack__(self, stream: Any) -> Any:
        v = self.values
        return dlpack.export(v.address, v.shape, v.strides, v.dtype, (10, v.device), v)


def test_dlpack_of_rocm_in_and_out(fake_hip: Fake) -> None:
    fake_hip.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    x, w = RocmValues(fake_hip.array(a, 1)), RocmValues(fake_hip.array(b, 1))
    result = run(PROBLEM, x, w, timed=False)
    made = result.output
    assert result.target == "hip:gfx1100" and isinstance(made, devicearrays.DeviceArray) and made.__dlpack_device__() == (10, 1)
    address, shape, strides, dtype, _ = dlpack.take(made.__dlpack__())
    np.testing.assert_array_equal(view(address, shape, strides, dtype), expected)
    assert not fake_hip.log("hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync")
    del made, result
    gc.collect()


def test_torch_tensors_of_a_rocm_build(fake_hip: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say that they are on cuda:1."""
    stream = types.SimpleNamespace(cuda_stream=21)
    torch = types.SimpleNamespace(strided="strided", version=types.SimpleNamespace(hip="6.4.43484"),
                                  cuda=types.SimpleNamespace(current_stream=lambda device: stream))
    monkeypatch.setitem(sys.modules, "torch", torch)    # type: ignore[arg-type]
    fake_hip.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    x, w, y = (Tensor(fake_hip.array(values.transpose(0, 3, 1, 2), 1)) for values in (a, b, np.full_like(expected, np.nan)))
    result = run(PROBLEM, x, w, out=y, timed=False)
    assert result.target == "hip:gfx1100" and result.output is y
    np.testing.assert_array_equal(y.values.numpy().transpose(0, 2, 3, 1), expected)
    assert fake_hip.log("hipModuleLaunchKernel")[0].endswith("stream 21")
