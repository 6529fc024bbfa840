"""Vector instructions: one value a lane. A table gives each instruction's types and function; the rest is reading and writing operands.

Meanings: AMD instruction set documents (CDNA3, RDNA3, RDNA4), chapters VOP1, VOP2, VOP3, VOP3P, VOPC, SDWA, DPP.
"""

from __future__ import annotations

import re
from typing import Any, Callable

import numpy as np

from .emu_decode import EXEC, NULL, VCC, Fault, Instruction, Operand
from .emu_scalar import COMPARE
from .emu_state import Array, Group, to_bits, to_lanes
from .emu_vector_table import OPERATIONS, PACKED, Operation

__all__ = ["vector"]

u16, u32, u64, i32, f16, f32 = np.uint16, np.uint32, np.uint64, np.int32, np.float16, np.float32
Run = Callable[[Group], None]
Read = Callable[[Group], Array]

_TYPES: dict[str, Any] = {"u16": np.uint16, "i16": np.int16, "f16": np.float16, "u32": np.uint32, "i32": np.int32, "f32": np.float32,
                          "u64": np.uint64, "i64": np.int64, "f64": np.float64}
_FIELDS = {"DWORD": (0, 0xFFFFFFFF), "WORD_0": (0, 0xFFFF), "WORD_1": (16, 0xFFFF), "BYTE_0": (0, 0xFF), "BYTE_1": (8, 0xFF),
           "BYTE_2": (16, 0xFF), "BYTE_3": (24, 0xFF)}
_DPP = ("quad_perm", "row_shl", "row_shr", "row_ror", "row_mirror", "row_half_mirror", "row_share", "row_xmask", "row_newbcast")
_SWAPPED_CARRY = {"v_subrev_co_u32", "v_subbrev_co_u32", "v_subrev_co_ci_u32"}


def vector(ins: Instruction) -> Run:
    """What a vector instruction does, apart from matrix instructions. Raises `Fault` for one that is not known."""
    name = ins.name
    if name in OPERATIONS:
        return _operation(ins, OPERATIONS[name])
    if name in PACKED:
        return _packed(ins, PACKED[name])
    for maker in (_compare, _carry, _special):
        run = maker(ins)
        if run is not None:
            return run
    raise Fault("the emulator does not know this instruction")


# --- reading and writing

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
    if operand.number and number == "f64":
        return int(np.array(float(operand.number), np.float64).view(u64))
    return operand.index & (0xFFFFFFFFFFFFFFFF if wide else 0xFFFFFFFF)


def typed(ins: Instruction, position: int, kind: str, half: int | None = None) -> Read:
    """Source operand ``position`` (0 is the first after the destination) as an array of a type of `_TYPES`, modifiers applied."""
    operand = ins.operands[position + 1]
    bits = raw(operand, kind.endswith("64"), kind)
    if ins.sdwa and kind.endswith(("16", "32")):
        bits = _field(bits, *_FIELDS[ins.modifiers.get(f"src{position}_sel", "DWORD")])
    if position == 0 and any(name in ins.modifiers for name in _DPP):
        bits = _permuted(ins, bits)
    if kind.endswith("16"):
        bits = _half(ins, operand, position, bits, half)
    return _signed(bits, _TYPES[kind], operand)


def _field(bits: Read, shift: int, mask: int) -> Read:
    return bits if mask == 0xFFFFFFFF else lambda group: bits(group) >> u32(shift) & u32(mask)


def _half(ins: Instruction, operand: Operand, position: int, bits: Read, half: int | None) -> Read:
    """16 bits of a register: the half that the operand's suffix, op_sel or the caller names."""
    high = bool(half) if half is not None else operand.half == "h" or bool(ins.bits("op_sel", 4)[position])
    if operand.kind == "c" and not (half is None and operand.number == ""):
        high = False        # a floating-point constant has 16 bits
    return (lambda group: (bits(group) >> u32(16)).astype(u16)) if high and operand.kind != "c" else lambda group: bits(group).astype(u16)


def _signed(bits: Read, kind: Any, operand: Operand) -> Read:
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
    """Data-parallel primitives: lanes read from other lanes of their row of 16; where there is none, 0 (bound_ctrl) is required."""
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
    source = {"row_shr": at - amount, "row_shl": at + amount, "row_ror": (at - amount) % 16, "row_xmask": at ^ amount,
              "row_share": 0 * at + amount, "row_newbcast": 0 * at + amount, "row_mirror": 15 - at,
              "row_half_mirror": (at & 8) + 7 - (at & 7)}[name]
    return row + source.clip(0, 15), (source >= 0) & (source < 16)


