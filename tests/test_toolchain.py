"""Compilers: finding and identifying them, running them in a clean environment within a time limit, telling what went wrong."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any, Callable

import pytest

from gconvdsl.backends import base, bindings, compilers, cuda, cuda_driver, hip, toolchain
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


@pytest.fixture
def bin_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH besides /usr/bin's shell tools, which are linked into it; and no compiler is known yet."""
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("sh", "cat", "sleep", "env", "touch"):
        (path / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compilers, "_known", {})
    return path


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_cxx(path: Path, version: str = "g++ (GCC) 12.2.0", build: str = ': > "$out"') -> Path:
    """A C++ compiler that notes each start in ``starts`` beside it."""
    return script(path, f"""echo started >> {path.parent}/starts
case "$1" in --version) echo '{version}'; exit;; -dumpmachine) echo x86_64-linux-gnu; exit;; esac
while [ $# -gt 0 ]; do case "$1" in -o) out="$2";; esac; shift; done
{build}""")


def starts(directory: Path) -> int:
    path = directory / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def compiled(source: str = "int f();", flags: tuple[str, ...] = ("-O2",), **changed: Any) -> base.Artifact:
    named = {"target": "sim", "arch": "gfx942", "kernel": "scale", "source_name": "kernel.cpp", "output_name": "kernel.so"}
    return toolchain.compile_cached(toolchain.require("cxx", "sim"), source, flags, **{**named, **changed})


# --- finding and identifying

def test_a_warm_hit_starts_no_process(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cxx(bin_directory / "g++")
    assert not compiled().cached and starts(bin_directory) == 3     # version, machine, compilation
    monkeypatch.setattr(compilers, "_known", {})        # as in a new process
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    assert compiled().cached and starts(bin_directory) == 3


def test_a_changed_compiler_is_asked_again_and_compiles_again(bin_directory: Path) -> None:
    fake_cxx(bin_directory / "g++")
    assert not compiled().cached and compiled().cached
    fake_cxx(bin_directory / "g++", version="g++ (GCC) 12.2.10")
    tool = toolchain.require("cxx", "sim")
    assert tool.release == (12, 2, 10) and not compiled().cached


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"files": 3, "tool": {}}', b"\xff\xfe"])
def test_damaged_notes_about_a_compiler_are_replaced(bin_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     content: bytes) -> None:
    fake_cxx(bin_directory / "g++")
    first = toolchain.require("cxx", "sim")
    [note] = (tmp_path / "cache" / "compilers").iterdir()
    note.write_bytes(content)
    monkeypatch.setattr(compilers, "_known", {})
    assert toolchain.require("cxx", "sim") == first and note.read_bytes() != content


@pytest.mark.parametrize("change", [{"source": "int g();"}, {"flags": ("-O3",)}, {"arch": "gfx950"}, {"target": "cpu"},
                                    {"extra": {"features": "avx2"}}, {"output_name": "other.so"}])
def test_whatever_decides_the_result_belongs_to_the_key(bin_directory: Path, change: dict[str, Any]) -> None:
    fake_cxx(bin_directory / "g++")
    first = compiled()
    assert not compiled(**change).cached and compiled().path == first.path and compiled().cached


def test_another_compiler_of_the_same_version_is_another(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cxx(bin_directory / "g++")
    fake_cxx(bin_directory / "mine")
    compiled()
    monkeypatch.setenv("GCONV_CXX", "mine")
    assert not compiled().cached


def test_a_compiler_cache_in_front_of_the_compiler_is_passed_over(bin_directory: Path) -> None:
    script(bin_directory / "ccache", "echo g++ 1.0")
    (bin_directory / "g++").symlink_to(bin_directory / "ccache")
    fake_cxx(bin_directory / "c++")
    assert toolchain.require("cxx", "sim").command == str(bin_directory / "c++")


def test_one_that_does_not_start_is_passed_over(bin_directory: Path) -> None:
    script(bin_directory / "g++", "exit 127")
    (bin_directory / "clang++").write_text("not a program")
    (bin_directory / "clang++").chmod(0o755)
    fake_cxx(bin_directory / "c++")
    assert toolchain.require("cxx", "sim").command == str(bin_directory / "c++")


@pytest.mark.parametrize(("kind", "word"), [("cxx", "g++"), ("clang", "clang-22"), ("hipcc", "hipcc"), ("nvcc", "nvcc")])
def test_a_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, kind: str, word: str) -> None:
    monkeypatch.setattr(compilers, "candidates", lambda kind: iter(()))
    with pytest.raises(CompileError) as caught:
        toolchain.require(kind, "hip")
    assert caught.value.code == "compile.missing" and word in caught.value.fix and f"GCONV_{kind.upper()}" in caught.value.fix


