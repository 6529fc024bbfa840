"""LDS of a batch of blocks, and which waves touched which half word since the last barrier.

For every half word the emulator keeps whether it was ever written, and a set of the waves that wrote (low bits) or read (high
bits) it in this interval between barriers. Two waves race on a half word if one writes it and the other touches it in
one interval. An operation still in flight when its wave arrives at a barrier counts for the next interval too: the barrier does
not cover it.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from .emu_decode import Fault, Instruction, Operand
from .emu_memory import access_size, extend, merge_half
from .emu_state import Array, Group, to_bits, to_lanes
from .emu_waits import Event, LdsAccess

__all__ = ["Lds", "lds_instruction"]

_UNWRITTEN = 0x7FC0  # a NaN as bf16 and fp16, two of them as fp32
_KNOWN = 0x0101010101010101


class Lds:
    """``nbytes`` of LDS for each of ``blocks`` blocks of ``waves`` waves.

    ``arrived`` (rows,): the wave has arrived at a barrier that it has not passed.
    """

    def __init__(self, blocks: int, waves: int, nbytes: int) -> None:
        self.nbytes, self.waves = nbytes, waves
        self.per_block = -(-nbytes // 16) * 8
        size = blocks * self.per_block + 8  # inactive lanes access the last 16 bytes
        self.halves = np.full(size, _UNWRITTEN, np.uint16)
        self.defined = np.zeros(size, np.uint8)
        self.defined[-8:] = 1
        self.half = 16 if waves <= 16 else 32  # bits of `users` for writers, and as many for readers
        self.users = np.zeros(size if waves > 1 else 0, f"u{self.half // 4}")
        self.flying = np.zeros(0, bool)  # allocated with the first load that bypasses registers
        self.arrived = np.zeros(blocks * waves, bool)
        self._late: list[LdsAccess] = []

    # --- addresses

    def _units(self, group: Group, addresses: Array, size: int) -> tuple[int, Array]:
        """Half words that can be moved together, and the numbers of these units: (rows, lanes) or (rows, lanes, pieces)."""
        if not group.full:
            addresses = np.where(group.mask, addresses, 0)
        if int(addresses.max()) + size > self.nbytes or int(addresses.min()) < 0:
            bad = (addresses + size > self.nbytes) | (addresses < 0)
            row, lane = map(int, np.argwhere(bad & group.mask)[0] if (bad & group.mask).any() else (0, 0))
            if (bad & group.mask).any():
                raise Fault(f"it accesses {size} bytes at {int(addresses[row, lane])} of {self.nbytes} bytes of LDS", row, lane)
        together = int(np.bitwise_or.reduce(addresses, axis=None)) | size | 16
        unit = together & -together
        if unit < min(size, 4) and size > 1:
            row, lane = map(int, np.argwhere(addresses % min(size, 4) != 0)[0])
            raise Fault(f"its LDS address {int(addresses[row, lane])} is not aligned to {min(size, 4)} bytes", row, lane)
        unit = max(unit, 2)
        base = (group.rows // self.waves * (self.per_block * 2))[:, None]
        places = base + addresses
        if not group.full:
            places = np.where(group.mask, places, (len(self.halves) - 8) * 2)
        first = places // unit
        pieces = max(size // unit, 1)
        return unit // 2, first if pieces == 1 else first[..., None] + np.arange(pieces)

    # --- accesses

    def load(self, group: Group, addresses: Array, size: int) -> tuple[Array, Any, list[LdsAccess]]:
        """(rows, lanes, words) uint32, (rows,) lane bits of values never written (0: none), and what is to be kept while in
        flight."""
        unit, index = self._units(group, addresses, size)
        found = _wide(self.halves, unit)[index].reshape(*addresses.shape, -1)
        known = _wide(self.defined, unit)[index]
        undefined: Any = 0
        if not (known == known.dtype.type(_KNOWN >> 64 - 8 * known.itemsize)).all():
            every = np.ascontiguousarray(known).view(np.uint8).reshape(*addresses.shape, -1)
            undefined = to_bits(~every.all(axis=2) & group.mask)
        words = found.view(np.uint32) if size >= 4 else found.astype(np.uint32)
        if size == 1:
            words = words >> ((addresses & 1) * 8).astype(np.uint32)[..., None] & np.uint32(0xFF)
        return words, undefined, self._use(group, unit, index, write=False)

    def store(
        self, group: Group, addresses: Array, values: Array, size: int, undefined: Array | None = None, copied: bool = False
    ) -> list[LdsAccess]:
        """Store (rows, lanes, words). ``undefined``: lanes whose value is poison; ``copied``: by a load that bypasses
        registers."""
        unit, index = self._units(group, addresses, size)
        kept = self._use(group, unit, index, write=True, copied=copied)
        if size == 1:
            values = self._with_byte(index, addresses, values)
        table, marks = _wide(self.halves, unit), _wide(self.defined, unit)
        halves = values.astype(np.uint16) if size < 4 else np.ascontiguousarray(values, np.uint32)
        halves = halves.view(table.dtype).reshape(*index.shape, *table.shape[1:])
        known = (
            None
            if undefined is None
            else np.broadcast_to(undefined.reshape(*undefined.shape, *(1,) * (index.ndim - 2)), index.shape)
        )
        if not group.full:
            index, halves = index[group.mask], halves[group.mask]
            known = None if known is None else known[group.mask]
        table[index] = halves
        marks[index] = marks.dtype.type(_KNOWN >> 64 - 8 * marks.itemsize)
        if known is not None:
            marks[index[known]] = 0
        return kept

    def _with_byte(self, index: Array, addresses: Array, values: Array) -> Array:
        old, shift = self.halves[index].astype(np.uint32), ((addresses & 1) * 8).astype(np.uint32)
        return (old & ~(np.uint32(0xFF) << shift) | (values[..., 0] & np.uint32(0xFF)) << shift)[..., None]

    # --- races

    def _use(self, group: Group, unit: int, index: Array, write: bool, copied: bool = False) -> list[LdsAccess]:
        """Check and note an access; what to keep of it while it is in flight."""
        if self.flying.size:
            self._check_flying(group, unit, index, write)
        if self.waves == 1 and not copied:
            return []
        access = LdsAccess(unit, index, group.rows, group.mask if not group.full else None, write, copied)
        if self.waves > 1:
            for wave, chosen in group.waves():
                self._use_by(wave, access, access.of(chosen), group)
        if copied:
            self._start_flight(group, unit, index)
        elif self.arrived[group.rows].any():
            self._late.append(access)
        return [access]

    def _use_by(self, wave: int, access: LdsAccess, index: Array, group: Group) -> None:
        table = _wide(self.users, access.unit)
        before = table[index]
        writer, reader = self._bits(wave, table), self._bits(wave + self.half, table)
        conflict = before & ~(writer | reader) if access.write else before & (self._bits(-1, table) & ~writer)
        if conflict.any():
            self._race(wave, conflict, access.write, np.flatnonzero(group.rows % self.waves == wave)[0])
        if not access.copied:
            table[index] = before | (writer if access.write else reader)

    def _bits(self, bit: int, table: Array) -> Any:
        """A bit (-1: all writers' bits) for each of the half words that an element of a wide table holds."""
        one = (1 << self.half) - 1 if bit < 0 else 1 << bit
        return table.dtype.type(one | one << 32 if table.itemsize > self.users.itemsize else one)

    def _race(self, wave: int, conflict: Array, write: bool, row: Any) -> None:
        bits = int(conflict[conflict != 0][0])
        other = ((bits & -bits).bit_length() - 1) % (2 * self.half)
        done, verb = "wrote" if other < self.half else "read", "writes" if write else "reads"
        who = f"wave {wave} {verb} what wave {other % self.half} {done}"
        raise Fault(f"an LDS race: {who}, with no barrier in between that covers both", int(row))

    def arrive(self, group: Group, accesses: list[LdsAccess]) -> None:
        """Waves arrive at a barrier; ``accesses`` are still in flight."""
        self.arrived[group.rows] = True
        if self.waves > 1:
            self._late += [access.within(group) for access in accesses if not access.copied]

    def release(self, rows: Array) -> None:
        """The waves of whole blocks pass their barrier: a new interval begins, with what the barrier did not cover."""
        self.arrived[rows] = False
        if self.waves == 1:
            return
        for block in np.unique(rows // self.waves):
            self.users[block * self.per_block : (block + 1) * self.per_block] = 0
        late, self._late = self._late, []
        for access in late:
            free = ~self.arrived[access.rows]
            self._mark(access, free)
            if not free.all():
                self._late.append(access.only(~free))

    def _mark(self, access: LdsAccess, chosen: Array) -> None:
        table = _wide(self.users, access.unit)
        for wave in range(self.waves):
            index = access.of(chosen & (access.rows % self.waves == wave))
            table[index] |= self._bits(wave + (0 if access.write else self.half), table)

    # --- loads that bypass registers

    def _start_flight(self, group: Group, unit: int, index: Array) -> None:
        if not self.flying.size:
            self.flying = np.zeros(len(self.halves), bool)
        self.flying.reshape(-1, unit)[index if group.full else index[group.mask]] = True

    def _check_flying(self, group: Group, unit: int, index: Array, write: bool) -> None:
        hit = self.flying.reshape(-1, unit)[index]
        if hit.any():
            row = int(np.argwhere(hit)[0][0])
            who = f"wave {group.rows[row] % self.waves} {'writes' if write else 'reads'}"
            raise Fault(f"{who} LDS that a load to LDS has not delivered: a wait is missing", row)

    def complete(self, group: Group, accesses: list[LdsAccess]) -> None:
        """Loads to LDS have arrived: they count as writes of the wave that waited, from now on."""
        for access in accesses:
            if access.copied:
                mine = np.isin(access.rows, group.rows)
                self.flying.reshape(-1, access.unit)[access.of(mine)] = False
                if self.waves > 1:
                    self._mark(access, mine)


def _wide(table: Array, unit: int) -> Array:
    """The table as elements of ``unit`` half words, each one integer where that is at most 8 bytes, else a row of integers."""
    size = table.itemsize * unit
    return table.view(f"u{size}") if size <= 8 else table.view(np.uint64).reshape(-1, size // 8)


# --- instructions


def lds_instruction(ins: Instruction) -> Callable[[Group], None]:
    """``ds_*``: loads, stores and lane permutations."""
    if "permute" in ins.name:
        return _permute(ins)
    if ins.name == "ds_swizzle_b32":
        return _swizzle(ins)
    parts = ins.name.split("_")
    kind = parts[1]
    if kind not in ("read", "write", "load", "store", "read2", "write2", "read2st64", "write2st64"):
        raise Fault("the emulator does not know this instruction")
    size, signed = access_size(ins.name)
    two = kind.startswith(("read2", "write2")) or "2addr" in ins.name
    unit = size * (64 if "st64" in kind or "stride64" in ins.name else 1)
    offsets = [ins.value("offset0") * unit, ins.value("offset1") * unit] if two else [ins.value("offset")]
    if kind.startswith(("write", "store")):
        return _store(ins, ins.operands[1 : 1 + len(offsets)], offsets, size)
    return _load(ins, offsets, size, signed)


def _addresses(group: Group, register: int, offset: int) -> Array:
    """Byte addresses; sums wrap at 32 bits."""
    return (group.read_vector(register) + np.uint32(offset)).astype(np.int64)


def _load(ins: Instruction, offsets: list[int], size: int, signed: bool) -> Callable[[Group], None]:
    target, address = ins.operands[0], ins.operands[1].index
    words, d16, high = max(size // 4, 1), "_d16" in ins.name, "_d16_hi" in ins.name or ins.operands[0].half == "h"

    def run(group: Group) -> None:
        lds, accesses, results = group.batch.lds, [], []
        for offset in offsets:
            found, undefined, kept = lds.load(group, _addresses(group, address, offset), size)
            results.append((found, undefined))
            accesses += kept
        for n, (found, undefined) in enumerate(results):
            for i in range(words):
                register = target.index + n * words + i
                values = extend(found[..., i], size, signed)
                group.write_vector(register, merge_half(group, register, values, high) if d16 else values)
                group.define_loaded(register, undefined)
        registers = frozenset(range(target.index, target.index + len(offsets) * words))
        group.pending.add(Event(ins, "lds", registers, accesses), group.batch.kernel.generation)

    return run


def _store(ins: Instruction, data: tuple[Operand, ...], offsets: list[int], size: int) -> Callable[[Group], None]:
    address, words = ins.operands[0].index, max(size // 4, 1)
    high = "_d16_hi" in ins.name or data[0].half == "h"

    def run(group: Group) -> None:
        accesses = []
        for operand, offset in zip(data, offsets, strict=True):
            values = np.stack([group.read_vector(operand.index + i) for i in range(words)], axis=-1)
            values = values >> np.uint32(16) if high else values
            accesses += group.batch.lds.store(
                group, _addresses(group, address, offset), values, size, _poisoned(group, operand, words)
            )
        group.pending.add(Event(ins, "lds", lds=accesses), group.batch.kernel.generation)

    return run


def _poisoned(group: Group, operand: Operand, words: int) -> Array | None:
    """Lanes whose value is undefined; None: none."""
    registers = operand.registers(words)
    if group.batch.dirty.isdisjoint(registers):
        return None
    bits = np.bitwise_or.reduce([group.vector_poison(register) for register in registers])
    return to_lanes(bits, group.lanes) if bits.any() else None


def _permute(ins: Instruction) -> Callable[[Group], None]:
    """``ds_bpermute_b32``: lane i receives the value of lane address / 4; ``ds_permute_b32`` sends it there. Inactive lanes
    give 0."""
    target, address, data = (operand.index for operand in ins.operands[:3])
    offset, pull = ins.value("offset"), "bpermute" in ins.name

    def run(group: Group) -> None:
        other = (_addresses(group, address, offset) >> 2) % group.lanes
        values = np.where(group.mask, group.read_vector(data), np.uint32(0))
        if pull:
            result = np.take_along_axis(values, other, axis=1)
        else:
            result = np.zeros_like(values)
            rows, lanes = np.nonzero(group.mask)
            result[rows, other[rows, lanes]] = values[rows, lanes]
        _deliver(group, ins, target, result)

    return run


def _swizzle(ins: Instruction) -> Callable[[Group], None]:
    """``ds_swizzle_b32`` in bit-mask mode: within 32 lanes, lane i receives from ((i & and) | or) ^ xor."""
    target, data = (operand.index for operand in ins.operands[:2])
    source = _swizzled(ins.modifiers.get("offset", "0"))

    def run(group: Group) -> None:
        values = np.where(group.mask, group.read_vector(data), np.uint32(0))
        _deliver(group, ins, target, values[:, source[: group.lanes]])

    return run


def _swizzled(pattern: str) -> Array:
    """The lane that each of 64 lanes reads from."""
    lane = np.arange(64)
    if pattern.startswith("swizzle(SWAP"):
        return lane ^ int(pattern.strip(")").split(",")[1])
    if not pattern.isdigit() or int(pattern) >= 0x8000:
        raise Fault("the emulator does not know this swizzle")
    code = int(pattern)
    return lane & ~31 | ((lane & code & 31 | code >> 5 & 31) ^ code >> 10 & 31)


def _deliver(group: Group, ins: Instruction, target: int, values: Any) -> None:
    group.write_vector(target, values)
    group.define_loaded(target, 0)
    group.pending.add(Event(ins, "lds", frozenset([target])), group.batch.kernel.generation)
