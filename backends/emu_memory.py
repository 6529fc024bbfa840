"""Global memory as emulated kernels see it: registered buffers at addresses of their own, with gaps between them.

Every access is checked: all its bytes lie in one buffer, or the kernel is stopped. Scalar, global, scratch and buffer
instructions are made here into functions of a `Group`.
"""

from __future__ import annotations

import bisect
import threading
import weakref
from typing import Any, Callable

import numpy as np

from .emu_decode import M0, NULL, Fault, Instruction, Operand
from .emu_elf import Descriptor
from .emu_state import Array, Group
from .emu_waits import Event

__all__ = ["AddressSpace", "EmuBuffer", "SCRATCH", "access_size", "scalar_load", "vector_memory"]

_FIRST, _GAP = 0x7E00_0000_0000, 1 << 24
SCRATCH = 0x5C00_0000_0000
"""Base address of the buffer resource that gfx908 and gfx90a kernels reach their private memory through."""
_WORDS = {
    "dword": 1,
    "dwordx2": 2,
    "dwordx3": 3,
    "dwordx4": 4,
    "dwordx8": 8,
    "dwordx16": 16,
    "b32": 1,
    "b64": 2,
    "b96": 3,
    "b128": 4,
    "b256": 8,
    "b512": 16,
}
_SMALL = {
    "ubyte": (1, False),
    "u8": (1, False),
    "sbyte": (1, True),
    "i8": (1, True),
    "byte": (1, False),
    "b8": (1, False),
    "ushort": (2, False),
    "u16": (2, False),
    "sshort": (2, True),
    "i16": (2, True),
    "short": (2, False),
    "b16": (2, False),
}


