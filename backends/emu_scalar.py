"""Scalar instructions: one value a wave. Each becomes a function of a `Group`.

Meanings: AMD instruction set documents (CDNA3, RDNA3, RDNA4), chapters SOP1, SOP2, SOPC, SOPK.
"""

from __future__ import annotations

import re
from typing import Any, Callable

import numpy as np

from .emu_decode import EXEC, SCC, Fault, Instruction, Operand
from .emu_operands import extended
from .emu_state import Array, Group
from .emu_vector_math import bit_count, bit_reverse, find_first, float_to_int, fma, leading_zeros

__all__ = ["CONDITIONS", "scalar"]

u32, u64, i32, i64, f32 = np.uint32, np.uint64, np.int32, np.int64, np.float32
Run = Callable[[Group], None]

_BITS = {"b32": u32, "u32": u32, "i32": i32, "f32": f32, "b64": u64, "u64": u64, "i64": i64}
_SPELLING = {
    "andn2": "and_not1",
    "orn2": "or_not1",
    "ff1": "ctz",
    "flbit": "clz",
    "add_co": "add",
    "sub_co": "sub",
    "add_co_ci": "addc",
    "sub_co_ci": "subb",
    "max_num": "max",
    "min_num": "min",
}

_LOGIC: dict[str, Callable[..., Array]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "and_not1": lambda a, b: a & ~b,
    "or_not1": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
    "not": lambda a: ~a,
}
"""Operations that set SCC to "result is not zero"."""

COMPARE: dict[str, Callable[..., Array]] = {
    "eq": np.equal,
    "lg": np.not_equal,
    "ne": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
    "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
}
_FLOAT: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.fmax,
    "min": np.fmin,
    "trunc": np.trunc,
    "floor": np.floor,
    "ceil": np.ceil,
    "rndne": np.rint,
    "fmaak": fma,
    "fmamk": fma,
}

CONDITIONS: dict[str, Callable[[Group], Array]] = {
    "s_cbranch_scc0": lambda g: g.read_scalar(SCC) == 0,
    "s_cbranch_scc1": lambda g: g.read_scalar(SCC) != 0,
    "s_cbranch_vccz": lambda g: g.vcc_zero(),
    "s_cbranch_vccnz": lambda g: ~g.vcc_zero(),
    "s_cbranch_execz": lambda g: g.exec == 0,
    "s_cbranch_execnz": lambda g: g.exec != 0,
}
"""Conditional branches: (rows,) of who takes it."""


def read(operand: Operand, kind: Any) -> Callable[[Group], Array]:
    """A function that reads a scalar operand as ``kind``, one value a row."""
    wide = np.dtype(kind).itemsize == 8
    if operand.kind == "c":
        if wide and operand.number:
            raise Fault(f"the emulator does not know the operand {operand.text} of 64 bits")
        bits = extended(operand, kind is i64) & (0xFFFFFFFFFFFFFFFF if wide else 0xFFFFFFFF)
        constant = np.array([bits], u64 if wide else u32).view(kind)
        return lambda group: np.broadcast_to(constant, len(group.rows))
    if operand.kind != "s":
        raise Fault(f"the emulator does not know the operand {operand.text}")
    if wide:
        return lambda group: group.read_scalar64(operand.index).view(kind)
    return lambda group: np.ascontiguousarray(group.read_scalar(operand.index)).view(kind)


def write(operand: Operand, kind: Any) -> Callable[[Group, Array], None]:
    """A function that writes a scalar operand."""
    if np.dtype(kind).itemsize == 8:
        return lambda group, values: group.write_scalar64(operand.index, np.ascontiguousarray(values, kind).view(u64))
    return lambda group, values: group.write_scalar(operand.index, np.ascontiguousarray(values, kind).view(u32))


def scalar(ins: Instruction) -> Run:
    """What a scalar instruction does. Raises `Fault` for one that is not known."""
    for maker in (_compare, _bit_compare, _save_exec, _short_constant, _special, _arithmetic):
        run = maker(ins)
        if run is not None:
            return run
    raise Fault("the emulator does not know this instruction")


