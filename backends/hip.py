"""Target ``hip``: AMD GPUs. Compiles the HIP C++ source to a code object with clang or hipcc; needs no ROCm to compile.

Device code uses only this package's headers (``-nogpuinc -nogpulib``), so any clang that knows the arch will do. This version
compiles and detects; it does not launch.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from .. import archs, env
from ..errors import error
from ..plan import Plan
from . import toolchain
from .base import Artifact, Backend, Detection, Device, Module

__all__ = ["HipBackend", "parse_resource_remarks", "read_kfd"]

_KFD = Path("/sys/class/kfd/kfd/topology/nodes")
_LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "/opt/rocm/lib/libamdhip64.so")
_START = {"clang": ("-x", "hip", "--cuda-device-only"), "hipcc": ("--genco",)}
_REMARKS = {
    "TotalSGPRs": "sgpr", "SGPRs": "sgpr", "VGPRs": "vgpr", "AGPRs": "agpr", "SGPRs Spill": "sgpr_spills",
    "VGPRs Spill": "vgpr_spills", "ScratchSize [bytes/lane]": "scratch_bytes", "Occupancy [waves/SIMD]": "occupancy",
    "LDS Size [bytes/block]": "lds_bytes",
}


class HipBackend(Backend):
    """AMD GPUs through clang or hipcc."""

    name = "hip"
    host_memory = False
    can_launch = False

    def archs(self) -> tuple[str, ...]:
        return archs.arch_names("hip")

    def detect(self) -> Detection:
        nodes = read_kfd(_KFD)
        if not nodes:
            return Detection(False, None, "the kernel driver lists no AMD GPU")
        try:
            devices = _devices(nodes)
        except OSError as err:
            return Detection(False, None, f"an AMD GPU is there, but the HIP runtime is not: {err}")
        if not devices:
            return Detection(False, None, "an AMD GPU is there, but the HIP runtime offers none (HIP_VISIBLE_DEVICES?)")
        return Detection(True, devices[0].arch, f"{len(devices)} x {devices[0].name}", tuple(devices))

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
        return {"compiler": f"{tool.path} {tool.version}"}

    def load(self, artifact: Artifact) -> Module:
        raise error("launch.device", target=self.name, reason="this version compiles for AMD GPUs but does not launch on them",
                    hint="Run on target sim or cpu.")

    def launch(self, module: Module, plan: Plan, args: bytes, stream: Any = None) -> None:
        raise error("launch.device", target=self.name, reason="this version compiles for AMD GPUs but does not launch on them",
                    hint="Run on target sim or cpu.")


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


def read_kfd(nodes: Path) -> dict[str, str]:
    """The GPUs the kernel driver lists: PCI address (``0000:c1:00.0``) -> arch. Empty without the driver."""
    found = {}
    for properties in sorted(nodes.glob("*/properties")):
        try:
            facts = dict(line.split(maxsplit=1) for line in properties.read_text().splitlines() if " " in line)
        except OSError:
            continue        # a GPU of the machine that this container may not see
        version, place = int(facts.get("gfx_target_version", 0)), int(facts.get("location_id", 0))
        if version:
            address = f"{int(facts.get('domain', 0)):04x}:{place >> 8 & 0xff:02x}:{place >> 3 & 0x1f:02x}.{place & 7}"
            found[address] = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return found


def _devices(nodes: dict[str, str]) -> list[Device]:
    """The devices the HIP runtime offers. Raises OSError if there is no runtime."""
    from ._hip_api import ffi
    lib = _runtime(ffi)
    count, version, size, text = ffi.new("int *"), ffi.new("int *"), ffi.new("size_t *"), ffi.new("char[256]")
    if lib.hipGetDeviceCount(count) or lib.hipRuntimeGetVersion(version):
        return []
    devices = []
    for index in range(count[0]):
        lib.hipDeviceTotalMem(size, index)
        address = ffi.string(text).decode().lower() if not lib.hipDeviceGetPCIBusId(text, 256, index) else ""
        name = ffi.string(text).decode() if not lib.hipDeviceGetName(text, 256, index) else ""
        arch = nodes.get(address) or next(iter(nodes.values()))
        devices.append(Device(index, name or arch, arch, size[0], f"HIP {version[0]}"))
    return devices


def _runtime(ffi: Any) -> Any:
    failure = OSError("libamdhip64 was not found")
    homes = [os.environ[name] for name in ("ROCM_PATH", "HIP_PATH") if os.environ.get(name)]
    for library in (*(os.path.join(home, "lib", "libamdhip64.so") for home in homes), *_LIBRARIES):
        try:
            return ffi.dlopen(library)
        except OSError as err:
            failure = err
    raise failure
