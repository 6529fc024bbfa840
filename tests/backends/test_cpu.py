from __future__ import annotations

import ctypes
import mmap
import os
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl.backends import base, cpu, toolchain
from gconvdsl.expr import Expr, apply, operand
from gconvdsl.inputs import make_inputs, make_operands
from gconvdsl.lower_cpu import ISAS, lower_cpu
from gconvdsl.runner import bare_spec, execute
from gconvdsl.spec import ConvParams, KernelSpec, Operand

DIRECTIONS = ("forward", "bwd_data", "bwd_weight")

# Each row is one specialisation per direction; rows that share one differ in sizes, padding and layout only.
CASES: dict[str, dict[str, Any]] = {
    "resnext": dict(N=2, G=8, C=32, K=32, input=(14, 15), filter=(3, 3), pad=1),
    "resnext, channels first": dict(N=2, G=5, C=20, K=20, input=(14, 15), filter=(3, 3), pad=1, layout="nchw"),
    "resnext, pads on one side, one pixel": dict(N=3, G=3, C=12, K=12, input=(1, 1), filter=(3, 3), pad=((2, 0), (0, 2))),
    "depthwise": dict(N=2, G=37, C=37, K=37, input=(9, 30), filter=(3, 3), pad=1),
    "depthwise, channels first": dict(N=2, G=9, C=9, K=9, input=(9, 30), filter=(3, 3), pad=1, layout="nchw"),
    "depthwise, nothing": dict(N=0, G=37, C=37, K=37, input=(9, 30), filter=(3, 3), pad=1),
    "depthwise multiplier 3, 1-D, long": dict(N=2, G=5, C=5, K=15, input=(70,), filter=(17,), stride=3, pad=((4, 9),), dilation=2),
    "3-D, odd channels": dict(N=1, G=2, C=6, K=10, input=(5, 7, 6), filter=(3, 2, 3), stride=(2, 1, 3), pad=1, dilation=(1, 3, 2)),
    "17 to 48 channels, asymmetric": dict(N=2, G=2, C=34, K=96, input=(9, 11), filter=(3, 2), stride=(2, 3), pad=((1, 0), (0, 2)),
                                          dilation=(1, 2)),
    "one channel, one group": dict(N=2, G=1, C=1, K=1, input=(12, 9), filter=(5, 5), pad=2),
    "stride beyond the filter": dict(N=2, G=2, C=32, K=32, input=(28, 28), filter=(3, 3), stride=6, pad=1, dtype="fp16"),
    "stride and dilation share a factor": dict(N=2, G=3, C=6, K=9, input=(13, 12), filter=(2, 2), stride=(2, 4), dilation=(2, 6), dtype="bf16"),
    "1x1": dict(N=2, G=1, C=70, K=40, input=(7, 7), filter=(1, 1), dtype="bf16"),
    "depthwise, a stride and pads on one side": dict(N=2, G=21, C=21, K=21, input=(12, 31), filter=(3, 3), stride=2,
                                                     pad=((1, 0), (2, 1))),
    "depthwise, stride 3 and dilation 2": dict(N=1, G=8, C=8, K=8, input=(11, 40), filter=(2, 4), stride=(2, 3), pad=(0, 3),
                                               dilation=(1, 2)),
    "depthwise, wider than high": dict(N=1, G=150, C=150, K=150, input=(2, 23), filter=(3, 3), pad=1),
    "depthwise, 3-D": dict(N=1, G=12, C=12, K=12, input=(4, 6, 13), filter=(3, 3, 3), stride=(1, 2, 1), pad=1),
    "depthwise, 5 taps": dict(N=1, G=9, C=9, K=9, input=(8, 19), filter=(5, 5), stride=(1, 2), pad=2),
    "two channels, groups left over": dict(N=2, G=7, C=14, K=14, input=(9, 24), filter=(3, 3), stride=(1, 2), pad=1),
    "four channels, four taps, dilation": dict(N=2, G=3, C=12, K=12, input=(7, 33), filter=(2, 4), pad=((0, 1), (3, 0)),
                                               dilation=(1, 2)),
    "eight channels": dict(N=2, G=3, C=24, K=24, input=(7, 29), filter=(3, 3), pad=1),
    "eight channels, stride 2": dict(N=1, G=2, C=16, K=16, input=(8, 31), filter=(3, 3), stride=2, pad=1),
    "long rows of many channels": dict(N=2, G=2, C=40, K=70, input=(90,), filter=(40,), pad=((20, 18),)),
    "deep sums, a stride": dict(N=1, G=1, C=180, K=190, input=(9, 11), filter=(3, 3), stride=2, pad=1),
    "three channels, lanes left over": dict(N=2, G=11, C=33, K=33, input=(9, 17), filter=(3, 3), pad=1),
    "five to three channels, half precision": dict(N=2, G=7, C=35, K=21, input=(8, 15), filter=(3, 2), stride=(1, 2), pad=1, dtype="bf16"),
    "twelve channels": dict(N=1, G=3, C=36, K=36, input=(9, 16), filter=(3, 3), pad=1),
    "1x1 with a stride": dict(N=2, G=2, C=8, K=6, input=(7, 8), filter=(1, 1), stride=(2, 3)),
}


