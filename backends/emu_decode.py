"""From ``llvm-objdump -d -l`` text to instruction objects.

An `Instruction` keeps what the text says: operands, modifiers, the two halves of a dual-issue instruction. What it does is
decided in the emu_scalar, emu_vector, emu_matrix, emu_memory and emu_lds modules.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from .emu_elf import ACC

__all__ = ["EXEC", "Instruction", "M0", "NULL", "Operand", "SCALARS", "SCC", "SGPR", "VCC", "Fault", "parse"]

SGPR = 1024
"""Register numbers: vector registers from 0 (accumulation registers from `ACC`), scalar registers from here."""
VCC, TTMP, M0, NULL, EXEC, SCC, SHARED_BASE = 106, 108, 124, 125, 126, 128, 130
SCALARS = 140
"""Scalar registers kept for a wave."""

_NAMED = {
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
    "m0": (M0, 1),
    "null": (NULL, 2),
    "scc": (SCC, 1),
    "flat_scratch": (SHARED_BASE + 4, 2),
    "flat_scratch_lo": (SHARED_BASE + 4, 1),
    "flat_scratch_hi": (SHARED_BASE + 5, 1),
}
_FLOATS = {"0.15915494": 0x3E22F983, "0.15915494309189532": 0x3E22F983}
_REGISTER = re.compile(r"(v|a|s|ttmp)(?:\[(\d+):(\d+)\]|(\d+))(\.[lh])?")
_LINE = re.compile(r"^\t(\S+)(?:\s+(.*?))?\s*// ([0-9A-F]{8,16}): ((?:[0-9A-F]{8} ?)+)")
_PLACE = re.compile(r"^; (\S.*):(\d+)$")
_SUFFIX = re.compile(r"_(e32|e64|sdwa|dpp|e64_dpp)$")


class Fault(Exception):
    """Something a kernel must not do, or that the emulator does not know. ``row`` (its position in the group) and ``lane`` where
    they are known."""

    def __init__(self, reason: str, row: int | None = None, lane: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.row, self.lane = reason, row, lane


@dataclass(frozen=True)
class Operand:
    """``kind``: "v" vector register, "s" scalar register, "c" constant, "x" anything else (off, a hardware register name).

    ``index`` is the first register (in its file) or the constant's bits; ``count`` the registers named; ``half`` "l" or "h" of
    16-bit registers; ``number`` the text of a floating-point constant, whose bits depend on the type it is read as.
    """

    kind: str
    index: int
    count: int = 1
    neg: bool = False
    absolute: bool = False
    half: str = ""
    text: str = ""
    number: str = ""

    def registers(self, count: int | None = None) -> range:
        """Register numbers of the operand (`SGPR` added for scalars); empty for constants and null."""
        count = self.count if count is None else count
        if self.kind == "v":
            return range(self.index, self.index + count)
        if self.kind == "s" and self.index != NULL:
            return range(SGPR + self.index, SGPR + self.index + count)
        return range(0)


@dataclass
class Instruction:
    """One decoded instruction. ``target``: number of the instruction a branch goes to; ``place``: "file:line" where known."""

    number: int
    pc: int
    size: int
    name: str
    text: str
    operands: tuple[Operand, ...] = ()
    modifiers: dict[str, str] = field(default_factory=dict)
    parts: tuple[Instruction, ...] = ()
    place: str = ""
    target: int = -1
    sdwa: bool = False

    def flag(self, name: str) -> bool:
        """Whether a modifier without a value is there."""
        return name in self.modifiers

    def value(self, name: str, default: int = 0) -> int:
        """A modifier's number."""
        return int(self.modifiers[name], 0) if name in self.modifiers else default

    def bits(self, name: str, count: int, default: int = 0) -> list[int]:
        """A modifier such as ``op_sel:[0,1,0]`` as ``count`` numbers."""
        text = self.modifiers.get(name)
        found = [int(part) for part in text.strip("[]").split(",")] if text else []
        return (found + [default] * count)[:count] if found else [default] * count

    def __str__(self) -> str:
        return f"{self.text}  at {self.pc:#x}{f' ({self.place})' if self.place else ''}"


def parse(text: str) -> list[Instruction]:
    """Every instruction of a disassembly, in order; branches are resolved."""
    found: list[Instruction] = []
    place = ""
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            pc, words = int(match[3], 16), match[4].split()
            found.append(_instruction(len(found), pc, 4 * len(words), match[1], match[2] or "", place))
        elif line.startswith("; "):
            where = _PLACE.match(line)
            place = f"{where[1]}:{where[2]}" if where else place
        elif line.endswith(">:"):
            place = ""
    _resolve(found)
    return found


def _resolve(instructions: list[Instruction]) -> None:
    numbers = {ins.pc: ins.number for ins in instructions}
    for ins in instructions:
        if ins.name.startswith(("s_cbranch", "s_branch")):
            offset = struct.unpack("<h", struct.pack("<H", ins.operands[-1].index & 0xFFFF))[0]
            ins.target = numbers.get(ins.pc + ins.size + 4 * offset, -1)


def _instruction(number: int, pc: int, size: int, mnemonic: str, rest: str, place: str) -> Instruction:
    text = f"{mnemonic} {rest}".strip()
    if "::" in rest:
        first, second = rest.split("::")
        name, _, others = second.strip().partition(" ")
        parts = tuple(
            _instruction(number, pc, size, half.replace("v_dual_", "v_"), operands, place)
            for half, operands in ((mnemonic, first), (name, others))
        )
        return Instruction(number, pc, size, "dual", text, parts=parts, place=place)
    operands, modifiers = _split(rest)
    return Instruction(
        number,
        pc,
        size,
        _SUFFIX.sub("", mnemonic),
        text,
        tuple(map(_operand, operands)),
        modifiers,
        place=place,
        sdwa=mnemonic.endswith("_sdwa"),
    )


def _split(text: str) -> tuple[list[str], dict[str, str]]:
    """Operands separated by commas outside brackets; modifiers follow the last one, separated by blanks."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    words = current.split()
    if words and not re.match(r"\w+:", words[0]):
        parts.append(words.pop(0))
    modifiers = dict(word.partition(":")[::2] for word in words)
    return parts, modifiers


def _operand(text: str) -> Operand:
    body, neg, absolute = text, False, False
    if re.match(r"-[vas|(]", body):
        neg, body = True, body[1:]
    if body.startswith("neg("):
        neg, body = True, body[4:-1]
    if body.startswith("sext("):
        raise Fault(f"the operand {text} is not known to the emulator")
    if body.startswith("|"):
        absolute, body = True, body.strip("|")
    match = _REGISTER.fullmatch(body)
    if match:
        first = int(match[2] or match[4])
        count = int(match[3]) - first + 1 if match[2] else 1
        base = {"a": ACC, "ttmp": TTMP}.get(match[1], 0)
        return Operand("v" if match[1] in "va" else "s", first + base, count, neg, absolute, (match[5] or "")[1:], text)
    if body in _NAMED:
        return Operand("s", *_NAMED[body], neg, absolute, "", text)
    return _constant(body, text)


def _constant(body: str, text: str) -> Operand:
    if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", body):
        return Operand("c", int(body, 0), text=text)
    if body in _FLOATS:
        return Operand("c", _FLOATS[body], text=text, number=body)
    if re.fullmatch(r"-?\d+\.\d+(e[+-]?\d+)?", body):
        return Operand("c", struct.unpack("<I", struct.pack("<f", float(body)))[0], text=text, number=body)
    return Operand("x", 0, 0, text=text)
