"""Operands of vector instructions: reading them with modifiers, halves, SDWA and DPP, and writing results.

Meanings: AMD instruction set documents, sections on operand modifiers, SDWA and DPP.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from .emu_decode import NULL, Fault, Instruction, Operand
from .emu_state import Array, Group

__all__ = ["TYPES", "Read", "Run", "extended", "raw", "signed", "typed", "write_pair", "writer"]

u16, u32, u64, f16 = np.uint16, np.uint32, np.uint64, np.float16
Run = Callable[[Group], None]
Read = Callable[[Group], Array]

TYPES: dict[str, Any] = {
    "u16": np.uint16,
    "i16": np.int16,
    "f16": np.float16,
    "u32": np.uint32,
    "i32": np.int32,
    "f32": np.float32,
    "u64": np.uint64,
    "i64": np.int64,
    "f64": np.float64,
}
_FIELDS = {
    "DWORD": (0, 0xFFFFFFFF),
    "WORD_0": (0, 0xFFFF),
    "WORD_1": (16, 0xFFFF),
    "BYTE_0": (0, 0xFF),
    "BYTE_1": (8, 0xFF),
    "BYTE_2": (16, 0xFF),
    "BYTE_3": (24, 0xFF),
}
_DPP = ("quad_perm", "row_shl", "row_shr", "row_ror", "row_mirror", "row_half_mirror", "row_share", "row_xmask", "row_newbcast")


def raw(operand: Operand, wide: bool = False, number: str = "f32") -> Read:
    """The bits of an operand: (rows, lanes), (rows, 1) of a scalar register, or (1, 1)."""
    if operand.kind == "v":
        at = operand.index
        if not wide:
            return lambda group: group.read_vector(at)
        return lambda group: group.read_vector(at).astype(u64) | group.read_vector(at + 1).astype(u64) << u64(32)
    if operand.kind == "s" and operand.index != NULL:
        at = operand.index
        return (lambda group: group.read_scalar64(at)[:, None]) if wide else (lambda group: group.read_scalar(at)[:, None])
    if operand.kind == "x":
        raise Fault(f"the emulator does not know the operand {operand.text}")
    constant = np.array([[_constant_bits(operand, wide, number)]], u64 if wide else u32)
    return lambda group: constant


def _constant_bits(operand: Operand, wide: bool, number: str) -> int:
    if operand.number and number == "f16":
        return int(np.array(float(operand.number), f16).view(u16))
    if operand.number and wide:
        return int(np.array(float(operand.number), np.float64).view(u64))
    return extended(operand, number == "i64") & (0xFFFFFFFFFFFFFFFF if wide else 0xFFFFFFFF)


def extended(operand: Operand, signed: bool) -> int:
    """A constant as a 64-bit operand: the 32 bits of a literal are sign-extended for signed instructions, else zero-extended."""
    literal = operand.text.startswith("0x") and operand.index >> 31 == 1
    return operand.index - (1 << 32) if signed and literal else operand.index


def typed(ins: Instruction, position: int, kind: str, half: int | None = None) -> Read:
    """Source operand ``position`` (0 is the first after the destination) as an array of a type of `TYPES`, modifiers applied."""
    operand = ins.operands[position + 1]
    bits = raw(operand, kind.endswith("64"), kind)
    if ins.sdwa and kind.endswith(("16", "32")):
        bits = _field(bits, *_FIELDS[ins.modifiers.get(f"src{position}_sel", "DWORD")])
    if position == 0 and any(name in ins.modifiers for name in _DPP):
        bits = _permuted(ins, bits)
    if kind.endswith("16"):
        bits = _half(ins, operand, position, bits, half)
    return signed(bits, TYPES[kind], operand)


def _field(bits: Read, shift: int, mask: int) -> Read:
    return bits if mask == 0xFFFFFFFF else lambda group: bits(group) >> u32(shift) & u32(mask)


def _half(ins: Instruction, operand: Operand, position: int, bits: Read, half: int | None) -> Read:
    """16 bits of a register: the half that the operand's suffix, op_sel or the caller names."""
    high = bool(half) if half is not None else operand.half == "h" or bool(ins.bits("op_sel", 4)[position])
    if operand.kind == "c" and not (half is None and operand.number == ""):
        high = False  # a floating-point constant has 16 bits
    return (
        (lambda group: (bits(group) >> u32(16)).astype(u16))
        if high and operand.kind != "c"
        else lambda group: bits(group).astype(u16)
    )


