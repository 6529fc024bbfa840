"""Targets `hip` and `cuda` without a GPU: kernels compiled for every arch, devices of stand-in libraries, spelling of targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest

from gconvdsl.backends import base, bindings, compilers, cuda, cuda_driver, hip, hip_driver, toolchain
from gconvdsl.errors import CompileError, GconvError, LaunchError

AMD_SOURCE = """#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
extern "C" __global__ void scale(float* x, int n) {
  __shared__ float tile[300];
  int i = __builtin_amdgcn_workitem_id_x();
  tile[i] = x[i];
  __builtin_amdgcn_s_barrier();
  if (i < n) x[i] = 2.0f * tile[n - 1 - i];
}
"""
NVIDIA_SOURCE = """extern "C" __global__ void scale(float* x, int n) {
  __shared__ float tile[300];
  int i = threadIdx.x;
  tile[i] = x[i];
  __syncthreads();
  if (i < n) x[i] = 2.0f * tile[n - 1 - i];
}
"""
AMD_ARCHS = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200", "gfx1201", "gfx1250")


# --- AMD

@pytest.mark.parametrize("arch", AMD_ARCHS)
def test_clang_builds_a_code_object(require_tool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    require_tool("clang", arch)
    monkeypatch.setenv("GCONV_HIP_COMPILER", "clang")
    backend, _ = base.parse_target(f"hip:{arch}")
    data = backend.compile(AMD_SOURCE, arch, "scale").path.read_bytes()
    assert data[:4] == b"\x7fELF" and int.from_bytes(data[18:20], "little") == 224     # EM_AMDGPU
    assert backend.resources(AMD_SOURCE, arch, "scale")["scale"]["lds_bytes"] == 1200


@pytest.mark.parametrize("arch", ["gfx90a", "gfx908"])
def test_hipcc_builds_a_code_object(require_tool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    require_tool("hipcc", arch)
    monkeypatch.setenv("GCONV_HIP_COMPILER", "hipcc")
    backend, _ = base.parse_target(f"hip:{arch}")
    artifact = backend.compile(AMD_SOURCE, arch, "scale")
    data = artifact.path.read_bytes()
    assert data[:4] == b"\x7fELF" and int.from_bytes(data[18:20], "little") == 224
    assert artifact.meta["tool"].startswith("hipcc") and artifact.meta["resources"]["scale"]["lds_bytes"] == 1200
    assert "s_barrier" in backend.assembly(AMD_SOURCE, arch, "scale")


def test_clang_is_taken_where_hipcc_does_not_know_the_arch(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"clang": ("gfx90a", "gfx950"), "hipcc": ("gfx90a",)}

    def find(kind: str, arch: str = "") -> compilers.Tool | None:
        return compilers.Tool(kind, kind, kind, "1") if arch in known[kind] else None
    monkeypatch.setattr(toolchain, "find", find)
    backend = hip.HipBackend()
    assert backend.tool("gfx90a").kind == "clang"
    monkeypatch.setenv("GCONV_HIPCC", "/opt/rocm/bin/hipcc")
    assert backend.tool("gfx90a").kind == "hipcc" and backend.tool("gfx950").kind == "clang"


def test_assembly_and_spills(require_tool: Callable[..., Any]) -> None:
    require_tool("clang", "gfx942")
    backend = base.get("hip")
    text = backend.assembly(AMD_SOURCE, "gfx942", "scale")
    assert "s_barrier" in text and "scale:" in text
    body = "".join(f"float a{i} = x[{i} * n];\n" for i in range(200)) + "".join(f"x[{i}] = a{199 - i};\n" for i in range(200))
    crowded = ('extern "C" __attribute__((global)) __attribute__((amdgpu_waves_per_eu(8, 8))) '
               f"void crowded(float* __restrict x, int n) {{\nx += __builtin_amdgcn_workitem_id_x();\n{body}}}\n")
    found = backend.resources(crowded, "gfx942", "crowded")["crowded"]
    assert found["vgpr_spills"] > 0 and found["scratch_bytes"] > 0 and found["vgpr"] + found["agpr"] <= 64
    calm = backend.resources(AMD_SOURCE, "gfx942", "scale")["scale"]
    assert calm["vgpr_spills"] == calm["sgpr_spills"] == calm["scratch_bytes"] == 0 and calm["occupancy"] > 0 and calm["sgpr"] > 0


def test_a_fault_in_device_code_is_reported_with_its_line(require_tool: Callable[..., Any]) -> None:
    require_tool("clang", "gfx942")
    with pytest.raises(CompileError) as caught:
        base.get("hip").compile(AMD_SOURCE.replace("tile[i]", "tyle[i]"), "gfx942", "scale")
    assert "kernel.hip:6" in caught.value.fix and "tyle" in caught.value.fix and "gfx942" in str(caught.value)


def test_the_kernel_drivers_list_of_gpus(tmp_path: Path) -> None:
    listed = ["cpu_cores_count 8\ngfx_target_version 0\n", "gfx_target_version 90010\nlocation_id 49408\ndomain 0\n",
              "gfx_target_version 90402\nlocation_id 1536\ndomain 1\n", "gfx_target_version 110000\nlocation_id 8\n",
              "gfx_target_version 120500\nlocation_id 16\n"]
    for node, text in enumerate(listed):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "properties").write_text(text)
    assert hip_driver.read_kfd(tmp_path) == {"0000:c1:00.0": "gfx90a", "0001:06:00.0": "gfx942", "0000:00:01.0": "gfx1100",
                                      "0000:00:02.0": "gfx1250"}
    assert hip_driver.read_kfd(tmp_path / "absent") == {}


FAKE_CUDA = """
#include <cstring>
extern "C" int cuInit(unsigned) { return COUNT ? 0 : 100; }
extern "C" int cuDriverGetVersion(int* version) { *version = 13010; return 0; }
extern "C" int cuDeviceGetCount(int* count) { *count = COUNT; return 0; }
extern "C" int cuDeviceGet(int* device, int ordinal) { *device = ordinal + 40; return 0; }
extern "C" int cuDeviceGetName(char* name, int length, int device) {
  strncpy(name, device == 40 ? "H200" : "A10", length);
  return 0;
}
extern "C" int cuDeviceGetAttribute(int* value, int which, int device) {
  *value = which == 75 ? (device == 40 ? 9 : 8) : which == 76 ? (device == 40 ? 0 : 6) : -1;
  return 0;
}
extern "C" int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = 1000u + device; return 0; }
extern "C" int cuGetErrorString(int, const char** text) { *text = "no CUDA-capable device is detected"; return 0; }
"""


@pytest.fixture
def fake_library(require_tool: Callable[..., Any]) -> Callable[..., str]:
    """A driver or runtime library that pretends to have so many devices."""
    tool = require_tool("cxx")

    def build(source: str, count: int) -> str:
        return str(toolchain.compile_cached(tool, source, [f"-DCOUNT={count}", "-shared", "-fPIC"], target="test", arch="any",
                                            kernel="fake", source_name="fake.cpp", output_name="fake.so").path)
    return build


# --- NVIDIA

def test_nvidia_devices_are_those_of_the_driver(fake_library: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_LIBRARIES", (fake_library(FAKE_CUDA, 2),))
    found = cuda.CudaBackend().detect()
    assert found.available and found.arch == "sm_90"
    assert [(one.name, one.arch, one.memory) for one in found.devices] == [("H200", "sm_90", 1040), ("A10", "sm_80", 1041)]
    assert found.devices[0].driver == "CUDA 13.1"
    monkeypatch.setattr(cuda, "_LIBRARIES", (fake_library(FAKE_CUDA, 0),))
    assert "no CUDA-capable device" in cuda.CudaBackend().detect().reason and not cuda.CudaBackend().detect().available


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvcc_builds_a_cubin(require_tool: Callable[..., Any], arch: str) -> None:
    require_tool("nvcc", arch)
    require_tool("cxx")
    backend, _ = base.parse_target(f"cuda:{arch}")
    artifact = backend.compile(NVIDIA_SOURCE, arch, "scale")
    data = artifact.path.read_bytes()
    assert data[:4] == b"\x7fELF" and int.from_bytes(data[18:20], "little") == 190     # EM_CUDA
    found = backend.resources(NVIDIA_SOURCE, arch, "scale")["scale"]
    assert found["lds_bytes"] == 1200 and 0 < found["vgpr"] < 64 and found["spill_bytes"] == 0
    assert "scale" in backend.assembly(NVIDIA_SOURCE, arch, "scale")


def test_several_entries_of_ptxas() -> None:
    text = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    96 bytes stack frame, 88 bytes spill stores, 92 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 96 bytes cumulative stack size, 49152 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers
"""
    assert cuda.parse_ptxas(text) == {"first": {"vgpr": 255, "lds_bytes": 49152, "scratch_bytes": 96, "spill_bytes": 88},
                                      "second": {"vgpr": 40, "lds_bytes": 0, "scratch_bytes": 0, "spill_bytes": 0}}


