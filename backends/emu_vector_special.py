"""Vector instructions of their own kind: selections, lanes, mixed precision, divisions, wide products."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from .emu_decode import NULL, VCC, Fault, Instruction, Operand
from .emu_operands import Read, Run, raw, signed, typed, write_pair, writer
from .emu_state import Group, to_bits, to_lanes
from .emu_vector_table import OPERATIONS

__all__ = ["packed_pair", "special"]

u32, u64, i32, f32 = np.uint32, np.uint64, np.int32, np.float32


def packed_pair(ins: Instruction, position: int, kind: str, half: int, flip: int) -> Read:
    """One 32-bit side of a packed instruction's source: the word ``half`` of a register pair."""
    operand = ins.operands[position + 1]
    if operand.kind != "c":
        operand = Operand(operand.kind, operand.index + half, 1, operand.neg, operand.absolute, "", operand.text)
    value = signed(raw(operand), np.dtype(np.float32 if kind == "f32" else np.uint32).type, operand)
    return (lambda group: -value(group)) if flip else value


def special(ins: Instruction) -> Run | None:
    """What such an instruction does; None if it is none."""
    maker = _SPECIAL.get(ins.name)
    if maker is not None:
        return maker(ins)
    if ins.name.startswith("v_s_"):
        return _scalar_result(ins)
    return None


def _select(ins: Instruction) -> Run:
    condition = ins.operands[3].index if len(ins.operands) > 3 else VCC
    a, b, store = typed(ins, 0, "f32"), typed(ins, 1, "f32"), writer(ins, "f32")
    return lambda group: store(group, np.where(to_lanes(group.read_mask(condition), group.lanes), b(group), a(group)))


def _select16(ins: Instruction) -> Run:
    condition = ins.operands[3].index if len(ins.operands) > 3 else VCC
    a, b, store = typed(ins, 0, "u16"), typed(ins, 1, "u16"), writer(ins, "u16")
    return lambda group: store(group, np.where(to_lanes(group.read_mask(condition), group.lanes), b(group), a(group)))


def _first_lane(ins: Instruction) -> Run:
    value, target = raw(ins.operands[1]), ins.operands[0].index

    def run(group: Group) -> None:
        lanes = group.mask.argmax(axis=1)  # of no active lane, lane 0
        values = np.broadcast_to(value(group), (len(group.rows), group.lanes))
        group.write_scalar(target, values[np.arange(len(group.rows)), lanes])

    return run


def _read_lane(ins: Instruction) -> Run:
    value, lane, target = raw(ins.operands[1]), raw(ins.operands[2]), ins.operands[0].index

    def run(group: Group) -> None:
        values = np.broadcast_to(value(group), (len(group.rows), group.lanes))
        lanes = np.broadcast_to(lane(group), (len(group.rows), 1))[:, 0] & u32(group.lanes - 1)
        group.write_scalar(target, values[np.arange(len(group.rows)), lanes])

    return run


def _write_lane(ins: Instruction) -> Run:
    value, lane, target = raw(ins.operands[1]), raw(ins.operands[2]), ins.operands[0].index

    def run(group: Group) -> None:
        lanes = np.broadcast_to(lane(group), (len(group.rows), 1))[:, 0] & u32(group.lanes - 1)
        group.vector[target][group.rows, lanes] = np.broadcast_to(value(group), (len(group.rows), 1))[:, 0]

    return run


def _count_lanes(ins: Instruction) -> Run:
    """``v_mbcnt``: bits of a mask below the own lane, plus a number."""
    mask, plus, store, upper = typed(ins, 0, "u32"), typed(ins, 1, "u32"), writer(ins, "u32"), "hi" in ins.name

    def run(group: Group) -> None:
        lane = np.arange(group.lanes)
        below = (lane - 32).clip(0, 32) if upper else lane.clip(0, 32)
        chosen = mask(group).astype(u64) & (u64(1) << below.astype(u64)) - u64(1)
        count = np.unpackbits(np.ascontiguousarray(chosen).view(np.uint8).reshape(*chosen.shape, 8), axis=-1).sum(
            axis=-1, dtype=u32
        )
        store(group, count + plus(group))

    return run


def _scalar_result(ins: Instruction) -> Run:
    """gfx12's ``v_s_rcp_f32`` and its like: a vector unit's function of a scalar register."""
    operation = OPERATIONS.get("v_" + ins.name[4:])
    if operation is None:
        raise Fault("the emulator does not know this instruction")
    value, target = typed(ins, 0, "f32"), ins.operands[0].index
    return lambda group: group.write_scalar(target, operation.function(value(group))[:, 0].view(u32))


