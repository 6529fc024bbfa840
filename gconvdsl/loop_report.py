"""Static figures of a kernel for AMD: resources, what one pass of the main loop does, and the cycles that llvm-mca predicts.

Everything is read from the compiler's assembly (`isa`), so no device is needed. A figure counts what one wave does in one pass of
the loop, whichever of its branches is taken; a pass may be several K-steps, where a pipeline unrolls them.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import env
from .archs import arch as find_arch, arithmetic
from .config import KernelConfig, Tile
from .errors import error
from .isa import Op, kernel_blocks, main_loop

if TYPE_CHECKING:
    from .backends.base import Backend
    from .plan import Lowered
    from .problem import ConvProblem

__all__ = ["LoopReport", "McaReport", "loop_report", "mca_report"]

_PASSES = 100       # of the loop that llvm-mca simulates


@dataclass(frozen=True)
class LoopReport:
    """One pass of the main loop, counted for one wave.

    ``steps``: K-steps of a pass. ``matrix``, ``valu``, ``salu``, ``barriers``, ``waits``: instructions. ``global_loads``: load
    instructions, ``direct_loads`` those of them that go to LDS without registers. ``priorities``: changes of the wave's priority.
    Bytes are those of all lanes of the wave. ``scratch``: accesses to spilled registers. All 0 where the loop was unrolled away.
    """

    steps: float
    matrix: int
    valu: int
    salu: int
    barriers: int
    waits: int
    priorities: int
    global_loads: int
    direct_loads: int
    lds_read_bytes: int
    lds_write_bytes: int
    global_bytes: int
    scratch: int

    @property
    def valu_per_matrix(self) -> float:
        """Vector instructions for each matrix instruction; NaN without any."""
        return self.valu / self.matrix if self.matrix else math.nan

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of every figure, as text."""
        ratio = f"{self.valu_per_matrix:.2f}" if self.matrix else "-"
        return [("K-steps", f"{self.steps:g}"), ("matrix instructions", str(self.matrix)), ("VALU instructions", str(self.valu)),
                ("VALU per matrix instruction", ratio), ("SALU instructions", str(self.salu)), ("barriers", str(self.barriers)),
                ("waits", str(self.waits)), ("priority changes", str(self.priorities)), ("global loads", str(self.global_loads)),
                ("of them direct to LDS", str(self.direct_loads)), ("LDS bytes read", str(self.lds_read_bytes)),
                ("LDS bytes written", str(self.lds_write_bytes)), ("global bytes", str(self.global_bytes)),
                ("scratch accesses", str(self.scratch))]


@dataclass(frozen=True)
class McaReport:
    """llvm-mca's prediction for one pass of the main loop of one wave: ``cycles``, and ``matrix_cycles`` of its matrix
    instructions alone. Waits are left out: memory and other waves are taken to be ready in time."""

    cycles: float
    matrix_cycles: float

    @property
    def utilisation(self) -> float:
        """Bound on the share of time in which the matrix units work, for one wave a SIMD."""
        return self.matrix_cycles / self.cycles if self.cycles else math.nan

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of every figure, as text."""
        share = f"{100 * self.utilisation:.0f} %" if self.cycles else "-"
        return [("cycles", f"{self.cycles:.0f}"), ("cycles of matrix instructions", f"{self.matrix_cycles:.0f}"),
                ("bound on matrix utilisation", share)]


def _loop_ops(backend: Backend, lowered: Lowered, arch: str, name: str) -> list[Op]:
    if backend.name != "hip":
        hint = "Use an AMD arch, such as --arch gfx942."
        raise error("usage.option", what="loop figures of target", value=backend.name, hint=hint)
    text = backend.assembly(lowered.source, arch, name)
    return [op for block in main_loop(kernel_blocks(text, lowered.plan.launches[0].kernel)) for op in block.ops]


def loop_report(backend: Backend, lowered: Lowered, problem: ConvProblem, arch: str, name: str) -> LoopReport:
    """Count the main loop of the first kernel of a plan. Raises ``usage.option`` for targets without AMD assembly."""
    ops = _loop_ops(backend, lowered, arch, name)
    kinds, wave = Counter(op.kind for op in ops), find_arch(arch).wave
    loads = [op for op in ops if op.kind == "global" and op.is_load]
    lds = [op for op in ops if op.kind == "lds"]
    matrix = kinds["matrix"]
    return LoopReport(
        matrix / _matrix_per_step(lowered.config, problem, arch) if matrix else 0.0, matrix, kinds["valu"], kinds["salu"],
        kinds["barrier"], kinds["wait"], kinds["priority"], len(loads), sum(op.direct for op in loads),
        wave * sum(op.bytes for op in lds if op.is_load), wave * sum(op.bytes for op in lds if not op.is_load),
        wave * sum(op.bytes for op in loads), kinds["scratch"])


def _matrix_per_step(config: KernelConfig, problem: ConvProblem, arch: str) -> float:
    """Matrix instructions of one wave in one K-step."""
    tile = config.tile
    if not isinstance(tile, Tile):
        return 1.0
    one = find_arch(arch).instruction(arithmetic(problem.dtype, config.precision), tile.wave_tile)
    groups = config.num_wave_groups or 1
    waves = math.prod(tile.waves) / groups
    return math.prod(tile.block) * (config.num_groups_to_merge or 1) / (one.m * one.n * one.k) / waves if one else 1.0


def mca_report(backend: Backend, lowered: Lowered, arch: str, name: str) -> McaReport:
    """llvm-mca's prediction for the main loop, on CDNA: for the other archs it has no times of matrix instructions.

    Raises ``usage.option`` for those, ``compile.missing`` without llvm-mca.
    """
    if find_arch(arch).family != "cdna":
        raise error("usage.option", what="llvm-mca figures of", value=arch, hint="Use a CDNA arch, such as gfx942.")
    ops = _loop_ops(backend, lowered, arch, name)
    command = _mca(backend, arch)
    return McaReport(_cycles(command, arch, [op for op in ops if op.kind not in ("branch", "wait", "barrier")]),
                     _cycles(command, arch, [op for op in ops if op.kind == "matrix"]))


def _mca(backend: Backend, arch: str) -> str:
    """llvm-mca beside the compiler, or on the path under the usual names."""
    beside = Path(os.path.realpath(backend.tool(arch).path)).parent / "llvm-mca"  # type: ignore[attr-defined]
    names = [str(beside), *(f"llvm-mca-{release}" for release in range(30, 16, -1)), "llvm-mca"]
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise error("compile.missing", tool="llvm-mca", target="hip", hint="Install it: apt-get install llvm-22.")
    return found


def _cycles(command: str, arch: str, ops: Sequence[Op]) -> float:
    """Cycles of one pass over these instructions, the average of many."""
    from .backends import toolchain
    from .backends.compilers import clean_environment

    if not ops:
        return 0.0
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "loop.s"
        file.write_text("".join(f"  {op.name} {op.operands}\n" for op in ops))
        line = [command, "-mtriple=amdgcn-amd-amdhsa", f"-mcpu={arch}", f"-iterations={_PASSES}", str(file)]
        limit = env.get("GCONV_COMPILE_TIMEOUT")
        done = toolchain.run(line, environment=clean_environment("clang"), cwd=Path(directory), limit=limit)
    found = re.search(r"Total Cycles:\s+(\d+)", done.text)
    if done.status or found is None:
        raise error("usage.option", what="llvm-mca figures of", value=arch, hint=f"llvm-mca says: {done.text.strip()[:300]}")
    return int(found[1]) / _PASSES
