"""Single instructions of the emulator against Python arithmetic on ints and floats, and the decoder against written text."""

from __future__ import annotations

import math
import struct
from typing import Any, Callable

import numpy as np
import pytest

from emu_harness import run
from gconvdsl.backends.emu_decode import Fault, parse
from gconvdsl.backends.emu_waits import parse_wait

M = 0xFFFFFFFF
VALUES = [
    0,
    1,
    2,
    31,
    32,
    0x7FFFFFFF,
    0x80000000,
    M,
    0xFFFF,
    0x8000,
    0x12345678,
    0xDEADBEEF,
    0x3F800000,
    0xC0490FDB,
    0x00FF00FF,
    0x0C0D0405,
]


@pytest.fixture(autouse=True)
def tools(require_tool: Callable[..., Any]) -> None:
    require_tool("clang", "gfx942")
    require_tool("objdump")


def signed(a: int) -> int:
    return a - (1 << 32) if a >> 31 else a


def s24(a: int) -> int:
    return (a & 0xFFFFFF) - (1 << 24) if a >> 23 & 1 else a & 0xFFFFFF


def as_float(a: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", a))[0])


def perm(a: int, b: int, s: int) -> int:
    both, result = a << 32 | b, 0
    for i in range(4):
        choice = s >> 8 * i & 255
        byte = (
            both >> 8 * choice & 255
            if choice < 8
            else 0
            if choice == 12
            else 255
            if choice > 12
            else 255 * (both >> 16 * (choice - 8) + 15 & 1)
        )
        result |= byte << 8 * i
    return result


def to_int(a: int) -> int:
    value = as_float(a)
    return (
        0
        if math.isnan(value)
        else max(-1 << 31, min((1 << 31) - 1, int(value) if math.isfinite(value) else int(math.copysign(1 << 40, value)))) & M
    )


ALL: dict[str, Callable[[int, int, int], int]] = {
    "v_add3_u32 %0, %1, %2, %3": lambda a, b, c: a + b + c,
    "v_lshl_add_u32 %0, %1, %2, %3": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32 %0, %1, %2, %3": lambda a, b, c: (a + b & M) << (c & 31),
    "v_and_or_b32 %0, %1, %2, %3": lambda a, b, c: a & b | c,
    "v_bfe_u32 %0, %1, %2, %3": lambda a, b, c: a >> (b & 31) & (1 << (c & 31)) - 1,
    "v_bfe_i32 %0, %1, 3, 7": lambda a, b, c: (a >> 3 & 127) - 128 if a >> 9 & 1 else a >> 3 & 127,
    "v_bfi_b32 %0, %1, %2, %3": lambda a, b, c: a & b | ~a & c,
    "v_perm_b32 %0, %1, %2, %3": perm,
    "v_alignbit_b32 %0, %1, %2, %3": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_mul_hi_u32 %0, %1, %2": lambda a, b, c: a * b >> 32,
    "v_mul_hi_i32 %0, %1, %2": lambda a, b, c: signed(a) * signed(b) >> 32,
    "v_mul_lo_u32 %0, %1, %2": lambda a, b, c: a * b,
    "v_mad_i32_i24 %0, %1, %2, %3": lambda a, b, c: s24(a) * s24(b) + c,
    "v_mad_u32_u24 %0, %1, %2, %3": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_ashrrev_i32 %0, %1, %2": lambda a, b, c: signed(b) >> (a & 31),
    "v_med3_i32 %0, %1, %2, %3": lambda a, b, c: sorted(map(signed, (a, b, c)))[1],
    "v_min3_u32 %0, %1, %2, %3": lambda a, b, c: min(a, b, c),
    "v_bfrev_b32 %0, %1": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "v_cvt_i32_f32 %0, %1": lambda a, b, c: to_int(a),
    "v_cvt_f32_i32 %0, %1": lambda a, b, c: struct.unpack("<I", struct.pack("<f", signed(a)))[0],
}
ONLY = {
    "gfx942": {
        "v_add_u16_sdwa %0, %1, %2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2 src1_sel:WORD_1": lambda a, b, c: (
            (a >> 16 & 255) + (b >> 16) & 0xFFFF
        ),
        "v_or_b32_sdwa %0, %1, %2 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:BYTE_3": lambda a, b, c: (
            (a & 255 | b >> 24) << 16
        ),
        "v_mul_lo_u16_e32 %0, %1, %2": lambda a, b, c: a * b & 0xFFFF,
        "v_mov_b32_dpp %0, %1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf": lambda a, b, c: -1,
        "v_subrev_u32_e32 %0, %1, %2": lambda a, b, c: b - a,
    },
    "gfx1100": {
        "v_add_nc_u32_e32 %0, %1, %2": lambda a, b, c: a + b,
        "v_xor3_b32 %0, %1, %2, %3": lambda a, b, c: a ^ b ^ c,
        "v_mov_b32 v50, %1\n v_mov_b32 v51, %2\n v_dual_mov_b32 v50, v51 :: v_dual_add_nc_u32 v51, v50, v51\n"
        "v_sub_nc_u32 %0, v51, v50": lambda a, b, c: (
            a
        ),
    },
}


def source_of(texts: list[str]) -> str:
    """One kernel that stores every instruction's result for the three inputs of each lane."""
    body = "".join(
        f'{{ unsigned r; asm volatile("{text}" : "=&v"(r) : "v"(a), "v"(b), "v"(c) : "v50", "v51"); y[{i} * 4096 + t] = r; }}\n'
        for i, text in enumerate(line.replace("\n", "\\n") for line in texts)
    )
    return f"""GCONV_KERNEL void probe(ConvArgs args) {{
      int t = hw::block_id_x() * 64 + hw::thread_id();
      const unsigned* x = (const unsigned*)args.x;
      unsigned a = x[t], b = x[4096 + t], c = x[8192 + t];
      unsigned* y = (unsigned*)args.y;
      {body} }}"""


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_vector_instructions(arch: str, require_tool: Callable[..., Any]) -> None:
    """Every triple of 16 telling values."""
    require_tool("clang", arch)
    table = {**ALL, **ONLY[arch]}
    triples = np.array(np.meshgrid(VALUES, VALUES, VALUES, indexing="ij"), np.uint64).astype(np.uint32).reshape(3, -1)
    result = run(
        source_of(list(table)),
        "probe",
        [triples, np.zeros(1), np.zeros(len(table) * 4096, np.uint32)],
        arch=arch,
        grid=(64, 1, 1),
    )[2]
    for i, (text, function) in enumerate(table.items()):
        expected = [function(*map(int, column)) & M for column in triples.T]
        if "quad_perm" in text:
            expected = triples[0].reshape(-1, 2)[:, ::-1].reshape(-1).tolist()
        wrong = np.flatnonzero(result.reshape(-1, 4096)[i] != np.array(expected, np.uint32))
        assert not len(wrong), (
            text,
            [hex(v) for v in triples[:, wrong[0]]],
            hex(result.reshape(-1, 4096)[i][wrong[0]]),
            hex(expected[wrong[0]]),
        )


def test_halves_of_registers_on_rdna3(require_tool: Callable[..., Any]) -> None:
    """16-bit instructions write one half of a register and keep the other."""
    require_tool("clang", "gfx1100")
    source = """GCONV_KERNEL void probe(ConvArgs args) {
      int t = hw::thread_id();
      unsigned x = ((unsigned*)args.x)[t], r = 0x11112222u;
      asm volatile("v_mov_b32 v40, %1\\n v_mov_b32 v41, %0\\n v_lshrrev_b16 v41.h, 4, v40.l\\n v_mov_b32 %0, v41"
                   : "+v"(r) : "v"(x) : "v40", "v41");
      ((unsigned*)args.y)[t] = r; }"""
    x = np.arange(0x89ABCDE0, 0x89ABCDE0 + 64, dtype=np.uint32)
    result = run(source, "probe", [x, np.zeros(1), np.zeros(64, np.uint32)], arch="gfx1100")[2]
    assert (result == ((x & 0xFFFF) >> 4 << 16 | 0x2222)).all()


def test_lanes_and_carries() -> None:
    """Reading lanes, counting them, permuting them through LDS, 64-bit sums by carries."""
    source = """GCONV_KERNEL void probe(ConvArgs args) {
      int t = hw::thread_id();
      unsigned* y = (unsigned*)args.y;
      unsigned x = ((unsigned*)args.x)[t];
      y[t] = __builtin_amdgcn_readlane(x, 37);
      y[64 + t] = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
      y[128 + t] = __builtin_amdgcn_ds_bpermute((63 - t) * 4, x);
      unsigned long long sum = ((unsigned long long)x << 20) + ((unsigned long long*)args.w)[t];
      y[192 + t] = (unsigned)sum;
      y[256 + t] = (unsigned)(sum >> 32);
      y[320 + t] = __popcll(__builtin_amdgcn_ballot_w64(x & 1)); }"""
    rng = np.random.default_rng(2)
    x, w = rng.integers(0, 1 << 32, 64, np.uint32), rng.integers(0, 1 << 63, 64, np.uint64)
    source = source.replace("__popcll", "__builtin_popcountll")
    y = run(source, "probe", [x, w, np.zeros(384, np.uint32)], arch="gfx90a")[2].reshape(6, 64)
    sums = [(int(a) << 20) + int(b) & (1 << 64) - 1 for a, b in zip(x, w)]
    assert (y[0] == x[37]).all() and (y[1] == np.arange(64)).all() and (y[2] == x[::-1]).all()
    assert y[3].tolist() == [s & M for s in sums] and y[4].tolist() == [s >> 32 for s in sums]
    assert (y[5] == (x & 1).sum()).all()


def test_float_divisions_are_rounded_correctly() -> None:
    source = """GCONV_KERNEL void probe(ConvArgs args) {
      int t = hw::thread_id();
      ((float*)args.y)[t] = ((float*)args.x)[t] / ((float*)args.w)[t]; }"""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 64)).astype(np.float32)
    np.testing.assert_array_equal(run(source, "probe", [x, w, np.zeros(64, np.float32)])[2], x / w)


