"""Every matrix instruction of the simulator against lane layouts written down from the vendors' documents.

A layout is written as bits: ``lane bits | element bits``, low bit first. "m1 m2 m4 m8 k4 k8 | k1 k2" says that bit 0 of the lane
number adds 1 to the row m, bit 4 adds 4 to k, and that an element's number inside the lane (16-bit elements from the low half
of register 0 up) adds 1 and 2 to k. "-" is a bit that changes nothing: the operand is held twice.

Sources: AMD Matrix Instruction Calculator (CDNA1 to 3, RDNA3, RDNA4), of which `CALCULATOR` has single entries; for gfx950 the rule
of CDNA continued; for gfx1250 the layout that AMD's Composable Kernel uses, the same for both operands; PTX ISA, matrix
fragments of mma.m16n8k8 and mma.m16n8k16.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from sim_harness import run

Array = np.ndarray[Any, Any]

ROWS16, ROWS32 = "m1 m2 m4 m8", "m1 m2 m4 m8 m16"
ACC16, ACC32 = "n1 n2 n4 n8 m4 m8 | m1 m2", "n1 n2 n4 n8 n16 m4 | m1 m2 m8 m16"
ACC11, ACC12 = "n1 n2 n4 n8 m1 | m2 m4 m8", "n1 n2 n4 n8 m8 | m1 m2 m4"
ACC_PTX = "n2 n4 m1 m2 m4 | n1 m8"

CDNA = {
    "mfma_16x16x16_f16": (f"{ROWS16} k4 k8 | k1 k2", ACC16),
    "mfma_32x32x8_f16": (f"{ROWS32} k4 | k1 k2", ACC32),
    "mfma_16x16x4_f32": (f"{ROWS16} k1 k2 |", ACC16),
    "mfma_32x32x2_f32": (f"{ROWS32} k1 |", ACC32),
}
CDNA1 = {"mfma_16x16x8_bf16": (f"{ROWS16} k2 k4 | k1", ACC16), "mfma_32x32x4_bf16": (f"{ROWS32} k2 | k1", ACC32)}
CDNA2 = {"mfma_16x16x16_bf16": (f"{ROWS16} k4 k8 | k1 k2", ACC16), "mfma_32x32x8_bf16": (f"{ROWS32} k4 | k1 k2", ACC32)}
CDNA4 = {f"mfma_{shape}_{dtype}": (layout, acc) for dtype in ("f16", "bf16") for shape, layout, acc in (
    ("16x16x32", f"{ROWS16} k8 k16 | k1 k2 k4", ACC16), ("32x32x16", f"{ROWS32} k8 | k1 k2 k4", ACC32))}
GFX11 = {f"wmma_16x16x16_{dtype}": (f"{ROWS16} - | k1 k2 k4 k8", ACC11) for dtype in ("f16", "bf16")}
GFX12 = {f"wmma_16x16x16_{dtype}": (f"{ROWS16} k4 | k1 k2 k8", ACC12) for dtype in ("f16", "bf16")}
GFX1250 = {
    "wmma_16x16x32_f16": (f"{ROWS16} k8 | k1 k2 k4 k16", ACC12),
    "wmma_16x16x32_bf16": (f"{ROWS16} k8 | k1 k2 k4 k16", ACC12),
    "wmma_16x16x4_f32": (f"{ROWS16} k2 | k1", ACC12),
}
PTX = {
    **{f"mma_m16n8k16_{dtype}": ("k2 k4 m1 m2 m4 | k1 m8 k8", "k2 k4 n1 n2 n4 | k1 k8", ACC_PTX) for dtype in ("f16", "bf16")},
    **{f"mma_m16n8k8_{dtype}": ("k2 k4 m1 m2 m4 | k1 m8", "k2 k4 n1 n2 n4 | k1", ACC_PTX) for dtype in ("f16", "bf16")},
    "mma_m16n8k8_tf32": ("k1 k2 m1 m2 m4 | m8 k4", "k1 k2 n1 n2 n4 | k4", ACC_PTX),
}
INSTRUCTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "gfx908": {**CDNA, **CDNA1}, "gfx90a": {**CDNA, **CDNA2}, "gfx942": {**CDNA, **CDNA2}, "gfx950": {**CDNA, **CDNA2, **CDNA4},
    "gfx1100": dict(GFX11), "gfx1200": dict(GFX12), "gfx1201": dict(GFX12), "gfx1250": dict(GFX1250),
    "sm_80": dict(PTX), "sm_90": dict(PTX),
}
WAVE = {arch: 64 if layouts.keys() >= CDNA.keys() else 32 for arch, layouts in INSTRUCTIONS.items()}


class Place(NamedTuple):
    """An element of one lane: 32-bit register, 16-bit half (0 for whole registers)."""

    lane: int
    register: int
    half: int


# (arch, instruction, operand, place) -> (row or column, k), or (row, column) of D: as the calculator prints them.
CALCULATOR = [
    ("gfx908", "mfma_16x16x4_f32", "a", Place(49, 0, 0), (1, 3)),
    ("gfx908", "mfma_16x16x4_f32", "b", Place(33, 0, 0), (1, 2)),
    ("gfx908", "mfma_16x16x4_f32", "d", Place(16, 3, 0), (7, 0)),
    ("gfx908", "mfma_32x32x2_f32", "b", Place(34, 0, 0), (2, 1)),
    ("gfx908", "mfma_32x32x2_f32", "d", Place(33, 10, 0), (22, 1)),
    ("gfx908", "mfma_16x16x8_bf16", "a", Place(33, 0, 1), (1, 5)),
    ("gfx908", "mfma_32x32x4_bf16", "a", Place(33, 0, 0), (1, 2)),
    ("gfx942", "mfma_16x16x16_f16", "a", Place(49, 1, 0), (1, 14)),
    ("gfx942", "mfma_16x16x16_f16", "b", Place(17, 1, 1), (1, 7)),
    ("gfx942", "mfma_16x16x16_f16", "d", Place(32, 2, 0), (10, 0)),
    ("gfx942", "mfma_32x32x8_f16", "a", Place(33, 0, 1), (1, 5)),
    ("gfx942", "mfma_32x32x8_f16", "d", Place(0, 13, 0), (25, 0)),
    ("gfx1100", "wmma_16x16x16_f16", "a", Place(17, 4, 1), (1, 9)),
    ("gfx1100", "wmma_16x16x16_f16", "b", Place(2, 0, 1), (2, 1)),
    ("gfx1100", "wmma_16x16x16_f16", "d", Place(18, 0, 0), (1, 2)),
    ("gfx1201", "wmma_16x16x16_f16", "a", Place(16, 1, 0), (0, 6)),
    ("gfx1201", "wmma_16x16x16_f16", "b", Place(1, 2, 1), (1, 9)),
    ("gfx1201", "wmma_16x16x16_f16", "d", Place(16, 5, 0), (13, 0)),
]


def layouts_of(arch: str, name: str) -> tuple[str, str, str]:
    """Layouts of A, B (as rows of the transposed matrix on AMD) and D."""
    entry = INSTRUCTIONS[arch][name]
    return (entry[0], entry[0].replace("m", "n"), entry[1]) if len(entry) == 2 else entry  # type: ignore[return-value]


def coordinates(layout: str) -> dict[str, Array]:
    """For each letter the coordinate of every (lane, element)."""
    lane_bits, element_bits = (part.split() for part in layout.split("|"))
    lane, element = np.indices((2 ** len(lane_bits), 2 ** len(element_bits)))
    found = {letter: np.zeros_like(lane) for letter in "mnk"}
    for number, bits in ((lane, lane_bits), (element, element_bits)):
        for position, bit in enumerate(bits):
            if bit != "-":
                found[bit[0]] += (number >> position & 1) * int(bit[1:])
    return found


def halves(name: str) -> int:
    return 2 if name.endswith("f16") else 1


@pytest.mark.parametrize("arch, name, operand, place, expected", CALCULATOR)
def test_tables_agree_with_the_calculator(arch: str, name: str, operand: str, place: Place, expected: tuple[int, int]) -> None:
    at = coordinates(layouts_of(arch, name)["abd".index(operand)])
    element = place.register if operand == "d" else place.register * halves(name) + place.half
    letters = {"a": "mk", "b": "nk", "d": "mn"}[operand]
    assert tuple(int(at[letter][place.lane, element]) for letter in letters) == expected


def source_for(arch: str) -> str:
    kernels = []
    for name in INSTRUCTIONS[arch]:
        a, b, d = (coordinates(layout)["k"].shape[1] for layout in layouts_of(arch, name))
        kernels.append(f"PROBE({name}, {d}, {a // halves(name)}, {b // halves(name)})")
    return """
