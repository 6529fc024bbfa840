"""Target emu: real kernels of every direction, and the faults it is there to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import gconvdsl as gconv
from emu_harness import run
from gconvdsl import choose
from gconvdsl.backends import base
from gconvdsl.backends.base import Artifact
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.errors import CompileError, LaunchError
from gconvdsl.pipelines import PIPELINES
from gconvdsl.problem import ConvProblem
from gconvdsl.runner import bare_spec, execute
from gconvdsl.verify import verify

DIRECTIONS, DTYPES = ("forward", "bwd_data", "bwd_weight"), ("fp32", "fp16", "bf16")
ALL_ARCHS = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200", "gfx1201", "gfx1250")
FAMILIES = ("gfx942", "gfx1201")


@pytest.fixture(autouse=True)
def tools(require_tool: Callable[..., Any]) -> None:
    require_tool("clang", "gfx942")
    require_tool("objdump")


def four_waves(arch: str, dtype: str) -> Tile:
    """A tile of 2 x 2 waves with the arch's matrix instruction."""
    return Tile((64, 32, 32), (2, 2, 1), (16, 16, 4 if dtype == "fp32" and not arch.startswith("gfx1") else 16))


def check(problem: ConvProblem, arch: str, config: KernelConfig, kinds: tuple[str, ...] | None = ("normal", "integers")) -> int:
    """Verify on emu; the wave instructions of all runs."""
    spec, modules = bare_spec(problem.direction), []

    def once(a: Any, b: Any, out: Any) -> None:
        decision = execute(spec, config, problem, (a, b), None, out, f"emu:{arch}", poison=True).decision
        assert decision is not None and decision.built is not None and not decision.fallbacks
        modules.append(decision.built.module)

    report = verify(problem, once, spec=spec, kinds=kinds)
    assert report.ok, (arch, problem.describe(), report)
    return int(modules[-1].executed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("arch", FAMILIES)
def test_directions(arch: str, direction: str, dtype: str) -> None:
    """Several blocks of four waves, two groups, five K-steps."""
    problem = ConvProblem(N=2, G=2, C=32, K=40, input=(9, 8), filter=(3, 3), pad=1, dtype=dtype, direction=direction)
    assert check(problem, arch, KernelConfig(pipeline="basic_v1", tile=four_waves(arch, dtype))) > 10_000


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("arch", FAMILIES)
def test_odd_channels_stride_and_dilation(arch: str, direction: str) -> None:
    problem = ConvProblem(
        N=2,
        G=2,
        C=6,
        K=10,
        input=(11, 9),
        filter=(3, 2),
        pad=((1, 0), (0, 2)),
        stride=2,
        dilation=(1, 2),
        dtype="fp16",
        direction=direction,
    )
    check(problem, arch, KernelConfig(pipeline="basic_v1"))


@pytest.mark.parametrize("pipeline", ["comp_async", "compv5"])
def test_loads_that_bypass_registers_and_wave_groups(pipeline: str) -> None:
    options = {"num_wave_groups": 2} if pipeline == "compv5" else {"double_smem_buffer": True}
    problem = ConvProblem(N=2, C=64, K=64, input=(8, 8), filter=(3, 3), pad=1, dtype="fp16")
    check(problem, "gfx942", KernelConfig(pipeline=pipeline, tile=four_waves("gfx942", "fp16"), **options), ("integers",))


@pytest.mark.nightly
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("arch", ALL_ARCHS)
def test_everything(arch: str, direction: str, dtype: str, pipeline: str, require_tool: Callable[..., Any]) -> None:
    require_tool("clang", arch)
    options = {name: {"double_smem_buffer": True} for name in ("compv4", "comp_async")}
    config = KernelConfig(pipeline=pipeline, **options.get(pipeline, {"num_wave_groups": 2} if pipeline == "compv5" else {}))
    problem = ConvProblem(N=2, G=2, C=36, K=40, input=(9, 8), filter=(3, 3), pad=1, stride=2, dtype=dtype, direction=direction)
    try:
        check(problem, arch, config, None)
    except gconv.RuleError as refused:
        pytest.skip(refused.message)


def test_epilogue_with_operands() -> None:
    @gconv.kernel(pipeline="basic_v1")
    def fused(x: Any, w: Any, bias: gconv.PerK, residual: gconv.LikeY) -> Any:
        acc = gconv.conv(x, w, pad=1, groups=2)
        return gconv.sigmoid(acc + bias) * residual

    rng = np.random.default_rng(3)
    problem = ConvProblem(N=1, G=2, C=8, K=12, input=(5, 6), filter=(3, 3), pad=1)
    x, w = (rng.standard_normal(problem.shape(t)).astype(np.float32) for t in "xw")
    bias, residual = rng.standard_normal(12).astype(np.float32), rng.standard_normal(problem.shape("y")).astype(np.float32)
    bare = execute(bare_spec("forward"), None, problem, (x, w), target="emu:gfx942").output
    result = fused(x, w, bias, residual, target="emu:gfx942", problem=problem)
    expected = residual / (1 + np.exp(-(bare + bias.reshape(2, 6))))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


# --- faults


def stopped(source: str, arrays: list[Any], **options: Any) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        run(source, "probe", arrays, **options)
    return caught.value


def floats(count: int) -> Any:
    return np.zeros(count, np.float32)


@pytest.mark.parametrize("arch", FAMILIES)
def test_a_store_behind_the_buffer(arch: str) -> None:
    source = "GCONV_KERNEL void probe(ConvArgs args) { ((float*)args.y)[hw::thread_id() + args.N] = 1.0f; }"
    run(source, "probe", [floats(1), floats(1), floats(65)], arch=arch)
    error = stopped(source, [floats(1), floats(1), floats(64)], arch=arch)
    assert error.code == "launch.emu" and "end 4 bytes behind a buffer of 256 bytes" in str(error)
    assert error.values["lane"] == (63 if arch == "gfx942" else 31) and error.values["wave"] == (0 if arch == "gfx942" else 1)


def test_a_load_from_nowhere() -> None:
    source = """GCONV_KERNEL void probe(ConvArgs args) {
      ((float*)args.y)[hw::thread_id()] = ((float*)args.x)[hw::thread_id() - 4000000]; }"""
    assert "belongs to no buffer" in str(stopped(source, [floats(64), floats(1), floats(64)]))


UNWRITTEN = 'float value; asm volatile("v_mov_b32 %0, v77" : "=v"(value) : : "v77");'


@pytest.mark.parametrize(
    "use",
    [
        "((float*)args.y)[hw::thread_id()] = value;",
        "((float*)args.y)[(int)value] = 1.0f;",
        "if (value > 0.0f) ((float*)args.y)[0] = 1.0f;",
    ],
)
def test_a_register_that_was_never_written(use: str) -> None:
    """Arithmetic with it is no fault; storing, addressing and branching are."""
    source = f"""GCONV_KERNEL void probe(ConvArgs args) {{ {UNWRITTEN} value = value * 2.0f + 1.0f; {use} }}"""
    error = stopped(source, [floats(64), floats(1), floats(64)])
    assert "never written" in str(error)


def test_undefined_values_that_decide_nothing_are_no_fault() -> None:
    source = """GCONV_KERNEL void probe(ConvArgs args) {
      UNWRITTEN
      int t = hw::thread_id();
      float kept = t < 64 ? 3.0f : value * 2.0f;
      asm volatile("v_cndmask_b32 %0, %1, %0, %2" : "+v"(kept) : "v"(value), "s"(~0ull));
      ((float*)args.y)[t] = kept; }""".replace("UNWRITTEN", UNWRITTEN)
    assert (run(source, "probe", [floats(1), floats(1), floats(64)])[2] == 3).all()


LANES = """GCONV_KERNEL void probe(ConvArgs args) {
  unsigned kept;
  asm volatile("s_mov_b32 s40, 41\\n v_writelane_b32 v77, s40, 3\\n READ\\n v_mov_b32 %0, s41"
               : "=v"(kept) : : "v77", "s40", "s41", "s42", "s43");
  ((unsigned*)args.y)[hw::thread_id()] = kept; }"""
ONE_ACTIVE = {"gfx942": "s_mov_b64 s[42:43], exec\\n s_mov_b64 exec, 1\\n {}\\n s_mov_b64 exec, s[42:43]",
              "gfx1201": "s_mov_b32 s42, exec_lo\\n s_mov_b32 exec_lo, 1\\n {}\\n s_mov_b32 exec_lo, s42"}


@pytest.mark.parametrize("arch", FAMILIES)
@pytest.mark.parametrize("masked", [False, True])
def test_single_lanes_are_defined_one_by_one(arch: str, masked: bool) -> None:
    """As compilers spill scalars: a lane that was written may be read, any other may not, whatever the execution mask is."""
    arrays = [floats(1), floats(1), np.zeros(64, np.uint32)]
    read = (ONE_ACTIVE[arch] if masked else "{}").format("v_readlane_b32 s41, v77, LANE")
    source = LANES.replace("READ", read)
    assert (run(source.replace("LANE", "3"), "probe", arrays, arch=arch)[2] == 41).all()
    with pytest.raises(LaunchError) as caught:
        run(source.replace("LANE", "4"), "probe", arrays, arch=arch)
    assert "never written" in str(caught.value)


REVERSE = """GCONV_KERNEL void GCONV_LAUNCH_BOUNDS(256, 1) probe(ConvArgs args) {
  GCONV_LDS(int, tile, 256, 0);
  int t = hw::thread_id();
  tile[t] = t;
  %s
  ((int*)args.y)[t] = tile[255 - t];
}"""


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "gfx1201"])
def test_a_missing_barrier(arch: str) -> None:
    arrays = [floats(1), floats(1), np.zeros(256, np.int32)]
    assert (run(REVERSE % "hw::barrier();", "probe", arrays, arch=arch, block=256)[2] == np.arange(256)[::-1]).all()
    error = stopped(REVERSE % "", arrays, arch=arch, block=256)
    assert "LDS race" in str(error) and "reads" in str(error)


