"""What an instruction reads and writes, and what undefined inputs mean for it.

Undefined values travel through arithmetic. They are a fault where they decide something: an address, a branch, the execution
mask, a value stored to memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Iterable

import numpy as np

from .emu_decode import EXEC, M0, SCC, SGPR, VCC, Fault, Instruction
from .emu_matrix import matrix_poison
from .emu_operands import raw
from .emu_state import ALL_BITS, Array, Group, to_lanes
from .emu_waits import register_name

__all__ = ["Effects", "apply_poison", "effects", "find_poison"]

_NO_RESULT = ("s_cmp", "s_bitcmp", "s_cbranch", "s_branch", "s_wait", "s_barrier", "s_endpgm", "s_nop")
_KEEPS_SCC = (
    "s_mov",
    "s_mul_",
    "s_cselect",
    "s_load",
    "s_getpc",
    "s_getreg",
    "s_cvt",
    "s_mulk",
    "s_pack",
    "s_sext",
    "s_brev",
    "s_ctz",
    "s_ff1",
    "s_clz",
    "s_flbit",
    "s_cmov",
    "s_add_nc",
    "s_sub_nc",
    "s_bfm",
)
_READS_SCC = re.compile(r"s_(addc|subb|add_co_ci|sub_co_ci)_u32|s_cselect_.*|s_cmov_.*|s_cbranch_scc.")
_READS_TARGET = re.compile(r"[sv]_(fmac|mac)_.*|s_(mulk|addk)_.*|s_cmov_.*")
_BITWISE = re.compile(r"s_(and|or|xor|andn2|and_not1|orn2|or_not1|nand|nor|xnor|not|mov|cselect)_b(32|64)")
_SECOND_RESULT = re.compile(
    r"v_(add|sub|subrev|addc|subb|subbrev)(_co|_co_ci)_u32|v_mad(_co)?_[ui]64_[ui]32|v_div_scale_f(32|64)"
)
_LOW_FROM_LOW = re.compile(r"v_mad(_co)?_[ui]64_[ui]32|v_lshl_add_u64|v_lshlrev_b64|v_(add|sub)_nc_u64|v_mul_u64")
"""64-bit instructions whose low word depends on low words only: compilers leave high words undefined that they do not need."""
_MEMORY = ("global_", "flat_", "buffer_", "scratch_")
_NOTHING = ("inv", "wbl2", "wb")


@dataclass(frozen=True)
class Effects:
    """``reads`` and ``writes`` are register numbers. ``kind``: "scalar", "bits" (scalar, bit by bit), "vector", "mask" (lanes
    to a scalar mask), "lane" (one lane to a scalar), "matrix", "lds", "read lane", "write lane" (one lane, named by an operand,
    whatever the mask says), or "decide" (no undefined
    value may be read).
    ``deciding``: those of the registers read that must be defined; ``masks``: scalar registers read as lane masks; ``high``:
    words that only the result's high word depends on."""

    reads: frozenset[int]
    writes: frozenset[int]
    kind: str
    deciding: frozenset[int] = frozenset()
    masks: frozenset[int] = frozenset()
    high: frozenset[int] = frozenset()
    parts: tuple[Effects, ...] = ()

    @property
    def touched(self) -> frozenset[int]:
        """All registers."""
        return self.reads | self.writes


def _pair(register: int, wave: int) -> set[int]:
    """A scalar mask of the wave's lanes."""
    return {SGPR + register, SGPR + register + 1} if wave == 64 else {SGPR + register}


def _registers(operands: Iterable[Any]) -> set[int]:
    return {register for operand in operands for register in operand.registers()}


def effects(ins: Instruction, wave: int) -> Effects:
    """The effects of an instruction of a kernel with waves of this many lanes."""
    name = ins.name
    if name == "dual":
        parts = tuple(effects(part, wave) for part in ins.parts)
        return Effects(
            parts[0].reads | parts[1].reads, parts[0].writes | parts[1].writes, "vector", parts=parts
        )
    if name.startswith("s_"):
        return _scalar(ins, wave)
    if name.startswith(_MEMORY):
        return _memory(ins)
    if name.startswith("ds_"):
        return _lds(ins)
    if name.startswith(("v_mfma", "v_wmma")):
        return Effects(frozenset(_registers(ins.operands[1:])), frozenset(_registers(ins.operands[:1])), "matrix")
    return _vector(ins, wave)