#define PROBE(name, D, A, B)                                                                   \\
  GCONV_KERNEL void probe_##name(ConvArgs args) {                                              \\
    int t = hw::thread_id();                                                                   \\
    float d[D]; unsigned a[A], b[B];                                                           \\
    for (int i = 0; i < A; ++i) a[i] = ((const unsigned*)args.x)[t * A + i];                   \\
    for (int i = 0; i < B; ++i) b[i] = ((const unsigned*)args.w)[t * B + i];                   \\
    for (int i = 0; i < D; ++i) d[i] = ((float*)args.y)[t * D + i];                            \\
    hw::name(d, a, b);                                                                         \\
    for (int i = 0; i < D; ++i) ((float*)args.y)[t * D + i] = d[i];                            \\
  }
""" + "\n".join(kernels)


def operand_values(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Random values of the input type, as stored and as float32; their magnitudes differ, so that the order of a sum shows."""
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)
    dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}.get(name.split("_")[-1], np.float32)
    stored = values.astype(np.float32).astype(dtype)
    return stored, stored.astype(np.float32)


def sum_in_order(a: Array, b: Array, c: Array) -> Array:
    """c + a[0] b[0] + a[1] b[1] + ..., each step rounded to float32."""
    total = c.copy()
    for k in range(a.shape[1]):
        total = total + a[:, k, None] * b[None, :, k]
    return total