def test_two_waves_may_write_the_halves_of_a_word() -> None:
    source = """GCONV_KERNEL void GCONV_LAUNCH_BOUNDS(128, 1) probe(ConvArgs args) {
      GCONV_LDS(unsigned short, tile, 128, 0);
      int t = hw::thread_id();
      tile[t % 64 * 2 + t / 64] = (unsigned short)t;
      hw::barrier();
      ((int*)args.y)[t] = tile[t]; }"""
    result = run(source, "probe", [floats(1), floats(1), np.zeros(128, np.int32)], block=128)[2]
    assert (result.reshape(64, 2).T.reshape(-1) == np.arange(128)).all()


@pytest.mark.parametrize("access", ["tile[t + args.N] = t", "((int*)args.y)[t] = tile[t + args.N]"])
def test_lds_has_an_end(access: str) -> None:
    source = f"""GCONV_KERNEL void probe(ConvArgs args) {{
      GCONV_LDS(int, tile, 128, 0);
      int t = hw::thread_id();
      tile[t] = tile[t + 64] = t;
      hw::barrier();
      {access};
      hw::barrier();
      ((int*)args.y)[t] += tile[63 - t]; }}"""
    run(source, "probe", [floats(1), floats(1), np.zeros(64, np.int32)], n=64)
    assert "512 bytes of LDS" in str(stopped(source, [floats(1), floats(1), np.zeros(64, np.int32)], n=65))


