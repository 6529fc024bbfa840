"""Target ``cpu``: native C++ on the host, vectorised for its instruction set and run on one thread pool. The default without a GPU.

Archs are instruction sets (`lower_cpu.ISAS`). The kernels and the pool are compiled by g++ or clang++ and stay in the cache.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import numpy as np

from .. import env, memory
from ..errors import error
from ..lower_cpu import ISAS
from ..plan import Plan
from . import base, toolchain
from .base import Artifact, Backend, Buffer, Detection, Device, Module

__all__ = ["CpuBackend", "host_isas", "probe", "threads"]

_CPUINFO = Path("/proc/cpuinfo")
_NEEDED = {
    "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma", "f16c", "bmi2", "movbe"},
    "avx2": {"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"},
    "sse2": {"sse2"},
    "neon": {"asimd"},
}
"""What the compiler may use once it is told the arch, in the kernel's spelling, which also says that the system saves the registers."""


class CpuBackend(Backend):
    """The host's processor."""

    name = "cpu"

    def archs(self) -> tuple[str, ...]:
        return tuple(ISAS)

    def detect(self) -> Detection:
        name, count = _processor()[0], threads()
        isa = self.default_arch()
        return Detection(True, isa, f"{name}, {count} thread{'s' * (count != 1)}, {isa}", (Device(0, name, isa),))

    def default_arch(self) -> str:
        return str(env.get("GCONV_ISA") or host_isas()[0])

    def flags(self, arch: str) -> list[str]:
        """The command line for an instruction set. -ffast-math is not among them: NaN and Inf must survive."""
        debug = ["-g"] if env.get("GCONV_DEBUG") else []
        return ["-std=c++17", "-O3", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
                *ISAS[arch].flags, *debug]

    def compile(self, source: str, arch: str, kernel: str) -> Artifact:
        made = _compile(source, self.flags(arch), arch, kernel, "kernel.so")
        return replace(made, meta={**made.meta, "isa": arch})

    def assembly(self, source: str, arch: str, kernel: str) -> str:
        flags = [flag for flag in self.flags(arch) if flag != "-shared"]
        return _compile(source, [*flags, "-S"], arch, kernel, "kernel.s").path.read_text()

    def identity(self, arch: str) -> dict[str, str]:
        tool = toolchain.require("cxx", self.name)
        return {"compiler": f"{tool.path} {tool.version}", "device": _processor()[0], "threads": str(threads())}

    def load(self, artifact: Artifact) -> Module:
        isa = artifact.meta.get("isa", "generic")
        if isa not in host_isas():
            return _Foreign(isa)
        _pool()                                  # here, so that no launch is timed with it
        return _Library(artifact.path)

    def allocate(self, nbytes: int) -> Buffer:
        return _Scratch(nbytes)

    def launch(self, module: Module, plan: Plan, args: bytes, stream: Any = None) -> None:
        self.launcher(module, plan)(args)

    def launcher(self, module: Module, plan: Plan) -> Callable[[Any], None]:
        from ._cpu_api import ffi

        parallel, from_buffer = _pool().gconv_parallel, ffi.from_buffer
        kernels = [(module.function(one.kernel), one.tasks) for one in plan.launches]

        chosen = env.get("GCONV_THREADS")

        def launch(args: Any) -> None:
            block, count = from_buffer(args), chosen or _cores()
            for kernel, tasks in kernels:
                parallel(kernel, block, tasks, count)
        return launch


class _Scratch(Buffer):
    """A workspace on a block of memory that later calls use again."""

    def __init__(self, nbytes: int) -> None:
        self._block: memory.Block | None = memory.take(nbytes)
        self._memory, self._start, self.address, self.nbytes = self._block.memory, self._block.start, self._block.address, nbytes

    @property
    def array(self) -> np.ndarray[Any, Any]:  # type: ignore[override]
        """The bytes. Once they have been asked for, who asked may keep them, so the block is not used again."""
        self._block = None
        return np.frombuffer(self._memory, np.uint8, self.nbytes, self._start)

    def __del__(self) -> None:
        if self._block is not None:
            memory.give(self._block)


class _Foreign:
    """A kernel for an instruction set that this processor does not have: it can be compiled; to run it would end the process."""

    def __init__(self, isa: str) -> None:
        self.isa = isa

    def function(self, name: str) -> Any:
        raise error("launch.device", target=f"cpu:{self.isa}", reason=f"this processor runs {', '.join(host_isas())}",
                    hint="Use one of those, or kernel.compile(...) to compile without running.")


class _Library:
    """A loaded shared library of kernels."""

    def __init__(self, path: Path) -> None:
        from ._cpu_api import ffi
        self.path, self._ffi, self._functions = path, ffi, {}  # type: ignore[var-annotated]
        try:
            self.library = ffi.dlopen(str(path))
        except OSError as err:
            raise error("launch.load", path=str(path), reason=str(err)) from None

    def function(self, name: str) -> Any:
        if name not in self._functions:
            try:
                self._functions[name] = self._ffi.addressof(self.library, name)
            except AttributeError:
                raise error("launch.load", path=str(self.path), reason=f"it has no kernel {name}") from None
        return self._functions[name]


def _compile(source: str, flags: list[str], arch: str, kernel: str, output: str) -> Artifact:
    return toolchain.compile_cached(toolchain.require("cxx", "cpu"), source, flags, target="cpu", arch=arch, kernel=kernel,
                                    source_name="kernel.cpp", output_name=output)


@functools.cache
def _pool() -> Any:
    """The library with the thread pool, for this process."""
    source = (toolchain.INCLUDE / "gconv" / "cpu" / "pool.cpp").read_text(encoding="utf-8")
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-pthread"]
    return _Library(_compile(source, flags, "any", "thread pool", "pool.so").path).library


def probe(arch: str) -> tuple[Any, Callable[[str, bytes, int, int], None]]:
    """The loops of roofline.cpp for an instruction set, and a function that runs one: (name, argument block, tasks, threads)."""
    from ._cpu_api import ffi
    source = (toolchain.INCLUDE / "gconv" / "cpu" / "roofline.cpp").read_text(encoding="utf-8")
    backend: CpuBackend = base.get("cpu")  # type: ignore[assignment]
    flags = [*backend.flags(arch), f"-DGCONV_LANES={ISAS[arch].lanes}", "-I", str(toolchain.INCLUDE / "gconv" / "cpu")]
    library = ctypes.CDLL(str(_compile(source, flags, arch, "roofline", "roofline.so").path))

    def run(name: str, args: bytes, tasks: int, count: int) -> None:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        _pool().gconv_parallel(ffi.cast("void (*)(const void *, long long)", address), ffi.from_buffer(args), tasks, count)
    return library, run


def threads() -> int:
    """Threads to use: GCONV_THREADS, else the cores that this process may run on."""
    return int(env.get("GCONV_THREADS") or _cores())


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:                       # not Linux
        return os.cpu_count() or 1


def host_isas() -> tuple[str, ...]:
    """The instruction sets this processor and system can run, best first; always ends with ``generic``."""
    flags = _processor()[1]
    return (*(name for name, needed in _NEEDED.items() if needed <= flags), "generic")


@functools.cache
def _processor() -> tuple[str, frozenset[str]]:
    """Name and feature flags of the host's processor, from the kernel."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    return _parse_cpuinfo(text)


def _parse_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name") or platform.machine(), frozenset(flags.split())