@pytest.mark.parametrize("arch, name", [(arch, name) for arch in INSTRUCTIONS for name in INSTRUCTIONS[arch]])
def test_instruction(arch: str, name: str) -> None:
    la, lb, ld = map(coordinates, layouts_of(arch, name))
    rng = np.random.default_rng(5)
    m, n, k = la["m"].max() + 1, lb["n"].max() + 1, la["k"].max() + 1
    (a, a32), (b, b32) = operand_values(rng, name, (m, k)), operand_values(rng, name, (n, k))
    if name.endswith("tf32"):
        # Values of few bits, which tf32 holds exactly: test_tf32_rounds_its_inputs has the others.
        a, b = (np.round(v * 64) / 64 for v in (a, b))
        a, b = (v.astype(np.float16).astype(np.float32) for v in (a, b))
        a32, b32 = a, b
    c = rng.standard_normal((m, n)).astype(np.float32)
    registers = [np.ascontiguousarray(a[la["m"], la["k"]]), np.ascontiguousarray(b[lb["n"], lb["k"]]),
                 np.ascontiguousarray(c[ld["m"], ld["n"]])]
    d = run(source_for(arch), f"probe_{name}", registers, arch=arch, block=WAVE[arch])[2]
    np.testing.assert_array_equal(d, sum_in_order(a32, b32, c)[ld["m"], ld["n"]])


def test_tf32_rounds_its_inputs() -> None:
    """tf32 keeps 10 mantissa bits: 1 + 2^-10 stays, half of that is a tie and goes away from zero, less is lost."""
    given = np.array([1 + 2.0**-10, 1 + 2.0**-11, -(1 + 2.0**-11), 1 + 2.0**-12], np.float32)
    kept = np.array([1 + 2.0**-10, 1 + 2.0**-10, -(1 + 2.0**-10), 1.0], np.float32)
    la, lb, ld = map(coordinates, PTX["mma_m16n8k8_tf32"])
    a, b = np.zeros((16, 8), np.float32), np.zeros((8, 8), np.float32)
    a[:4, 0], b[:, 0] = given, 1
    registers = [a[la["m"], la["k"]], b[lb["n"], lb["k"]], np.zeros(ld["m"].shape, np.float32)]
    d = run(source_for("sm_80"), "probe_mma_m16n8k8_tf32", registers, arch="sm_80", block=32)[2]
    np.testing.assert_array_equal(d, np.concatenate([kept, np.zeros(12, np.float32)])[ld["m"]])


@pytest.mark.parametrize("name", ["x1", "x2", "x4", "x1_trans", "x2_trans", "x4_trans"])
def test_ldmatrix(name: str) -> None:
    """Lane t receives, of each 8x8 matrix, the elements in row t / 4 at columns 2 (t % 4) and the next (PTX ISA, ldmatrix)."""
    count = int(name[1])
    source = f"""
GCONV_KERNEL void probe(ConvArgs args) {{
  GCONV_LDS(unsigned short, tile, 256, 0);
  int t = hw::thread_id();
  for (int i = 0; i < 8; ++i) tile[t * 8 + i] = ((const unsigned short*)args.x)[t * 8 + i];
  hw::barrier();
  unsigned r[{count}];
  hw::ldmatrix_{name}(r, tile + (t % {8 * count}) * 8);
  for (int i = 0; i < {count}; ++i) ((unsigned*)args.y)[t * {count} + i] = r[i];
}}"""
    matrices = np.arange(256, dtype=np.uint16).reshape(4, 8, 8) * 7
    result = run(source, "probe", [matrices, np.zeros(1), np.zeros((32, count), np.uint32)], arch="sm_90", block=32)[2]
    used = matrices[:count].transpose(0, 2, 1) if name.endswith("trans") else matrices[:count]
    rows = used.reshape(count, 32, 2)       # lane t: the t-th pair in row-major order
    expected = rows[..., 0].astype(np.uint32) | rows[..., 1].astype(np.uint32) << 16
    np.testing.assert_array_equal(result, expected.T)


def test_an_instruction_that_the_arch_lacks_does_not_compile() -> None:
    from gconvdsl.errors import CompileError

    source = """
GCONV_KERNEL void probe(ConvArgs) { float d[4] = {}; unsigned a[4] = {}, b[4] = {}; hw::mfma_16x16x32_f16(d, a, b); }"""
    with pytest.raises(CompileError, match="mfma_16x16x32_f16"):
        run(source, "probe", [], arch="gfx942")
