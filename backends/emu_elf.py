"""AMD code objects: the ELF file, its kernels, and what each kernel descriptor asks of the hardware.

Layout of the descriptor and of the initial registers: LLVM, "User Guide for AMDGPU Backend", sections "Kernel Descriptor" and
"Initial Kernel Execution State" (code object version 5).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ACC", "CodeObject", "Descriptor", "MACHINES", "read_code_object"]

MACHINES = {
    0x30: "gfx908",
    0x3F: "gfx90a",
    0x4C: "gfx942",
    0x4F: "gfx950",
    0x41: "gfx1100",
    0x48: "gfx1200",
    0x4E: "gfx1201",
    0x49: "gfx1250",
}
"""Low byte of the ELF flags -> arch."""

ACC = 256
"""Number of the first accumulation register in the emulator's vector register file."""

_UNIFIED = ("gfx90a", "gfx942", "gfx950")
_SYMBOL_TABLES = (2, 11)
_USER_SGPRS = (
    ("private_segment_buffer", 4),
    ("dispatch_ptr", 2),
    ("queue_ptr", 2),
    ("kernarg_segment_ptr", 2),
    ("dispatch_id", 2),
    ("flat_scratch_init", 2),
    ("private_segment_size", 1),
)


@dataclass(frozen=True)
class Descriptor:
    """One kernel: address of its first instruction; bytes of LDS a block, scratch a lane, arguments; lanes of a wave; registers
    it may use (vgprs, agprs, sgprs); the SGPRs filled at the start: ``inputs`` in order as (name, count), ``user_sgprs``
    reserved for them, then the axes of the block number and the wave's scratch offset."""

    name: str
    arch: str
    entry: int
    lds: int
    scratch: int
    kernargs: int
    wave: int
    vgprs: int
    agprs: int
    sgprs: int
    inputs: tuple[tuple[str, int], ...]
    user_sgprs: int
    block_axes: tuple[bool, bool, bool]
    scratch_offset: bool
    preload: int

    @property
    def generation(self) -> int:
        """9 for gfx9 (CDNA), 11 and 12 for RDNA3 and RDNA4."""
        return int(self.arch[3:-2])

    @property
    def registers(self) -> int:
        """Size of the emulator's vector register file: accumulation registers follow from `ACC`."""
        return ACC + self.agprs if self.agprs else self.vgprs


@dataclass(frozen=True)
class CodeObject:
    """A code object file: its arch and its kernels by name."""

    path: Path
    arch: str
    kernels: dict[str, Descriptor]


def read_code_object(path: Path) -> CodeObject:
    """Read the file. Raises ValueError with a reason if it is not an AMD code object this emulator knows."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02" or data[18:20] != b"\xe0\x00":
        raise ValueError("it is not a 64-bit AMDGPU ELF file")
    arch = MACHINES.get(data[48])
    if arch is None:
        raise ValueError(f"its machine number {data[48]:#x} is not known")
    symbols = _symbols(data)
    names = [name[:-3] for name in symbols if name.endswith(".kd")]
    kernels = {name: _descriptor(name, arch, _at(data, symbols[name + ".kd"], 64), symbols[name + ".kd"]) for name in names}
    return CodeObject(path, arch, kernels)


def _sections(data: bytes) -> list[tuple[int, ...]]:
    offset, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    return [struct.unpack_from("<IIQQQQIIQQ", data, offset + 64 * i) for i in range(count)]


def _symbols(data: bytes) -> dict[str, int]:
    sections, found = _sections(data), {}
    for section in sections:
        _, kind, _, _, offset, size, link = section[:7]
        if kind not in _SYMBOL_TABLES:
            continue
        strings = sections[link][4]
        for at in range(offset, offset + size, 24):
            name, value = struct.unpack_from("<I4xQ", data, at)
            start = strings + name
            found[data[start : data.index(b"\0", start)].decode()] = value
    return found


def _at(data: bytes, address: int, count: int) -> bytes:
    offset, entries = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    for i in range(entries):
        kind, _, start, virtual, _, size = struct.unpack_from("<IIQQQQ", data, offset + 56 * i)
        if kind == 1 and virtual <= address < virtual + size:
            return data[start + address - virtual :][:count]
    raise ValueError(f"address {address:#x} lies outside its segments")


def _descriptor(name: str, arch: str, kd: bytes, address: int) -> Descriptor:
    lds, scratch, kernargs = struct.unpack_from("<III", kd, 0)
    entry = struct.unpack_from("<q", kd, 16)[0]
    rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", kd, 44)
    vgprs, agprs = _vector_registers(arch, rsrc1, rsrc3)
    inputs = tuple(row for bit, row in enumerate(_USER_SGPRS) if properties >> bit & 1)
    gfx9 = arch.startswith("gfx9")
    return Descriptor(
        name,
        arch,
        address + entry,
        lds,
        scratch,
        kernargs,
        32 if properties >> 10 & 1 else 64,
        vgprs,
        agprs,
        ((rsrc1 >> 6 & 15) // 2 + 1) * 16 if gfx9 else 106,
        inputs,
        rsrc2 >> 1 & 31,
        (bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
        bool(rsrc2 & 1),
        preload & 0x7F,
    )


def _vector_registers(arch: str, rsrc1: int, rsrc3: int) -> tuple[int, int]:
    granules = (rsrc1 & 0x3F) + 1
    if arch in _UNIFIED:  # one file, split at the accumulation offset
        total, offset = granules * 8, ((rsrc3 & 0x3F) + 1) * 4
        return min(total, offset, 256), max(total - offset, 0)
    if arch == "gfx908":
        return granules * 4, granules * 4
    return granules * (16 if arch == "gfx1250" else 8), 0
