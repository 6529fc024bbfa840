"""Memory of a GPU: allocated, freed and copied in the order of a stream."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .gpu_driver import Driver

__all__ = ["GpuBuffer", "Memory", "Place", "memory_of"]

_PINNED, _ON_DEVICE, _RELEASE_THRESHOLD = 1, 1, 4   # CU_MEM_ALLOCATION_TYPE_, _LOCATION_TYPE_, CU_MEMPOOL_ATTR_; hip the same
_KEPT_BYTES = 1 << 28
"""Free memory that a pool keeps for the next call, so that a call does not wait for the system's allocator."""


@dataclass(frozen=True)
class Place:
    """Where a thread works: a device's ordinal, its context (as the driver has it), a stream's handle (0: the default one)."""

    device: int
    context: Any
    stream: int = 0


class GpuBuffer:
    """Device memory. Freed, after what the stream has been given so far, when it is no longer referenced."""

    def __init__(self, driver: Driver, place: Place, address: int, nbytes: int, pooled: bool) -> None:
        self.address, self.nbytes, self.device = address, nbytes, place.device
        weakref.finalize(self, _free, driver, place, address, pooled).atexit = False    # the process's end frees everything


def _free(driver: Driver, place: Place, address: int, pooled: bool) -> None:
    """Statuses are of no use here: where freeing fails, the device is lost or the stream gone."""
    driver.push(place.context)
    if pooled:
        driver.function("MemFreeAsync")(address, driver.ffi.cast("void *", place.stream))
    else:
        driver.function("MemFree")(address)
    driver.leave()


class Memory:
    """Allocation and copies on the devices of a driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._ffi = driver, driver.ffi
        self._pools: dict[int, Any] = {}
        self._lock = threading.Lock()

    def allocate(self, place: Place, nbytes: int) -> GpuBuffer:
        """Uninitialised memory, valid for what the stream is given from now on. Raises ``launch.memory``."""
        address, pool = self._ffi.new("unsigned long long *"), self._pool(place.device)
        if pool is None:
            self._driver.call("MemAlloc", address, max(nbytes, 1), nbytes=nbytes)
        else:
            self._driver.call("MemAllocFromPoolAsync", address, max(nbytes, 1), pool, self._stream(place), nbytes=nbytes)
        return GpuBuffer(self._driver, place, int(address[0]), nbytes, pool is not None)

    def upload(self, place: Place, address: int, array: np.ndarray[Any, Any]) -> None:
        """Copy a contiguous array to an address. Ordinary memory is read before this returns, pinned memory later."""
        if array.nbytes:
            self._driver.call("MemcpyHtoDAsync", address, self._host(array), array.nbytes, self._stream(place))

    def download(self, place: Place, address: int, array: np.ndarray[Any, Any]) -> None:
        """Copy into a contiguous array, and wait for it."""
        if array.nbytes:
            self._driver.call("MemcpyDtoHAsync", self._host(array), address, array.nbytes, self._stream(place))
        self._driver.call("StreamSynchronize", self._stream(place))

    def _host(self, array: np.ndarray[Any, Any]) -> Any:
        return self._ffi.cast("void *", array.__array_interface__["data"][0])

    def _stream(self, place: Place) -> Any:
        return self._ffi.cast("void *", place.stream)

    def _pool(self, device: int) -> Any:
        """The pool of a device, None if it has none: our own, because settings of the default one would be everybody's."""
        with self._lock:
            if device not in self._pools:
                self._pools[device] = self._new_pool(device) if self._driver.has_pools(device) else None
            return self._pools[device]

    def _new_pool(self, device: int) -> Any:
        properties = self._ffi.new("MemPoolProps *", {"type": _PINNED, "location_type": _ON_DEVICE, "location_id": device})
        pool, kept = self._ffi.new("void **"), self._ffi.new("unsigned long long *", _KEPT_BYTES)
        self._driver.call("MemPoolCreate", pool, properties)
        self._driver.call("MemPoolSetAttribute", pool[0], _RELEASE_THRESHOLD, kept)
        return pool[0]


@cache
def memory_of(driver: Driver) -> Memory:
    """The one `Memory` of a driver."""
    return Memory(driver)