def test_lds_that_was_never_written() -> None:
    source = """GCONV_KERNEL void probe(ConvArgs args) {
      GCONV_LDS(int, tile, 128, 0);
      int t = hw::thread_id();
      tile[t] = t;
      hw::barrier();
      ((int*)args.y)[t] = tile[63 - t + args.N]; }"""
    run(source, "probe", [floats(1), floats(1), np.zeros(64, np.int32)], n=0)
    assert "never written" in str(stopped(source, [floats(1), floats(1), np.zeros(64, np.int32)], n=1))


def test_a_buffer_resource_has_a_range() -> None:
    source = """GCONV_KERNEL void probe(ConvArgs args) {
      auto resource = __builtin_amdgcn_make_buffer_rsrc(args.x, 0, 100, %s);
      unsigned value = __builtin_amdgcn_raw_buffer_load_b32(resource, hw::thread_id() * 4, 0, 0);
      ((unsigned*)args.y)[hw::thread_id()] = value; }"""
    for arch in FAMILIES:
        result = run(source % "hw::kBufferFlags", "probe", [np.ones(64, np.float32), floats(1), floats(64)], arch=arch)[2]
        assert result.tolist() == [1.0] * 25 + [0.0] * 39
    assert "word 3" in str(stopped(source % "0", [np.ones(64, np.float32), floats(1), floats(64)]))


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1201"])
def test_private_memory(arch: str) -> None:
    """An array indexed at run time lives in scratch memory."""
    source = """GCONV_KERNEL void probe(ConvArgs args) {
      int t = hw::thread_id();
      int values[300];
      for (int i = 0; i < 300; ++i) values[i] = i * 3 + t;
      ((int*)args.y)[t] = values[((int*)args.x)[t]]; }"""
    places = np.random.default_rng(0).integers(0, 300, 64).astype(np.int32)
    result = run(source, "probe", [places, floats(1), np.zeros(64, np.int32)], arch=arch)[2]
    assert (result == places * 3 + np.arange(64)).all()
    places[7] = 1000
    assert "bytes of scratch" in str(stopped(source, [places, floats(1), np.zeros(64, np.int32)], arch=arch))