class EmuBuffer:
    """Memory that kernels may access: ``nbytes`` from ``address`` on; ``array`` holds the bytes."""

    def __init__(self, nbytes: int, address: int) -> None:
        padded = -(-nbytes // 64) * 64 + 64
        self.nbytes, self.address = nbytes, address
        self._storage = np.full(padded + 64, 0xFF, np.uint8)  # NaN of every type: what was not written shows
        offset = -self._storage.ctypes.data % 64
        self.padded = self._storage[offset : offset + padded]
        self.array = self.padded[:nbytes]
        self.words = {n: self.padded[: padded // (4 * n) * 4 * n].view(np.uint32).reshape(-1, n) for n in (1, 2, 4)}
        self.halves = self.padded.view(np.uint16)


class AddressSpace:
    """The buffers that exist. They are forgotten when nothing else refers to them."""

    def __init__(self) -> None:
        self._next = _FIRST
        self._bases: list[int] = []
        self._lock = threading.Lock()
        self._buffers: weakref.WeakValueDictionary[int, EmuBuffer] = weakref.WeakValueDictionary()

    def allocate(self, nbytes: int) -> EmuBuffer:
        """A new buffer; no other is near it."""
        with self._lock:
            buffer = EmuBuffer(nbytes, self._next)
            self._next += (nbytes + _GAP) // 4096 * 4096 + 4096
            self._buffers[buffer.address] = buffer
            self._bases = sorted(self._buffers)
        return buffer

    def find(self, address: int) -> EmuBuffer | None:
        """The buffer an address lies in."""
        place = bisect.bisect_right(self._bases, address) - 1
        buffer = self._buffers.get(self._bases[place]) if place >= 0 else None
        return buffer if buffer is not None and address < buffer.address + buffer.nbytes else None

    def load(self, addresses: Array, mask: Array | None, size: int) -> Array:
        """(..., words) uint32 at each address where ``mask`` holds (None: everywhere), zeros elsewhere; 1 or 2 bytes give one
        word."""
        if mask is not None and mask.all():
            mask = None
        parts = self._parts(addresses, mask, size)
        if len(parts) == 1:
            buffer = parts[0][0]
            if mask is None:
                return _gather(*_in_buffer(buffer, addresses), size)
            found = _gather(*_in_buffer(buffer, np.where(mask, addresses, np.uint64(buffer.address))), size)
            return found * mask[..., None]
        result = np.zeros((*addresses.shape, max(size // 4, 1)), np.uint32)
        for buffer, chosen in parts:
            result[chosen] = _gather(*_in_buffer(buffer, addresses[chosen]), size)
        return result

    def store(self, addresses: Array, mask: Array, values: Array, size: int) -> None:
        """Store ``values`` (..., words) where ``mask`` holds; of 1 or 2 bytes the low ones of the word."""
        for buffer, chosen in self._parts(addresses, mask, size):
            pick = mask if chosen is None else chosen
            _scatter(*_in_buffer(buffer, addresses[pick]), values[pick], size)

    def _parts(self, addresses: Array, mask: Array | None, size: int) -> list[tuple[EmuBuffer, Array | None]]:
        """The buffers accessed, with the places of each; None: every place, masked or not."""
        active = addresses if mask is None else addresses[mask]
        if active.size == 0:
            return []
        low, high = int(active.min()), int(active.max())
        buffer = self.find(low)
        if buffer is not None and high + size <= buffer.address + buffer.nbytes:
            return [(buffer, None if mask is None else mask)]
        return self._split(addresses, np.ones(addresses.shape, bool) if mask is None else mask, size)

    def _split(self, addresses: Array, mask: Array, size: int) -> list[tuple[EmuBuffer, Array | None]]:
        parts: list[tuple[EmuBuffer, Array | None]] = []
        rest = mask.copy()
        while rest.any():
            first = np.argwhere(rest)[0]
            address = int(addresses[tuple(first)])
            buffer = self.find(address)
            if buffer is None or address + size > buffer.address + buffer.nbytes:
                raise Fault(self._describe(address, size), *map(int, first[:2]))
            start, end = np.uint64(buffer.address), np.uint64(buffer.address + buffer.nbytes - size)
            inside = rest & (addresses >= start) & (addresses <= end)
            parts.append((buffer, inside))
            rest &= ~inside
        return parts

    def _describe(self, address: int, size: int) -> str:
        place = bisect.bisect_right(self._bases, address) - 1
        buffer = self._buffers.get(self._bases[place]) if place >= 0 else None
        if buffer is None or address > buffer.address + buffer.nbytes + _GAP:
            return f"it accesses {size} bytes at {address:#x}, which belongs to no buffer"
        beyond = address + size - buffer.address - buffer.nbytes
        return f"it accesses {size} bytes that end {beyond} bytes behind a buffer of {buffer.nbytes} bytes"


def _in_buffer(buffer: EmuBuffer, addresses: Array) -> tuple[EmuBuffer, Array]:
    return buffer, (addresses - np.uint64(buffer.address)).astype(np.int64)


def _alignment(offsets: Array, size: int) -> int:
    """The largest power of two up to 16 that divides every offset and the size."""
    bits = int(np.bitwise_or.reduce(offsets, axis=None)) | size | 16
    return bits & -bits


def _gather(buffer: EmuBuffer, offsets: Array, size: int) -> Array:
    if size == 2 and not int(np.bitwise_or.reduce(offsets, axis=None)) & 1:
        return buffer.halves[offsets >> 1].astype(np.uint32)[..., None]
    unit = _alignment(offsets, size)
    if unit < 4:
        return _gather_bytes(buffer, offsets, size)
    table = buffer.words[unit // 4]
    first = offsets // unit
    pieces = [table[first + i] for i in range(size // unit)]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=-1)


def _gather_bytes(buffer: EmuBuffer, offsets: Array, size: int) -> Array:
    words = np.zeros((*offsets.shape, max(size // 4, 1)), np.uint32)
    for i in range(size):
        words[..., i // 4] |= buffer.padded[offsets + i].astype(np.uint32) << np.uint32(8 * (i % 4))
    return words


def _scatter(buffer: EmuBuffer, offsets: Array, values: Array, size: int) -> None:
    unit = _alignment(offsets, size)
    if unit < 4:
        for i in range(size):
            buffer.padded[offsets + i] = (values[..., i // 4] >> np.uint32(8 * (i % 4))).astype(np.uint8)
        return
    table, per = buffer.words[unit // 4], unit // 4
    first = offsets // unit
    for i in range(size // unit):
        table[first + i] = values[..., i * per : (i + 1) * per]


# --- instructions


def access_size(name: str) -> tuple[int, bool]:
    """(bytes, sign-extended) of one lane's access, from the instruction's name."""
    for word in reversed(name.split("_")):
        if word in _WORDS:
            return 4 * _WORDS[word], False
        if word in _SMALL:
            return _SMALL[word]
    raise Fault("the emulator does not know this instruction")


def scalar_load(ins: Instruction) -> Callable[[Group], None]:
    """``s_load_*``: one address a wave."""
    size, signed = access_size(ins.name)
    words, target, base = size // 4 or 1, ins.operands[0].index, ins.operands[1].index
    offset, register = _scalar_offset(ins)

    def run(group: Group) -> None:
        address = group.read_scalar64(base) + np.uint64(offset & 0xFFFFFFFFFFFFFFFF)
        if register is not None:
            address = address + group.read_scalar(register).astype(np.uint64)
        found = group.batch.memory.load(address & ~np.uint64(3 if size >= 4 else 0), None, size)
        for i in range(words):
            group.write_scalar(target + i, extend(found[:, i], size, signed))
        group.pending.add(Event(ins, "scalar", frozenset(ins.operands[0].registers(words))), group.batch.kernel.generation)

    return run


def _scalar_offset(ins: Instruction) -> tuple[int, int | None]:
    offset, register = ins.value("offset"), None
    if len(ins.operands) > 2:
        operand = ins.operands[2]
        if operand.kind == "s" and operand.index != NULL:
            register = operand.index
        elif operand.kind == "c":
            offset += operand.index
    return offset, register


def extend(values: Array, size: int, signed: bool) -> Array:
    """A small value in a 32-bit register."""
    if not signed or size == 4:
        return values
    return (
        (values.astype({1: np.uint8, 2: np.uint16}[size]).view({1: np.int8, 2: np.int16}[size])).astype(np.int32).view(np.uint32)
    )


def vector_memory(ins: Instruction, kernel: Descriptor) -> Callable[[Group], None]:
    """Loads and stores of ``global_``, ``flat_``, ``scratch_`` and ``buffer_`` instructions."""
    if "atomic" in ins.name:
        raise Fault("the emulator does not know this instruction")
    buffered, store, to_lds = ins.name.startswith("buffer"), "_store" in ins.name, "lds" in ins.modifiers or "_lds_" in ins.name
    size, signed = access_size(ins.name)
    if buffered:
        data = ins.operands[0] if not to_lds or len(ins.operands) == 4 else None
        place = _buffer_place(ins, size, kernel)
    else:
        data = None if to_lds else ins.operands[1 if store else 0]
        place = _scratch_place(ins) if ins.name.startswith("scratch") else _global_place(ins, store or to_lds)
    kind = "flat" if ins.name.startswith("flat") else "store" if store else "load"
    if store:
        assert data is not None
        return _store(ins, data, place, size, kind)
    if to_lds:
        return _load_to_lds(ins, place, size)
    assert data is not None
    return _load(ins, data, place, size, signed, kind)


Place = Callable[[Group], "tuple[Any, Array, Array]"]
"""(memory, address of each lane, lanes that access): what the addressing part of an instruction gives."""


def _global_place(ins: Instruction, first: bool) -> Place:
    address = ins.operands[0 if first else 1]
    base = next((o for o in ins.operands if o.kind == "s" and o.index != NULL and o.count == 2), None)
    offset = np.uint64(ins.value("offset") & 0xFFFFFFFFFFFFFFFF)
    shift = np.uint64((access_size(ins.name)[0]).bit_length() - 1 if ins.flag("scale_offset") else 0)

    def place(group: Group) -> tuple[Any, Array, Array]:
        if base is None:
            lanes = group.read_vector(address.index).astype(np.uint64) | group.read_vector(address.index + 1).astype(
                np.uint64
            ) << np.uint64(32)
            return group.batch.memory, lanes + offset, group.mask
        lanes = group.read_vector(address.index).astype(np.uint64)
        if ins.flag("scale_offset"):  # a signed index, in units of the access
            lanes = lanes.astype(np.uint32).view(np.int32).astype(np.int64).view(np.uint64)
        return group.batch.memory, group.read_scalar64(base.index)[:, None] + (lanes << shift) + offset, group.mask

    return place


def _buffer_place(ins: Instruction, size: int, kernel: Descriptor) -> Place:
    """Raw buffers: the 128-bit resource has base, number of bytes, and a word of flags; out-of-range lanes read zero."""
    offset_operand, resource, scalar = ins.operands[-3:]
    immediate = ins.value("offset")
    if ins.flag("idxen"):
        raise Fault("the emulator knows raw buffers only, not structured ones")

    def place(group: Group) -> tuple[Any, Array, Array]:
        base = group.read_scalar64(resource.index) & np.uint64(0xFFFFFFFFFFFF)
        memory: Any = group.batch.memory
        if base[0] == SCRATCH:
            memory, base = _Scratch(group), base - np.uint64(SCRATCH)
        check_resource(group, resource.index, kernel)
        limit = group.read_scalar(resource.index + 2).astype(np.int64)
        start = _scalar_value(group, scalar).astype(np.int64)
        lanes = np.full((len(group.rows), group.lanes), immediate, np.int64)
        if ins.flag("offen"):
            lanes += group.read_vector(offset_operand.index)
        inside = lanes + size <= (limit - start)[:, None]
        return memory, base[:, None] + (lanes + start[:, None]).astype(np.uint64), inside & group.mask

    return place


def check_resource(group: Group, register: int, kernel: Descriptor) -> None:
    """Word 1 has no stride, word 3 a valid format: data_format (gfx9) or format (gfx11, gfx12) is not 0."""
    if (group.read_scalar(register + 1) >> np.uint32(16) & np.uint32(0x3FFF)).any():
        raise Fault("the emulator knows raw buffers only, but the resource has a stride")
    flags = group.read_scalar(register + 3)
    field = flags >> np.uint32(15) & np.uint32(15) if kernel.generation == 9 else flags >> np.uint32(12) & np.uint32(0x7F)
    if not field.all():
        raise Fault(f"word 3 of the buffer resource, {int(flags[0]):#x}, names no valid format")


def _scalar_value(group: Group, operand: Operand) -> Array:
    if operand.kind == "s" and operand.index != NULL:
        return group.read_scalar(operand.index)
    return np.full(len(group.rows), operand.index if operand.kind == "c" else 0, np.uint32)


class _Scratch:
    """Private memory of the lanes, addressed like other memory: offset in the lane's own bytes."""

    def __init__(self, group: Group) -> None:
        self.group, self.array = group, group.batch.scratch

    def _check(self, offsets: Array, mask: Array, size: int) -> None:
        bad = mask & (offsets + np.uint64(size) > np.uint64(self.array.shape[2]))
        if bad.any():
            row, lane = map(int, np.argwhere(bad)[0])
            raise Fault(
                f"it accesses {size} bytes at {int(offsets[row, lane])} of {self.array.shape[2]} bytes of scratch", row, lane
            )

    def load(self, offsets: Array, mask: Array, size: int) -> Array:
        """As `AddressSpace.load`."""
        self._check(offsets, mask, size)
        row, lane, at = (
            self.group.rows[:, None],
            np.arange(self.group.lanes)[None, :],
            np.where(mask, offsets, 0).astype(np.int64),
        )
        words = np.zeros((*offsets.shape, max(size // 4, 1)), np.uint32)
        for i in range(size):
            words[..., i // 4] |= self.array[row, lane, at + i].astype(np.uint32) << np.uint32(8 * (i % 4))
        return words

    def store(self, offsets: Array, mask: Array, values: Array, size: int) -> None:
        """As `AddressSpace.store`."""
        self._check(offsets, mask, size)
        rows, lanes = np.nonzero(mask)
        for i in range(size):
            part = (values[..., i // 4] >> np.uint32(8 * (i % 4))).astype(np.uint8)
            self.array[self.group.rows[rows], lanes, offsets[mask].astype(np.int64) + i] = part[mask]


def _scratch_place(ins: Instruction) -> Place:
    address = next((o for o in ins.operands[:2] if o.kind == "v" and o is not ins.operands[_data_position(ins)]), None)
    scalar = next((o for o in ins.operands if o.kind == "s" and o.index != NULL), None)
    offset = ins.value("offset")

    def place(group: Group) -> tuple[Any, Array, Array]:
        lanes = np.full((len(group.rows), group.lanes), offset, np.int64)
        if address is not None:
            lanes += group.read_vector(address.index)
        if scalar is not None:
            lanes += group.read_scalar(scalar.index).astype(np.int64)[:, None]
        return _Scratch(group), lanes.astype(np.uint64), group.mask

    return place


def _data_position(ins: Instruction) -> int:
    return 1 if "_store" in ins.name else 0


def _store(ins: Instruction, data: Operand, place: Place, size: int, kind: str) -> Callable[[Group], None]:
    words, high = max(size // 4, 1), "_d16_hi" in ins.name or data.half == "h"

    def run(group: Group) -> None:
        memory, addresses, mask = place(group)
        values = np.stack([group.read_vector(data.index + i) for i in range(words)], axis=-1)
        memory.store(addresses, mask, values >> np.uint32(16) if high else values, size)
        group.pending.add(Event(ins, kind), group.batch.kernel.generation)

    return run


def _load(ins: Instruction, data: Operand, place: Place, size: int, signed: bool, kind: str) -> Callable[[Group], None]:
    words, registers = max(size // 4, 1), frozenset(data.registers(max(size // 4, 1)))
    d16, high = "_d16" in ins.name, "_d16_hi" in ins.name or data.half == "h"

    def run(group: Group) -> None:
        memory, addresses, mask = place(group)
        found = memory.load(addresses, mask, size)
        for i in range(words):
            values = extend(found[..., i], size, signed)
            group.write_vector(data.index + i, merge_half(group, data.index, values, high) if d16 else values)
        group.pending.add(Event(ins, kind, registers), group.batch.kernel.generation)

    return run


def merge_half(group: Group, register: int, values: Array, high: bool) -> Array:
    """The register with one 16-bit half replaced."""
    old = group.read_vector(register)
    if high:
        return old & np.uint32(0xFFFF) | values << np.uint32(16)
    return old & np.uint32(0xFFFF0000) | values & np.uint32(0xFFFF)


def _load_to_lds(ins: Instruction, place: Place, size: int) -> Callable[[Group], None]:
    """A load that bypasses registers: lane i's data goes to m0 + offset + i * size (MI300 ISA, 9.1.9; gfx950 also 12 and 16
    bytes)."""
    offset = ins.value("offset")

    def run(group: Group) -> None:
        memory, addresses, mask = place(group)
        found = memory.load(addresses, mask, size)
        base = (group.read_scalar(M0) & np.uint32(0x3FFFF)).astype(np.int64) + offset
        lds = base[:, None] + np.arange(group.lanes) * max(size, 4)
        accesses = group.batch.lds.store(group, lds, found, max(size, 4), copied=True)
        group.pending.add(Event(ins, "load", lds=accesses), group.batch.kernel.generation)

    return run
