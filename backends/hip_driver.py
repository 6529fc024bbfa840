"""The HIP runtime of AMD GPUs: its library, its devices, and what its statuses mean to a user.

Bound for ROCm 5, 6 and 7. Of the structures that change between them one is read, for one field: the arch in hipDeviceProp_t. The
library is opened on first use, never on import; one that the process has loaded already (torch brings its own) is taken before
any other, since pointers and streams of one are nothing to another.
"""

from __future__ import annotations

import os
import re
import threading
from functools import cached_property
from pathlib import Path

from ..errors import error
from .base import Device
from .gpu_driver import Driver, first_library

__all__ = ["HipDriver", "open_driver", "read_kfd"]

_MAPS = Path("/proc/self/maps")
_PROPERTIES = {"hipGetDevicePropertiesR0600": 1160, "hipGetDeviceProperties": 396}
"""Function, newest first -> where its hipDeviceProp_t has gcnArchName: ROCm 6 and 7, ROCm 5."""
_PROPERTY_BYTES = 8192              # more than any hipDeviceProp_t has
_ARCH = re.compile(rb"gfx[0-9a-f]{3,}")
_POOLS = 88                         # hipDeviceAttributeMemoryPoolsSupported
_FIRST_POOLS = 60000000             # before HIP 6.0 pools were marked as unfinished
_FIRST_CODE_OBJECT_5 = 50400000     # HIP 5.4


class HipDriver(Driver):
    """An open libamdhip64. A context is a device's ordinal."""

    target, title, prefix = "hip", "HIP", "hip"
    spelling = {"MemAlloc": "hipMalloc", "MemFree": "hipFree", "MemFreeAsync": "hipFreeAsync",
                "MemAllocFromPoolAsync": "hipMallocFromPoolAsync", "EventCreate": "hipEventCreateWithFlags",
                "LaunchKernel": "hipModuleLaunchKernel", "DeviceGetCount": "hipGetDeviceCount"}
    no_device = {3, 4, 100, 101}
    broken = {214, 700, 702, 709, 710, 719}
    hints = {3: "Is the amdgpu kernel driver loaded, and may this user open /dev/kfd (groups render and video)?",
             100: "Run gconv doctor. May this user open /dev/kfd (groups render and video)? Is HIP_VISIBLE_DEVICES set?"}
    update_hint = "Install a newer ROCm."
    broken_hint = "AMD_LOG_LEVEL=3 in the environment shows the calls before it."
    dynamic_shared = 1 << 30        # nothing has to be asked for: the launch itself is refused

    def __init__(self, library: str, nodes: dict[str, str]) -> None:
        from ._hip_api import ffi

        super().__init__(ffi, library)
        self._nodes, self._local = nodes, threading.local()

    @cached_property
    def version(self) -> int:
        """The runtime's version: 60443484 is HIP 6.4."""
        return self.number("RuntimeGetVersion")

    @property
    def version_text(self) -> str:
        return f"HIP {self.version // 10000000}.{self.version // 100000 % 100}"

    def needed_by(self, compiler: str) -> str:
        return "HIP 5.4 (ROCm 5.4)" if self.version < _FIRST_CODE_OBJECT_5 else ""

    def reason(self, status: int) -> str:
        text = self.lib.hipGetErrorString(status)
        return self.ffi.string(text).decode() if text != self.ffi.NULL else "unknown error"

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        count = self.number("DeviceGetCount")
        if not count:
            raise error("launch.device", target="hip", reason="the HIP runtime offers no device", hint=self.hints[100])
        return tuple(self._device(index) for index in range(count))

    def _device(self, index: int) -> Device:
        text, size = self.ffi.new("char[256]"), self.ffi.new("size_t *")
        self.call("DeviceTotalMem", size, index)
        arch = self._arch(index)
        name = self.ffi.string(text).decode() if not self.lib.hipDeviceGetName(text, 256, index) else ""
        return Device(index, name or arch, arch, size[0], self.version_text)

    def _arch(self, index: int) -> str:
        """The arch without its features; empty where neither the runtime nor the kernel driver says it."""
        for name, place in _PROPERTIES.items():
            facts = self.ffi.new("char[]", _PROPERTY_BYTES)
            try:
                status = getattr(self.lib, name)(facts, index)
            except self.ffi.error:
                continue
            text = bytes(self.ffi.buffer(facts))
            found = _ARCH.match(text, place) or _ARCH.search(text)
            if status == 0 and found:
                return found[0].decode()
        address = self.ffi.new("char[256]")
        known = not self.lib.hipDeviceGetPCIBusId(address, 256, index)
        return self._nodes.get(self.ffi.string(address).decode().lower(), "") if known else ""

    def has_pools(self, index: int) -> bool:
        return self.version >= _FIRST_POOLS and bool(self.number("DeviceGetAttribute", _POOLS, index))

    # --- contexts: the thread's device, and those it had before

    def context(self, index: int) -> int:
        _ = self.devices
        return index

    def enter(self, context: int) -> bool:
        before = self.number("GetDevice")
        if before == context:
            return False
        self.call("SetDevice", context)
        self._before().append(before)
        return True

    def push(self, context: int) -> None:
        before = self.ffi.new("int *")
        self.lib.hipGetDevice(before)
        self._before().append(before[0])
        self.lib.hipSetDevice(context)

    def leave(self) -> None:
        self.lib.hipSetDevice(self._before().pop())

    def adopt(self, context: int) -> None:
        self.call("SetDevice", context)

    def current_device(self) -> int | None:
        _ = self.devices
        return self.number("GetDevice")

    def _before(self) -> list[int]:
        if not hasattr(self._local, "before"):
            self._local.before = []
        before: list[int] = self._local.before
        return before


def open_driver(libraries: tuple[str, ...], nodes: dict[str, str]) -> Driver:
    """The runtime: the library that the process has loaded, that of the ROCm that the environment names, else the first of these
    that is there. Raises OSError if there is none."""
    homes = [os.environ[name] for name in ("ROCM_PATH", "HIP_PATH") if os.environ.get(name)]
    places = (*_loaded(), *(os.path.join(home, "lib", "libamdhip64.so") for home in homes), *libraries)
    return first_library(lambda library: HipDriver(library, nodes), places)


def _loaded() -> list[str]:
    try:
        mapped = _MAPS.read_text().splitlines()
    except OSError:
        return []
    return list(dict.fromkeys(line[line.index("/"):] for line in mapped if "/libamdhip64.so" in line))[:1]


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
