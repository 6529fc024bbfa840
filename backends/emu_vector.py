"""Vector instructions: one value a lane. A table gives each instruction's types and function; the rest is reading and writing
operands.

Meanings: AMD instruction set documents (CDNA3, RDNA3, RDNA4), chapters VOP1, VOP2, VOP3, VOP3P, VOPC, SDWA, DPP.
"""

from __future__ import annotations

import re

import numpy as np

from .emu_decode import EXEC, NULL, VCC, Fault, Instruction
from .emu_operands import TYPES, Read, Run, raw, typed, writer
from .emu_scalar import COMPARE
from .emu_state import Group, to_bits, to_lanes
from .emu_vector_special import packed_pair, special
from .emu_vector_table import OPERATIONS, PACKED, Operation

__all__ = ["vector"]

u16, u32, u64, f16 = np.uint16, np.uint32, np.uint64, np.float16

_SWAPPED_CARRY = {"v_subrev_co_u32", "v_subbrev_co_u32", "v_subrev_co_ci_u32"}


def vector(ins: Instruction) -> Run:
    """What a vector instruction does, apart from matrix instructions. Raises `Fault` for one that is not known."""
    name = ins.name
    if name in OPERATIONS:
        return _operation(ins, OPERATIONS[name])
    if name in PACKED:
        return _packed(ins, PACKED[name])
    for maker in (_compare, _carry, special):
        run = maker(ins)
        if run is not None:
            return run
    raise Fault("the emulator does not know this instruction")


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
    return lambda group: group.read_vector(target.index).view(TYPES[kind])


def _packed(ins: Instruction, operation: Operation) -> Run:
    """Two 16-bit or two 32-bit operations in one: op_sel and op_sel_hi name the halves each side reads."""
    count = len(operation.sources)
    low, high = ins.bits("op_sel", count), ins.bits("op_sel_hi", count, 1)
    flips = ins.bits("neg_lo", count), ins.bits("neg_hi", count)
    part = packed_pair if operation.result.endswith("32") else _packed_half
    sides = [
        [part(ins, i, kind, chosen[i], flip[i]) for i, kind in enumerate(operation.sources)]
        for chosen, flip in ((low, flips[0]), (high, flips[1]))
    ]
    target, wide = ins.operands[0].index, operation.result.endswith("32")

    def run(group: Group) -> None:
        first, second = (operation.function(*[source(group) for source in side]) for side in sides)
        if wide:
            first = np.array(first)  # the second write must not change it
            second = np.array(second)
            group.write_vector(target, first.view(u32))
            group.write_vector(target + 1, second.view(u32))
        else:
            group.write_vector(
                target,
                np.ascontiguousarray(first).view(u16).astype(u32) | np.ascontiguousarray(second).view(u16).astype(u32) << u32(16),
            )

    return run


def _packed_half(ins: Instruction, position: int, kind: str, half: int, flip: int) -> Read:
    value = typed(ins, position, kind, half)
    return (lambda group: -value(group)) if flip else value


# --- comparisons and carries


def _compare(ins: Instruction) -> Run | None:
    match = re.fullmatch(r"v_cmp(x?)_(\w+)_([uif](?:16|32|64))", ins.name)
    if not match or match[2] not in COMPARE:
        return None
    test, kind = COMPARE[match[2]], match[3]
    named = len(ins.operands) == 3
    shifted = (
        ins
        if named
        else Instruction(
            ins.number, ins.pc, ins.size, ins.name, ins.text, (ins.operands[0], *ins.operands), ins.modifiers, sdwa=ins.sdwa
        )
    )
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
