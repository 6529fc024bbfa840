"""Target ``cuda``: NVIDIA GPUs. Compiles the same HIP C++ source to a cubin with nvcc. This version compiles and detects; it
does not launch."""

from __future__ import annotations

import re
import shutil
from typing import Any

from .. import archs, env
from ..errors import error
from ..plan import Plan
from . import toolchain
from .base import Artifact, Backend, Detection, Device, Module

__all__ = ["CudaBackend", "parse_ptxas"]

_LIBRARIES = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
_PTXAS = {"vgpr": r"Used (\d+) registers", "lds_bytes": r"(\d+) bytes smem", "scratch_bytes": r"(\d+) bytes stack frame",
          "spill_bytes": r"(\d+) bytes spill stores"}
_MAJOR, _MINOR = 75, 76     # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


class CudaBackend(Backend):
    """NVIDIA GPUs through nvcc."""

    name = "cuda"
    host_memory = False
    can_launch = False

    def archs(self) -> tuple[str, ...]:
        return archs.arch_names("cuda")

    def detect(self) -> Detection:
        try:
            devices = _devices()
        except OSError:
            return Detection(False, None, "the NVIDIA driver (libcuda.so.1) is not installed")
        except RuntimeError as err:
            return Detection(False, None, f"{err}")
        arch = devices[0].arch
        if arch not in self.archs():
            reason = f"{devices[0].name} is {arch}, which no kernel here is built for"
            return Detection(False, None, reason, tuple(devices))
        return Detection(True, arch, f"{len(devices)} x {devices[0].name}", tuple(devices))

    def flags(self, arch: str, host: toolchain.Tool) -> list[str]:
        """The command line for an arch, without output and source."""
        name = archs.arch(arch).compiler.removeprefix("sm_")
        debug = ["-lineinfo"] if env.get("GCONV_DEBUG") else []
        return ["-x", "cu", "-std=c++17", "-O3", "-gencode", f"arch=compute_{name},code=sm_{name}", "-ccbin", host.command,
                "-DGCONV_PLATFORM_CUDA", *debug]

    def compile(self, source: str, arch: str, kernel: str) -> Artifact:
        return self._compile(source, arch, kernel, "kernel.cubin", "-cubin", "-Xptxas", "-v")

    def _compile(self, source: str, arch: str, kernel: str, output: str, *more: str) -> Artifact:
        tool, host = toolchain.require("nvcc", self.name, _plain(arch)), toolchain.require("cxx", self.name)
        return toolchain.compile_cached(
            tool, source, [*self.flags(arch, host), *more], target=self.name, arch=arch, kernel=kernel, source_name="kernel.cu",
            output_name=output, extra={"host": host.identity}, facts=lambda text: {"resources": parse_ptxas(text)})

    def assembly(self, source: str, arch: str, kernel: str) -> str:
        """SASS where the toolkit has nvdisasm, else PTX."""
        disassembler = shutil.which("nvdisasm")
        if disassembler is None:
            return self._ptx(source, arch, kernel)
        artifact = self.compile(source, arch, kernel)
        done = toolchain.run([disassembler, "-c", str(artifact.path)], environment=toolchain.clean_environment("nvcc"),
                             cwd=artifact.path.parent, limit=env.get("GCONV_COMPILE_TIMEOUT"))
        return self._ptx(source, arch, kernel) if done.status else done.text

    def _ptx(self, source: str, arch: str, kernel: str) -> str:
        return self._compile(source, arch, kernel, "kernel.ptx", "-ptx").path.read_text()

    def resources(self, source: str, arch: str, kernel: str) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = self.compile(source, arch, kernel).meta["resources"]
        return found

    def identity(self, arch: str) -> dict[str, str]:
        tool, host = toolchain.require("nvcc", self.name), toolchain.require("cxx", self.name)
        return {"compiler": f"{tool.path} {tool.version}", "host": f"{host.path} {host.version}"}

    def load(self, artifact: Artifact) -> Module:
        raise error("launch.device", target=self.name, reason="this version compiles for NVIDIA GPUs but does not launch on them",
                    hint="Run on target sim or cpu.")

    def launch(self, module: Module, plan: Plan, args: bytes, stream: Any = None) -> None:
        raise error("launch.device", target=self.name, reason="this version compiles for NVIDIA GPUs but does not launch on them",
                    hint="Run on target sim or cpu.")


def _plain(arch: str) -> str:
    """nvcc lists sm_90 but not its arch-specific variant sm_90a."""
    return arch.rstrip("af")


def parse_ptxas(text: str) -> dict[str, dict[str, int]]:
    """Per kernel, from ``ptxas -v``: vgpr (registers a thread), lds_bytes (static shared memory of a block), scratch_bytes (stack
    of a thread), spill_bytes (stored by a thread)."""
    parts = re.split(r"Compiling entry function '(\w+)'", text)
    return {name: {fact: _number(pattern, body) for fact, pattern in _PTXAS.items()}
            for name, body in zip(parts[1::2], parts[2::2])}


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def _devices() -> list[Device]:
    """The devices the driver offers. Raises OSError without a driver, RuntimeError if it has no device."""
    from ._cuda_api import ffi
    lib = _driver(ffi)
    number, size, text, handle = ffi.new("int *"), ffi.new("size_t *"), ffi.new("char[256]"), ffi.new("int *")

    def check(status: int) -> None:
        if status:
            message = ffi.new("const char **")
            known = lib.cuGetErrorString(status, message) == 0 and message[0] != ffi.NULL
            raise RuntimeError(ffi.string(message[0]).decode() if known else f"driver error {status}")

    def attribute(which: int) -> int:
        check(lib.cuDeviceGetAttribute(number, which, handle[0]))
        return int(number[0])
    check(lib.cuInit(0))
    check(lib.cuDriverGetVersion(number))
    driver = f"CUDA {number[0] // 1000}.{number[0] % 1000 // 10}"
    check(lib.cuDeviceGetCount(number))
    if not number[0]:
        raise RuntimeError("the NVIDIA driver offers no device")
    devices = []
    for index in range(number[0]):
        check(lib.cuDeviceGet(handle, index))
        check(lib.cuDeviceGetName(text, 256, handle[0]))
        check(lib.cuDeviceTotalMem_v2(size, handle[0]))
        arch = _built_for(attribute(_MAJOR), attribute(_MINOR))
        devices.append(Device(index, ffi.string(text).decode(), arch, size[0], driver))
    return devices


def _built_for(major: int, minor: int) -> str:
    """The arch whose cubins a device of this compute capability runs: the same major, the highest minor not above its own."""
    known = [name for name in archs.arch_names("cuda") if re.fullmatch(rf"sm_{major}[0-{minor}]", name)]
    return max(known, default=f"sm_{major}{minor}")


def _driver(ffi: Any) -> Any:
    failure = OSError("libcuda.so.1 was not found")
    for library in _LIBRARIES:
        try:
            return ffi.dlopen(library)
        except OSError as err:
            failure = err
    raise failure
