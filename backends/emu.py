"""Target ``emu``: the compiled AMD code object, executed on the CPU instruction by instruction.

The kernel is compiled as for target hip; ``llvm-objdump`` disassembles it, and the emu_* modules execute the text, all lanes of
many blocks at once. docs/emulator.md says what is checked and what is not.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import env
from ..errors import GconvError, error
from . import toolchain
from .base import Artifact, Backend, Detection, get
from .emu_memory import AddressSpace

if TYPE_CHECKING:
    from ..plan import Launch, Plan
    from .emu_decode import Instruction
    from .emu_run import Observer, Program, Stopped

__all__ = ["EmuBackend", "EmuModule"]

_LIMIT = 60.0  # seconds for one disassembly


class EmuModule:
    """A code object, disassembled. ``executed`` counts wave instructions of all launches."""

    def __init__(self, path: Path) -> None:
        from .emu_elf import read_code_object

        self.path = path
        try:
            self.code = read_code_object(path)
        except (OSError, ValueError) as reason:
            raise error("launch.load", path=str(path), reason=str(reason)) from None
        self.instructions = _disassembled(path)
        self.executed = 0
        self._programs: dict[str, Program] = {}

    def function(self, name: str, removed: frozenset[int] = frozenset()) -> Program:
        """The kernel of this name, ready to run; ``removed`` are numbers of instructions to skip."""
        from .emu_run import Program

        if name not in self.code.kernels:
            raise error("launch.load", path=str(self.path), reason=f"it has no kernel {name}")
        if name not in self._programs:
            self._programs[name] = Program(self.instructions, self.code.kernels[name])
        return self._programs[name].without(removed) if removed else self._programs[name]

    def run(
        self,
        launch: Launch,
        args: bytes,
        memory: AddressSpace,
        removed: frozenset[int] = frozenset(),
        observe: Observer | None = None,
    ) -> None:
        """One launch, to its end; ``observe`` sees every instruction with the group that executed it. Raises `LaunchError`."""
        from .emu_run import Grid, Stopped, TimeOut, execute

        limit = env.get("GCONV_RUN_TIMEOUT")
        grid = Grid(launch.grid, launch.block, launch.shared)
        try:
            self.executed += execute(
                self.function(launch.kernel, removed), grid, args, memory, time.perf_counter() + limit, observe
            )
        except Stopped as stopped:
            raise _failure(stopped, launch.kernel) from None
        except TimeOut:
            raise error("launch.timeout", kernel=launch.kernel, limit=f"{limit:g}", target="emu") from None


class EmuBackend(Backend):
    """The emulator of AMD GPUs."""

    name = "emu"
    host_memory = False

    def __init__(self) -> None:
        self.memory = AddressSpace()
        self.observer: Observer | None = None       # sees every instruction of every launch

    def archs(self) -> tuple[str, ...]:
        return get("hip").archs()

    def default_arch(self) -> str:
        return "gfx942"

    def detect(self) -> Detection:
        try:
            compiler, reader = toolchain.find("clang") or toolchain.find("hipcc"), toolchain.find("objdump")
        except GconvError as err:
            return Detection(False, None, err.message)
        if compiler is None or reader is None:
            return Detection(False, None, toolchain.INSTALL["objdump" if compiler else "clang"])
        return Detection(True, self.default_arch(), f"the emulator runs what {compiler.title} compiles, read by {reader.title}")

    def identity(self, arch: str) -> dict[str, str]:
        return get("hip").identity(arch)

    def compile(self, source: str, arch: str, kernel: str) -> Artifact:
        toolchain.require("objdump", self.name)
        return get("hip").compile(source, arch, kernel)

    def assembly(self, source: str, arch: str, kernel: str) -> str:
        return get("hip").assembly(source, arch, kernel)

    def resources(self, source: str, arch: str, kernel: str) -> dict[str, dict[str, int]]:
        return get("hip").resources(source, arch, kernel)

    def load(self, artifact: Artifact) -> EmuModule:
        return EmuModule(artifact.path)

    def launch(self, module: Any, plan: Plan, args: bytes, stream: Any = None) -> None:
        for launch in plan.launches:
            if all(launch.grid):
                module.run(launch, args, self.memory, observe=self.observer)

    def allocate(self, nbytes: int) -> Any:
        return self.memory.allocate(nbytes)


@lru_cache(maxsize=64)
def _disassembled(path: Path) -> tuple[Instruction, ...]:
    """The instructions of a code object, with source lines where it has debug information."""
    from .emu_decode import Fault, parse

    tool = toolchain.require("objdump", "emu")
    done = toolchain.run(
        [tool.command, "-d", "-l", str(path)], environment=toolchain.clean_environment("objdump"), cwd=path.parent, limit=_LIMIT
    )
    if done.status != 0:
        raise error("launch.load", path=str(path), reason=f"{tool.title} could not disassemble it: {done.text[:200]}")
    try:
        return tuple(parse(done.text))
    except Fault as fault:
        raise error("launch.load", path=str(path), reason=fault.reason) from None


def _failure(stopped: Stopped, kernel: str) -> GconvError:
    ins = stopped.ins
    where = f"{ins.text} at {ins.pc:#x}{f' ({ins.place})' if ins.place else ''}" if ins else "start"
    who = f", block {stopped.block}, wave {stopped.wave}" if stopped.block is not None else ""
    lane = f", lane {stopped.lane}" if stopped.lane is not None else ""
    return error(
        "launch.emu",
        kernel=kernel,
        reason=f"{where}{who}{lane}: {stopped.reason}",
        instruction=ins.text if ins else "",
        pc=ins.pc if ins else 0,
        place=ins.place if ins else "",
        block=stopped.block,
        wave=stopped.wave,
        lane=stopped.lane,
        fault=stopped.reason,
        hint="" if ins and ins.place else "With GCONV_DEBUG=1 the kernel's source line is named too.",
    )