# --- the decoder

TEXT = """
0000000000001600 <kernel>:
; /src/kernel.hip:12
\ts_load_dwordx2 s[6:7], s[0:1], 0x110                       // 000000001600: C0060180 00000110
\tv_fma_f32 v1, -v2, |s3|, 0.5                               // 000000001608: D1CB0001 03C00702
\tds_write2_b64 v11, v[42:43], v[44:45] offset0:16 offset1:24 // 000000001610: D89C1810 002C2A0B
\tv_dual_mov_b32 v5, v6 :: v_dual_add_nc_u32 v7, 2, v8       // 000000001618: CA100106 05070082
\ts_cbranch_scc0 65531                                       // 000000001620: BF84FFFB <kernel+0x10>
\tv_lshrrev_b16 v1.h, 8, v2.l op_sel:[0,0,1]                 // 000000001624: D7390001 00020488
"""


def test_decoding() -> None:
    load, fma, ds, dual, branch, half = parse(TEXT)
    assert (load.name, load.pc, load.size, load.place) == ("s_load_dwordx2", 0x1600, 8, "/src/kernel.hip:12")
    assert [list(o.registers()) for o in load.operands] == [[1030, 1031], [1024, 1025], []] and load.operands[2].index == 0x110
    assert fma.operands[1].neg and fma.operands[2].absolute and not fma.operands[2].neg and fma.operands[3].index == 0x3F000000
    assert (ds.value("offset0"), ds.value("offset1"), ds.operands[2].index, ds.operands[2].count) == (16, 24, 44, 2)
    assert [part.name for part in dual.parts] == ["v_mov_b32", "v_add_nc_u32"] and dual.parts[1].operands[1].index == 2
    assert branch.target == ds.number  # 5 words back from 0x1624
    assert half.operands[0].half == "h" and half.operands[2].half == "l" and half.bits("op_sel", 4) == [0, 0, 1, 0]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("s_waitcnt vmcnt(3) lgkmcnt(0)", (("vm", 3), ("lgkm", 0))),
        ("s_wait_loadcnt_dscnt 0x301", (("load", 3), ("ds", 1))),
        ("s_wait_kmcnt 0x0", (("km", 0),)),
        ("s_wait_storecnt 0x2", (("store", 2),)),
        ("s_wait_xcnt 0x0", ()),
        ("s_nop 0", None),
    ],
)
def test_waits(text: str, expected: Any) -> None:
    (ins,) = parse(f"\t{text}    // 000000001600: BF8C0000\n")
    assert parse_wait(ins) == expected


def test_operands_that_are_not_known() -> None:
    with pytest.raises(Fault, match="sext"):
        parse("\tv_mov_b32_sdwa v1, sext(v2) dst_sel:DWORD    // 000000001600: 7E0202F9\n")