def run(problem: gconv.ConvProblem, spec: KernelSpec | None = None, operands: dict[str, Any] | None = None, target: str = "cpu",
        config: gconv.KernelConfig | None = None):
    """What `gconv.verify` calls."""
    def on_arrays(a: Any, b: Any, out: Any) -> None:
        execute(spec or bare_spec(problem.direction), config or gconv.KernelConfig(), problem, (a, b), operands, out=out, target=target, poison=True)
    return on_arrays


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_right_in_all_directions(case, direction):
    problem = gconv.ConvProblem(**CASES[case], direction=direction)
    report = gconv.verify(problem, run(problem))
    assert report.ok, report.summary()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_units_of_many_rows_and_columns(direction):
    """Wide and high enough that rows and columns are cut, with a remainder in both."""
    problem = gconv.ConvProblem(N=1, G=8, C=32, K=32, input=(67, 301), filter=(3, 3), pad=1, direction=direction)
    report = gconv.verify(problem, run(problem), kinds=("normal", "integers"))
    assert report.ok, report.summary()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_rows_of_several_runs_of_columns(direction, stride):
    problem = gconv.ConvProblem(N=1, G=43, C=43, K=43, input=(13, 259), filter=(3, 3), stride=stride, pad=1, direction=direction)
    report = gconv.verify(problem, run(problem), kinds=("normal", "integers"))
    assert report.ok, report.summary()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_end_of_the_memory_is_not_passed(direction):
    """Vectors of channels at the very end of an array that ends with its page: reading on would fault."""
    problem = gconv.ConvProblem(N=1, G=11, C=11, K=11, input=(5, 16), filter=(3, 3), pad=1, direction=direction)
    a, b = (_at_the_end_of_a_page(array) for array in make_inputs(problem, "normal", 2))
    report = gconv.compare(problem, gconv.Runner(target="cpu").run(a, b, problem).output, a, b)
    assert report.ok, report.summary()


def _at_the_end_of_a_page(array: np.ndarray) -> np.ndarray:
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    start = pages * mmap.PAGESIZE - array.nbytes
    placed = np.frombuffer(memory, array.dtype, array.size, start).reshape(array.shape)
    placed[...] = array
    address = placed.ctypes.data - start + pages * mmap.PAGESIZE
    assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0     # PROT_NONE
    return placed


@pytest.mark.parametrize("out_dtype", ["fp16", "bf16"])
def test_a_result_of_another_dtype(out_dtype):
    problem = gconv.ConvProblem(**CASES["resnext"], out_dtype=out_dtype)
    report = gconv.verify(problem, run(problem))
    assert report.ok, report.summary()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", ["resnext", "depthwise", "two channels, groups left over", "17 to 48 channels, asymmetric"])
def test_bitwise_equal_for_any_number_of_threads(monkeypatch, case, direction):
    problem = gconv.ConvProblem(**{**CASES[case], "N": 6, "input": (60, 50)}, direction=direction)
    a, b = make_inputs(problem, "normal", 3)
    results = []
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("GCONV_THREADS", threads)
        assert cpu.threads() == int(threads)
        results.append(gconv.Runner(target="cpu").run(a, b, problem).output)
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()


