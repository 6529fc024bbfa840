"""gconv/math.hpp: compiled here with the host compiler and measured against float64; compiled for every device arch."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from gconvdsl.expr import Expr, apply
from gconvdsl.ops import OPS

INCLUDE = Path(__file__).parent.parent / "gconvdsl" / "backends" / "include"

UNARY = ["exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "gelu", "gelu_tanh", "silu", "relu", "abs", "round_bf16",
         "round_fp16"]
BINARY = ["minimum", "maximum", "leaky_relu"]

_erf, _erfc = (np.vectorize(f, otypes=[float]) for f in (math.erf, math.erfc))
_TANH_GELU = math.sqrt(2 / math.pi)

EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda a: 1 / np.sqrt(a), "tanh": np.tanh, "erf": _erf,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)), "silu": lambda a: a / (1 + np.exp(-a)),
    "gelu": lambda a: a * 0.5 * _erfc(-a / math.sqrt(2)),
    "gelu_tanh": lambda a: a / (1 + np.exp(-2 * _TANH_GELU * (a + 0.044715 * a**3))),
}
"""Independent float64 formulas, accurate to far better than a float32 ulp on the ranges below."""

# function -> (ranges to sample, largest error in ulps of float32 that was measured, rounded up)
MEASURED: dict[str, tuple[list[tuple[float, float]], float]] = {
    "exp": ([(-87.3, 88.7), (-1.0, 1.0), (-1e-3, 1e-3)], 1.1),
    "log": ([(1e-38, 1e-30), (0.4, 2.5), (0.99, 1.01), (1.0, 1e6), (1e30, 3e38)], 0.9),
    "sqrt": ([(0.0, 10.0), (1e-38, 1e-30)], 0.51),
    "rsqrt": ([(1e-3, 10.0), (1e-38, 1e-30)], 1.6),
    "tanh": ([(-10.0, 10.0), (-0.7, 0.7), (-1e-3, 1e-3)], 1.4),
    "erf": ([(-5.0, 5.0), (-1.1, 1.1), (-1e-3, 1e-3)], 1.3),
    "sigmoid": ([(-87.0, 87.0), (-3.0, 3.0)], 2.3),
    "silu": ([(-80.0, 87.0), (-3.0, 3.0)], 3.2),
    "gelu": ([(-12.5, 12.5), (-2.0, 2.0), (-1e-3, 1e-3)], 4.3),
}


@pytest.fixture(scope="module", params=["-O2", "-O3 -mfma -ffp-contract=fast"])
def header(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., np.ndarray]:
    """``header(name, *float32 arrays)``; built freestanding, since that is how kernels include it."""
    compiler = shutil.which("g++") or pytest.skip("g++ is not here")
    if "-mfma" in request.param and "fma" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this CPU has no FMA")
    lines = ['#include "gconv/math.hpp"']
    for names, parameters, call in ((UNARY, "const float* a", "a[i]"), (BINARY, "const float* a, const float* b", "a[i], b[i]")):
        lines += [f'extern "C" void {n}_array({parameters}, float* out, long n) {{\n'
                  f"  for (long i = 0; i < n; ++i) out[i] = gconv::math::{n}({call});\n}}" for n in names]
    folder = tmp_path_factory.mktemp("math")
    (folder / "m.cpp").write_text("\n".join(lines))
    flags = [*request.param.split(), "-ffreestanding", "-fno-math-errno", "-nostdlib", "-Wl,-z,defs", "-shared", "-fPIC"]
    subprocess.run([compiler, "-std=c++17", *flags, "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "m.cpp", "-o", "m.so"],
                   cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "m.so"))

    def call(name: str, *arrays: Any) -> np.ndarray:
        inputs = [np.ascontiguousarray(a, np.float32) for a in np.broadcast_arrays(*arrays)]
        out = np.empty_like(inputs[0])
        library[f"{name}_array"](*(ctypes.c_void_p(a.ctypes.data) for a in (*inputs, out)), ctypes.c_long(out.size))
        return out

    return call


def ulps(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance in units of float32's spacing at the exact value."""
    return np.abs(result.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)


