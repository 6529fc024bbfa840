"""Target ``cuda``: NVIDIA GPUs. Compiles the same HIP C++ source to a cubin with nvcc, and launches it through the driver.

`cuda_driver` holds the library, its errors and the contexts, `cuda_memory` buffers and copies, `cuda_launch` modules and
launches. docs/nvidia.md is for users.
"""

from __future__ import annotations

import re
import shutil
import threading
import weakref
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Iterator

import numpy as np

from .. import archs, env
from ..errors import GconvError, error
from . import toolchain
from .base import Artifact, Backend, Detection
from .cuda_driver import Driver, open_driver

if TYPE_CHECKING:
    from ..plan import Plan
    from .cuda_memory import CudaBuffer, Memory, Place

__all__ = ["CudaBackend", "parse_ptxas"]

_LIBRARIES = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
_PTXAS = {"vgpr": r"Used (\d+) registers", "lds_bytes": r"(\d+) bytes smem", "scratch_bytes": r"(\d+) bytes stack frame",
          "spill_bytes": r"(\d+) bytes spill stores"}
_DEVICE_ORDINAL = 9     # CU_POINTER_ATTRIBUTE_


class CudaBackend(Backend):
    """NVIDIA GPUs through nvcc and the driver. Thread-safe: each thread is active on its own device and stream."""

    name = "cuda"
    host_memory = False

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def can_launch(self) -> bool:  # type: ignore[override]
        """Whether the driver's library is here."""
        try:
            return bool(open_driver(_LIBRARIES))
        except OSError:
            return False

    def archs(self) -> tuple[str, ...]:
        return archs.arch_names("cuda")

    def detect(self) -> Detection:
        try:
            devices = open_driver(_LIBRARIES).devices
        except OSError:
            return Detection(False, None, "the NVIDIA driver (libcuda.so.1) is not installed")
        except GconvError as failure:
            return Detection(False, None, failure.values.get("reason") or failure.message)
        arch = devices[0].arch
        if arch not in self.archs():
            return Detection(False, None, f"{devices[0].name} is {arch}, which no kernel here is built for", devices)
        return Detection(True, arch, f"{len(devices)} x {devices[0].name}", devices)

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
        found = next((one for one in self.detect().devices if one.arch == arch), None)
        device = {"device": found.name, "driver": found.driver} if found else {}
        return {"compiler": f"{tool.path} {tool.version}", "host": f"{host.path} {host.version}", **device}

    # --- where a thread works

    def _driver(self) -> Driver:
        try:
            return open_driver(_LIBRARIES)
        except OSError as failure:
            raise error("launch.device", target=self.name, reason=f"the NVIDIA driver is not installed ({failure})",
                        hint="Install it, or run on target cpu.") from None

    @contextmanager
    def activate(self, arch: str, device: int | None = None, stream: int | None = None) -> Iterator[None]:
        from .cuda_memory import Place

        driver, before = self._driver(), getattr(self._local, "place", None)
        place = Place(*self._chosen(driver, arch, device), stream or 0)
        pushed = driver.enter(place.context)
        self._local.place = place
        try:
            yield
        finally:
            self._local.place = before
            if pushed:
                driver.leave()

    def _chosen(self, driver: Driver, arch: str, device: int | None) -> tuple[int, Any]:
        """The ordinal and context of a device that runs kernels for an arch."""
        fitting = [one.index for one in driver.devices if one.arch == arch and device in (None, one.index)]
        if not fitting:
            there = ", ".join(f"cuda:{one.index} {one.name} ({one.arch})" for one in driver.devices)
            raise error("launch.device", target=f"{self.name}:{arch}", reason=f"the devices are {there}",
                        hint="Name the arch of a device that is here, or none.")
        return fitting[0], driver.context(fitting[0])

    def _here(self, stream: int | None = None) -> Place:
        """The place made active, else that of the thread's current context, else the first device."""
        place: Place | None = getattr(self._local, "place", None)
        if place is None:
            from .cuda_memory import Place as _Place

            driver = self._driver()
            current = driver.current_device()
            place = _Place(current or 0, driver.context(current or 0))
            if current is None:
                driver.call("cuCtxSetCurrent", place.context)
        return place if stream is None else replace(place, stream=stream)

    def capturing(self) -> bool:
        driver, status = self._driver(), self._driver().ffi.new("int *")
        driver.call("cuStreamIsCapturing", self._stream(None), status)
        return bool(status[0])

    def wait_for(self, stream: int) -> None:
        if stream != self._here().stream:
            event = self.record(stream)
            self._driver().call("cuStreamWaitEvent", self._stream(None), event.handle, 0)

    def _stream(self, stream: int | None) -> Any:
        return self._driver().ffi.cast("void *", self._here(stream).stream)

    def device_of(self, address: int) -> int:
        """The ordinal of the device that an address belongs to. Raises `LaunchError` for an address of the host."""
        driver, number = self._driver(), self._driver().ffi.new("int *")
        _ = driver.devices
        driver.call("cuPointerGetAttribute", number, _DEVICE_ORDINAL, address)
        return int(number[0])

    # --- kernels, memory, events

    def load(self, artifact: Artifact) -> Any:
        from .cuda_launch import CudaModule

        return CudaModule(artifact)

    def launch(self, module: Any, plan: Plan, args: bytes, stream: int | None = None) -> None:
        from .cuda_launch import launch

        launch(self._driver(), self._here(stream), module, plan, args)

    def _memory(self) -> Memory:
        from .cuda_memory import memory_of

        return memory_of(self._driver())

    def allocate(self, nbytes: int) -> CudaBuffer:  # type: ignore[override]
        return self._memory().allocate(self._here(), nbytes)

    def upload(self, buffer: Any, array: np.ndarray[Any, Any]) -> None:
        self._memory().upload(self._here(), buffer.address, np.ascontiguousarray(array))

    def download(self, buffer: Any, array: np.ndarray[Any, Any]) -> None:
        self._memory().download(self._here(), buffer.address, array)

    def synchronize(self, stream: int | None = None) -> None:
        self._driver().call("cuStreamSynchronize", self._stream(stream))

    def record(self, stream: int | None = None) -> CudaEvent:
        event = CudaEvent(self._driver())
        event.driver.call("cuEventRecord", event.handle, self._stream(stream))
        return event

    def elapsed_ms(self, start: CudaEvent, end: CudaEvent) -> float:
        time = end.driver.ffi.new("float *")
        end.driver.call("cuEventSynchronize", end.handle)
        end.driver.call("cuEventElapsedTime", time, start.handle, end.handle)
        return float(time[0])


class CudaEvent:
    """A point of a stream; ``handle`` is the driver's. Destroyed when it is no longer referenced."""

    def __init__(self, driver: Driver) -> None:
        handle = driver.ffi.new("void **")
        driver.call("cuEventCreate", handle, 0)
        self.driver, self.handle = driver, handle[0]
        weakref.finalize(self, driver.lib.cuEventDestroy_v2, self.handle).atexit = False


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