def _split(name: str) -> tuple[str, str]:
    """``s_and_not1_b64`` as ("and_not1", "b64"); other spellings of one operation become one."""
    match = re.fullmatch(r"s_(\w+?)_([buif](?:32|64))", name)
    if not match:
        return "", ""
    return _SPELLING.get(match[1], match[1]), match[2]


def _compare(ins: Instruction) -> Run | None:
    match = re.fullmatch(r"s_cmpk?_(n?\w+?)_([uif](?:32|64))", ins.name)
    if not match:
        return None
    kind, test = _BITS[match[2]], COMPARE[match[1]]
    a, b = (read(operand, kind) for operand in ins.operands[:2])
    return lambda group: group.write_scalar(SCC, test(a(group), b(group)))


def _bit_compare(ins: Instruction) -> Run | None:
    match = re.fullmatch(r"s_bitcmp([01])_b(32|64)", ins.name)
    if not match:
        return None
    kind = u64 if match[2] == "64" else u32
    a, b = read(ins.operands[0], kind), read(ins.operands[1], u32)
    wanted, top = kind(int(match[1])), u32(int(match[2]) - 1)
    return lambda group: group.write_scalar(SCC, (a(group) >> (b(group) & top).astype(kind) & kind(1)) == wanted)


def _save_exec(ins: Instruction) -> Run | None:
    match = re.fullmatch(r"s_(\w+?)_saveexec_b(32|64)", ins.name)
    if not match:
        return None
    kind = u64 if match[2] == "64" else u32
    combine = _LOGIC[_SPELLING.get(match[1], match[1])]
    source, save = read(ins.operands[1], kind), write(ins.operands[0], kind)
    execution = Operand("s", EXEC, 2 if kind is u64 else 1)
    current, change = read(execution, kind), write(execution, kind)

    def run(group: Group) -> None:
        old = current(group).copy()
        new = combine(source(group), old)
        save(group, old)
        change(group, new)
        group.write_scalar(SCC, new != 0)

    return run


def _short_constant(ins: Instruction) -> Run | None:
    """Instructions with a signed 16-bit constant."""
    match = re.fullmatch(r"s_(mov|mul|add|addk_co)k?(?:_co)?_i32", ins.name)
    if not match or "k_" not in ins.name:
        return None
    constant = i32(np.array(ins.operands[1].index & 0xFFFF, np.uint16).view(np.int16))
    target = ins.operands[0]
    value, store = read(target, i32), write(target, i32)
    if match[1] == "mov":
        return lambda group: store(group, np.broadcast_to(constant, len(group.rows)))
    if match[1] == "mul":
        return lambda group: store(group, value(group) * constant)

    def add(group: Group) -> None:
        exact = value(group).astype(i64) + int(constant)
        store(group, exact.astype(i32))
        group.write_scalar(SCC, exact != exact.astype(i32))

    return add


def _special(ins: Instruction) -> Run | None:
    if ins.name == "s_getpc_b64":
        return lambda group: group.write_scalar64(ins.operands[0].index, np.full(len(group.rows), ins.pc + ins.size, u64))
    if ins.name == "s_getreg_b32" and "HW_REG_IB_STS2" in ins.text:
        return lambda group: group.write_scalar(ins.operands[0].index, 0)  # gfx1250: no clusters of blocks
    if ins.name.startswith("s_cvt"):
        return _convert(ins)
    if ins.name == "s_pack_ll_b32_b16":
        a, b, store = read(ins.operands[1], u32), read(ins.operands[2], u32), write(ins.operands[0], u32)
        return lambda group: store(group, a(group) & u32(0xFFFF) | b(group) << u32(16))
    if ins.name in ("s_sext_i32_i8", "s_sext_i32_i16"):
        a, store, small = (
            read(ins.operands[1], u32),
            write(ins.operands[0], i32),
            np.int8 if ins.name.endswith("i8") else np.int16,
        )
        return lambda group: store(group, a(group).astype(small).astype(i32))
    return None