def fused(dtype: str = "fp32", **fields: Any) -> tuple[gconv.ConvProblem, KernelSpec]:
    """relu(conv(x * gain + shift) * scale + bias + residual), with every kind of operand."""
    x, acc = Expr("x"), Expr("acc")
    prologue = apply("add", apply("mul", x, operand("gain")), operand("shift"))
    epilogue = apply("relu", apply("add", apply("add", apply("mul", acc, operand("scale")), operand("bias")), operand("residual")))
    kinds = dict(residual="like_y", gain="per_c", shift="scalar", scale="scalar", bias="per_k")
    spec = KernelSpec("fused", ConvParams("forward"), tuple(Operand(*item) for item in kinds.items()), prologue, epilogue)
    base_fields = dict(N=2, G=6, C=24, K=24, input=(9, 13), filter=(3, 3), pad=((1, 2), (0, 1)))
    return gconv.ConvProblem(**{**base_fields, **fields}, dtype=dtype), spec


@pytest.mark.parametrize("fields", [
    dict(), dict(layout="nchw"), dict(G=2, C=10, K=26, dtype="bf16"), dict(G=2, C=10, K=26, dtype="bf16", layout="ngchw"),
    dict(G=24, layout="nhwc"),
])
def test_prologue_and_epilogue(fields):
    problem, spec = fused(**fields)
    values = make_operands(problem, spec, 5)
    report = gconv.verify(problem, run(problem, spec, values), spec=spec, operands=values)
    assert report.ok, report.summary()


def test_padding_comes_after_the_prologue():
    spec = KernelSpec("shifted", ConvParams("forward"), prologue=apply("add", Expr("x"), Expr("const", value=100.0)))
    problem = gconv.ConvProblem(N=1, G=1, C=1, K=1, input=(1,), filter=(3,), pad=1)
    x, w = np.zeros((1, 1, 1, 1), np.float32), np.array([1, 2, 4], np.float32).reshape(1, 1, 3, 1)
    assert execute(spec, None, problem, (x, w), target="cpu").output.ravel().tolist() == [200.0]


@pytest.mark.parametrize("direction, operand_kind, channels", [("bwd_data", "per_c", 12), ("bwd_weight", "like_y", None)])
def test_epilogues_of_the_backward_directions(direction, operand_kind, channels):
    epilogue = apply("sub", apply("mul", Expr("acc"), Expr("const", value=0.5)), operand("other"))
    spec = KernelSpec("halved", ConvParams(direction), (Operand("other", operand_kind),), epilogue=epilogue)
    problem = gconv.ConvProblem(N=2, G=3, C=12, K=6, input=(8, 7), filter=(3, 3), stride=2, pad=1, direction=direction)
    values = make_operands(problem, spec, 5)
    assert channels is None or values["other"].shape == (channels,)
    report = gconv.verify(problem, run(problem, spec, values), spec=spec, operands=values)
    assert report.ok, report.summary()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", ["resnext", "depthwise"])
