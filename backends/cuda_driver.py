"""The NVIDIA driver: its library, its devices, their primary contexts, and what its statuses mean to a user.

Only primary contexts are used, those that the CUDA runtime, torch and CuPy share, so that arrays and streams of all of them are
valid in one another. The library is opened on first use, never on import.
"""

from __future__ import annotations

import re
import threading
from functools import cache, cached_property
from typing import Any

from .. import archs
from ..errors import error
from .base import Device
from .gpu_driver import Driver, first_library

__all__ = ["CudaDriver", "built_for", "open_driver"]

_MAJOR, _MINOR, _POOLS = 75, 76, 115    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR, _MEMORY_POOLS_SUPPORTED


class CudaDriver(Driver):
    """An open libcuda."""

    target, title, prefix = "cuda", "CUDA", "cu"
    spelling = {"MemAlloc": "cuMemAlloc_v2", "MemFree": "cuMemFree_v2", "MemGetInfo": "cuMemGetInfo_v2",
                "MemcpyHtoDAsync": "cuMemcpyHtoDAsync_v2", "MemcpyDtoHAsync": "cuMemcpyDtoHAsync_v2",
                "DeviceTotalMem": "cuDeviceTotalMem_v2", "EventDestroy": "cuEventDestroy_v2",
                "CtxPushCurrent": "cuCtxPushCurrent_v2", "CtxPopCurrent": "cuCtxPopCurrent_v2"}
    no_device = {3, 4, 34, 46, 100, 101, 102, 802, 803, 804, 805, 807}
    broken = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721}
    hints = {
        3: "A process made by fork cannot use the GPU of its parent: start processes with the method spawn.",
        34: "The libcuda.so.1 found is the stub of the CUDA toolkit: put the driver's directory first in LD_LIBRARY_PATH.",
        46: "Another process holds the device exclusively.",
        802: "The machine's fabric manager is not ready.",
    }
    update_hint = "Update the driver, or compile with an older toolkit (GCONV_NVCC)."
    broken_hint = "compute-sanitizer python3 SCRIPT shows where it happens."
    dynamic_shared = 48 << 10           # CUDA programming guide, compute capabilities
    overlaps = True

    def __init__(self, library: str) -> None:
        from ._cuda_api import ffi

        super().__init__(ffi, library)
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()

    def needed_by(self, compiler: str) -> str:
        found = re.search(r"(\d+)\.(\d+)", compiler)
        return f"CUDA {found[1]}" if found and int(found[1]) > self.version // 1000 else ""

    def reason(self, status: int) -> str:
        text = self.ffi.new("const char **")
        known = self.lib.cuGetErrorString(status, text) == 0 and text[0] != self.ffi.NULL
        return self.ffi.string(text[0]).decode() if known else "unknown error"

    @cached_property
    def version(self) -> int:
        """The newest CUDA that the driver serves: 13010 is 13.1."""
        return self.number("DriverGetVersion")

    @property
    def version_text(self) -> str:
        return f"CUDA {self.version // 1000}.{self.version % 1000 // 10}"

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        self.call("Init", 0)
        count = self.number("DeviceGetCount")
        if not count:
            raise error("launch.device", target="cuda", reason="the NVIDIA driver offers no device",
                        hint="Is CUDA_VISIBLE_DEVICES set?")
        return tuple(self._device(index) for index in range(count))

    def _device(self, index: int) -> Device:
        text, size, handle = self.ffi.new("char[256]"), self.ffi.new("size_t *"), self._handle(index)
        self.call("DeviceGetName", text, 256, handle)
        self.call("DeviceTotalMem", size, handle)
        arch = built_for(self._attribute(_MAJOR, handle), self._attribute(_MINOR, handle))
        return Device(index, self.ffi.string(text).decode(), arch, size[0], self.version_text)

    def _handle(self, index: int) -> int:
        return self.number("DeviceGet", index)

    def _attribute(self, which: int, handle: int) -> int:
        return self.number("DeviceGetAttribute", which, handle)

    def has_pools(self, index: int) -> bool:
        return bool(self._attribute(_POOLS, self._handle(index)))

    # --- contexts

    def context(self, index: int) -> Any:
        """The primary context of a device, retained once and for good."""
        with self._lock:
            if index not in self._contexts:
                _ = self.devices
                context = self.ffi.new("void **")
                self.call("DevicePrimaryCtxRetain", context, self._handle(index))
                self._contexts[index] = context[0]
            return self._contexts[index]

    def enter(self, context: Any) -> bool:
        if self._current() == context:
            return False
        self.call("CtxPushCurrent", context)
        return True

    def push(self, context: Any) -> None:
        self.lib.cuCtxPushCurrent_v2(context)

    def leave(self) -> None:
        self.lib.cuCtxPopCurrent_v2(self.ffi.new("void **"))

    def adopt(self, context: Any) -> None:
        self.call("CtxSetCurrent", context)

    def current_device(self) -> int | None:
        _ = self.devices
        if self._current() == self.ffi.NULL:
            return None
        device = self.number("CtxGetDevice")
        return next(one.index for one in self.devices if self._handle(one.index) == device)

    def _current(self) -> Any:
        current = self.ffi.new("void **")
        self.call("CtxGetCurrent", current)
        return current[0]


def built_for(major: int, minor: int) -> str:
    """The arch whose cubins a device of this compute capability runs: the same major, the highest minor not above its own."""
    known = [name for name in archs.arch_names("cuda") if re.fullmatch(rf"sm_{major}[0-{minor}]", name)]
    return max(known, default=f"sm_{major}{minor}")


@cache
def open_driver(libraries: tuple[str, ...]) -> Driver:
    """The driver over the first of the libraries that is there, the same every time. Raises OSError if none is."""
    return first_library(CudaDriver, libraries)