def _scalar(ins: Instruction, wave: int) -> Effects:
    name = ins.name
    if name.startswith("s_cbranch"):
        condition = {"scc": {SGPR + SCC}, "vcc": _pair(VCC, wave), "exe": _pair(EXEC, wave)}[name[10:13]]
        return Effects(frozenset(condition), frozenset(), "decide", frozenset(condition))
    if name.startswith(("s_load", "s_buffer_load")):
        address = frozenset(_registers(ins.operands[1:]))
        return Effects(address, frozenset(_registers(ins.operands[:1])), "decide", address)
    if name.startswith(_NO_RESULT) and not name.startswith(("s_cmp", "s_bitcmp")):
        return Effects(frozenset(), frozenset(), "scalar")
    result = 0 if name.startswith(("s_cmp", "s_bitcmp")) else 1
    reads, writes = _registers(ins.operands[result:]), _registers(ins.operands[:result])
    if _READS_TARGET.fullmatch(name):
        reads |= writes
    if _READS_SCC.fullmatch(name):
        reads.add(SGPR + SCC)
    if not name.startswith(_KEEPS_SCC) and not name.endswith("f32") or name.startswith("s_cmp"):
        writes.add(SGPR + SCC)
    if "saveexec" in name:
        reads |= _pair(EXEC, wave)
        writes |= _pair(EXEC, wave)
    return Effects(frozenset(reads), frozenset(writes), "bits" if _BITWISE.fullmatch(name) else "scalar")


def _memory(ins: Instruction) -> Effects:
    if ins.name.endswith(_NOTHING):
        return Effects(frozenset(), frozenset(), "scalar")
    to_lds, store = "lds" in ins.modifiers or "_lds_" in ins.name, "_store" in ins.name
    result = 0 if store or (to_lds and len(ins.operands) < 4 + (not ins.name.startswith("buffer"))) else 1
    reads = _registers(ins.operands[result:]) | ({SGPR + M0} if to_lds else set())
    return Effects(frozenset(reads), frozenset(_registers(ins.operands[:result])), "decide", frozenset(reads))


def _lds(ins: Instruction) -> Effects:
    writes = "write" in ins.name or "store" in ins.name
    reads = _registers(ins.operands[0 if writes else 1 :])
    deciding = _registers(ins.operands[:1] if writes else ins.operands[1:2])
    if "permute" in ins.name or "swizzle" in ins.name:
        deciding = reads
    return Effects(
        frozenset(reads), frozenset() if writes else frozenset(_registers(ins.operands[:1])), "lds", frozenset(deciding)
    )


def _vector(ins: Instruction, wave: int) -> Effects:
    name, operands = ins.name, ins.operands
    if name.startswith("v_cmp"):
        named = len(operands) == 3
        target = _registers(operands[:1]) if named else _pair(EXEC, wave) if name.startswith("v_cmpx") else _pair(VCC, wave)
        extra = _pair(EXEC, wave) if name.startswith("v_cmpx") else set()
        return Effects(frozenset(_registers(operands[1 if named else 0 :])), frozenset(target | extra), "mask")
    if name in ("v_readlane_b32", "v_writelane_b32"):
        write = name == "v_writelane_b32"
        return Effects(frozenset(_registers(operands[0 if write else 1 :])), frozenset(_registers(operands[:1])),
                       "write lane" if write else "read lane", frozenset(_registers(operands[2:])))
    if name == "v_readfirstlane_b32" or name.startswith("v_s_"):
        return Effects(frozenset(_registers(operands[1:])), frozenset(_registers(operands[:1])), "lane")
    results = 2 if _SECOND_RESULT.fullmatch(name) else 1
    reads, writes, masks = _registers(operands[results:]), _registers(operands[:results]), set()
    if "_ci_" in name or name.startswith(("v_addc", "v_subb")):
        masks = _registers(operands[4:5])
    elif name.startswith("v_cndmask"):
        masks = _registers(operands[3:4]) or _pair(VCC, wave)
        reads |= masks
    if _READS_TARGET.fullmatch(name) or name == "v_swap_b32":
        reads |= _registers(operands[:1])
    if name == "v_swap_b32":
        writes |= reads
    high = (
        {operand.registers()[1] for operand in operands[results:] if operand.kind in "vs" and operand.count == 2}
        if _LOW_FROM_LOW.fullmatch(name)
        else set()
    )
    return Effects(
        frozenset(reads),
        frozenset(writes),
        "vector",
        masks=frozenset(masks),
        high=frozenset(high - _low_words(operands[results:])),
    )


def _low_words(operands: Iterable[Any]) -> set[int]:
    return {operand.registers()[0] for operand in operands if operand.kind in "vs" and operand.registers()}


# --- poison


