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
from ..errors import GconvError, error
from .base import Device

__all__ = ["Driver", "built_for", "open_driver"]

_MAJOR, _MINOR, _POOLS = 75, 76, 115    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR, _MEMORY_POOLS_SUPPORTED
_OUT_OF_MEMORY, _NOT_FOUND = 2, 500
_NO_DEVICE = {3, 4, 34, 46, 100, 101, 102, 802, 803, 804, 805, 807}
_BROKEN = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721}
_BAD_IMAGE = {200, 209, 218, 222}
_NOT_THIS_KERNEL = {1, 701, 720}        # invalid value, out of resources: another configuration may do
_CAPTURE = range(900, 909)
_HINTS = {
    3: "A process made by fork cannot use the GPU of its parent: start processes with the method spawn.",
    34: "The libcuda.so.1 found is the stub of the CUDA toolkit: put the driver's directory first in LD_LIBRARY_PATH.",
    46: "Another process holds the device exclusively.",
    802: "The machine's fabric manager is not ready.",
}


class Driver:
    """An open libcuda. Thread-safe; its handles live until the process ends."""

    def __init__(self, library: str) -> None:
        from ._cuda_api import ffi

        self.ffi, self.lib, self.path = ffi, ffi.dlopen(library), library
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()

    def call(self, name: str, *args: Any, **about: Any) -> None:
        """One function of the driver. ``about`` is what a message may name: ``kernel``, ``nbytes``. Raises `LaunchError`."""
        try:
            function = getattr(self.lib, name)
        except AttributeError:
            raise error("launch.driver", target="cuda", have=self.version_text, what=name, need="a newer one") from None
        status = function(*args)
        if status:
            raise self.failure(status, name, **about)

    def failure(self, status: int, call: str, kernel: str = "", nbytes: int = 0) -> GconvError:
        """The error that a status of ``call`` means."""
        reason = f"{self.reason(status)} (CUDA error {status})"
        if status in _BROKEN:
            return error("launch.broken", target="cuda", kernel=kernel or "launched last", reason=reason)
        if status == _OUT_OF_MEMORY:
            free, total = self._memory()
            return error("launch.memory", target="cuda", nbytes=nbytes, free=free, total=total)
        if status in _NO_DEVICE:
            return error("launch.device", target="cuda", reason=reason, hint=_HINTS.get(status, "Run gconv doctor."))
        if status in _NOT_THIS_KERNEL and call in ("cuLaunchKernel", "cuFuncSetAttribute", "cuTensorMapEncodeTiled"):
            return error("launch.failed", kernel=kernel, target="cuda", reason=reason, hint="Use a smaller tile.")
        hint = "Call the kernel once before the capture, on its stream." if status in _CAPTURE else "Run gconv doctor."
        return error("launch.runtime", target="cuda", call=call, reason=reason, hint=hint)

    def image_failure(self, status: int, path: str, compiler: str) -> GconvError:
        """The error of a cubin that does not load: a driver older than the compiler (``nvcc 13.0``), or a damaged file."""
        found = re.search(r"(\d+)\.(\d+)", compiler)
        if status not in _BAD_IMAGE:
            return self.failure(status, "cuModuleLoadData")
        if found and int(found[1]) > self.version // 1000:
            return error("launch.driver", target="cuda", have=self.version_text, what=f"a kernel compiled by {compiler}",
                         need=f"CUDA {found[1]}")
        return error("launch.load", path=path, reason=f"{self.reason(status)} (CUDA error {status})")

    def reason(self, status: int) -> str:
        """The driver's own words for a status."""
        text = self.ffi.new("const char **")
        known = self.lib.cuGetErrorString(status, text) == 0 and text[0] != self.ffi.NULL
        return self.ffi.string(text[0]).decode() if known else "unknown error"

    def _memory(self) -> tuple[int, int]:
        free, total = self.ffi.new("size_t *"), self.ffi.new("size_t *")
        return (free[0], total[0]) if self.lib.cuMemGetInfo_v2(free, total) == 0 else (0, 0)

    @cached_property
    def version(self) -> int:
        """The newest CUDA that the driver serves: 13010 is 13.1."""
        number = self.ffi.new("int *")
        self.call("cuDriverGetVersion", number)
        return int(number[0])

    @property
    def version_text(self) -> str:
        """The same as text: ``CUDA 13.1``."""
        return f"CUDA {self.version // 1000}.{self.version % 1000 // 10}"

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices that the process may use. Raises ``launch.device`` if there is none."""
        count = self.ffi.new("int *")
        self.call("cuInit", 0)
        self.call("cuDeviceGetCount", count)
        if not count[0]:
            raise error("launch.device", target="cuda", reason="the NVIDIA driver offers no device",
                        hint="Is CUDA_VISIBLE_DEVICES set?")
        return tuple(self._device(index) for index in range(count[0]))

    def _device(self, index: int) -> Device:
        text, size, handle = self.ffi.new("char[256]"), self.ffi.new("size_t *"), self._handle(index)
        self.call("cuDeviceGetName", text, 256, handle)
        self.call("cuDeviceTotalMem_v2", size, handle)
        arch = built_for(self._attribute(_MAJOR, handle), self._attribute(_MINOR, handle))
        return Device(index, self.ffi.string(text).decode(), arch, size[0], self.version_text)

    def _handle(self, index: int) -> int:
        handle = self.ffi.new("int *")
        self.call("cuDeviceGet", handle, index)
        return int(handle[0])

    def _attribute(self, which: int, handle: int) -> int:
        number = self.ffi.new("int *")
        self.call("cuDeviceGetAttribute", number, which, handle)
        return int(number[0])

    def has_pools(self, index: int) -> bool:
        """Whether a device allocates in the order of streams."""
        return bool(self._attribute(_POOLS, self._handle(index)))

    # --- contexts

    def context(self, index: int) -> Any:
        """The primary context of a device, retained once and for good."""
        with self._lock:
            if index not in self._contexts:
                _ = self.devices
                context = self.ffi.new("void **")
                self.call("cuDevicePrimaryCtxRetain", context, self._handle(index))
                self._contexts[index] = context[0]
            return self._contexts[index]

    def enter(self, context: Any) -> bool:
        """Make a context this thread's current one; whether `leave` has to undo it."""
        current = self.ffi.new("void **")
        self.call("cuCtxGetCurrent", current)
        if current[0] == context:
            return False
        self.call("cuCtxPushCurrent_v2", context)
        return True

    def leave(self) -> None:
        """Give the thread the context back that it had. Never raises: it runs where another error may be on its way."""
        self.lib.cuCtxPopCurrent_v2(self.ffi.new("void **"))

    def current_device(self) -> int | None:
        """The device of the thread's current context, None if it has none."""
        _ = self.devices
        current, device = self.ffi.new("void **"), self.ffi.new("int *")
        self.call("cuCtxGetCurrent", current)
        if current[0] == self.ffi.NULL:
            return None
        self.call("cuCtxGetDevice", device)
        return next(one.index for one in self.devices if self._handle(one.index) == device[0])


def built_for(major: int, minor: int) -> str:
    """The arch whose cubins a device of this compute capability runs: the same major, the highest minor not above its own."""
    known = [name for name in archs.arch_names("cuda") if re.fullmatch(rf"sm_{major}[0-{minor}]", name)]
    return max(known, default=f"sm_{major}{minor}")


@cache
def open_driver(libraries: tuple[str, ...]) -> Driver:
    """The first of the libraries that is there. Raises OSError if none is."""
    failure = OSError("no library is named")
    for library in libraries:
        try:
            return Driver(library)
        except OSError as err:
            failure = err
    raise failure