@pytest.mark.parametrize(("capability", "arch"), [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((7, 5), "sm_75"),
                                                  ((12, 0), "sm_120")])
def test_the_arch_that_a_device_runs(capability: tuple[int, int], arch: str) -> None:
    assert cuda_driver.built_for(*capability) == arch


# --- targets

@pytest.mark.parametrize(("text", "name", "arch"), [
    ("sim", "sim", "gfx942"), ("sim:gfx1100", "sim", "gfx1100"), ("hip:gfx950", "hip", "gfx950"),
    (" cuda:sm_90 ", "cuda", "sm_90"),
    ("hip:gfx90a:sramecc+:xnack-", "hip", "gfx90a"),
])
def test_targets_are_spelt_target_arch(text: str, name: str, arch: str) -> None:
    backend, found = base.parse_target(text)
    assert (backend.name, found) == (name, arch) and base.get(name) is backend


def test_gconv_arch_is_the_arch_of_a_bare_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_ARCH", "gfx1201")
    assert base.parse_target("hip")[1] == base.parse_target("sim")[1] == "gfx1201"
    assert base.parse_target("sim:gfx908")[1] == "gfx908"
    assert base.parse_target("cpu")[1] in base.get("cpu").archs()
    with pytest.raises(CompileError):
        base.parse_target("cuda")


