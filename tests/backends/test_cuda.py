"""Target cuda without a GPU: a stand-in for the driver (fake_cuda.cpp) checks every call and computes what is launched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gconvdsl as gconv
from cuda_harness import CONFIG, PROBLEM, Fake, case, run
from gconvdsl import choose
from gconvdsl.backends import base, cuda, cuda_driver
from gconvdsl.errors import GconvError, LaunchError
from gconvdsl.plan import Launch, Plan


# --- detection

def test_devices_and_the_default_target(fake: Fake) -> None:
    found = base.get("cuda").detect()
    assert found.available and found.arch == "sm_90" and base.get("cuda").can_launch
    assert [(one.name, one.arch) for one in found.devices] == [("H200", "sm_90"), ("A100", "sm_80")]
    assert found.devices[0].driver == "CUDA 12.4" and found.devices[0].memory == 1 << 20
    assert choose.default_target() == "cuda" and choose.detect_arch() == "sm_90"
    fake.fail("cuInit", 34)
    cuda_driver.open_driver.cache_clear()
    assert "CUDA error 34" in base.get("cuda").detect().reason


def test_no_driver(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_LIBRARIES", ("/nowhere/libcuda.so.1",))
    assert not base.get("cuda").can_launch and choose.default_target() == "cpu"
    a, b, _ = case(PROBLEM)
    with pytest.raises(LaunchError) as caught:
        run(PROBLEM, a, b, target="cuda:sm_90")
    assert caught.value.code == "launch.device" and "not installed" in str(caught.value)
    with pytest.raises(LaunchError) as caught:
        base.get("cuda").allocate(1)
    assert caught.value.code == "launch.device"


# --- arrays of the host

@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_arrays_of_the_host_travel(fake: Fake, direction: str) -> None:
    problem = PROBLEM.as_(direction)
    fake.expect(problem)
    a, b, expected = case(problem)
    result = run(problem, a[..., ::-1].copy()[..., ::-1], b, target="cuda")
    covered = np.nan_to_num(expected)
    np.testing.assert_array_equal(np.where(expected == 0, 0, result.output), covered)
    assert result.target == "cuda:sm_90" and result.time_ms == 1.0        # of the stand-in's clock, which counts events
    assert fake.lib.fake_blocks() == 0, "everything is freed"
    assert len(fake.log("cuMemcpyHtoDAsync_v2")) == 2 and len(fake.log("cuMemcpyDtoHAsync_v2")) == 1


def test_memory_comes_from_a_pool_of_our_own(fake: Fake) -> None:
    fake.expect(PROBLEM)
    a, b, _ = case(PROBLEM)
    run(PROBLEM, a, b, target="cuda:sm_80", stream=77)
    assert fake.log("retain") == ["retain 1"], "the device of that arch"
    assert fake.log("cuMemPoolCreate") == ["cuMemPoolCreate type 1 handles 0 location 1 1"]
    [threshold] = fake.log("cuMemPoolSetAttribute")
    assert threshold.split()[1] == "4" and int(threshold.split()[2]) > 0
    for name in ("cuMemAllocFromPoolAsync", "cuMemcpyHtoDAsync_v2", "cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuMemFreeAsync"):
        assert fake.log(name) and all(line.endswith("stream 77") for line in fake.log(name)), name


def test_a_launch_that_overlaps_the_one_before_it(fake: Fake) -> None:
    backend = base.get("cuda")
    module = backend.load(backend.compile("", "sm_90", "k"))
    plan = Plan((Launch("gconv_a", (7, 2, 3), 96), Launch("gconv_c", (4, 1, 1), 32, 100, overlaps=True)), PROBLEM.args())
    with backend.activate("sm_90", 0, 5):
        backend.launch(module, plan, plan.args.pack(0, 0, 0))
    assert fake.log("cuLaunchKernel", "attribute") == [
        "cuLaunchKernel gconv_a grid 7 2 3 block 96 shared 0 stream 5", "attribute 6 1",
        "cuLaunchKernel gconv_c grid 4 1 1 block 32 shared 100 stream 5"]


def test_a_device_without_pools(fake: Fake) -> None:
    fake.lib.fake_pools(0)
    fake.expect(PROBLEM)
    a, b, expected = case(PROBLEM)
    np.testing.assert_array_equal(run(PROBLEM, a, b, target="cuda").output, expected)
    assert len(fake.log("cuMemAlloc_v2")) == len(fake.log("cuMemFree_v2")) == 3 and fake.lib.fake_blocks() == 0


def test_what_is_launched(fake: Fake) -> None:
    backend = base.get("cuda")
    module = backend.load(backend.compile("", "sm_90", "k"))
    launches = Launch("gconv_a", (7, 2, 3), 96, 60000), Launch("gconv_b", (0, 1, 1), 32), Launch("gconv_c", (1, 1, 1), 32, 100)
    plan = Plan(launches, PROBLEM.args())
    with backend.activate("sm_90", 0, 5):
        backend.launch(module, plan, plan.args.pack(0, 0, 0))
        backend.launch(module, plan, plan.args.pack(0, 0, 0))
    one = ["cuLaunchKernel gconv_a grid 7 2 3 block 96 shared 60000 stream 5",
           "cuLaunchKernel gconv_c grid 1 1 1 block 32 shared 100 stream 5"]
    assert fake.log("cuLaunchKernel") == one * 2
    assert fake.log("cuFuncSetAttribute") == ["cuFuncSetAttribute 60000"]
    assert fake.log("cuModuleLoadData") == ["cuModuleLoadData 0"]
    with backend.activate("sm_80"):
        backend.launch(module, plan, plan.args.pack(0, 0, 0))
    assert fake.log("cuModuleLoadData") == ["cuModuleLoadData 0", "cuModuleLoadData 1"], "a kernel is loaded once for each device"


def test_the_context_is_given_back(fake: Fake) -> None:
    backend = base.get("cuda")
    backend.allocate(1)                         # the thread now has the context of the first device
    driver = cuda_driver.open_driver(cuda._LIBRARIES)
    with pytest.raises(ZeroDivisionError), backend.activate("sm_80"):
        assert driver.current_device() == 1
        raise ZeroDivisionError
    assert driver.current_device() == 0 and backend.allocate(8).device == 0


# --- failures

@pytest.mark.parametrize(("function", "status", "code", "word"), [
    ("cuMemAllocFromPoolAsync", 2, "launch.memory", "1000 of 1048576"),
    ("cuLaunchKernel", 701, "launch.failed", "gconv_main"),
    ("cuLaunchKernel", 900, "launch.runtime", "before the capture"),
    ("cuLaunchKernel", 400, "launch.runtime", "cuLaunchKernel"),
    ("cuModuleLoadData", 209, "launch.driver", "CUDA 12.4"),       # nvcc 13.0, a driver for 12.4
    ("retain", 46, "launch.device", "exclusively"),
])
def test_failures_are_told_apart(fake: Fake, function: str, status: int, code: str, word: str) -> None:
    a, b, _ = case(PROBLEM)
    fake.expect(PROBLEM)
    fake.fail(function, status)
    with pytest.raises(LaunchError) as caught:
        run(PROBLEM, a, b, target="cuda")
    assert caught.value.code == code and word in str(caught.value) and "{" not in str(caught.value)


def test_a_damaged_cubin(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "kernel.cubin").write_bytes(b"not a cubin")
    a, b, _ = case(PROBLEM)
    with pytest.raises(GconvError) as caught:
        run(PROBLEM, a, b, target="cuda")
    assert caught.value.code == "launch.driver", "with an older driver that is the likelier reason"


def test_after_an_illegal_access_everything_fails_and_says_why(fake: Fake) -> None:
    fake.expect(PROBLEM)
    a, b, _ = case(PROBLEM)
    fake.fail("cuStreamSynchronize", 700)
    for _ in range(2):
        with pytest.raises(LaunchError) as caught:
            run(PROBLEM, a, b, target="cuda")
        assert caught.value.code == "launch.broken" and "illegal memory access" in str(caught.value)
        assert "Restart the process" in caught.value.fix
        fake.fail("", 0)
    assert not choose._failed, "nothing is held against the kernel"


def test_nothing_waits_while_a_graph_is_captured(fake: Fake) -> None:
    fake.expect(PROBLEM)
    a, b, _ = case(PROBLEM)
    x, w, y = fake.array(a), fake.array(b), fake.array(np.zeros(PROBLEM.fused_shape("y"), np.float32))
    fake.lib.fake_capture(1)
    assert gconv.Runner(CONFIG).run(x, w, PROBLEM, out=y).success
    assert fake.log("cuLaunchKernel") and not fake.log("cuEventRecord", "cuStreamSynchronize")
