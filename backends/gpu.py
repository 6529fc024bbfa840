"""What targets that are GPUs have in common: a place (device, stream) for each thread, memory, modules, launches, events.

A target adds its compiler and how its driver is opened. `gpu_driver` is the interface of drivers, `gpu_memory` buffers and
copies, `gpu_launch` modules and launches.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from ..errors import error
from .base import Artifact, Backend, Detection
from .gpu_driver import Driver

if TYPE_CHECKING:
    from ..plan import Plan
    from .gpu_memory import GpuBuffer, Memory, Place

__all__ = ["GpuBackend"]

_DEVICE_ORDINAL = 9     # CU_POINTER_ATTRIBUTE_, HIP_POINTER_ATTRIBUTE_


class GpuBackend(Backend):
    """A target with a driver. Thread-safe: each thread is active on its own device and stream."""

    host_memory = False
    missing: str
    """What is to be said where the driver is not installed."""

    def __init__(self) -> None:
        self._local = threading.local()

    @abstractmethod
    def open_driver(self) -> Driver:
        """The driver of this process, the same every time. Raises OSError if there is none."""

    @property
    def can_launch(self) -> bool:  # type: ignore[override]
        """Whether the driver's library is here."""
        try:
            return bool(self.open_driver())
        except OSError:
            return False

    def detect_devices(self, driver: Driver) -> Detection:
        """What the driver offers. Raises `LaunchError` if it is not usable."""
        devices = driver.devices
        arch = devices[0].arch
        if arch not in self.archs():
            return Detection(False, None, f"{devices[0].name} is {arch or 'unknown'}, which no kernel here is built for", devices)
        return Detection(True, arch, f"{len(devices)} x {devices[0].name}", devices)

    def device_identity(self, arch: str) -> dict[str, str]:
        """The device that runs kernels of an arch here, and its driver; nothing where there is none."""
        found = next((one for one in self.detect().devices if one.arch == arch), None)
        return {"device": found.name, "driver": found.driver} if found else {}

    # --- where a thread works

    def _driver(self) -> Driver:
        try:
            return self.open_driver()
        except OSError as failure:
            raise error("launch.device", target=self.name, reason=f"{self.missing} ({failure})",
                        hint="Install it, or run on target cpu.") from None

    def activate(self, arch: str, device: int | None = None, stream: int | None = None) -> AbstractContextManager[None]:
        return _Active(self._local, self._driver(), _place(self._driver(), arch, device, stream or 0))

    def _here(self, stream: int | None = None) -> Place:
        """The place made active, else that of the thread's current context, else the first device."""
        place: Place | None = getattr(self._local, "place", None)
        if place is None:
            from .gpu_memory import Place as _Place

            driver = self._driver()
            current = driver.current_device()
            place = _Place(current or 0, driver.context(current or 0))
            if current is None:
                driver.adopt(place.context)
        return place if stream is None else replace(place, stream=stream)

    def capturing(self) -> bool:
        driver, status = self._driver(), self._driver().ffi.new("int *")
        driver.call("StreamIsCapturing", self._stream(None), status)
        return bool(status[0])

    def wait_for(self, stream: int) -> None:
        if stream != self._here().stream:
            event = self.record(stream)
            self._driver().call("StreamWaitEvent", self._stream(None), event.handle, 0)

    def _stream(self, stream: int | None) -> Any:
        return self._driver().ffi.cast("void *", self._here(stream).stream)

    def device_of(self, address: int) -> int:
        """The ordinal of the device that an address belongs to. Raises `LaunchError` for an address of the host."""
        driver = self._driver()
        _ = driver.devices
        return driver.number("PointerGetAttribute", _DEVICE_ORDINAL, address)

    # --- kernels, memory, events

    def load(self, artifact: Artifact) -> Any:
        from .gpu_launch import GpuModule

        return GpuModule(artifact)

    def launch(self, module: Any, plan: Plan, args: bytes, stream: int | None = None) -> None:
        from .gpu_launch import launcher

        place = self._here(stream)
        launcher(self._driver(), place, module, plan)(args, place.stream)

    def launcher(self, module: Any, plan: Plan) -> Callable[[Any], None]:
        from .gpu_launch import launcher

        run, local = launcher(self._driver(), self._here(), module, plan), self._local
        return lambda args: run(args, local.place.stream)

    def _memory(self) -> Memory:
        from .gpu_memory import memory_of

        return memory_of(self._driver())

    def allocate(self, nbytes: int) -> GpuBuffer:  # type: ignore[override]
        return self._memory().allocate(self._here(), nbytes)

    def upload(self, buffer: Any, array: np.ndarray[Any, Any]) -> None:
        self._memory().upload(self._here(), buffer.address, np.ascontiguousarray(array))

    def download(self, buffer: Any, array: np.ndarray[Any, Any]) -> None:
        self._memory().download(self._here(), buffer.address, array)

    def synchronize(self, stream: int | None = None) -> None:
        self._driver().call("StreamSynchronize", self._stream(stream))

    def record(self, stream: int | None = None) -> GpuEvent:
        event = GpuEvent(self._driver())
        event.driver.call("EventRecord", event.handle, self._stream(stream))
        return event

    def elapsed_ms(self, start: GpuEvent, end: GpuEvent) -> float:
        time = end.driver.ffi.new("float *")
        end.driver.call("EventSynchronize", end.handle)
        end.driver.call("EventElapsedTime", time, start.handle, end.handle)
        return float(time[0])


class _Active(AbstractContextManager[None]):
    """While entered, the thread works in a place."""

    def __init__(self, local: threading.local, driver: Driver, place: Place) -> None:
        self._local, self._driver, self._place = local, driver, place

    def __enter__(self) -> None:
        self._before = getattr(self._local, "place", None)
        self._pushed = self._driver.enter(self._place.context)
        self._local.place = self._place

    def __exit__(self, *_: object) -> None:
        self._local.place = self._before
        if self._pushed:
            self._driver.leave()


@lru_cache(maxsize=256)
def _place(driver: Driver, arch: str, device: int | None, stream: int) -> Place:
    """A device that runs kernels for an arch, and a stream there. Raises ``launch.device``."""
    from .gpu_memory import Place

    fitting = [one.index for one in driver.devices if one.arch == arch and device in (None, one.index)]
    if not fitting:
        there = ", ".join(f"{driver.target}:{one.index} {one.name} ({one.arch})" for one in driver.devices)
        raise error("launch.device", target=f"{driver.target}:{arch}", reason=f"the devices are {there}",
                    hint="Name the arch of a device that is here, or none.")
    return Place(fitting[0], driver.context(fitting[0]), stream)


class GpuEvent:
    """A point of a stream; ``handle`` is the driver's. Destroyed when it is no longer referenced."""

    def __init__(self, driver: Driver) -> None:
        handle = driver.ffi.new("void **")
        driver.call("EventCreate", handle, 0)
        self.driver, self.handle = driver, handle[0]
        weakref.finalize(self, driver.function("EventDestroy"), self.handle).atexit = False
