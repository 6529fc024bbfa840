"""What a target is: the `Backend` interface, its registry, and the spelling of targets (``TARGET[:ARCH]``).

A backend turns source text into an `Artifact`, loads it as a `Module`, and launches the `plan.Plan` of a lowering on it. The
defaults here are those of targets that run on the host; a GPU target overrides memory and events.
"""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Protocol

import numpy as np

from .. import archs, env
from ..errors import error

if TYPE_CHECKING:
    from ..plan import Plan

__all__ = ["Artifact", "Backend", "Buffer", "Detection", "Device", "Module", "TARGETS", "get", "parse_target"]

ALIGNMENT = 256
"""Bytes to which `Backend.allocate` aligns; what GPU allocators guarantee."""


@dataclass(frozen=True)
class Device:
    """One device: its ordinal, marketing name, arch, memory in bytes (0: unknown) and the driver's version text."""

    index: int
    name: str
    arch: str
    memory: int = 0
    driver: str = ""


@dataclass(frozen=True)
class Detection:
    """Whether a target can run here. ``arch`` is that of the first device; ``reason`` is a sentence, also when it can."""

    available: bool
    arch: str | None
    reason: str
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel file. ``bytes``: its size; ``meta``: facts stored beside it; ``seconds``: what this call spent on it."""

    path: Path
    bytes: int
    meta: dict[str, Any] = field(default_factory=dict)
    cached: bool = False
    seconds: float = 0.0


class Module(Protocol):
    """A loaded artifact. It must stay referenced as long as a function taken from it may run."""

    def function(self, name: str) -> Any:
        """The kernel called ``name``; `LaunchError` if the artifact has none."""


class Buffer:
    """Memory of a target: ``address`` and ``nbytes``. This one is host memory."""

    def __init__(self, nbytes: int) -> None:
        self._storage = np.empty(nbytes + ALIGNMENT, np.uint8)
        offset = -self._storage.ctypes.data % ALIGNMENT
        self.array = self._storage[offset:offset + nbytes]
        self.address, self.nbytes = self.array.ctypes.data, nbytes


class Backend(ABC):
    """A target. Subclasses set ``name``; ``host_memory`` says that kernels read NumPy arrays in place; ``can_launch``
    that this version can run kernels on it (otherwise it only compiles)."""

    name: str = ""
    host_memory: bool = True
    can_launch: bool = True

    @abstractmethod
    def archs(self) -> tuple[str, ...]:
        """The archs this target can be asked to compile for."""

    @abstractmethod
    def detect(self) -> Detection:
        """Whether and on what it can run here. Never raises."""

    @abstractmethod
    def compile(self, source: str, arch: str, kernel: str) -> Artifact:
        """The artifact of ``source``, from the cache or compiled; ``kernel`` names it in messages. Raises `CompileError`."""

    @abstractmethod
    def load(self, artifact: Artifact) -> Module:
        """The artifact ready to launch. Raises `LaunchError`."""

    @abstractmethod
    def launch(self, module: Module, plan: Plan, args: bytes, stream: Any = None) -> None:
        """Run the launches of ``plan`` in order with the packed ``gconv::ConvArgs``. May return before they are done."""

    def launcher(self, module: Module, plan: Plan) -> Callable[[Any], None] | None:
        """What `launch` does with the argument block alone, everything else settled, on the active device as it is now and in the
        order of whichever stream is active then; None where calls are not made ready. Valid while no GCONV_* variable changes."""
        return None

    def family(self, arch: str) -> str:
        """The family whose tiles serve this arch."""
        return archs.arch(arch).family

    def default_arch(self) -> str:
        """The arch meant by the bare target name: that of the device found here."""
        found = self.detect()
        if found.arch is None:
            raise error("launch.device", target=self.name, reason=found.reason,
                        hint=f"To compile without a device name an arch, for example {self.name}:{self.archs()[0]}.")
        return found.arch

    def identity(self, arch: str) -> dict[str, str]:
        """What else decides how a kernel behaves here (device, driver, compiler, threads, ISA), for record keys."""
        return {}

    def assembly(self, source: str, arch: str, kernel: str) -> str:
        """The machine code of ``source`` as assembly text."""
        raise error("usage.option", what="assembly for target", value=self.name, hint="Use a target of hip, cuda, cpu or sim.")

    def resources(self, source: str, arch: str, kernel: str) -> dict[str, dict[str, int]]:
        """Per kernel of ``source``: registers, LDS, spills, occupancy. Empty where the target has none of these."""
        return {}

    def activate(self, arch: str, device: int | None = None, stream: int | None = None) -> AbstractContextManager[Any]:
        """Inside, what this thread allocates, copies, launches and records is on this device (default: the first of the arch) and
        in the order of this stream (a handle). Raises ``launch.device``."""
        return nullcontext()

    def capturing(self) -> bool:
        """Whether the active stream records a graph, so that nothing may wait for it."""
        return False

    def wait_for(self, stream: int) -> None:
        """Let what the active stream is given from now on wait for what ``stream`` has been given."""

    def allocate(self, nbytes: int) -> Buffer:
        """Uninitialised memory of the target."""
        return Buffer(nbytes)

    def upload(self, buffer: Any, array: np.ndarray[Any, Any]) -> None:
        """Copy a contiguous array into the beginning of a buffer."""
        buffer.array[:array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def download(self, buffer: Any, array: np.ndarray[Any, Any]) -> None:
        """Copy the beginning of a buffer into a contiguous array."""
        array.reshape(-1).view(np.uint8)[:] = buffer.array[:array.nbytes]

    def synchronize(self, stream: Any = None) -> None:
        """Wait until everything launched on ``stream`` is done."""

    def record(self, stream: Any = None) -> Any:
        """An event at this point of the stream."""
        return time.perf_counter_ns()

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Milliseconds between two recorded events."""
        return float(end - start) / 1e6


TARGETS: dict[str, tuple[str, str]] = {
    "hip": ("hip", "HipBackend"),
    "cuda": ("cuda", "CudaBackend"),
    "cpu": ("cpu", "CpuBackend"),
    "sim": ("sim", "SimBackend"),
    "emu": ("emu", "EmuBackend"),
}
"""Target name -> (module in backends/, class). A new target is one row."""

_loaded: dict[str, Backend] = {}


def get(name: str) -> Backend:
    """The backend of a target name, imported on first use."""
    if name not in _loaded:
        if name not in TARGETS:
            raise error("launch.target", target=name, allowed=", ".join(TARGETS))
        module, cls = TARGETS[name]
        _loaded[name] = getattr(importlib.import_module(f".{module}", __package__), cls)()
    return _loaded[name]


def parse_target(text: str) -> tuple[Backend, str]:
    """``"sim:gfx942"`` as (backend, arch). Without an arch: GCONV_ARCH (GPUs only), else the target's default."""
    name, colon, arch = str(text).strip().partition(":")
    backend = get(name)
    if colon:
        arch = arch.partition(":")[0]       # features such as gfx90a:sramecc+:xnack- are the device's business
    else:
        arch = (None if name == "cpu" else env.get("GCONV_ARCH")) or backend.default_arch()
    if arch not in backend.archs():
        raise error("compile.arch", arch=arch, target=name, allowed=", ".join(backend.archs()))
    return backend, arch
