"""What executing waves hold: registers of a batch of blocks, and groups of waves that stand at the same instruction.

A row is one wave: row = block of the batch * waves of a block + wave. Every array has one column of rows, so that one NumPy
operation executes an instruction for all rows of a group. Poison says which values are not defined: per lane for vector
registers, per bit for scalar ones. It travels through arithmetic and is a fault where a value decides something (emu_run).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .emu_decode import EXEC, NULL, SCALARS, SGPR, VCC

if TYPE_CHECKING:
    from .emu_elf import Descriptor
    from .emu_lds import Lds
    from .emu_memory import AddressSpace
    from .emu_waits import Pending

__all__ = ["ALL_BITS", "Array", "Batch", "Group", "to_bits", "to_lanes"]

Array = Any
"""A NumPy array; NumPy's own types know too little of mixed arithmetic to be of use here."""
ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
_JUNK = 0x7FC0DEAD  # a NaN as fp32 and as bf16; what registers hold before they are written
_WORD = np.uint64(32)


def to_lanes(bits: Array, lanes: int) -> Array:
    """(rows,) bit masks as (rows, lanes) booleans."""
    return np.unpackbits(np.ascontiguousarray(bits).view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")[:, :lanes].view(
        bool
    )


def to_bits(lanes: Array) -> Array:
    """(rows, lanes) booleans as (rows,) bit masks."""
    packed = np.packbits(lanes, axis=1, bitorder="little")
    if packed.shape[1] < 8:
        packed = np.concatenate([packed, np.zeros((len(packed), 8 - packed.shape[1]), np.uint8)], axis=1)
    return np.ascontiguousarray(packed).view(np.uint64)[:, 0]


class Batch:
    """Registers and LDS of some blocks that run together.

    ``vector`` (registers, rows, lanes) and ``scalar`` (registers, rows) are uint32; ``vector_poison`` (registers, rows) has a
    bit per lane, ``scalar_poison`` the shape of ``scalar``. ``dirty``: registers (`SGPR` added for scalars) with poison in any
    row.
    """

    def __init__(self, kernel: Descriptor, blocks: Array, waves: int, memory: AddressSpace, lds: Lds) -> None:
        self.kernel, self.blocks, self.waves, self.memory, self.lds = kernel, blocks, waves, memory, lds
        self.lanes = kernel.wave
        self.rows = len(blocks) * waves
        self.vector = np.full((kernel.registers, self.rows, self.lanes), _JUNK, np.uint32)
        self.scalar = np.full((SCALARS, self.rows), _JUNK, np.uint32)
        self.vector_poison = np.full((kernel.registers, self.rows), ALL_BITS, np.uint64)
        self.scalar_poison = np.full((SCALARS, self.rows), 0xFFFFFFFF, np.uint32)
        self.dirty = {*range(kernel.registers), *range(SGPR, SGPR + SCALARS)}
        self.signals = np.zeros(self.rows, np.int64)
        self.scratch = np.zeros((self.rows, self.lanes, kernel.scratch), np.uint8)

    def place(self, row: int) -> tuple[tuple[int, int, int], int]:
        """Block number and wave of a row."""
        block, wave = divmod(int(row), self.waves)
        x, y, z = self.blocks[block]
        return (int(x), int(y), int(z)), wave

    def set_scalar(self, register: int, values: Any) -> None:
        """Give a scalar register its initial value."""
        self.scalar[register] = values
        self.scalar_poison[register] = 0
        self.dirty.discard(SGPR + register)

    def set_vector(self, register: int, values: Any) -> None:
        """Give a vector register its initial value."""
        self.vector[register] = values
        self.vector_poison[register] = 0
        self.dirty.discard(register)