def _convert(ins: Instruction) -> Run | None:
    match = re.fullmatch(r"s_cvt_([uif]32)_([uif]32)", ins.name)
    if not match:
        return None
    to, source, store = _BITS[match[1]], read(ins.operands[1], _BITS[match[2]]), write(ins.operands[0], _BITS[match[1]])
    if to is f32:
        return lambda group: store(group, source(group).astype(f32))
    return lambda group: store(group, float_to_int(source(group), to))


def _arithmetic(ins: Instruction) -> Run | None:
    operation, suffix = _split(ins.name)
    if not operation:
        return None
    if suffix == "f32":
        return _float(ins, operation)
    kind = _BITS[suffix]
    if operation in _LOGIC:
        return _set_nonzero(ins, kind, _LOGIC[operation])
    maker = _MAKERS.get(operation)
    return maker(ins, kind) if maker else None


def _float(ins: Instruction, operation: str) -> Run | None:
    store, sources = write(ins.operands[0], f32), [read(operand, f32) for operand in ins.operands[1:]]
    if operation == "fmac":
        old = read(ins.operands[0], f32)
        return lambda group: store(group, fma(sources[0](group), sources[1](group), old(group)))
    function = _FLOAT.get(operation)
    return (lambda group: store(group, function(*[source(group) for source in sources]))) if function else None


def _set_nonzero(ins: Instruction, kind: Any, function: Callable[..., Array]) -> Run:
    store, sources = write(ins.operands[0], kind), [read(operand, kind) for operand in ins.operands[1:]]

    def run(group: Group) -> None:
        result = function(*[source(group) for source in sources])
        store(group, result)
        group.write_scalar(SCC, result != 0)

    return run


def _shift(ins: Instruction, kind: Any) -> Run:
    operation = _split(ins.name)[0]
    value, amount, store = read(ins.operands[1], kind), read(ins.operands[2], u32), write(ins.operands[0], kind)
    top = u32(np.dtype(kind).itemsize * 8 - 1)

    def run(group: Group) -> None:
        by = (amount(group) & top).astype(kind)
        result = value(group) << by if operation == "lshl" else value(group) >> by
        store(group, result)
        group.write_scalar(SCC, result != 0)

    return run


def _bit_field(ins: Instruction, kind: Any) -> Run:
    """(value >> offset) & width bits: offset and width lie in the second operand; sign-extended for i32 and i64."""
    value, place, store = read(ins.operands[1], kind), read(ins.operands[2], u32), write(ins.operands[0], kind)
    bits = np.dtype(kind).itemsize * 8

    def run(group: Group) -> None:
        offset = (place(group) & u32(bits - 1)).astype(kind)
        width = np.minimum(place(group) >> u32(16) & u32(127), bits - offset.astype(u32)).astype(kind)
        up = (kind(bits) - width - offset).astype(kind)
        shifted = value(group) << up >> (up + offset).astype(kind)
        result = np.where(width == 0, kind(0), shifted)
        store(group, result)
        group.write_scalar(SCC, result != 0)

    return run


def _add(ins: Instruction, kind: Any) -> Run:
    operation = _split(ins.name)[0]
    a, b, store = read(ins.operands[1], kind), read(ins.operands[2], kind), write(ins.operands[0], kind)
    minus, carries = operation in ("sub", "subb", "sub_nc"), operation in ("addc", "subb")
    if kind in (u64, i64):
        return lambda group: store(group, a(group) - b(group) if minus else a(group) + b(group))

    def run(group: Group) -> None:
        x, y = a(group).astype(i64), b(group).astype(i64)
        carry = group.read_scalar(SCC).astype(i64) if carries else 0
        exact = x - y - carry if minus else x + y + carry
        result = exact.astype(kind)
        store(group, result)
        group.write_scalar(SCC, result.astype(i64) != exact)

    return run


