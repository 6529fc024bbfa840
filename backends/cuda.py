"""Target ``cuda``: NVIDIA GPUs. Compiles the same HIP C++ source to a cubin with nvcc, and launches it through the driver.

`gpu` has what it shares with other GPUs, `cuda_driver` the library, its devices and contexts. docs/nvidia.md is for users.
"""

from __future__ import annotations

import re
import shutil

from .. import archs, env
from ..errors import GconvError
from . import toolchain
from .base import Artifact, Detection
from .cuda_driver import open_driver
from .gpu import GpuBackend
from .gpu_driver import Driver

__all__ = ["CudaBackend", "parse_ptxas"]

_LIBRARIES = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
_PTXAS = {"vgpr": r"Used (\d+) registers", "lds_bytes": r"(\d+) bytes smem", "scratch_bytes": r"(\d+) bytes stack frame",
          "spill_bytes": r"(\d+) bytes spill stores"}


class CudaBackend(GpuBackend):
    """NVIDIA GPUs through nvcc and the driver."""

    name = "cuda"
    missing = "the NVIDIA driver (libcuda.so.1) is not installed"

    def archs(self) -> tuple[str, ...]:
        return archs.arch_names("cuda")

    def open_driver(self) -> Driver:
        return open_driver(_LIBRARIES)

    def detect(self) -> Detection:
        try:
            return self.detect_devices(self.open_driver())
        except OSError:
            return Detection(False, None, self.missing)
        except GconvError as failure:
            return Detection(False, None, failure.values.get("reason") or failure.message)

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
        return {"compiler": f"{tool.path} {tool.version}", "host": f"{host.path} {host.version}", **self.device_identity(arch)}


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
