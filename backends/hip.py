"""Target ``hip``: AMD GPUs. Compiles the HIP C++ source with clang or hipcc, and launches it through the HIP runtime.

Device code uses only this package's headers (``-nogpuinc -nogpulib``), so any clang that knows the arch will do and compiling
needs no ROCm. `gpu` has what it shares with other GPUs, `hip_driver` the runtime. docs/amd.md is for users.
"""

from __future__ import annotations

import re
from pathlib import Path

from .. import archs, env
from ..errors import GconvError
from . import toolchain
from .base import Artifact, Detection
from .gpu import GpuBackend
from .gpu_driver import Driver
from .hip_driver import open_driver, read_kfd

__all__ = ["HipBackend", "parse_resource_remarks"]

_KFD = Path("/sys/class/kfd/kfd/topology/nodes")
_WSL = Path("/dev/dxg")             # the way to the GPU under WSL, where there is no kfd
_LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so", "libamdhip64.so.5")
_START = {"clang": ("-x", "hip", "--cuda-device-only"), "hipcc": ("--genco",)}
_REMARKS = {
    "TotalSGPRs": "sgpr", "SGPRs": "sgpr", "VGPRs": "vgpr", "AGPRs": "agpr", "SGPRs Spill": "sgpr_spills",
    "VGPRs Spill": "vgpr_spills", "ScratchSize [bytes/lane]": "scratch_bytes", "Occupancy [waves/SIMD]": "occupancy",
    "LDS Size [bytes/block]": "lds_bytes",
}


class HipBackend(GpuBackend):
    """AMD GPUs through clang or hipcc and the HIP runtime."""

    name = "hip"
    missing = "the HIP runtime (libamdhip64.so) is not installed"

    def __init__(self) -> None:
        super().__init__()
        self._opened: Driver | None = None

    def archs(self) -> tuple[str, ...]:
        return archs.arch_names("hip")

    def open_driver(self) -> Driver:
        if self._opened is None:
            self._opened = open_driver(_LIBRARIES, read_kfd(_KFD))
        return self._opened

    @property
    def can_launch(self) -> bool:  # type: ignore[override]
        """Whether a GPU and the runtime are here. Without a GPU the runtime, which is large, is not opened."""
        return _gpu_is_here() and super().can_launch

    def detect(self) -> Detection:
        if not _gpu_is_here():
            return Detection(False, None, "the kernel driver lists no AMD GPU")
        try:
            return self.detect_devices(self.open_driver())
        except OSError as err:
            return Detection(False, None, f"an AMD GPU is there, but the HIP runtime is not: {err}")
        except GconvError as failure:
            return Detection(False, None, f"an AMD GPU is there, but not for this process: "
                                          f"{failure.values.get('reason') or failure.message}. {failure.fix}")

    def tool(self, arch: str) -> toolchain.Tool:
        """The compiler that serves an arch: the one the user named, else the first that knows the arch."""
        chosen = env.get("GCONV_HIP_COMPILER")
        only_hipcc = env.get("GCONV_HIPCC") and not env.get("GCONV_CLANG")
        kinds = [chosen] if chosen else ["hipcc", "clang"] if only_hipcc else ["clang", "hipcc"]
        tools = (toolchain.find(kind, arch) for kind in kinds)
        return next((tool for tool in tools if tool), None) or toolchain.require(chosen or "clang", self.name, arch)

    def flags(self, tool: toolchain.Tool, arch: str) -> list[str]:
        """The command line for an arch, without output and source."""
        debug = ["-g"] if env.get("GCONV_DEBUG") else []
        return [*_START[tool.kind], "--no-gpu-bundle-output", f"--offload-arch={arch}", "-nogpuinc", "-nogpulib", "-O3",
                "-std=c++17", "-mcode-object-version=5", "-DGCONV_PLATFORM_HIP", *debug]

    def compile(self, source: str, arch: str, kernel: str) -> Artifact:
        return self._compile(source, arch, kernel, "kernel.hsaco", "-Rpass-analysis=kernel-resource-usage")

    def _compile(self, source: str, arch: str, kernel: str, output: str, *more: str) -> Artifact:
        tool = self.tool(arch)
        return toolchain.compile_cached(
            tool, source, [*self.flags(tool, arch), *more], target=self.name, arch=arch, kernel=kernel, source_name="kernel.hip",
            output_name=output, facts=lambda text: {"resources": parse_resource_remarks(text)})

    def assembly(self, source: str, arch: str, kernel: str) -> str:
        return self._compile(source, arch, kernel, "kernel.s", "-S").path.read_text()

    def resources(self, source: str, arch: str, kernel: str) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = self.compile(source, arch, kernel).meta["resources"]
        return found

    def identity(self, arch: str) -> dict[str, str]:
        tool = self.tool(arch)
        return {"compiler": f"{tool.path} {tool.version}", **self.device_identity(arch)}


def _gpu_is_here() -> bool:
    return bool(read_kfd(_KFD)) or _WSL.exists()


def parse_resource_remarks(text: str) -> dict[str, dict[str, int]]:
    """Per kernel, from clang's kernel-resource-usage remarks: sgpr, vgpr, agpr, sgpr_spills, vgpr_spills (registers), lds_bytes
    (a block), scratch_bytes (a lane), occupancy (waves a SIMD)."""
    kernels: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for name, value in re.findall(r"remark:(?: [^\s:]+:\d+:\d+:)?\s+([\w \[\]/]+): (\S+) \[-Rpass", text):
        if name == "Function Name":
            current = kernels.setdefault(value, {})
        elif name in _REMARKS:
            current[_REMARKS[name]] = int(value)
    return kernels