def _extreme(ins: Instruction, kind: Any) -> Run:
    a, b, store = read(ins.operands[1], kind), read(ins.operands[2], kind), write(ins.operands[0], kind)
    test = np.less if _split(ins.name)[0] == "min" else np.greater

    def run(group: Group) -> None:
        x, y = a(group), b(group)
        first = test(x, y)
        store(group, np.where(first, x, y))
        group.write_scalar(SCC, first)

    return run


def _select(ins: Instruction, kind: Any) -> Run:
    a, b, store = read(ins.operands[1], kind), read(ins.operands[2], kind), write(ins.operands[0], kind)
    return lambda group: store(group, np.where(group.read_scalar(SCC) != 0, a(group), b(group)))


def _conditional_move(ins: Instruction, kind: Any) -> Run:
    a, old, store = read(ins.operands[1], kind), read(ins.operands[0], kind), write(ins.operands[0], kind)
    return lambda group: store(group, np.where(group.read_scalar(SCC) != 0, a(group), old(group)))


def _plain(function: Callable[..., Array]) -> Callable[[Instruction, Any], Run]:
    """Operations that leave SCC alone."""

    def maker(ins: Instruction, kind: Any) -> Run:
        store, sources = write(ins.operands[0], kind), [read(operand, kind) for operand in ins.operands[1:]]
        return lambda group: store(group, function(*[source(group) for source in sources]))

    return maker


def _nonzero(function: Callable[..., Array]) -> Callable[[Instruction, Any], Run]:
    return lambda ins, kind: _set_nonzero(ins, kind, function)


def _of_bits(function: Callable[[Array], Array], sets_scc: bool = False) -> Callable[[Instruction, Any], Run]:
    """A count over the bits of a 32- or 64-bit operand, as its name's end says."""

    def maker(ins: Instruction, kind: Any) -> Run:
        source, store = read(ins.operands[1], u64 if ins.name.endswith("64") else u32), write(ins.operands[0], u32)

        def run(group: Group) -> None:
            result = function(source(group))
            store(group, result)
            if sets_scc:
                group.write_scalar(SCC, result != 0)

        return run

    return maker


def _multiply_high(a: Array, b: Array) -> Array:
    wide = i64 if a.dtype == i32 else u64
    return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)


def _shift_add(by: int) -> Callable[[Instruction, Any], Run]:
    def maker(ins: Instruction, kind: Any) -> Run:
        a, b, store = read(ins.operands[1], u32), read(ins.operands[2], u32), write(ins.operands[0], u32)

        def run(group: Group) -> None:
            exact = (a(group).astype(u64) << u64(by)) + b(group)
            store(group, exact.astype(u32))
            group.write_scalar(SCC, exact >> u64(32) != 0)

        return run

    return maker


_MAKERS: dict[str, Callable[[Instruction, Any], Run]] = {
    "mov": _plain(lambda a: a),
    "mul": _plain(np.multiply),
    "mul_hi": _plain(_multiply_high),
    "brev": _plain(bit_reverse),
    "abs": _nonzero(np.abs),
    "lshl": _shift,
    "lshr": _shift,
    "ashr": _shift,
    "bfe": _bit_field,
    "add": _add,
    "sub": _add,
    "addc": _add,
    "subb": _add,
    "add_nc": _add,
    "sub_nc": _add,
    "min": _extreme,
    "max": _extreme,
    "cselect": _select,
    "cmov": _conditional_move,
    "ctz_i32": _of_bits(find_first),
    "ff1_i32": _of_bits(find_first),
    "clz_i32": _of_bits(leading_zeros),
    "flbit_i32": _of_bits(leading_zeros),
    "bcnt1_i32": _of_bits(bit_count, sets_scc=True),
    **{f"lshl{n}_add": _shift_add(n) for n in (1, 2, 3, 4)},
    "bfm": _plain(lambda a, b: ((a.dtype.type(1) << (a & a.dtype.type(31))) - a.dtype.type(1)) << (b & b.dtype.type(31))),
}