def _mixed(ins: Instruction) -> Run:
    """``v_fma_mix_f32``: each source is float32, or a float16 half that op_sel names where op_sel_hi says so."""
    halves, small = ins.bits("op_sel", 3), ins.bits("op_sel_hi", 3)

    def source(position: int) -> Read:
        if not small[position]:
            return typed(ins, position, "f32")
        value = typed(ins, position, "f16", halves[position])
        return lambda group: value(group).astype(f32)

    sources, store = [source(i) for i in range(3)], writer(ins, "f32")
    return lambda group: store(group, OPERATIONS["v_fma_f32"].function(*[value(group) for value in sources]))


def _divide_scale(ins: Instruction) -> Run:
    """No scaling: `v_div_fixup_f32` gives the exact quotient in any case. vcc (the second operand) says that none took place."""
    shifted = Instruction(ins.number, ins.pc, ins.size, ins.name, ins.text, (ins.operands[0], *ins.operands[2:]), ins.modifiers)
    value, store, out = typed(shifted, 0, "f32"), writer(ins, "f32"), ins.operands[1].index

    def run(group: Group) -> None:
        store(group, value(group))
        group.write_mask(out, np.zeros(len(group.rows), u64))

    return run


def _wide_product(ins: Instruction) -> Run:
    """``v_mad_u64_u32`` and signed: a 64-bit product of 32-bit factors plus 64 bits; the carry out (operand 1) is kept."""
    signed = "_i64" in ins.name
    a, b, c = raw(ins.operands[2]), raw(ins.operands[3]), raw(ins.operands[4], wide=True)
    target, out = ins.operands[0].index, ins.operands[1].index

    def run(group: Group) -> None:
        x, y, plus = a(group), b(group), c(group)
        if signed:
            product = (
                np.ascontiguousarray(x).view(i32).astype(np.int64) * np.ascontiguousarray(y).view(i32).astype(np.int64)
            ).view(u64)
        else:
            product = x.astype(u64) * y.astype(u64)
        total = product + plus
        if out != NULL:
            carry = np.broadcast_to(total < product, (len(group.rows), group.lanes))
            group.write_mask(out, to_bits(carry) & group.exec)
        write_pair(group, target, np.broadcast_to(total, np.broadcast_shapes(total.shape, (1, 1))))

    return run


def _packed_move(ins: Instruction) -> Run:
    """``v_pk_mov_b32``: op_sel names the word of each source pair that goes to the low and to the high register."""
    words = ins.bits("op_sel", 2)
    low, high = (packed_pair(ins, i, "u32", words[i], 0) for i in range(2))
    target = ins.operands[0].index

    def run(group: Group) -> None:
        first, second = np.array(low(group)), np.array(high(group))
        group.write_vector(target, first)
        group.write_vector(target + 1, second)

    return run


def _bit_operation(ins: Instruction) -> Run:
    """``v_bitop3_b32`` and ``v_bitop2_b32``: bit abc of the table ``bitop3`` is the result for the bits a, b, c of the
    sources."""
    table, count = ins.value("bitop3"), len(ins.operands) - 1
    sources, store = [typed(ins, i, "u32") for i in range(count)], writer(ins, "u32")

    def run(group: Group) -> None:
        values = [source(group) for source in sources]
        a, b, c = values if count == 3 else (*values, u32(0))
        result: Any = u32(0)
        for row in range(8):
            if table >> row & 1:
                result = result | (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        store(group, np.asarray(result, u32))

    return run


def _swap(ins: Instruction) -> Run:
    a, b = ins.operands[0].index, ins.operands[1].index

    def run(group: Group) -> None:
        first, second = np.array(group.read_vector(a)), np.array(group.read_vector(b))
        group.write_vector(a, second)
        group.write_vector(b, first)

    return run


_SPECIAL: dict[str, Callable[[Instruction], Run]] = {
    "v_cndmask_b32": _select,
    "v_cndmask_b16": _select16,
    "v_readfirstlane_b32": _first_lane,
    "v_readlane_b32": _read_lane,
    "v_writelane_b32": _write_lane,
    "v_mbcnt_lo_u32_b32": _count_lanes,
    "v_mbcnt_hi_u32_b32": _count_lanes,
    "v_fma_mix_f32": _mixed,
    "v_mad_mix_f32": _mixed,
    "v_div_scale_f32": _divide_scale,
    "v_swap_b32": _swap,
    "v_pk_mov_b32": _packed_move,
    "v_bitop3_b32": _bit_operation,
    "v_bitop2_b32": _bit_operation,
    **dict.fromkeys(("v_mad_u64_u32", "v_mad_co_u64_u32", "v_mad_i64_i32", "v_mad_co_i64_i32"), _wide_product),
}
