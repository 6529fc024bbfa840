"""The simulator on small kernels: what is right runs right in every order, and each kind of fault is caught."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gconvdsl.backends import base
from gconvdsl.errors import CompileError, LaunchError
from sim_harness import HEADER, line_of, run

Array = np.ndarray[Any, Any]

ORDERS = ["forward", "reverse", "random:1", "random:2"]

# y (16 by 16 of each block) = x w in float, tiles through LDS, 256 lanes; N = length of the reduction, a multiple of 16.
GEMM = """
GCONV_KERNEL void gemm(ConvArgs args) {
  GCONV_LDS(float, a, 256, 0);
  GCONV_LDS(float, b, 256, 1024);
  int t = hw::thread_id(), row = t / 16, col = t % 16, m0 = hw::block_id_y() * 16, n0 = hw::block_id_x() * 16;
  const float* x = (const float*)args.x; const float* w = (const float*)args.w;
  float sum = 0;
  for (int k0 = 0; k0 < args.N; k0 += 16) {
    a[t] = x[(m0 + row) * args.N + k0 + col];
    b[t] = w[(k0 + row) * 32 + n0 + col];
    hw::barrier();  // filled
    for (int k = 0; k < 16; ++k) sum += a[row * 16 + k] * b[k * 16 + col];
    hw::barrier();  // used
  }
  ((float*)args.y)[(m0 + row) * 32 + n0 + col] = sum;
}"""


def gemm(source: str) -> tuple[Array, Array]:
    """The kernel's answer and the true one; whole numbers, so that both are exact."""
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((32, 48), (48, 32)))
    y = run(source, "gemm", [x, w, np.full((32, 32), np.nan, np.float32)], grid=(2, 2, 1), block=256, n=48)[2]
    return y, x @ w


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_right_kernel_is_right_in_every_order(order: str, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_SIM_ORDER", order)
    monkeypatch.setenv("GCONV_THREADS", threads)
    y, expected = gemm(GEMM)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("barrier", ["filled", "used"])
def test_a_missing_barrier_is_caught_in_some_order(barrier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = GEMM.replace(f"hw::barrier();  // {barrier}", "")
    assert broken != GEMM
    caught = []
    for order in ORDERS:
        monkeypatch.setenv("GCONV_SIM_ORDER", order)
        y, expected = gemm(broken)
        caught.append(not np.array_equal(y, expected))
    assert any(caught)


MATRIX_GEMM = """
// y (16x16 blocks, K = N) = x w^T, f16, fragments straight from memory; 4 waves share the reduction through LDS.
GCONV_KERNEL void gemm(ConvArgs args) {
  GCONV_LDS(float, part, 4 * 256, 0);
  int lane = hw::lane_id(), wave = hw::wave_id();
  const unsigned short* x = (const unsigned short*)args.x; const unsigned short* w = (const unsigned short*)args.w;
  float d[kAcc] = {};
  for (int k0 = wave * kK; k0 < args.N; k0 += 4 * kK) {
    unsigned a[kRegs], b[kRegs];
    unsigned short* ha = (unsigned short*)a; unsigned short* hb = (unsigned short*)b;
    for (int i = 0; i < 2 * kRegs; ++i) {
      ha[i] = x[(hw::block_id_y() * 16 + lane % 16) * args.N + k0 + lane_k(lane) + i];
      hb[i] = w[(hw::block_id_x() * 16 + lane % 16) * args.N + k0 + lane_k(lane) + i];
    }
    hw::INSTRUCTION(d, a, b);
  }
  for (int r = 0; r < kAcc; ++r) part[wave * 256 + lane_row(lane, r) * 16 + lane % 16] = d[r];
  hw::barrier();
  for (int i = hw::thread_id(); i < 256; i += 4 * hw::kWave) {
    float sum = part[i] + part[256 + i] + part[512 + i] + part[768 + i];
    ((float*)args.y)[(hw::block_id_y() * 16 + i / 16) * 32 + hw::block_id_x() * 16 + i % 16] = sum;
  }
}"""
MFMA = """
constexpr int kAcc = 4, kRegs = 2, kK = 16;
inline int lane_k(int lane) { return lane / 16 * 4; }
inline int lane_row(int lane, int r) { return lane / 16 * 4 + r; }
""" + MATRIX_GEMM.replace("INSTRUCTION", "mfma_16x16x16_f16")
WMMA = """
constexpr int kAcc = 8, kRegs = 8, kK = 16;
inline int lane_k(int) { return 0; }
inline int lane_row(int lane, int r) { return 2 * r + lane / 16; }
""" + MATRIX_GEMM.replace("INSTRUCTION", "wmma_16x16x16_f16")


@pytest.mark.parametrize("order", ["forward", "random:7"])
@pytest.mark.parametrize("arch, source, wave", [("gfx942", MFMA, 64), ("gfx1100", WMMA, 32)])
def test_matrix_instructions_multiply(arch: str, source: str, wave: int, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_SIM_ORDER", order)
    rng = np.random.default_rng(4)
    x, w = (rng.integers(-9, 10, (32, 128)).astype(np.float16) for _ in range(2))
    y = run(source, "gemm", [x, w, np.zeros((32, 32), np.float32)], arch=arch, grid=(2, 2, 1), block=4 * wave, n=128)[2]
    np.testing.assert_array_equal(y, x.astype(np.float32) @ w.astype(np.float32).T)


def test_shared_arrays_are_nan_at_the_start_of_every_block() -> None:
    source = """
GCONV_KERNEL void probe(ConvArgs args) {
  GCONV_LDS(unsigned, shared, 64, 0);
  int t = hw::thread_id();
  ((unsigned*)args.y)[hw::block_id_x() * 64 + t] = shared[t];
  hw::barrier();
  shared[t] = 0;
}"""
    seen = run(source, "probe", [np.zeros(1), np.zeros(1), np.zeros(192, np.uint32)], grid=(3, 1, 1))[2]
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        assert np.isnan(seen.view(dtype).astype(np.float32)).all()


def test_shuffles() -> None:
    source = """
GCONV_KERNEL void probe(ConvArgs args) {
  unsigned mine = 100 + hw::thread_id();
  unsigned* y = (unsigned*)args.y;
  y[hw::thread_id()] = hw::shfl(mine, hw::lane_id() + 1);
  y[128 + hw::thread_id()] = hw::shfl_xor(mine, 5);
}"""
    t = np.arange(128)
    for arch, wave in (("gfx942", 64), ("sm_90", 32)):
        y = run(source, "probe", [np.zeros(1), np.zeros(1), np.zeros(256, np.uint32)], arch=arch, block=128)[2]
        first, lane = t // wave * wave, t % wave
        np.testing.assert_array_equal(y[:128], 100 + first + (lane + 1) % wave)
        np.testing.assert_array_equal(y[128:], 100 + first + (lane ^ 5))


# --- kernels that must be stopped

def stopped(source: str, arch: str = "gfx942", block: int = 64, arrays: int = 0) -> LaunchError:
    """The error of a faulty kernel; the process lives on and runs the next kernel."""
    with pytest.raises(LaunchError) as caught:
        run(source, "probe", [np.zeros(4096, np.float32)] * arrays, arch=arch, grid=(2, 1, 1), block=block)
    assert caught.value.code == "launch.sim"
    assert pickle.loads(pickle.dumps(caught.value)).values["block"] == caught.value.values["block"]
    return caught.value


def test_divergent_barrier() -> None:
    source = """
GCONV_KERNEL void probe(ConvArgs) {
  if (hw::block_id_x() == 1 && hw::lane_id() < 40)
    hw::barrier();  // here
}"""
    failure = stopped(source, block=128)
    assert failure.values["block"] == (1, 0, 0) and failure.values["wave"] == 0 and failure.values["lane"] == 0
    assert failure.values["line"] == line_of(source, "here") and failure.values["file"] == "kernel.cpp"
    assert "lanes 0-39 of wave 0 wait at a barrier" in str(failure)
    assert "lanes 40-63 of wave 0 have left the kernel" in str(failure)


def test_barriers_at_two_lines_in_one_wave() -> None:
    source = """
GCONV_KERNEL void probe(ConvArgs) {
  if (hw::lane_id() == 7)
    hw::barrier();  // odd one
  else
    hw::barrier();  // others
}"""
    text = str(stopped(source))
    assert f"lane 7 of wave 0 waits at a barrier (kernel.cpp:{line_of(source, 'odd one')})" in text
    assert f"(kernel.cpp:{line_of(source, 'others')})" in text


def test_waves_may_meet_at_barriers_of_different_lines() -> None:
    source = """
GCONV_KERNEL void probe(ConvArgs args) {
  GCONV_LDS(unsigned, shared, 1, 0);
  if (hw::wave_id() == 0) { if (hw::lane_id() == 0) shared[0] = 9; hw::barrier(); }
  else { hw::barrier(); ((unsigned*)args.x)[hw::lane_id()] = shared[0]; }
}"""
    assert (run(source, "probe", [np.zeros(64, np.uint32)], block=128)[0] == 9).all()


def test_deadlock_of_a_wave_that_left() -> None:
    source = """
GCONV_KERNEL void probe(ConvArgs) {
  if (hw::wave_id() == 1) return;
  hw::barrier();  // alone
}"""
    failure = stopped(source, block=192)
    assert "deadlock" in str(failure) and "lanes 0-63 of wave 1 have left the kernel" in str(failure)
    assert failure.values["line"] == line_of(source, "alone")


@pytest.mark.parametrize("other", ["hw::barrier();", "return;", "hw::shfl(1u, 0);"])
def test_divergent_matrix_instruction(other: str) -> None:
    source = f"""
GCONV_KERNEL void probe(ConvArgs) {{
  float d[4] = {{}}; unsigned a[2] = {{}}, b[2] = {{}};
  if (hw::lane_id() == 3) {{ {other} }}
  else hw::mfma_16x16x16_f16(d, a, b);  // most
}}"""
    text = str(stopped(source))
    assert "divergent" in text and "lane 3 of wave 0" in text
    assert f"wait at mfma_16x16x16_f16 (kernel.cpp:{line_of(source, 'most')})" in text


def test_a_matrix_instruction_needs_a_full_wave() -> None:
    source = """
GCONV_KERNEL void probe(ConvArgs) { float d[4] = {}; unsigned a[2] = {}, b[2] = {}; hw::mfma_16x16x16_f16(d, a, b); }"""
    assert "full wave" in str(stopped(source, block=32))


def test_rdna3_operands_must_be_held_twice() -> None:
    source = """
GCONV_KERNEL void probe(ConvArgs) {
  float d[8] = {}; unsigned a[8] = {}, b[8] = {};
  b[3] = hw::lane_id() < 16;
  hw::wmma_16x16x16_bf16(d, a, b);
}"""
    assert "same operands in lanes 0-15 and 16-31" in str(stopped(source, "gfx1100", 32))


def test_misaligned_vector_load() -> None:
    source = """
GCONV_KERNEL void probe(ConvArgs args) {
  if (hw::load_or_zero<16>(args.x, 16u, true).word[0] != 0) return;
  hw::load_or_zero<16>(args.x, 8u, false);
  hw::load_or_zero<16>(args.x, 8u, hw::lane_id() == 9);  // not a multiple
}"""
    failure = stopped(source, arrays=1)
    assert failure.values["lane"] == 9 and failure.values["line"] == line_of(source, "not a multiple")


def test_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_RUN_TIMEOUT", "0.2")
    with pytest.raises(LaunchError) as caught:
        run("GCONV_KERNEL void probe(ConvArgs) { for (;;) hw::barrier(); }", "probe", [])
    assert caught.value.code == "launch.timeout"


def test_the_first_failing_block_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_THREADS", "2")
    assert stopped("GCONV_KERNEL void probe(ConvArgs) { if (hw::lane_id() == 0) hw::barrier(); }").values["block"] == (0, 0, 0)


# --- asynchronous copies

ASYNC_AMD = """
GCONV_KERNEL void probe(ConvArgs args) {
  GCONV_LDS(float, tile, 128, 0);
  int t = hw::thread_id();
  hw::async_copy_to_lds(tile, (const float*)args.x + t, 4);
  hw::async_copy_to_lds(tile + 64, (const float*)args.x + 64 + t, 4);
  hw::wait_loads(WAIT);
  hw::barrier();
  for (int i = 0; i < 2; ++i) ((float*)args.y)[i * 64 + t] = tile[i * 64 + (t + 1) % 64];
}"""
ASYNC_NVIDIA = """
GCONV_KERNEL void probe(ConvArgs args) {
  GCONV_LDS(float, tile, 256, 0);
  int t = hw::thread_id();
  for (int i = 0; i < 2; ++i) {
    hw::cp_async(tile + i * 128 + t * 4, (const float*)args.x + i * 128 + t * 4, 16, t < 30);
    hw::cp_async_commit();
  }
  hw::cp_async_wait(WAIT);
  hw::barrier();
  for (int i = 0; i < 8; ++i) ((float*)args.y)[i * 32 + t] = tile[i * 32 + t];
}"""


@pytest.mark.parametrize("arch, source, wave", [("gfx942", ASYNC_AMD, 64), ("sm_80", ASYNC_NVIDIA, 32)])
@pytest.mark.parametrize("outstanding", [0, 1, 2])
def test_async_copies_arrive_at_their_wait(arch: str, source: str, wave: int, outstanding: int) -> None:
    x = np.arange(1, 257 if arch == "sm_80" else 129, dtype=np.float32)
    y = run(source.replace("WAIT", str(outstanding)), "probe", [x, x, np.zeros_like(x)], arch=arch, block=wave)[2].reshape(2, -1)
    expected = x.reshape(2, -1).copy()
    if arch == "sm_80":
        expected[:, 120:] = 0       # copies that were not valid write zeros
    else:
        expected = np.roll(expected, -1, axis=1)
    expected[2 - outstanding:] = np.nan
    np.testing.assert_array_equal(y, expected)


# --- conversions

def test_half_conversions_are_those_of_numpy() -> None:
    source = """
GCONV_KERNEL void probe(ConvArgs args) {
  for (int i = hw::thread_id(); i < 65536; i += 64) {
    ((float*)args.x)[i] = hw::f16_to_float((unsigned short)i);
    ((float*)args.w)[i] = hw::bf16_to_float((unsigned short)i);
  }
  for (int i = hw::thread_id(); i < args.N; i += 64) {
    float value = ((const float*)args.y)[i];
    ((unsigned short*)args.workspace)[i] = hw::float_to_f16(value);
    ((unsigned short*)args.workspace)[args.N + i] = hw::float_to_bf16(value);
  }
}"""
    bits = np.arange(65536, dtype=np.uint16)
    rng = np.random.default_rng(1)
    edges = np.array([0, 65504, 65519.996, 65520, 2.0**-14, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 6.1e-5, np.inf, np.nan, 3.3895314e38,
                      3.4e38])
    with np.errstate(all="ignore"):
        halves = bits.view(np.float16)
        ties = (halves.astype(np.float64) + np.nextafter(halves, np.float16(np.inf)).astype(np.float64)) / 2
        anything = rng.integers(0, 2**32, 50000, dtype=np.uint32).view(np.float32)
        values = np.concatenate([edges.astype(np.float32), -edges.astype(np.float32), ties.astype(np.float32), anything])
        wide, wide_b, _, narrow = run(source, "probe", [np.zeros(65536, np.float32), np.zeros(65536, np.float32), values,
                                                        np.zeros(2 * values.size, np.uint16)], n=values.size)
        np.testing.assert_array_equal(wide, bits.view(np.float16).astype(np.float32))
        np.testing.assert_array_equal(wide_b, bits.view(ml_dtypes.bfloat16).astype(np.float32))
        for got, dtype in zip(narrow.reshape(2, -1), (np.float16, ml_dtypes.bfloat16)):
            np.testing.assert_array_equal(got.view(dtype).astype(np.float32), values.astype(dtype).astype(np.float32))


# --- sanitizers, printing, debugging

LDS_KERNEL = """
template <int count>
inline float fill(int last) {
  GCONV_LDS(float, shared, count, 0);
  int t = hw::thread_id();
  if (t < count) shared[t] = 1.0f;
  if (t == last) shared[t] = 2.0f;  // stores
  hw::barrier();
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += shared[i];
  return sum;
}
GCONV_KERNEL void probe(ConvArgs args) { ((float*)args.y)[hw::thread_id()] = fill<48>(args.N); }"""


@pytest.fixture
def sanitized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_SIM_SANITIZE", "1")


@pytest.mark.usefixtures("sanitized")
class TestSanitized:
    """Under GCONV_SIM_SANITIZE."""

    def fault(self, source: str, elements: int, n: int = 1) -> LaunchError:
        with pytest.raises(LaunchError) as caught:
            run(source, "probe", [np.zeros(1), np.zeros(1), np.zeros(elements, np.float32)], n=n)
        assert caught.value.code == "launch.sim"
        return caught.value

    def test_a_right_kernel_runs(self) -> None:
        y = run(LDS_KERNEL, "probe", [np.zeros(1), np.zeros(1), np.zeros(64, np.float32)], n=5)[2]
        assert (y == 49).all()

    def test_one_element_past_a_buffer(self) -> None:
        failure = self.fault(LDS_KERNEL, 63, n=5)
        assert "heap-buffer-overflow" in str(failure)
        assert failure.values["line"] == line_of(LDS_KERNEL, "GCONV_KERNEL")

    def test_one_element_past_a_shared_array_of_a_template(self) -> None:
        failure = self.fault(LDS_KERNEL, 64, n=48)
        assert failure.values["line"] == line_of(LDS_KERNEL, "// stores")

    def test_undefined_behaviour(self) -> None:
        source = "GCONV_KERNEL void probe(ConvArgs args) { ((int*)args.y)[hw::thread_id()] = 1 << (args.N + hw::thread_id()); }"
        assert "shift exponent 32 is too large" in str(self.fault(source, 64))

    def test_divergence_is_reported_from_the_child(self) -> None:
        failure = self.fault("GCONV_KERNEL void probe(ConvArgs) { if (hw::lane_id() < 9) hw::barrier(); }", 64)
        assert "lanes 0-8 of wave 0 wait at a barrier" in str(failure)

    def test_endless_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GCONV_RUN_TIMEOUT", "0.5")
        with pytest.raises(LaunchError) as caught:
            run("GCONV_KERNEL void probe(ConvArgs args) { while (*(volatile int*)args.x == 0) {} }", "probe", [np.zeros(1)])
        assert caught.value.code == "launch.timeout"


def test_kernels_can_print(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_THREADS", "1")
    monkeypatch.setenv("GCONV_SIM_ORDER", "reverse")
    source = """
GCONV_KERNEL void probe(ConvArgs) {
  if (hw::lane_id() % 32 == 1) printf("block %d lane %d: %.2f\\n", hw::block_id_x(), hw::lane_id(), 0.5 * hw::lane_id());
}"""
    run(source, "probe", [], grid=(2, 1, 1))
    printed = capfd.readouterr().out.splitlines()
    assert printed == [f"block {block} lane {lane}: {lane / 2:.2f}" for block in (1, 0) for lane in (33, 1)]


def test_debug_builds_name_the_source_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = base.get("sim")
    source = HEADER + "GCONV_KERNEL void probe(ConvArgs) {}\n"
    assert b".debug_line" not in backend.compile(source, "gfx942", "probe").path.read_bytes()
    monkeypatch.setenv("GCONV_DEBUG", "1")
    built = backend.compile(source, "gfx942", "probe").path
    assert b".debug_line" in built.read_bytes() and (built.parent / "kernel.cpp").read_text() == source


def test_targets_and_archs() -> None:
    backend, arch = base.parse_target("sim")
    assert (backend.name, arch) == ("sim", "gfx942") and backend.detect().available
    assert base.parse_target("sim:gfx1201")[1] == "gfx1201"
    with pytest.raises(CompileError):
        base.parse_target("sim:gfx900")


def test_kernel_libraries_do_not_share_their_shared_arrays() -> None:
    """Two loaded libraries instantiate the same template; the array of one must not be the other's."""
    source = """
template <int count> inline void* where() { GCONV_LDS(float, shared, count, 0); return shared; }
GCONV_KERNEL void probe(ConvArgs args) { *(void**)args.y = where<32>(); }
// VARIANT"""
    backend = base.get("sim")
    kept, seen = [], set()
    for variant in ("one", "two"):
        text = source.replace("VARIANT", variant)
        kept.append(backend.load(backend.compile(HEADER + text, "gfx942", "probe")))
        seen.add(int(run(text, "probe", [np.zeros(1), np.zeros(1), np.zeros(1, np.uint64)])[2][0]))
    assert len(seen) == 2


def test_a_library_loaded_twice_outlives_either_user() -> None:
    backend = base.get("sim")
    built = backend.compile(HEADER + GEMM, "gfx942", "gemm")
    first, second = backend.load(built), backend.load(built)
    del second
    y, expected = gemm(GEMM)
    np.testing.assert_array_equal(y, expected)
    assert first.function("gemm") == "gemm"


def test_an_unknown_kernel_name() -> None:
    with pytest.raises(LaunchError, match="no kernel other"):
        run("GCONV_KERNEL void probe(ConvArgs) {}", "other", [])