def samples(low: float, high: float) -> np.ndarray:
    """100,000 float32 values, evenly spaced, and as many evenly spaced in exponent where the range allows."""
    even = np.linspace(low, high, 100_000)
    logs = np.geomspace(low, high, 100_000) if low > 0 else even
    return np.concatenate([even, logs]).astype(np.float32)


@pytest.mark.parametrize("name", MEASURED)
def test_accuracy_against_float64(header: Callable[..., np.ndarray], name: str) -> None:
    ranges, limit = MEASURED[name]
    a = np.concatenate([samples(low, high) for low, high in ranges])
    exact = EXACT[name](a.astype(np.float64))
    normal = np.abs(exact) >= np.finfo(np.float32).tiny
    result, exact = header(name, a)[normal], exact[normal]
    assert ulps(result, exact).max() <= limit
    assert (np.abs(result - exact) / np.abs(exact)).max() <= OPS[name].ulps * 2.0**-24


def test_gelu_tanh_within_its_error_rule(header: Callable[..., np.ndarray]) -> None:
    a = samples(-8.0, 8.0).astype(np.float64)
    exact = EXACT["gelu_tanh"](a)
    _, bound = apply("gelu_tanh", Expr("acc")).evaluate_with_error({"acc": (a, 0.0)})
    assert np.all(np.abs(header("gelu_tanh", a) - exact) <= bound)
    assert np.all(bound <= 3e-5 * np.abs(exact) + 1e-30)           # and the rule is not idle


@pytest.mark.parametrize("name", ["exp", "sigmoid", "gelu"])
def test_subnormal_results_are_within_two_of_the_smallest(header: Callable[..., np.ndarray], name: str) -> None:
    low, high = (-14.5, -12.9) if name == "gelu" else (-104.0, -87.0)
    a = np.linspace(low, high, 50_000, dtype=np.float32)
    exact = EXACT[name](a.astype(np.float64))
    assert np.abs(header(name, a) - exact).max() <= 3 * 2.0**-149 + 8 * 2.0**-24 * np.abs(exact).max()


INF, NAN = math.inf, math.nan
SPECIAL = [  # function, argument, result
    ("exp", INF, INF), ("exp", -INF, 0.0), ("exp", NAN, NAN), ("exp", 89.0, INF), ("exp", -200.0, 0.0), ("exp", 0.0, 1.0),
    ("exp", 3e38, INF),
    ("log", INF, INF), ("log", 0.0, -INF), ("log", -0.0, -INF), ("log", -1.0, NAN), ("log", -INF, NAN), ("log", NAN, NAN),
    ("log", 1.0, 0.0),
    ("sqrt", -1.0, NAN), ("sqrt", INF, INF), ("rsqrt", 0.0, INF), ("rsqrt", INF, 0.0), ("rsqrt", -1.0, NAN),
    ("tanh", INF, 1.0), ("tanh", -INF, -1.0), ("tanh", NAN, NAN), ("erf", INF, 1.0), ("erf", -INF, -1.0), ("erf", NAN, NAN),
    ("sigmoid", INF, 1.0), ("sigmoid", -INF, 0.0), ("sigmoid", NAN, NAN), ("silu", INF, INF), ("silu", NAN, NAN),
    ("silu", -INF, NAN),
    ("gelu", INF, INF), ("gelu", NAN, NAN), ("gelu", -INF, NAN), ("gelu", -100.0, 0.0), ("gelu_tanh", INF, INF),
    ("gelu_tanh", NAN, NAN),
    ("relu", NAN, NAN), ("relu", -INF, 0.0), ("relu", INF, INF), ("abs", -INF, INF), ("abs", NAN, NAN),
    ("round_fp16", 65519.9, 65504.0), ("round_fp16", 65520.0, INF), ("round_fp16", -INF, -INF), ("round_fp16", NAN, NAN),
    ("round_bf16", 3.4e38, INF), ("round_bf16", NAN, NAN), ("round_bf16", -INF, -INF),
]


@pytest.mark.parametrize("name, argument, expected", SPECIAL)
def test_special_values(header: Callable[..., np.ndarray], name: str, argument: float, expected: float) -> None:
    np.testing.assert_array_equal(header(name, [argument]), np.float32([expected]))


