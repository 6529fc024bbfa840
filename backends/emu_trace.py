"""What ``gconv emu trace`` prints: every instruction of one wave with the registers it wrote, and the source lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import numpy as np

from .emu_decode import SGPR, Instruction
from .emu_effects import effects
from .emu_state import Group
from .emu_waits import register_name

__all__ = ["Trace"]


@dataclass
class Trace:
    """An observer of `emu_run.execute` that writes the instructions of one wave of one block, ``limit`` behind the ``first``.

    ``lane``: whose values of vector registers are shown, as bits and as float32.
    """

    write: Callable[[str], None]
    block: tuple[int, int, int] = (0, 0, 0)
    wave: int = 0
    lane: int = 0
    first: int = 0
    limit: int = 1 << 62
    count: int = 0
    place: str = ""

    def __call__(self, ins: Instruction, group: Group) -> None:
        position = self._position(group)
        if position is None:
            return
        self.count += 1
        if not self.first < self.count <= self.first + self.limit:
            return
        if ins.place and ins.place != self.place:
            self.place = ins.place
            self.write(f"; {ins.place}")
        self.write(f"{ins.pc:6x}  {ins.text:<64}{self._values(ins, group, position)}".rstrip())

    def _position(self, group: Group) -> int | None:
        """Where the wave stands among the group's rows; None: it is elsewhere."""
        batch = group.batch
        blocks = np.flatnonzero((batch.blocks == self.block).all(axis=1))
        found = np.flatnonzero(group.rows == blocks[0] * batch.waves + self.wave) if len(blocks) else blocks
        return int(found[0]) if len(found) else None

    def _values(self, ins: Instruction, group: Group, position: int) -> str:
        if ins.name.startswith(("s_nop", "s_wait", "s_delay", "s_clause", "s_endpgm")):
            return ""
        written = effects(ins, group.lanes).writes
        return "  ".join(f"{register_name(r)}={self._value(group, r, position)}" for r in sorted(written))

    def _value(self, group: Group, register: int, position: int) -> str:
        """In hexadecimal, of vector registers also as float32; ``?`` where it was never written."""
        if register >= SGPR:
            undefined = group.scalar_poison(register - SGPR)[position]
            return "?" if undefined else f"{group.read_scalar(register - SGPR)[position]:x}"
        if int(group.vector_poison(register)[position]) >> self.lane & 1:
            return "?"
        bits = group.read_vector(register)[position, self.lane]
        return f"{bits:x} ({bits.view(np.float32):.6g})"