def find_poison(group: Group, ins: Instruction, e: Effects) -> dict[int, Any] | None:
    """What the registers written will have of undefined lanes or bits; None where nothing undefined is read. Raises `Fault` where
    an undefined value decides something."""
    for register in e.deciding:
        if register in group.batch.dirty:
            _require(group, register)
    if e.kind in ("decide", "lds"):
        return None
    if e.kind == "matrix":
        return dict(zip(ins.operands[0].registers(), matrix_poison(ins, group.batch.kernel, group), strict=True))
    if e.kind in ("scalar", "bits"):
        return _scalar_poison(group, e)
    if e.kind.endswith(" lane"):
        return _one_lane_poison(group, ins, e)
    if e.parts:     # a dual-issue instruction
        halves = [find_poison(group, part, effect) or {} for part, effect in zip(ins.parts, e.parts, strict=True)]
        return {**halves[0], **halves[1]}
    lanes = _selected_poison(group, ins, e) if ins.name == "v_cndmask_b32" and not ins.sdwa else _lane_poison(group, e)
    if not lanes.any():
        return None
    if e.kind == "lane":
        first = group.mask.argmax(axis=1)
        bad = to_lanes(lanes, group.lanes)[np.arange(len(lanes)), first]
        return dict.fromkeys(e.writes, np.where(bad, np.uint32(0xFFFFFFFF), np.uint32(0)))
    found = {register: lanes if register < SGPR else _mask_part(group, register, e, lanes) for register in e.writes}
    if e.high:
        found[ins.operands[0].index] = _lane_poison(group, e, e.high)
    return found


def _require(group: Group, register: int) -> None:
    if register < SGPR:
        bad = group.vector_poison(register) & group.exec
    else:
        bad = group.scalar_poison(register - SGPR).astype(np.uint64)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        lane = int(np.flatnonzero(to_lanes(bad, 64)[row])[0]) if register < SGPR else None
        raise Fault(f"it uses {register_name(register)}, which holds a value that was never written", row, lane)


def _scalar_poison(group: Group, e: Effects) -> dict[int, Any] | None:
    bits = np.zeros(len(group.rows), np.uint32)
    for register in e.reads & group.batch.dirty:
        bits = bits | group.scalar_poison(register - SGPR)
    if not bits.any():
        return None
    if e.kind == "scalar":
        bits = np.where(bits != 0, np.uint32(0xFFFFFFFF), np.uint32(0))
    return dict.fromkeys(e.writes, bits)


def _lane_poison(group: Group, e: Effects, without: frozenset[int] = frozenset()) -> Array:
    """(rows,) lane bits that depend on undefined values, of active lanes only."""
    lanes = np.zeros(len(group.rows), np.uint64)
    for register in (e.reads - without) & group.batch.dirty:
        if register < SGPR:
            lanes = lanes | group.vector_poison(register)
        else:
            bits = group.scalar_poison(register - SGPR).astype(np.uint64)
            lanes = lanes | (_placed(bits, register, e) if register in e.masks else np.where(bits != 0, ALL_BITS, np.uint64(0)))
    return lanes & group.exec


def _one_lane_poison(group: Group, ins: Instruction, e: Effects) -> dict[int, Any]:
    """Of an instruction that moves one lane from or to a scalar: the other lanes of the vector are as they were."""
    lane = np.broadcast_to(raw(ins.operands[2])(group), (len(group.rows), 1))[:, 0].astype(np.uint64) & np.uint64(group.lanes - 1)
    target, bit = min(e.writes), np.uint64(1) << lane
    if e.kind == "read lane":
        bad = group.vector_poison(ins.operands[1].index) & bit
        return {target: np.where(bad != 0, np.uint32(0xFFFFFFFF), np.uint32(0))}
    source = [group.scalar_poison(register - SGPR) for register in _registers(ins.operands[1:2])]
    bad = source[0] != 0 if source else np.zeros(len(group.rows), bool)
    return {target: group.vector_poison(target) & ~bit | np.where(bad, bit, np.uint64(0))}


def _selected_poison(group: Group, ins: Instruction, e: Effects) -> Array:
    """Of a selection only the value that is taken matters, and the condition."""
    chosen = group.read_mask(min(e.masks) - SGPR)
    first, second = (frozenset(operand.registers()) for operand in ins.operands[1:3])
    a, b = (_lane_poison(group, e, e.reads - one) for one in (first, second))
    return a & ~chosen | b & chosen | _lane_poison(group, e, e.reads - e.masks)


def _placed(bits: Array, register: int, e: Effects) -> Array:
    """The bits of one register of a mask at their lanes."""
    return bits << np.uint64(32 if register != min(e.masks) else 0)


def _mask_part(group: Group, register: int, e: Effects, lanes: Array) -> Array:
    """The part of lane bits that a scalar register of a mask holds."""
    upper = register - 1 in e.writes and register != SGPR + EXEC
    return (lanes >> np.uint64(32 if upper else 0)).astype(np.uint32)


def apply_poison(group: Group, e: Effects, found: dict[int, Any] | None) -> None:
    """Note it after the instruction has been executed. Raises `Fault` if the execution mask became undefined."""
    for register in e.writes:
        poison = 0 if found is None else found.get(register, 0)
        if found is None and register not in group.batch.dirty:
            continue
        if register < SGPR:
            group.define_vector(register, poison, all_lanes=e.kind in ("matrix", "write lane"))
            continue
        if register in (SGPR + EXEC, SGPR + EXEC + 1) and np.any(poison):
            raise Fault("it makes the execution mask depend on a value that was never written", int(np.flatnonzero(poison)[0]))
        group.define_scalar(register - SGPR, poison)