@pytest.mark.parametrize(("text", "code"), [("tpu", "launch.target"), ("", "launch.target"), ("hip:gfx9999", "compile.arch"),
                                            ("hip:", "compile.arch"), ("sim:sm_20", "compile.arch")])
def test_unknown_targets_and_archs(text: str, code: str) -> None:
    with pytest.raises(GconvError) as caught:
        base.parse_target(text)
    assert caught.value.code == code and "Use one of" in caught.value.fix


@pytest.mark.parametrize("name", ["hip", "cuda"])
def test_without_a_device_there_is_no_default_arch(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    backend = base.get(name)
    monkeypatch.setattr(type(backend), "detect", lambda self: base.Detection(False, None, "it is not there"))
    with pytest.raises(LaunchError) as caught:
        base.parse_target(name)
    assert "it is not there" in str(caught.value) and f"{name}:" in caught.value.fix


def test_host_buffers_are_aligned_and_copy_exactly() -> None:
    import numpy as np
    backend, buffer = base.get("sim"), base.Buffer(24)
    assert buffer.address % base.ALIGNMENT == 0 and buffer.nbytes == 24
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    backend.upload(buffer, values[:, ::-1])
    back = np.empty((2, 3), np.float32)
    backend.download(buffer, back)
    assert back.tolist() == [[2, 1, 0], [5, 4, 3]]


def test_the_checked_in_bindings_are_current(tmp_path: Path) -> None:
    bindings.generate(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.glob("*_api.py")}
    assert {"_hip_api.py", "_cuda_api.py"} <= set(made)
    assert made == {name: (Path(base.__file__).parent / name).read_text() for name in made}