def test_the_users_choice_is_the_only_candidate(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cxx(bin_directory / "g++")
    monkeypatch.setenv("GCONV_CXX", str(bin_directory / "absent"))
    assert toolchain.find("cxx") is None
    monkeypatch.setenv("GCONV_CXX", str(bin_directory / "g++"))
    assert toolchain.require("cxx", "sim").command == str(bin_directory / "g++")


def test_hipcc_that_forwards_to_nvcc_is_recognised_by_asking(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(bin_directory / "hipcc", "echo 'HIP version: 5.2'; echo 'nvcc: NVIDIA (R) Cuda compiler driver'")
    monkeypatch.setenv("GCONV_HIPCC", str(path))
    assert toolchain.find("hipcc") is None
    assert "nvcc" in compilers.identify("hipcc", str(path)).unusable


def test_a_new_clang_behind_hipcc_is_noticed(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = "echo '\tgfx908'"
    clang = script(bin_directory / "clang++-17", cpus)
    path = script(bin_directory / "hipcc", f"echo 'clang version 17.0'; echo 'InstalledDir: {bin_directory}'")
    monkeypatch.setenv("GCONV_HIPCC", str(path))
    assert toolchain.require("hipcc", "hip").archs == ("gfx908",)
    script(clang, f"{cpus}; echo '\tgfx942'")
    assert toolchain.require("hipcc", "hip").archs == ("gfx908", "gfx942")


def test_clang_without_its_linker_is_not_usable(bin_directory: Path) -> None:
    body = "case \"$*\" in *print-prog-name*) echo ld.lld;; *--version*) echo 'clang version 22.1.8';; *) echo '\tgfx942';; esac"
    path = script(bin_directory / "clang-22", body)
    assert "ld.lld" in compilers.identify("clang", str(path)).unusable
    script(bin_directory / "ld.lld", "")
    script(path, body + " # again")
    assert compilers.identify("clang", str(path)).unusable == ""


@pytest.mark.parametrize(("version", "release"), [
    ("Debian clang version 22.1.8 (1~deb12u1)", (22, 1, 8)), ("g++ (Debian 12.2.0-14) 12.2.0\nCopyright", (12, 2, 0)),
    ("nvcc: NVIDIA\nCuda compilation tools, release 13.0, V13.0.88", (13, 0)), ("strange", ()),
])
def test_release(version: str, release: tuple[int, ...]) -> None:
    assert compilers.Tool("cxx", "c", "c", version).release == release


# --- running

def test_nothing_of_the_users_environment_changes_the_result(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harmful = ["NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX",
               "HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND", "CCC_OVERRIDE_OPTIONS", "COMPILER_PATH", "LIBRARY_PATH",
               "CXXFLAGS"]
    for name in harmful:
        monkeypatch.setenv(name, "harm")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    fake_cxx(bin_directory / "g++", build='env > "$out"')
    lines = dict(line.split("=", 1) for line in compiled().path.read_text().splitlines())
    assert not set(harmful) & set(lines) and "harm" not in lines.values()
    assert lines["LANG"] == "C" and lines["PATH"] == str(bin_directory)


def test_hipcc_is_told_its_platform() -> None:
    assert compilers.clean_environment("hipcc")["HIP_PLATFORM"] == "amd"
    assert "HIP_PLATFORM" not in compilers.clean_environment("clang")


def test_a_poisoned_include_path_does_not_reach_the_compiler(require_tool: Callable[..., Any], tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("cxx")
    (tmp_path / "stdio.h").write_text("#error poisoned")
    monkeypatch.setenv("CPATH", str(tmp_path))
    assert compiled("#include <stdio.h>\nint f() { return 1; }", ("-shared", "-fPIC")).bytes > 0


def test_a_slow_compiler_is_stopped_with_its_children(bin_directory: Path, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_COMPILE_TIMEOUT", "0.4")
    late = tmp_path / "late"
    fake_cxx(bin_directory / "g++", build=f"(sleep 1; touch {late}) & wait")
    with pytest.raises(CompileError) as caught:
        compiled()
    assert caught.value.code == "compile.timeout" and "0.4" in str(caught.value) and "GCONV_COMPILE_TIMEOUT" in caught.value.fix
    time.sleep(1.2)
    assert not late.exists()


def test_a_compiler_that_vanishes(bin_directory: Path) -> None:
    tool = compilers.Tool("cxx", str(bin_directory / "gone"), "gone", "1")
    with pytest.raises(CompileError) as caught:
        toolchain.compile_cached(tool, "", [], target="sim", arch="x", kernel="k", source_name="k.cpp", output_name="k.so")
    assert caught.value.code == "compile.missing"


def test_success_without_output_is_a_failure(bin_directory: Path) -> None:
    fake_cxx(bin_directory / "g++", build="true")
    with pytest.raises(CompileError):
        compiled()


# --- what went wrong

def test_an_error_names_the_first_line_and_shows_it(require_tool: Callable[..., Any]) -> None:
    tool = require_tool("cxx")
    with pytest.raises(CompileError) as caught:
        compiled("int one;\nint two = missing_name;\nint three = other_name;\n", ("-shared",))
    err = caught.value
    assert err.code == "compile.failed" and err.values["status"] == 1 and err.values["kernel"] == "scale"
    assert err.values["command"][0] == tool.command and "kernel.cpp:2" in err.fix and "missing_name" in err.fix
    assert ">    2 | int two = missing_name;" in err.details and "other_name" in err.details


@pytest.mark.parametrize(("text", "place"), [
    ("In file included from kernel.hip:1:\n/a b/x.hpp:12:3: error: no member\n1 error generated.", "/a b/x.hpp:12: no member"),
    ("kernel.cu(7): warning #177-D: unused\nkernel.cu(9): error: identifier \"q\" is undefined\n", "kernel.cu:9: identifier"),
    ("kernel.cpp:3:10: fatal error: none.h: No such file or directory\n", "kernel.cpp:3: none.h"),
    ("ptxas error   : Entry function 'k' uses too much shared data (0x20000 bytes)\n", "ptxas error   : Entry function 'k'"),
    ("ld.lld: error: undefined symbol: memcpy\n", "ld.lld: error: undefined symbol: memcpy"),
    ("Killed\n", "no error message"),
])
def test_the_first_error_is_found(bin_directory: Path, tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "said").write_text(text)
    fake_cxx(bin_directory / "g++", build=f"cat {tmp_path}/said >&2; exit 3")
    with pytest.raises(CompileError) as caught:
        compiled()
    assert place in caught.value.fix and caught.value.values["status"] == 3 and text.strip() in caught.value.details


def test_long_output_is_trimmed(bin_directory: Path) -> None:
    loop = 'i=0; while [ $i -lt 900 ]; do echo "k.cpp:1:1: error: number $i"; i=$((i+1)); done; exit 1'
    fake_cxx(bin_directory / "g++", build=loop)
    with pytest.raises(CompileError) as caught:
        compiled()
    assert len(caught.value.details) < 8000 and "900 lines" in caught.value.details


def test_debuggers_are_told_where_the_source_lies(require_tool: Callable[..., Any]) -> None:
    require_tool("cxx")
    artifact = compiled("int f() { return 5; }\n", ("-g", "-O0", "-shared", "-fPIC"))
    assert os.fsencode(artifact.path.parent) in artifact.path.read_bytes() and b".staging" not in artifact.path.read_bytes()
    assert (artifact.path.parent / "kernel.cpp").is_file()


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
    assert hip.read_kfd(tmp_path) == {"0000:c1:00.0": "gfx90a", "0001:06:00.0": "gfx942", "0000:00:01.0": "gfx1100",
                                      "0000:00:02.0": "gfx1250"}
    assert hip.read_kfd(tmp_path / "absent") == {}


FAKE_HIP = """
#include <cstring>
extern "C" int hipGetDeviceCount(int* count) { *count = COUNT; return COUNT ? 0 : 100; }
extern "C" int hipRuntimeGetVersion(int* version) { *version = 60443484; return 0; }
extern "C" int hipDeviceTotalMem(size_t* bytes, int device) { *bytes = 1000u + device; return 0; }
extern "C" int hipDeviceGetName(char* name, int length, int device) {
  strncpy(name, device ? "second" : "first", length);
  return 0;
}
extern "C" int hipDeviceGetPCIBusId(char* id, int length, int device) {
  strncpy(id, device ? "0000:C1:00.0" : "0001:06:00.0", length);
  return 0;
}
extern "C" const char* hipGetErrorString(int) { return "no ROCm-capable device is detected"; }
"""
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


def test_amd_devices_are_those_of_the_runtime(fake_library: Callable[..., str], tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"1": "gfx_target_version 90010\nlocation_id 49408\n", "2": "gfx_target_version 90402\nlocation_id 1536\ndomain 1\n"}
    for node, text in listed.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "properties").write_text(text)
    monkeypatch.setattr(hip, "_KFD", tmp_path)
    monkeypatch.setattr(hip, "_LIBRARIES", (fake_library(FAKE_HIP, 2),))
    found = hip.HipBackend().detect()
    assert found.available and found.arch == "gfx942"
    assert [(one.name, one.arch, one.memory) for one in found.devices] == [("first", "gfx942", 1000), ("second", "gfx90a", 1001)]
    monkeypatch.setattr(hip, "_LIBRARIES", (fake_library(FAKE_HIP, 0),))
    hidden = hip.HipBackend().detect()
    assert not hidden.available and hidden.devices == () and "HIP_VISIBLE_DEVICES" in hidden.reason


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
