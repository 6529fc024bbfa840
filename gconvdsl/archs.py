"""The hardware figures of every arch, read from ``data/archs.json``, which alone holds them.

AMD figures: AMD's CDNA and RDNA instruction set documents and LLVM's AMDGPU usage guide. NVIDIA figures: the CUDA C++
programming guide, table of compute capabilities. gfx1250's compute units are an assumption until the device is described.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .errors import error

__all__ = ["Arch", "Instruction", "arch", "arch_names", "arithmetic"]


@dataclass(frozen=True)
class Instruction:
    """One matrix instruction: ``name`` as in the device headers' namespace gconv::hw, ``dtype`` of its inputs, its m, n and k.

    ``fma`` stands for scalar arithmetic: each lane of a wave computes its share of an m x n tile, any k.
    """

    name: str
    dtype: str
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Arch:
    """What the rules and the tile chooser need to know about one arch.

    wave: lanes that execute together. max_threads: of one block. lds: bytes that one block may use (NVIDIA: shared memory, with
    opt-in). registers: 32-bit registers that one lane can have, accumulation registers included. register_file: 32-bit
    registers that one block can have in all. compute_units: of the usual device. direct_to_lds: bytes of the widest
    global-to-LDS load that bypasses registers, 0 for none. operand_copies: lanes that hold the same element of a matrix
    instruction's operand. copy_engine: it copies boxes of tensors to LDS (sm_90). compiler: the compilers' name of it. target:
    that runs it natively.
    """

    name: str
    family: str
    device: str
    target: str
    compiler: str
    wave: int
    max_threads: int
    lds: int
    registers: int
    register_file: int
    compute_units: int
    direct_to_lds: int
    instructions: tuple[Instruction, ...]
    operand_copies: int = 1
    copy_engine: bool = False

    def instructions_for(self, dtype: str) -> tuple[Instruction, ...]:
        """The matrix instructions for inputs of this dtype (see `arithmetic`)."""
        return tuple(one for one in self.instructions if one.dtype == dtype)

    def instruction(self, dtype: str, wave_tile: tuple[int, int, int]) -> Instruction | None:
        """The instruction of the deepest k that computes ``wave_tile``: the same m and n, and a k that divides its k."""
        m, n, k = wave_tile
        fitting = [one for one in self.instructions_for(dtype) if (one.m, one.n) == (m, n) and k % one.k == 0]
        return max(fitting, key=lambda one: one.k, default=None)


def arithmetic(dtype: str, precision: str | None) -> str:
    """The dtype of the instruction's inputs: that of the tensors, or tf32 where it is admitted."""
    return precision or dtype


@cache
def _table() -> dict[str, Arch]:
    text = (Path(__file__).parent / "data" / "archs.json").read_text(encoding="utf-8")
    return {name: _arch(name, row) for name, row in json.loads(text).items()}


def _arch(name: str, row: dict[str, Any]) -> Arch:
    instructions = tuple(Instruction(one["name"], one["dtype"], *one["shape"]) for one in row["instructions"])
    return Arch(**{**row, "name": name, "instructions": instructions})


@cache
def arch_names(target: str | None = None) -> tuple[str, ...]:
    """The known archs, or those that a target runs natively ("hip", "cuda", "cpu")."""
    return tuple(name for name, one in _table().items() if target in (None, one.target))


def arch(name: str | Arch, target: str | None = None) -> Arch:
    """The arch of this name; features after a colon (``gfx90a:sramecc+:xnack-``) and the compilers' spelling are understood.

    Raises ``compile.arch`` with the known names, those of ``target`` where it is given.
    """
    if isinstance(name, Arch):
        return name
    plain = str(name).partition(":")[0]
    spellings = {one.compiler: one for one in _table().values()}
    found = _table().get(plain) or spellings.get(plain)
    if found is None:
        raise error("compile.arch", arch=name, target=target or _likely_target(plain), allowed=", ".join(arch_names(target)))
    return found


def _likely_target(name: str) -> str:
    return "cuda" if name.startswith("sm") else "hip" if name.startswith("gfx") else "any"