def writer(ins: Instruction, kind: str, gfx9: bool = False) -> Callable[[Group, Array], None]:
    """A function that writes the destination, whose values have a type of `_TYPES`."""
    target = ins.operands[0]
    if kind.endswith("64"):
        return lambda group, values: _write_pair(group, target.index, np.ascontiguousarray(values).view(u64))
    if ins.sdwa and ins.modifiers.get("dst_sel", "DWORD") != "DWORD":
        return _field_writer(ins)
    if not kind.endswith("16"):
        return lambda group, values: group.write_vector(target.index, values.view(u32))
    high = target.half == "h" or bool(ins.bits("op_sel", 4)[len(ins.operands) - 1])

    def run(group: Group, values: Array) -> None:
        bits = np.ascontiguousarray(values).view(u16).astype(u32)
        if group.batch.kernel.generation == 9 and not high:
            group.write_vector(target.index, bits)      # gfx9 clears the other half
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


def _write_pair(group: Group, register: int, values: Array) -> None:
    group.write_vector(register, values.astype(u32))
    group.write_vector(register + 1, (values >> u64(32)).astype(u32))


# --- the table's instructions

def _operation(ins: Instruction, operation: Operation) -> Run:
    if ins.flag("clamp") or "mul" in ins.modifiers or "div" in ins.modifiers:
        raise Fault("the emulator does not know output modifiers")
    function, store = operation.function, writer(ins, operation.result)
    sources = [typed(ins, i, kind) for i, kind in enumerate(operation.sources)]
    if operation.accumulates:
        old = _old(ins, operation.result)
        sources = [*sources, old]
    if len(sources) == 1:
        only = sources[0]
        return lambda group: store(group, function(only(group)))
    if len(sources) == 2:
        a, b = sources
        return lambda group: store(group, function(a(group), b(group)))
    return lambda group: store(group, function(*[source(group) for source in sources]))


def _old(ins: Instruction, kind: str) -> Read:
    """The destination's value before the instruction."""
    target = ins.operands[0]
    if kind == "f16" and target.half == "h":
        return lambda group: (group.read_vector(target.index) >> u32(16)).astype(u16).view(f16)
    if kind == "f16":
        return lambda group: group.read_vector(target.index).astype(u16).view(f16)
    return lambda group: group.read_vector(target.index).view(_TYPES[kind])


def _packed(ins: Instruction, operation: Operation) -> Run:
    """Two 16-bit or two 32-bit operations in one: op_sel and op_sel_hi name the halves each side reads."""
    count = len(operation.sources)
    low, high = ins.bits("op_sel", count), ins.bits("op_sel_hi", count, 1)
    flips = ins.bits("neg_lo", count), ins.bits("neg_hi", count)
    part = _packed_pair if operation.result.endswith("32") else _packed_half
    sides = [[part(ins, i, kind, chosen[i], flip[i]) for i, kind in enumerate(operation.sources)]
             for chosen, flip in ((low, flips[0]), (high, flips[1]))]
    target, wide = ins.operands[0].index, operation.result.endswith("32")

    def run(group: Group) -> None:
        first, second = (operation.function(*[source(group) for source in side]) for side in sides)
        if wide:
            first = np.array(first)     # the second write must not change it
            second = np.array(second)
            group.write_vector(target, first.view(u32))
            group.write_vector(target + 1, second.view(u32))
        else:
            group.write_vector(target, np.ascontiguousarray(first).view(u16).astype(u32) | np.ascontiguousarray(second).view(u16).astype(u32) << u32(16))
    return run


def _packed_half(ins: Instruction, position: int, kind: str, half: int, flip: int) -> Read:
    value = typed(ins, position, kind, half)
    return (lambda group: -value(group)) if flip else value


def _packed_pair(ins: Instruction, position: int, kind: str, half: int, flip: int) -> Read:
    operand = ins.operands[position + 1]
    if operand.kind != "c":
        operand = Operand(operand.kind, operand.index + half, 1, operand.neg, operand.absolute, "", operand.text)
    value = _signed(raw(operand), _TYPES[kind], operand)
    return (lambda group: -value(group)) if flip else value


# --- comparisons and carries

