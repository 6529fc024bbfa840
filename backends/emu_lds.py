"""LDS of a batch of blocks, and who touched which half word since the last barrier.

Every half word carries two stamps: of its last write and of its last read. A stamp is epoch * 64 + wave + 1, the epoch counting the
barriers a wave has passed; 0 means never written. Two waves race on a half word if one writes it and the other touches it without a
barrier in between that covers both: an operation still in flight at a barrier counts as taking place after it.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from .emu_decode import Fault, Instruction, Operand
from .emu_memory import access_size, extend, merge_half
from .emu_state import Array, Group, to_bits, to_lanes
from .emu_waits import Event, LdsAccess

__all__ = ["Lds", "lds_instruction"]

_MANY, _FLYING = 63, 1 << 30
_UNWRITTEN = 0x7FC07FC0
_BOTH = np.int64(0x1_0000_0001)
_LOW = np.int64(0xFFFFFFFF)


class Lds:
    """``nbytes`` of LDS for each of ``blocks`` blocks of ``waves`` waves."""

    def __init__(self, blocks: int, waves: int, nbytes: int) -> None:
        self.nbytes, self.waves = nbytes, waves
        self.per_block = -(-nbytes // 16) * 4
        self.words = np.full(blocks * self.per_block + 4, _UNWRITTEN, np.uint32)
        self.written, self.read = np.zeros(len(self.words), np.int64), np.zeros(len(self.words), np.int64)
        self.seen = np.ones(blocks * waves, np.int64)      # barriers a wave knows to be past
        self.epoch = np.ones(blocks * waves, np.int64)     # barriers that its further operations come after

    # --- addresses

    def _words(self, group: Group, addresses: Array, mask: Array, size: int) -> Array:
        """Numbers of the first word of each access; of inactive lanes the spare word at the end."""
        bad = mask & ((addresses < 0) | (addresses + size > self.nbytes))
        if bad.any():
            row, lane = map(int, np.argwhere(bad)[0])
            raise Fault(f"it accesses {size} bytes at {int(addresses[row, lane])} of {self.nbytes} bytes of LDS", row, lane)
        crooked = mask & (addresses % min(size, 4) != 0)
        if crooked.any():
            row, lane = map(int, np.argwhere(crooked)[0])
            raise Fault(f"its LDS address {int(addresses[row, lane])} is not aligned to {min(size, 4)} bytes", row, lane)
        base = (group.rows // self.waves * self.per_block)[:, None]
        return np.where(mask, base + (addresses >> 2), len(self.words) - 4)

    def _stamps(self, rows: Array) -> tuple[Array, Array]:
        """(rows,): the stamp of each wave's own operations, and the least stamp that another wave's may conflict with."""
        return self.epoch[rows] * 64 + rows % self.waves + 1, self.seen[rows] * 64

    # --- accesses

    def load(self, group: Group, addresses: Array, mask: Array, size: int) -> tuple[Array, Array, list[LdsAccess]]:
        """(rows, lanes, words) uint32, (rows,) lane bits of values never written, and what is to be kept while in flight."""
        first = self._words(group, addresses, mask, size)
        words = first[..., None] + np.arange(max(size // 4, 1)) if size > 4 else first[..., None]
        found = self.words[words]
        if size < 4:
            found = found >> ((addresses & 3) * 8).astype(np.uint32)[..., None] & np.uint32(0xFFFF if size == 2 else 0xFF)
        halves = _halves(addresses, size)
        stamps = self.written[words]
        undefined = _undefined(stamps, halves) & mask
        self._check(group, stamps, mask, halves, "reads", "wrote")
        return found, to_bits(undefined), self._note_read(group, words, mask, halves)

    def store(self, group: Group, addresses: Array, mask: Array, values: Array, size: int, undefined: Array | None = None,
              copied: bool = False) -> list[LdsAccess]:
        """Store (rows, lanes, words) where ``mask`` holds. ``undefined``: lanes whose value is poison."""
        first = self._words(group, addresses, mask, size)
        words = (first[..., None] + np.arange(max(size // 4, 1)))[mask]
        halves = _halves(addresses, size)
        chosen = halves if halves is None else halves[mask]
        rows = np.broadcast_to(group.rows[:, None], mask.shape)[mask]
        self._check_write(group, words, rows, chosen)
        values = values[mask]
        if size < 4:
            shift = ((addresses[mask] & 3) * 8).astype(np.uint32)[:, None]
            keep = ~(np.uint32(0xFFFF if size == 2 else 0xFF) << shift)
            _scatter_small(self.words, words, keep, (values & np.uint32(0xFFFF if size == 2 else 0xFF)) << shift)
        else:
            self.words[words] = values
        own = self._stamps(rows)[0][:, None] + (_FLYING if copied else 0)
        if undefined is not None:
            own = np.where(undefined[mask][:, None], 0, own)
        self._stamp(self.written, words, own, chosen)
        if self.waves > 1:
            self._check_written_once(group, words, rows, own, chosen)
        return [LdsAccess(words, rows, True, copied)]

    # --- races

    def _check(self, group: Group, stamps: Array, mask: Array, halves: Array | None, verb: str, other: str) -> None:
        """Fault where another wave's stamp is not past: ``stamps`` (rows, lanes, words) of 64 bits, both halves."""
        if self.waves == 1 and not (stamps >= _FLYING).any():
            return
        own, past = self._stamps(group.rows)
        bad = np.zeros(mask.shape, bool)
        for part in _parts_of(stamps, halves):
            bad |= ((part >= past[:, None, None]) & (part != own[:, None, None]) & (part % 64 != own[:, None, None] % 64)
                    | (part >= _FLYING)).any(axis=-1)
        bad &= mask
        if bad.any():
            row, lane = map(int, np.argwhere(bad)[0])
            part = max(int(p[row, lane].max()) for p in _parts_of(stamps, halves))
            raise Fault(_race(verb, part, int(group.rows[row] % self.waves), other), row, lane)

    def _check_write(self, group: Group, words: Array, rows: Array, halves: Array | None) -> None:
        if self.waves == 1 and not (self.written[words] >= _FLYING).any():
            return
        own, past = (stamps[:, None] for stamps in self._stamps(rows))
        for table, other in ((self.written, "wrote"), (self.read, "read")):
            for part in _parts_of(table[words], halves):
                bad = ((part >= past) & (part % 64 != own % 64) | (part >= _FLYING)).any(axis=-1)
                if bad.any():
                    i = int(np.argmax(bad))
                    where = int(np.flatnonzero(group.rows == rows[i])[0])
                    raise Fault(_race("writes", int(part[i].max()), int(rows[i] % self.waves), other), where)

    def _check_written_once(self, group: Group, words: Array, rows: Array, own: Array, halves: Array | None) -> None:
        """Two waves that write the same half word with the same instruction."""
        for part in _parts_of(self.written[words], halves):
            bad = (part != own).any(axis=-1) & (part != 0).all(axis=-1) & (own != 0).all(axis=-1)
            if bad.any():
                i = int(np.argmax(bad))
                where = int(np.flatnonzero(group.rows == rows[i])[0])
                raise Fault(_race("writes", int(part[i].max()), int(rows[i] % self.waves), "wrote"), where)

    def _note_read(self, group: Group, words: Array, mask: Array, halves: Array | None) -> list[LdsAccess]:
        if self.waves == 1:
            return []
        words = words[mask]
        rows = np.broadcast_to(group.rows[:, None], mask.shape)[mask]
        chosen = None if halves is None else halves[mask]
        self._stamp_read(words, rows, chosen)
        return [LdsAccess(words, rows, False)]

    def _stamp_read(self, words: Array, rows: Array, halves: Array | None) -> None:
        """Note readers; of several waves in one epoch "many", which conflicts with every writer."""
        own, past = (stamps[:, None] for stamps in self._stamps(rows))
        before = self.read[words]
        others = np.zeros(words.shape, bool)
        for part in _parts_of(before, halves):
            others |= (part >= past) & (part % 64 != own % 64)
        self._stamp(self.read, words, own, halves)
        for part in _parts_of(self.read[words], halves):
            others |= part != own
        if others.any():
            many = np.broadcast_to(own // 64 * 64 + _MANY, words.shape)[others]
            self._stamp(self.read, words[others][:, None], many[:, None], None if halves is None else np.broadcast_to(halves[:, None], words.shape)[others])

    def _stamp(self, table: Array, words: Array, stamps: Array, halves: Array | None) -> None:
        if halves is None:
            table[words] = stamps * _BOTH
            return
        for half in (0, 1):
            chosen = halves == half
            if chosen.any():
                at, shift = words[chosen], np.int64(32 * half)
                table[at] = table[at] & ~(_LOW << shift) | np.broadcast_to(stamps, words.shape)[chosen] << shift

    # --- barriers and completion

    def complete(self, group: Group, accesses: list[LdsAccess]) -> None:
        """Copies to LDS have arrived: their words now count as written by the wave that waited."""
        for access in accesses:
            if access.copied:
                self._restamp(group, access)

    def defer(self, group: Group, accesses: list[LdsAccess]) -> None:
        """Accesses still in flight at a barrier belong to the time after it."""
        for access in accesses:
            if not access.copied:
                self._restamp(group, access)

    def _restamp(self, group: Group, access: LdsAccess) -> None:
        mine = slice(None) if group.all else np.isin(access.rows, group.rows)
        words, rows = access.words[mine], access.rows[mine]
        if len(rows):
            if access.write:
                self.written[words] = self._stamps(rows)[0][:, None] * _BOTH
            else:
                self._stamp_read(words, rows, None)


def _halves(addresses: Array, size: int) -> Array | None:
    """Which half of its word a small access touches; None: both."""
    return None if size >= 4 else addresses >> 1 & 1


def _parts_of(stamps: Array, halves: Array | None) -> tuple[Array, ...]:
    """The stamps to look at: both halves, or the one each lane touches."""
    low, high = stamps & _LOW, stamps >> np.int64(32)
    return (low, high) if halves is None else (np.where(halves[..., None] != 0, high, low),)


def _undefined(stamps: Array, halves: Array | None) -> Array:
    """(rows, lanes): something in the access was never written."""
    found = np.zeros(stamps.shape[:-1], bool)
    for part in _parts_of(stamps, halves):
        found |= (part == 0).any(axis=-1)
    return found


def _scatter_small(table: Array, words: Array, keep: Array, values: Array) -> None:
    """Two lanes may write the two halves of one word: one half at a time."""
    for low in (True, False):
        chosen = (keep & np.uint32(0xFFFF) != np.uint32(0xFFFF))[:, 0] == low
        if chosen.any():
            at = words[chosen]
            np.bitwise_and.at(table, at, keep[chosen])
            np.bitwise_or.at(table, at, values[chosen])


def _race(verb: str, stamp: int, wave: int, other: str) -> str:
    if stamp >= _FLYING:
        return f"wave {wave} {verb} LDS that a load to LDS has not delivered: a wait is missing"
    who = "several waves" if stamp % 64 == _MANY else f"wave {stamp % 64 - 1}"
    return f"an LDS race: wave {wave} {verb} a word that {who} {other}, with no barrier in between that both have waited for"


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
        return _store(ins, ins.operands[1:1 + len(offsets)], offsets, size)
    return _load(ins, offsets, size, signed)


def _addresses(group: Group, register: int, offset: int) -> Array:
    return group.read_vector(register).astype(np.int64) + offset


def _load(ins: Instruction, offsets: list[int], size: int, signed: bool) -> Callable[[Group], None]:
    target, address = ins.operands[0], ins.operands[1].index
    words, d16, high = max(size // 4, 1), "_d16" in ins.name, "_d16_hi" in ins.name or ins.operands[0].half == "h"

    def run(group: Group) -> None:
        lds, accesses, results = group.batch.lds, [], []
        for offset in offsets:
            found, undefined, kept = lds.load(group, _addresses(group, address, offset), group.mask, size)
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
        for operand, offset in zip(data, offsets):
            values = np.stack([group.read_vector(operand.index + i) for i in range(words)], axis=-1)
            values = values >> np.uint32(16) if high else values
            accesses += group.batch.lds.store(group, _addresses(group, address, offset), group.mask, values, size, _poisoned(group, operand, words))
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
    """``ds_bpermute_b32``: lane i receives the value of lane address / 4; ``ds_permute_b32`` sends it there. Inactive lanes give 0."""
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
    text = ins.modifiers.get("offset", "0")
    if text.startswith("swizzle(SWAP"):
        source = lambda lane: lane ^ int(text.strip(")").split(",")[1])     # noqa: E731
    elif text.isdigit() and int(text) < 0x8000:
        code = int(text)
        source = lambda lane: lane & ~31 | ((lane & code & 31 | code >> 5 & 31) ^ code >> 10 & 31)      # noqa: E731
    else:
        raise Fault("the emulator does not know this swizzle")

    def run(group: Group) -> None:
        values = np.where(group.mask, group.read_vector(data), np.uint32(0))
        _deliver(group, ins, target, values[:, source(np.arange(group.lanes))])
    return run


def _deliver(group: Group, ins: Instruction, target: int, values: Any) -> None:
    group.write_vector(target, values)
    group.define_loaded(target, 0)
    group.pending.add(Event(ins, "lds", frozenset([target])), group.batch.kernel.generation)