class Group:
    """Waves at the same instruction: ``rows`` in order; ``at`` the instruction's number; ``pending`` what they have not waited
    for.

    ``select`` picks the rows out of an array of the batch: a slice where the group is the whole batch, so that nothing is copied.
    """

    def __init__(self, batch: Batch, rows: Array, at: int, pending: Pending) -> None:
        self.batch, self.rows, self.at, self.pending = batch, rows, at, pending
        self.all = len(rows) == batch.rows
        self.select: Any = slice(None) if self.all else rows
        self.vector, self.scalar, self.lanes = batch.vector, batch.scalar, batch.lanes
        self.one_mask = ALL_BITS if batch.lanes == 64 else np.uint64(0xFFFFFFFF)
        self._exec: Array | None = None
        self._mask: Array | None = None
        self._full = False
        self._waves: list[tuple[int, Any]] | None = None

    def split(self, taken: Array) -> Group:
        """Leave here the rows where ``taken`` is False; the others as a new group at the same place."""
        other = Group(self.batch, self.rows[taken], self.at, self.pending.copy())
        rest = Group(self.batch, self.rows[~taken], self.at, self.pending)
        self.__dict__.update(rest.__dict__)
        return other

    def waves(self) -> list[tuple[int, Any]]:
        """Each wave number among the rows with a selector of its rows (positions in ``rows``)."""
        if self._waves is None:
            count = self.batch.waves
            if self.all:
                self._waves = [(wave, slice(wave, None, count)) for wave in range(count)]
            else:
                numbers = self.rows % count
                self._waves = [(int(wave), np.flatnonzero(numbers == wave)) for wave in np.unique(numbers)]
        return self._waves

    # --- the execution mask

    @property
    def exec(self) -> Array:
        """(rows,) bit masks of the active lanes."""
        if self._exec is None:
            self._exec = self.read_mask(EXEC) & self.one_mask
            self._full = bool((self._exec == self.one_mask).all())
            self._mask = None
        return self._exec

    @property
    def full(self) -> bool:
        """Every lane of every row is active."""
        return bool(self.exec is not None and self._full)

    @property
    def mask(self) -> Array:
        """(rows, lanes) booleans: active lanes."""
        bits = self.exec
        if self._mask is None:
            self._mask = to_lanes(bits, self.lanes)
        return self._mask

    # --- registers

    def read_vector(self, register: int) -> Array:
        """(rows, lanes) of a vector register."""
        found: Array = self.vector[register][self.select]
        return found

    def write_vector(self, register: int, values: Array) -> None:
        """Write the active lanes; ``values`` is uint32 and broadcasts to (rows, lanes)."""
        if self.full:
            self.vector[register][self.select] = values
        elif self.all:
            np.copyto(self.vector[register], values, where=self.mask)
        else:
            self.vector[register][self.rows] = np.where(self.mask, values, self.vector[register][self.rows])

    def write_all_lanes(self, register: int, values: Array) -> None:
        """Write without regard to the execution mask."""
        self.vector[register][self.select] = values

    def read_scalar(self, register: int) -> Array:
        """(rows,) of a scalar register."""
        found: Array = self.scalar[register][self.select]
        return found

    def read_scalar64(self, register: int) -> Array:
        """(rows,) of a pair of scalar registers as uint64."""
        low, high = self.scalar[register][self.select], self.scalar[register + 1][self.select]
        return low.astype(np.uint64) | high.astype(np.uint64) << _WORD

    def write_scalar(self, register: int, values: Any) -> None:
        """Write a scalar register of each row."""
        if register == NULL:
            return
        self.scalar[register][self.select] = values
        if register in (EXEC, EXEC + 1):
            self._exec = None

    def write_scalar64(self, register: int, values: Array) -> None:
        """Write a pair of scalar registers of each row."""
        if register == NULL:
            return
        self.write_scalar(register, values.astype(np.uint32))
        self.write_scalar(register + 1, (values >> _WORD).astype(np.uint32))

    def read_mask(self, register: int) -> Array:
        """(rows,) bit masks of a wave's lanes: one register or a pair, as the wave is wide."""
        return self.read_scalar64(register) if self.lanes == 64 else self.read_scalar(register).astype(np.uint64)

    def write_mask(self, register: int, bits: Array) -> None:
        """Write such a mask."""
        if self.lanes == 64:
            self.write_scalar64(register, bits)
        else:
            self.write_scalar(register, bits.astype(np.uint32))

    def vcc_zero(self) -> Array:
        """(rows,): no lane has its bit set in vcc."""
        return self.read_mask(VCC) == 0

    # --- poison

    def vector_poison(self, register: int) -> Array:
        """(rows,) lane bits of undefined values."""
        found: Array = self.batch.vector_poison[register][self.select]
        return found

    def scalar_poison(self, register: int) -> Array:
        """(rows,) bits of undefined values."""
        found: Array = self.batch.scalar_poison[register][self.select]
        return found

    def define_vector(self, register: int, poison: Any, all_lanes: bool = False) -> None:
        """Note what a write left undefined: ``poison`` are lane bits (0: nothing)."""
        batch = self.batch
        table = batch.vector_poison[register]
        written = ALL_BITS if all_lanes or self.full else self.exec
        table[self.select] = (table[self.select] & ~written) | (poison & written)
        self._note(register, table)

    def define_loaded(self, register: int, poison: Any) -> None:
        """Note what a load left undefined, where that is not known from its operands."""
        if register in self.batch.dirty or np.any(poison):
            self.define_vector(register, poison)

    def define_scalar(self, register: int, poison: Any) -> None:
        """The same for a scalar register, which is written whole."""
        table = self.batch.scalar_poison[register]
        table[self.select] = poison
        self._note(SGPR + register, table)

    def _note(self, register: int, table: Array) -> None:
        if table.any():
            self.batch.dirty.add(register)
        else:
            self.batch.dirty.discard(register)