def test_nonfinite_values_reach_what_they_must_and_nothing_else(case, direction, value):
    problem = gconv.ConvProblem(**CASES[case], direction=direction)
    a, b = make_inputs(problem, "normal", 1)
    a[(0,) * a.ndim], a[(1, 5, 6) + (0,) * (a.ndim - 3)] = value, value
    report = gconv.compare(problem, gconv.Runner(target="cpu").run(a, b, problem).output, a, b, strict_nonfinite=True)
    assert report.ok and report.nonfinite_ok, report.summary()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("fields", [
    CASES["resnext"], dict(N=2, G=2, C=4, K=34, input=(5, 11), filter=(2, 5), stride=(1, 2), pad=(1, 3)),
    CASES["long rows of many channels"], CASES["eight channels, stride 2"],
])
def test_strict_nonfinite_keeps_the_second_operand_off_the_padding(fields, direction):
    problem = gconv.ConvProblem(**fields, direction=direction)
    strict, free = gconv.KernelConfig(strict_nonfinite=True), gconv.KernelConfig()
    report = gconv.verify(problem, run(problem, config=strict), kinds=("normal", "integers"), strict_nonfinite=True)
    assert report.ok, report.summary()
    a, b = make_inputs(problem, "normal", 1)
    b[(0,) * b.ndim], b[(-1,) * b.ndim] = np.inf, np.nan
    for config in (strict, free):
        out = gconv.Runner(config, target="cpu").run(a, b, problem).output
        report = gconv.compare(problem, out, a, b, strict_nonfinite=config is strict)
        assert report.ok, report.summary()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_any_strides_without_a_copy(direction):
    """Gaps between elements, transposed axes and a reversed axis, handed to the kernel as they are."""
    problem = gconv.ConvProblem(N=2, G=3, C=6, K=9, input=(6, 7), filter=(3, 2), pad=1, direction=direction)
    dense = dict(zip((*problem.operands, problem.result), (*make_inputs(problem, "integers", 4), np.empty(problem.shape(problem.result), "f4"))))
    strange = {name: _strange(array) for name, array in dense.items()}
    lowered = lower_cpu(bare_spec(direction), problem, gconv.KernelConfig(), backend().default_arch())
    module = backend().load(backend().compile(lowered.source, backend().default_arch(), "strides"))
    scratch = backend().allocate(lowered.plan.workspace)
    views = {f"{name}v": problem.view(name, {axis: step // 4 for axis, step in zip(problem.axes(name), array.strides)})
             for name, array in strange.items()}
    args = lowered.plan.args.with_views(**views).pack(*(strange[name].__array_interface__["data"][0] for name in "xwy"), scratch.address)
    backend().launch(module, lowered.plan, args)
    a, b = (dense[name] for name in problem.operands)
    report = gconv.compare(problem, np.ascontiguousarray(strange[problem.result]), a, b, exact=True)
    assert report.ok, report.summary()


def _strange(array: np.ndarray) -> np.ndarray:
    """The same values in memory with the axes reversed, a gap after every element, and the last axis running backwards."""
    memory = np.full((*array.shape[::-1], 2), np.nan, np.float32)
    view = memory[..., 0].transpose()[..., ::-1]
    view[...] = array
    return view


def backend() -> cpu.CpuBackend:
    return base.get("cpu")  # type: ignore[return-value]


@pytest.mark.parametrize("isa", [name for name in cpu.host_isas()[1:] if name != "generic"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_instruction_set_of_this_host(isa, direction):
    problem = gconv.ConvProblem(N=2, G=4, C=8, K=8, input=(9, 8), filter=(3, 3), pad=1, dtype="bf16", direction=direction)
    report = gconv.verify(problem, run(problem, target=f"cpu:{isa}"), kinds=("normal",))
    assert report.ok, report.summary()


def test_the_instruction_set_can_be_chosen(monkeypatch):
    monkeypatch.setenv("GCONV_ISA", "generic")
    assert backend().default_arch() == "generic" and backend().detect().arch == "generic"
    monkeypatch.delenv("GCONV_ISA")
    assert backend().default_arch() == cpu.host_isas()[0]


def test_an_instruction_set_that_the_processor_lacks_compiles_and_does_not_run(monkeypatch):
    monkeypatch.setattr(cpu, "host_isas", lambda: ("generic",))
    problem = gconv.ConvProblem(G=2, C=8, K=8, input=(4, 4), filter=(3, 3), pad=1)
    kernel = gconv.kernel(lambda x, w: gconv.conv(x, w, pad=1, groups=2))
    isa = next(name for name in ISAS if name not in ("generic", "neon"))
    assert kernel.compile(problem, target=f"cpu:{isa}").built is not None
    with pytest.raises(gconv.GconvError, match="this processor runs generic") as caught:
        kernel(np.zeros(problem.fused_shape("x"), np.float32), np.zeros(problem.fused_shape("w"), np.float32), target=f"cpu:{isa}")
    assert caught.value.code == "launch.device"


@pytest.mark.parametrize("model, flags, expected", [
    ("server", "fpu sse2 avx2 fma f16c bmi1 bmi2 abm movbe avx512f avx512bw avx512cd avx512dq avx512vl", ("avx512", "avx2", "sse2", "generic")),
    ("desktop", "fpu sse2 avx2 fma f16c bmi1 bmi2 abm movbe avx512f", ("avx2", "sse2", "generic")),
    ("old", "fpu sse2 avx", ("sse2", "generic")),
    ("arm", "fp asimd crc32", ("neon", "generic")),
])
def test_the_instruction_sets_follow_from_the_processor(monkeypatch, model, flags, expected):
    key = "Features" if model == "arm" else "flags"
    monkeypatch.setattr(cpu, "_processor", lambda: cpu._parse_cpuinfo(f"processor : 0\nmodel name : {model}\n{key} : {flags}\n"))
    assert cpu.host_isas() == expected and cpu._processor()[0] == model


@pytest.mark.parametrize("direction", ["forward", "bwd_weight"])
@pytest.mark.parametrize("arch, machine", [("avx512", "x86_64-linux-gnu"), ("neon", "aarch64-linux-gnu")])
def test_wider_and_foreign_vectors_compile(require_tool, tmp_path, arch, machine, direction):
    """Compiled only: this host may not have them."""
    clang = require_tool("clang")
    source = lower_cpu(*_declared(direction), gconv.KernelConfig(), arch).source
    (tmp_path / "kernel.cpp").write_text(source)
    flags = ["-x", "c++", f"--target={machine}", *ISAS[arch].flags, "-std=c++17", "-O2", "-ffreestanding", "-S", "-I", str(toolchain.INCLUDE)]
    done = toolchain.run([clang.command, *flags, "kernel.cpp", "-o", "kernel.s"], environment=dict(os.environ), cwd=tmp_path, limit=60)
    assert done.status == 0, done.text
    wide = {"avx512": "vfmadd231ps\t", "neon": "fmla\tv"}[arch]
    text = (tmp_path / "kernel.s").read_text()
    assert wide in text and ("zmm" in text) == (arch == "avx512")


def _declared(direction: str) -> tuple[KernelSpec, gconv.ConvProblem]:
    return bare_spec(direction), gconv.ConvProblem(N=1, G=2, C=32, K=32, input=(8, 8), filter=(3, 3), direction=direction)


def test_a_forked_child_builds_its_own_pool():
    problem = gconv.ConvProblem(**{**CASES["resnext"], "input": (60, 50)})
    a, b = make_inputs(problem, "normal", 3)
    expected = gconv.Runner(target="cpu").run(a, b, problem).output.tobytes()
    child = os.fork()
    if child == 0:
        right = gconv.Runner(target="cpu").run(a, b, problem).output.tobytes() == expected
        os._exit(0 if right else 1)
    alarm = threading.Timer(20, os.kill, (child, 9))
    alarm.start()
    status = os.waitpid(child, 0)[1]
    alarm.cancel()
    assert os.waitstatus_to_exitcode(status) == 0
    assert gconv.Runner(target="cpu").run(a, b, problem).output.tobytes() == expected


def test_calls_from_several_threads_at_once():
    problem = gconv.ConvProblem(**{**CASES["resnext"], "input": (60, 50)})
    a, b = make_inputs(problem, "normal", 3)
    expected = gconv.Runner(target="cpu").run(a, b, problem).output.tobytes()
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(10):
            if gconv.Runner(target="cpu").run(a, b, problem).output.tobytes() != expected:
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_half_precision_conversions_agree_with_numpy(require_tool, tmp_path):
    """All 65536 halves widened; rounding of ties, subnormals, overflow, infinities and NaN; vectors and single elements."""
    convert = _conversions(require_tool("cxx"), tmp_path)
    halves = np.arange(65536, dtype=np.uint16)
    rng = np.random.default_rng(0)
    ties = halves.view(np.float16).astype(np.float32).view(np.uint32)[:, None] + np.uint32([0, 0xfff, 0x1000, 0x1001, 0x8000, 0x7fff])
    floats = np.concatenate([ties.ravel(), rng.integers(0, 2 ** 32, 1 << 20, np.uint32)]).view(np.float32)
    floats = floats[:len(floats) // 16 * 16]
    for name, dtype in (("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        with np.errstate(all="ignore"):
            wide, narrow = halves.view(dtype).astype(np.float32), floats.astype(dtype)
        for vector in (0, 1):
            np.testing.assert_array_equal(convert(name, "widen", vector, halves, np.float32), wide)
            got = convert(name, "narrow", vector, floats, np.uint16)
            numbers = ~np.isnan(floats)
            np.testing.assert_array_equal(got[numbers], narrow.view(np.uint16)[numbers])
            assert np.isnan(got[~numbers].view(dtype).astype(np.float32)).all()


_CONVERSIONS = """
#define GCONV_LANES 4
#include "gconv/cpu/vector.hpp"
using namespace gconv::cpu;
template <class S> void widen(const unsigned short* from, float* to, long n, int vector) {
  if (vector) for (long i = 0; i < n; i += 4) store(to + i, S::read_vector(from + i));
  else for (long i = 0; i < n; i++) to[i] = S::read(from + i);
}
template <class S> void narrow(const float* from, unsigned short* to, long n, int vector) {
  if (vector) for (long i = 0; i < n; i += 4) S::write_vector(to + i, load(from + i));
  else for (long i = 0; i < n; i++) S::write(to + i, from[i]);
}
extern "C" void fp16_widen(const unsigned short* f, float* t, long n, int v) { widen<Fp16>(f, t, n, v); }
extern "C" void bf16_widen(const unsigned short* f, float* t, long n, int v) { widen<Bf16>(f, t, n, v); }
extern "C" void fp16_narrow(const float* f, unsigned short* t, long n, int v) { narrow<Fp16>(f, t, n, v); }
extern "C" void bf16_narrow(const float* f, unsigned short* t, long n, int v) { narrow<Bf16>(f, t, n, v); }
"""


def _conversions(tool: toolchain.Tool, directory: Any) -> Any:
    import ctypes
    (directory / "convert.cpp").write_text(_CONVERSIONS)
    command = [tool.command, "-std=c++17", "-O1", "-shared", "-fPIC", "-I", str(toolchain.INCLUDE), "convert.cpp", "-o", "convert.so"]
    done = toolchain.run(command, environment=dict(os.environ), cwd=directory, limit=60)
    assert done.status == 0, done.text
    library = ctypes.CDLL(str(directory / "convert.so"))

    def convert(name: str, way: str, vector: int, values: np.ndarray, dtype: Any) -> np.ndarray:
        result = np.zeros(len(values), dtype)
        getattr(library, f"{name}_{way}")(*(ctypes.c_void_p(each.ctypes.data) for each in (values, result)), ctypes.c_long(len(values)), vector)
        return result
    return convert


def test_a_damaged_library_is_a_launch_error(tmp_path):
    (tmp_path / "kernel.so").write_bytes(b"not a library")
    with pytest.raises(gconv.LaunchError) as caught:
        backend().load(base.Artifact(tmp_path / "kernel.so", 13))
    assert caught.value.code == "launch.load"


def test_the_assembly_shows_the_kernels():
    lowered = lower_cpu(*_declared("forward"), gconv.KernelConfig(), backend().default_arch())
    text = backend().assembly(lowered.source, backend().default_arch(), "forward")
    assert "gconv_convolve" in text and "gconv_pack_weights" in text


def test_what_the_binary_must_be_keyed_by():
    identity = backend().identity("avx2")
    assert identity["threads"] == str(cpu.threads()) and identity["device"] and identity["compiler"]


@pytest.mark.parametrize("direction", ["forward", "bwd_weight"])
def test_long_sums_gather_less_error_than_one_chain(direction):
    problem = gconv.ConvProblem(C=600, K=16, input=(20, 32), filter=(1, 1)).as_(direction)
    rng = np.random.default_rng(5)
    a, b = (rng.uniform(0.5, 1.5, problem.fused_shape(tensor)).astype(np.float32) for tensor in problem.operands)
    x = a.reshape(-1, 600).astype(np.float64)                     # points, channels
    other = b.reshape(-1, 16).astype(np.float64) if direction == "bwd_weight" else b.reshape(16, 600).T.astype(np.float64)
    left, right = (x.T, other) if direction == "bwd_weight" else (x, other)
    chain = np.zeros((left.shape[0], 16), np.float32)
    for k in range(left.shape[1]):
        chain = (chain + left[:, k, None] * right[k]).astype(np.float32)
    result = gconv.Runner(target="cpu").run(a, b, problem).output.reshape(-1, 16 if direction == "forward" else 600)
    exact = left @ right
    error, one_chain = (np.sqrt(np.mean((each - exact) ** 2)) for each in (result if direction == "forward" else result.T, chain))
    assert 0 < error < one_chain / 2
