"""The stand-ins for libcuda.so.1 (fake_cuda.cpp) and libamdhip64.so (fake_hip.cpp) as tests talk to them, arrays in their memory,
and a small problem for them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

import gconvdsl as gconv
from gconvdsl import devicearrays
from gconvdsl.plan import three
from gconvdsl.problem import ConvProblem
from gconvdsl.runner import bare_spec, execute
from numpy_device import run as on_host

_HERE = Path(__file__).parent
SOURCE = (_HERE / "fake_cuda.cpp").read_text()
HIP_SOURCE = (_HERE / "fake_hip.hpp").read_text() + SOURCE + (_HERE / "fake_hip.cpp").read_text()
PROBLEM = ConvProblem(N=2, G=2, C=4, K=6, input=(5, 4), filter=(3, 2), pad=((1, 0), (0, 1)), stride=(2, 1))
TILE = gconv.Tile(block=(16, 16, 16), waves=(1, 1, 1), wave_tile=(16, 16, 1))
CONFIG = gconv.KernelConfig(tile=TILE, pipeline="basic_v1", split_k=1)


class Fake:
    """The stand-in, as tests talk to it."""

    def __init__(self, path: str) -> None:
        self.path, self.lib = path, ctypes.CDLL(path)
        self.lib.fake_log.restype = ctypes.c_char_p
        self.lib.fake_memory.restype = ctypes.c_ulonglong
        self.lib.fake_memory.argtypes = [ctypes.c_size_t, ctypes.c_int]

    def log(self, *names: str) -> list[str]:
        """The calls of these functions since the last `clear`, in order."""
        lines = self.lib.fake_log().decode().splitlines()
        return [line for line in lines if not names or line.split()[0] in names]

    def clear(self) -> None:
        self.lib.fake_clear()

    def fail(self, function: str, status: int) -> None:
        self.lib.fake_fail(function.encode(), status)

    def expect(self, problem: ConvProblem) -> None:
        """What the stand-in's kernel has as compile-time facts."""
        rows = [three(row, 1) for row in (problem.filter, problem.stride, problem.dilation)]
        direction = ("forward", "bwd_data", "bwd_weight").index(problem.direction)
        values = [direction, *rows[0], *rows[1], *rows[2], problem.Cg, problem.Kg]
        self.lib.fake_facts((ctypes.c_int * 12)(*values))

    def array(self, values: np.ndarray, device: int = 0) -> DeviceValues:
        """The values in the memory of a device, in the same strides."""
        return DeviceValues(self, values, device)


class DeviceValues:
    """An array of the stand-in's memory that speaks the CUDA array interface."""

    def __init__(self, fake: Fake, values: np.ndarray, device: int = 0) -> None:
        low, high = devicearrays.memory_span(values.shape, values.strides, values.itemsize)
        self.address, self.device = fake.lib.fake_memory(high - low, device) - low, device
        self.shape, self.strides, self.dtype = values.shape, values.strides, values.dtype
        self.numpy()[...] = values
        self.ready: int | None = None

    def numpy(self) -> np.ndarray:
        """The values: the stand-in's memory is ordinary memory."""
        return view(self.address, self.shape, self.strides, self.dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "strides": self.strides, "typestr": self.dtype.str, "version": 3, "stream": self.ready,
                "data": (self.address, False)}


def view(address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> np.ndarray:
    class Interface:
        __array_interface__ = {"shape": shape, "strides": strides, "typestr": np.dtype(dtype).str, "version": 3,
                               "data": (address, False)}
    return np.asarray(Interface())


def whole(problem: ConvProblem, tensor: str, seed: int) -> np.ndarray:
    """Small whole numbers, so that every sum is exact."""
    return np.random.default_rng(seed).integers(-4, 5, problem.fused_shape(tensor)).astype(np.float32)


def case(problem: ConvProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both arrays and the true result."""
    a, b = (whole(problem, tensor, seed) for seed, tensor in enumerate(problem.operands))
    out = np.full(problem.fused_shape(problem.result), np.nan, np.float32)
    on_host(problem, a, b, out)
    return a, b, out


def run(problem: ConvProblem, a: Any, b: Any, config: gconv.KernelConfig = CONFIG, **options: Any) -> Any:
    """The bare convolution with the tile of these tests."""
    return execute(bare_spec(problem.direction), config, problem, (a, b), **options)
