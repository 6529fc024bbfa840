"""Matrix instructions of the emulator against the same written-down lane layouts as the simulator's, through compiled code."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from emu_harness import run
from gconvdsl.backends.emu_matrix import layout_of
from test_lane_layouts import INSTRUCTIONS, WAVE, coordinates, layouts_of, operand_values, source_for

AMD = [arch for arch in INSTRUCTIONS if arch.startswith("gfx")]


@pytest.fixture(autouse=True)
def tools(require_tool: Callable[..., Any]) -> None:
    require_tool("objdump")


@pytest.mark.parametrize("arch, name", [(arch, name) for arch in AMD for name in INSTRUCTIONS[arch]])
def test_instruction(arch: str, name: str, require_tool: Callable[..., Any]) -> None:
    """Small integers, whose sums are exact in any order, in registers as the published layout places them."""
    require_tool("clang", arch)
    la, lb, ld = map(coordinates, layouts_of(arch, name))
    rng = np.random.default_rng(7)
    m, n, k = la["m"].max() + 1, lb["n"].max() + 1, la["k"].max() + 1
    stored = operand_values(rng, name, (1, 1))[0].dtype
    a, b = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((m, k), (n, k)))
    c = rng.integers(-99, 100, (m, n)).astype(np.float32)
    registers = [
        np.ascontiguousarray(a.astype(stored)[la["m"], la["k"]]),
        np.ascontiguousarray(b.astype(stored)[lb["n"], lb["k"]]),
        np.ascontiguousarray(c[ld["m"], ld["n"]]),
    ]
    d = run(source_for(arch), f"probe_{name}", registers, arch=arch, block=WAVE[arch])[2]
    expected = a.astype(np.float64) @ b.T.astype(np.float64) + c
    np.testing.assert_array_equal(d, expected[ld["m"], ld["n"]])


def test_result_and_addend_may_overlap() -> None:
    """D = v[2:5] and C = v[0:3] share registers: every element of C is read before the first of D is written."""
    source = """GCONV_KERNEL void probe(ConvArgs args) {
      int t = hw::thread_id();
      float* y = (float*)args.y;
      hw::f32x4 d;
      asm volatile("v_mov_b32 v20, %1\\n v_mov_b32 v21, %2\\n v_mov_b32 v22, %3\\n v_mov_b32 v23, %4\\n"
                   "v_mov_b32 v26, 0\\n s_nop 4\\n v_mfma_f32_16x16x4_f32 v[22:25], v26, v26, v[20:23]\\n s_nop 15\\n"
                   "v_mov_b32 %0, v24" : "=v"(d.x) : "v"(y[4 * t]), "v"(y[4 * t + 1]), "v"(y[4 * t + 2]), "v"(y[4 * t + 3])
                   : "v20", "v21", "v22", "v23", "v24", "v25", "v26");
      y[4 * t] = d.x; }"""
    values = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    result = run(source, "probe", [values, values, values.copy()])[2]
    np.testing.assert_array_equal(result[::4], values[2::4])


def test_rdna3_operands_must_be_the_same_in_both_half_waves() -> None:
    from gconvdsl.errors import LaunchError

    registers = [np.arange(32 * 16, dtype=np.float16), np.zeros(32 * 16, np.float16), np.zeros(32 * 8, np.float32)]
    with pytest.raises(LaunchError, match="half waves"):
        run(source_for("gfx1100"), "probe_wmma_16x16x16_f16", registers, arch="gfx1100", block=32)


def test_a_lost_lane_poisons_its_row_only() -> None:
    """An undefined lane of A makes one row of the result undefined: storing the others is no fault."""
    source = """GCONV_KERNEL void probe(ConvArgs args) {
      int t = hw::thread_id();
      float a, b = 1.0f;
      asm volatile("v_mov_b32 %0, v77\\n v_cndmask_b32 %0, %0, 1.0, %1" : "=&v"(a) : "s"(*(unsigned long long*)args.w) : "v77");
      hw::f32x4 c = {}, d = __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0);
      float* y = (float*)args.y;
      y[t] = d.x;                                   // rows 0, 4, 8, 12
      if (args.N == 1 || t / 16 != 1) y[64 + t] = d.y; }          // rows 1, 5, 9, 13: lanes 16 to 31 hold row 5"""
    from gconvdsl.errors import LaunchError

    written = np.array([~(1 << 5) & (1 << 64) - 1], np.uint64)
    result = run(source, "probe", [np.zeros(1), written, np.zeros(128, np.float32)], n=2)[2]
    assert (result[:64] == 4).all() and (np.delete(result[64:], np.s_[16:32]) == 4).all()
    with pytest.raises(LaunchError, match="never written"):
        run(source, "probe", [np.zeros(1), written, np.zeros(128, np.float32)], n=1)


def test_instructions_of_several_small_matrices_are_not_known() -> None:
    assert layout_of("v_mfma_f32_16x16x1_f32", "gfx942") is None
    assert layout_of("v_mfma_i32_16x16x32_i8", "gfx942") is None