def _compare(ins: Instruction) -> Run | None:
    match = re.fullmatch(r"v_cmp(x?)_(\w+)_([uif](?:16|32|64))", ins.name)
    if not match or match[2] not in COMPARE:
        return None
    test, kind = COMPARE[match[2]], match[3]
    named = len(ins.operands) == 3
    shifted = ins if named else Instruction(ins.number, ins.pc, ins.size, ins.name, ins.text, (ins.operands[0], *ins.operands), ins.modifiers, sdwa=ins.sdwa)
    a, b = typed(shifted, 0, kind), typed(shifted, 1, kind)
    target = ins.operands[0].index if named else EXEC if match[1] else VCC
    both = bool(match[1]) and named and target != EXEC

    def run(group: Group) -> None:
        bits = to_bits(np.broadcast_to(test(a(group), b(group)), (len(group.rows), group.lanes))) & group.exec
        group.write_mask(target, bits)
        if both:
            group.write_mask(EXEC, bits)
    return run


def _carry(ins: Instruction) -> Run | None:
    """Additions and subtractions with a carry out, and with a carry in for ``addc``, ``subb`` and ``_co_ci``."""
    if not re.fullmatch(r"v_(add|sub|subrev|addc|subb|subbrev)(_co|_co_ci)_u32", ins.name):
        return None
    minus = ins.name.startswith("v_sub")
    swapped = ins.name in _SWAPPED_CARRY
    takes = ins.name.startswith(("v_addc", "v_subb")) or "_ci" in ins.name
    target, out = ins.operands[0].index, ins.operands[1].index
    a, b = raw(ins.operands[3 if swapped else 2]), raw(ins.operands[2 if swapped else 3])
    carry_in = ins.operands[4].index if takes else NULL

    def run(group: Group) -> None:
        carry = to_lanes(group.read_mask(carry_in), group.lanes).astype(u64) if takes else u64(0)
        x, y = a(group).astype(u64), b(group).astype(u64)
        exact = x - y - carry if minus else x + y + carry
        group.write_vector(target, exact.astype(u32))
        overflow = np.broadcast_to(exact >> u64(32) != 0, (len(group.rows), group.lanes))
        group.write_mask(out, to_bits(overflow) & group.exec)
    return run


# --- instructions of their own kind

def _special(ins: Instruction) -> Run | None:
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
        lanes = group.mask.argmax(axis=1)       # of no active lane, lane 0
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
        count = np.unpackbits(np.ascontiguousarray(chosen).view(np.uint8).reshape(*chosen.shape, 8), axis=-1).sum(axis=-1, dtype=u32)
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
            product = (np.ascontiguousarray(x).view(i32).astype(np.int64) * np.ascontiguousarray(y).view(i32).astype(np.int64)).view(u64)
        else:
            product = x.astype(u64) * y.astype(u64)
        total = product + plus
        if out != NULL:
            carry = np.broadcast_to(total < product, (len(group.rows), group.lanes))
            group.write_mask(out, to_bits(carry) & group.exec)
        _write_pair(group, target, np.broadcast_to(total, np.broadcast_shapes(total.shape, (1, 1))))
    return run


def _packed_move(ins: Instruction) -> Run:
    """``v_pk_mov_b32``: op_sel names the word of each source pair that goes to the low and to the high register."""
    words = ins.bits("op_sel", 2)
    low, high = (_packed_pair(ins, i, "u32", words[i], 0) for i in range(2))
    target = ins.operands[0].index

    def run(group: Group) -> None:
        first, second = np.array(low(group)), np.array(high(group))
        group.write_vector(target, first)
        group.write_vector(target + 1, second)
    return run


def _bit_operation(ins: Instruction) -> Run:
    """``v_bitop3_b32`` and ``v_bitop2_b32``: bit abc of the table ``bitop3`` is the result for the bits a, b, c of the sources."""
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
    "v_cndmask_b32": _select, "v_cndmask_b16": _select16, "v_readfirstlane_b32": _first_lane, "v_readlane_b32": _read_lane, "v_writelane_b32": _write_lane,
    "v_mbcnt_lo_u32_b32": _count_lanes, "v_mbcnt_hi_u32_b32": _count_lanes, "v_fma_mix_f32": _mixed, "v_mad_mix_f32": _mixed,
    "v_div_scale_f32": _divide_scale, "v_swap_b32": _swap, "v_pk_mov_b32": _packed_move, "v_bitop3_b32": _bit_operation, "v_bitop2_b32": _bit_operation,
    **dict.fromkeys(("v_mad_u64_u32", "v_mad_co_u64_u32", "v_mad_i64_i32", "v_mad_co_i64_i32"), _wide_product),
}