def test_small_arguments_are_kept(header: Callable[..., np.ndarray]) -> None:
    tiny = np.float32([1e-40, -1e-30, 1e-20, -1e-8])
    np.testing.assert_array_equal(header("tanh", tiny), tiny)
    np.testing.assert_allclose(header("erf", tiny), tiny * 2 / math.sqrt(math.pi), rtol=3e-7, atol=2.0**-149)


@pytest.mark.parametrize("name", BINARY)
def test_two_argument_functions(header: Callable[..., np.ndarray], name: str) -> None:
    values = np.float32([-INF, -2.5, -0.0, 0.0, 1.0, INF, NAN])
    a, b = (m.ravel() for m in np.meshgrid(values, values))
    with np.errstate(invalid="ignore"):
        leaky_relu = np.where(a >= 0, a, a * b)
        expected = {"minimum": np.minimum(a, b), "maximum": np.maximum(a, b), "leaky_relu": leaky_relu}[name]
    np.testing.assert_array_equal(header(name, a, b), expected)


@pytest.mark.parametrize("name", ["round_fp16", "round_bf16"])
def test_rounding_is_that_of_numpy(header: Callable[..., np.ndarray], name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.float16 if name == "round_fp16" else ml_dtypes.bfloat16
    bits = np.random.default_rng(1).integers(0, 2**32, 300_000, dtype=np.uint64).astype(np.uint32)
    halfway = (bits & np.uint32(0xFFFFF000)) | np.uint32(0x8000)
    a = np.concatenate([bits, halfway, bits % np.uint32(0x39000000)]).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(header(name, a), a.astype(dtype).astype(np.float32))


# --- device compilers

DEVICE = """
#if defined(GCONV_PLATFORM_CUDA)
#define GCONV_DEVICE_INLINE __device__ __forceinline__
#define KERNEL extern "C" __global__
#else
#define GCONV_DEVICE_INLINE __attribute__((device)) inline __attribute__((always_inline))
#define KERNEL extern "C" __attribute__((global))
#endif
#include "gconv/math.hpp"
namespace m = gconv::math;
KERNEL void every(float* p, float b) {
  float a = p[0];
  p[0] = m::exp(a) + m::log(a) + m::sqrt(a) + m::rsqrt(a) + m::tanh(a) + m::erf(a)
       + m::sigmoid(a) + m::gelu(a) + m::gelu_tanh(a) + m::silu(a);
  p[1] = m::minimum(a, b) + m::maximum(a, b) + m::clamp(a, 0.0f, b) + m::relu(a)
       + m::leaky_relu(a, b) + m::where(a < b, a, b) + m::abs(a);
  p[2] = m::round_fp16(a) + m::round_bf16(a) + m::round_fp32(a) + a / b;
}
"""


@pytest.mark.parametrize("arch", ["gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250"])
def test_compiles_for_amd_without_device_libraries(tmp_path: Path, arch: str, require_tool: Callable[..., Any]) -> None:
    clang = require_tool("clang", arch).command
    (tmp_path / "m.hip").write_text(DEVICE)
    version = 6 if arch == "gfx1250" else 5
    flags = ["--cuda-device-only", "--no-gpu-bundle-output", f"--offload-arch={arch}", f"-mcode-object-version={version}",
             "-nogpuinc", "-nogpulib", "-O3", "-std=c++17", "-DGCONV_PLATFORM_HIP", f"-I{INCLUDE}"]
    subprocess.run([clang, "-x", "hip", *flags, "m.hip", "-o", "m.hsaco"], cwd=tmp_path, check=True)
    assert (tmp_path / "m.hsaco").read_bytes()[:4] == b"\x7fELF"     # the linker found no symbol missing


def test_compiles_for_nvidia(tmp_path: Path, require_tool: Callable[..., Any]) -> None:
    nvcc = require_tool("nvcc").command
    (tmp_path / "m.cu").write_text(DEVICE)
    flags = ["-std=c++17", "-O3", "-arch=sm_90", "-cubin", "-DGCONV_PLATFORM_CUDA", f"-I{INCLUDE}"]
    subprocess.run([nvcc, "-x", "cu", *flags, "m.cu", "-o", "m.cubin"], cwd=tmp_path, check=True)
    assert (tmp_path / "m.cubin").stat().st_size > 0
