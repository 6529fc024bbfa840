"""Target ``sim``: the kernel source, compiled as ordinary C++ and executed on the CPU lane by lane.

The kernel becomes a small library; the runtime that schedules lanes, waves and blocks (include/gconv/platform/sim_runtime.cpp) is
a library built once. Under GCONV_SIM_SANITIZE both are built with the sanitizers, and the launch happens in a child process on
copies of the buffers (`sim_sanitize`). docs/simulator.md says what is checked.
"""

from __future__ import annotations

import functools
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import env
from ..errors import error
from ..plan import addresses
from . import toolchain
from .base import Artifact, Backend, Buffer, Detection
from .compilers import Tool

if TYPE_CHECKING:
    from ..plan import Launch, Plan

__all__ = ["SimBackend", "SimModule", "options", "raise_report"]

_ARCH_DEFINES = {
    **{arch: f"-D__{arch}__=1" for arch in ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200", "gfx1201", "gfx1250")},
    **{arch: f"-DGCONV_SIM_SM={arch[3:]}" for arch in ("sm_80", "sm_90")},
}
_LIBRARY = ("-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden")
_INSTRUMENT = "-fsanitize=address,undefined"
_SANITIZE = ("-g1", _INSTRUMENT, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
_ORDERS = {"forward": 0, "reverse": 1, "random": 2}
_TIMEOUT = 2    # Report.failure


class SimModule:
    """A kernel library in this process. Closed when it is no longer referenced."""

    def __init__(self, path: Path, library: Any) -> None:
        from ._sim_api import ffi

        self.path, self.library = path, library
        report = ffi.new("Report *")
        self.handle = library.gconv_sim_open(os.fsencode(path), report)
        if not self.handle:
            raise error("launch.load", path=str(path), reason=_text(report.reason))
        weakref.finalize(self, library.gconv_sim_close, self.handle)

    def function(self, name: str) -> str:
        """The kernel's name, if the library has it."""
        if not self.library.gconv_sim_has(self.handle, name.encode()):
            raise error("launch.load", path=str(self.path), reason=f"it has no kernel {name}")
        return name

    def run(self, launch: Launch, args: bytes) -> None:
        """One launch; returns when every block has ended. Raises `LaunchError`."""
        from ._sim_api import ffi

        report = ffi.new("Report *")
        if self.library.gconv_sim_launch(self.handle, self.function(launch.kernel).encode(), options(launch, args), args, report):
            raise_report(report, launch.kernel)


class SimBackend(Backend):
    """The simulator. Blocks run on GCONV_THREADS threads, lanes and waves in the order GCONV_SIM_ORDER."""

    name = "sim"

    def __init__(self) -> None:
        self._buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()

    @property
    def host_memory(self) -> bool:  # type: ignore[override]
        """Kernels read the user's arrays, except under the sanitizers, which need to know where every buffer ends."""
        return not env.get("GCONV_SIM_SANITIZE")

    def archs(self) -> tuple[str, ...]:
        return tuple(_ARCH_DEFINES)

    def default_arch(self) -> str:
        return "gfx942"

    def detect(self) -> Detection:
        tool = toolchain.find("cxx")
        reason = f"the simulator is built with {tool.title}" if tool else toolchain.INSTALL["cxx"]
        return Detection(tool is not None, self.default_arch() if tool else None, reason)

    def identity(self, arch: str) -> dict[str, str]:
        return {"compiler": toolchain.require("cxx", self.name).version, "sanitize": str(env.get("GCONV_SIM_SANITIZE"))}

    def compile(self, source: str, arch: str, kernel: str) -> Artifact:
        return self._compile(source, arch, kernel, _LIBRARY, "kernel.so")

    def assembly(self, source: str, arch: str, kernel: str) -> str:
        return self._compile(source, arch, kernel, ("-std=c++17", "-fvisibility=hidden", "-S"), "kernel.s").path.read_text()

    def load(self, artifact: Artifact) -> Any:
        tool = toolchain.require("cxx", self.name)
        if _INSTRUMENT in artifact.meta["flags"]:
            from .sim_sanitize import SanitizedModule

            program = ("-std=c++17", "-O1", "-fsanitize=address", "-DGCONV_SIM_PROGRAM")
            return SanitizedModule(artifact.path, _build_runtime(tool, program, "gconv_sim"))
        return SimModule(artifact.path, _library(_build_runtime(tool, (*_LIBRARY, "-O3", *_plain(tool)), "libgconv_sim.so")))

    def launch(self, module: Any, plan: Plan, args: bytes, stream: Any = None) -> None:
        launches = [launch for launch in plan.launches if all(launch.grid)]
        if not isinstance(module, SimModule):
            module.run(launches, args, list(self._buffers))
            return
        for launch in launches:
            module.run(launch, args)

    def allocate(self, nbytes: int) -> Buffer:
        buffer = super().allocate(nbytes)
        self._buffers.add(buffer)
        return buffer

    def _compile(self, source: str, arch: str, kernel: str, form: tuple[str, ...], output: str) -> Artifact:
        if arch not in _ARCH_DEFINES:
            raise error("compile.arch", arch=arch, target=self.name, allowed=", ".join(_ARCH_DEFINES))
        tool = toolchain.require("cxx", self.name)
        flags = [*form, *_plain(tool), "-fno-strict-aliasing", "-ffp-contract=off", *_optimisation(), "-DGCONV_PLATFORM_SIM",
                 _ARCH_DEFINES[arch]]
        return toolchain.compile_cached(tool, source, flags, target=self.name, arch=arch, kernel=kernel, source_name="kernel.cpp",
                                        output_name=output)


def _optimisation() -> tuple[str, ...]:
    if env.get("GCONV_SIM_SANITIZE"):
        return ("-O1", *_SANITIZE)
    return ("-Og", "-g") if env.get("GCONV_DEBUG") else ("-O1",)


def _plain(tool: Tool) -> tuple[str, ...]:
    """g++ would share statics of templates between kernel libraries, block-shared arrays among them."""
    return () if "clang" in tool.version else ("-fno-gnu-unique",)


def _build_runtime(tool: Tool, flags: tuple[str, ...], output: str) -> Path:
    source = '#include "gconv/platform/sim_runtime.cpp"\n'
    return toolchain.compile_cached(tool, source, [*flags, "-ffp-contract=off", "-pthread"], target="sim", arch="host",
                                    kernel="sim_runtime", source_name="runtime.cpp", output_name=output).path


def _threads() -> int:
    """OS threads; one where a debugger or a person reading printed lines should see blocks in order."""
    return 1 if env.get("GCONV_DEBUG") else env.get("GCONV_THREADS") or len(os.sched_getaffinity(0))


@functools.cache
def _library(path: Path) -> Any:
    """The runtime, loaded once."""
    from ._sim_api import ffi

    return ffi.dlopen(str(path))


def options(launch: Launch, args: bytes) -> Any:
    """The C struct ``LaunchOptions`` of a launch, from the environment variables; ``args``: the packed argument block."""
    from ._sim_api import ffi

    order = env.get("GCONV_SIM_ORDER")
    seed = (env.random_order_seed(order) or 0) % 2**64
    at = addresses(args) if launch.maps else {}
    maps = [one.plain(at[one.operand]) for one in launch.maps]
    return ffi.new("LaunchOptions *", [list(launch.grid), launch.block, _ORDERS[order.partition(":")[0]], seed,
                                       env.get("GCONV_RUN_TIMEOUT"), _threads(), len(maps), maps])


def raise_report(report: Any, kernel: str) -> None:
    """Raise what a C struct ``Report`` with a failure says."""
    if report.failure == _TIMEOUT:
        raise error("launch.timeout", kernel=kernel, limit=f"{env.get('GCONV_RUN_TIMEOUT'):g}", target="sim")
    raise error("launch.sim", kernel=kernel, reason=_text(report.reason), block=tuple(report.block), wave=report.wave,
                lane=report.lane, file=_text(report.file), line=report.line,
                hint="All lanes of a wave reach matrix instructions and shuffles together, all lanes of a block each barrier.")


def _text(characters: Any) -> str:
    from ._sim_api import ffi

    return str(ffi.string(characters).decode(errors="replace"))