def signed(bits: Read, kind: Any, operand: Operand) -> Read:
    """An operand's bits as a NumPy type, with its sign and absolute value."""
    neg, absolute = operand.neg, operand.absolute
    if kind in (u16, u32, u64) and not (neg or absolute):
        return bits
    if not (neg or absolute):
        return lambda group: np.ascontiguousarray(bits(group)).view(kind)

    def run(group: Group) -> Array:
        values = np.ascontiguousarray(bits(group)).view(kind)
        values = np.abs(values) if absolute else values
        return -values if neg else values

    return run


def _permuted(ins: Instruction, bits: Read) -> Read:
    """Data-parallel primitives: lanes read from other lanes of their row of 16; where there is none, 0 (bound_ctrl) is
    required."""
    name = next(name for name in _DPP if name in ins.modifiers)
    if ins.modifiers.get("row_mask", "0xf") != "0xf" or ins.modifiers.get("bank_mask", "0xf") != "0xf":
        raise Fault("the emulator does not know row and bank masks")

    def run(group: Group) -> Array:
        source, valid = _dpp_source(ins, name, np.arange(group.lanes))
        if not valid.all() and not ins.flag("bound_ctrl"):
            raise Fault("the emulator knows lanes without a source with bound_ctrl only")
        values = np.broadcast_to(bits(group), (len(group.rows), group.lanes))
        active = np.take(group.mask, source, axis=1) & valid
        return np.where(active, np.take(values, source, axis=1), u32(0))

    return run


def _dpp_source(ins: Instruction, name: str, lane: Array) -> tuple[Array, Array]:
    row, at = lane & ~15, lane & 15
    if name == "quad_perm":
        return (lane & ~3) + np.array(ins.bits("quad_perm", 4))[lane & 3], np.ones(len(lane), bool)
    amount = ins.value(name) if ins.modifiers[name] else 0
    source = {
        "row_shr": at - amount,
        "row_shl": at + amount,
        "row_ror": (at - amount) % 16,
        "row_xmask": at ^ amount,
        "row_share": 0 * at + amount,
        "row_newbcast": 0 * at + amount,
        "row_mirror": 15 - at,
        "row_half_mirror": (at & 8) + 7 - (at & 7),
    }[name]
    return row + source.clip(0, 15), (source >= 0) & (source < 16)


def writer(ins: Instruction, kind: str, gfx9: bool = False) -> Callable[[Group, Array], None]:
    """A function that writes the destination, whose values have a type of `TYPES`."""
    target = ins.operands[0]
    if kind.endswith("64"):
        return lambda group, values: write_pair(group, target.index, np.ascontiguousarray(values).view(u64))
    if ins.sdwa and ins.modifiers.get("dst_sel", "DWORD") != "DWORD":
        return _field_writer(ins)
    if not kind.endswith("16"):
        return lambda group, values: group.write_vector(target.index, values.view(u32))
    high = target.half == "h" or bool(ins.bits("op_sel", 4)[len(ins.operands) - 1])

    def run(group: Group, values: Array) -> None:
        bits = np.ascontiguousarray(values).view(u16).astype(u32)
        if group.batch.kernel.generation == 9 and not high:
            group.write_vector(target.index, bits)  # gfx9 clears the other half
            return
        old = group.read_vector(target.index)
        group.write_vector(target.index, old & u32(0xFFFF) | bits << u32(16) if high else old & u32(0xFFFF0000) | bits)

    return run


def _field_writer(ins: Instruction) -> Callable[[Group, Array], None]:
    shift, mask = _FIELDS[ins.modifiers["dst_sel"]]
    target, keep = ins.operands[0].index, ins.modifiers.get("dst_unused") == "UNUSED_PRESERVE"

    def run(group: Group, values: Array) -> None:
        bits = values.view(u32) if values.dtype.itemsize == 4 else values.view(u16).astype(u32)
        placed = (bits & u32(mask)) << u32(shift)
        group.write_vector(target, group.read_vector(target) & u32(~(mask << shift) & 0xFFFFFFFF) | placed if keep else placed)

    return run


def write_pair(group: Group, register: int, values: Array) -> None:
    """Write 64-bit values to two registers."""
    group.write_vector(register, values.astype(u32))
    group.write_vector(register + 1, (values >> u64(32)).astype(u32))