def test_an_unknown_instruction_stops_with_its_name() -> None:
    source = 'GCONV_KERNEL void probe(ConvArgs args) { asm volatile("s_memtime s[4:5]"); }'
    error = stopped(source, [floats(1)])
    assert "does not know" in str(error) and "s_memtime" in str(error) and error.values["pc"] > 0


def test_registers_beyond_the_descriptor() -> None:
    source = 'GCONV_KERNEL void probe(ConvArgs args) { asm volatile("v_mov_b32 v200, 0"); }'
    assert "v200" in str(stopped(source, [floats(1)]))


def test_the_source_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_DEBUG", "1")
    source = "GCONV_KERNEL void probe(ConvArgs args) {\n  int t = hw::thread_id();\n  ((float*)args.y)[t + 1] = 1.0f;\n}"
    assert stopped(source, [floats(1), floats(1), floats(64)]).values["place"].endswith("kernel.hip:5")


def test_an_endless_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_RUN_TIMEOUT", "0.3")
    source = "GCONV_KERNEL void probe(ConvArgs args) { while (*(volatile int*)args.x == 0) {} }"
    assert stopped(source, [floats(1)]).code == "launch.timeout"


# --- the backend


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_OBJDUMP", "/nowhere/llvm-objdump")
    with pytest.raises(CompileError, match="llvm-objdump"):
        base.get("emu").compile("", "gfx942", "none")
    assert not base.get("emu").detect().available


def test_a_file_that_is_no_code_object(tmp_path: Path) -> None:
    path = tmp_path / "kernel.hsaco"
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(60))
    with pytest.raises(LaunchError, match="not a 64-bit AMDGPU ELF"):
        base.get("emu").load(Artifact(path, 67))


def test_an_unknown_kernel_of_a_code_object() -> None:
    backend = base.get("emu")
    module = backend.load(backend.compile('extern "C" __attribute__((global)) void one() {}', "gfx942", "one"))
    with pytest.raises(LaunchError, match="no kernel two"):
        module.function("two")


def test_a_fault_is_shown_again_and_not_remembered_as_a_fallback() -> None:
    assert "launch.emu" in choose._FAULTS_SHOWN
    assert base.parse_target("emu")[1] == "gfx942"


def test_trace_prints_registers_and_source_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gconvdsl.cli import main

    monkeypatch.setenv("GCONV_DEBUG", "1")
    command = ["emu", "trace", "--problem", "C=8 K=8 input=4x4 filter=1x1 dtype=fp16", "--target", "emu:gfx942"]
    assert main([*command, "--limit", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(not line.startswith(";") for line in lines) == 40 and any("conv.hpp:" in line for line in lines)
    assert any("s_load_dword" in line and "=" in line for line in lines)
    assert main([*command, "--block", "900"]) == 2
