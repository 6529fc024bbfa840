"""The limits of this machine: multiply-adds in registers and bytes moved, measured by loops on the same threads as the kernels.

Model: S. Williams, A. Waterman, D. Patterson, Roofline, CACM 52(4), 2009. A convolution takes at least the time of its
multiply-adds at the measured peak, and at least that of moving each tensor once.
"""

from __future__ import annotations

import ctypes
import struct
import statistics
import time
from typing import Any, Callable

import numpy as np

from .problem import ConvProblem

__all__ = ["CpuRoofline", "Roofline"]

_STEPS = 100_000            # of one task: about a quarter of a millisecond
_TASKS_OF_A_THREAD = 8
_COPIES = {"cache": 4 << 20, "memory": 64 << 20}       # bytes of each array


class Roofline:
    """What a target can do at best. ``fma_loop`` runs ``fma_flops`` operations; bandwidths are in bytes a second.

    ``bandwidths`` holds (largest working set in bytes, bandwidth, name), smallest first.
    """

    fma_loop: Callable[[], Any]
    fma_flops: float
    bandwidths: list[tuple[float, float, str]]

    def limit(self, problem: ConvProblem, peak_gflops: float) -> tuple[float, str]:
        """The least seconds, and by what: "fma" or the memory that holds the tensors."""
        _, bandwidth, name = next((row for row in self.bandwidths if problem.bytes <= row[0]), self.bandwidths[-1])
        limits = {"fma": problem.flops / (peak_gflops * 1e9), name: problem.bytes / bandwidth}
        bound = max(limits, key=lambda key: limits[key])
        return limits[bound], bound


class CpuRoofline(Roofline):
    """Of target cpu with its instruction set and threads; the bandwidths are measured here, once."""

    def __init__(self, arch: str, threads: int) -> None:
        from .backends.cpu import probe

        self.threads, self._library, self._parallel = threads, *probe(arch)
        tasks = threads * _TASKS_OF_A_THREAD
        self._library.gconv_fma_flops_of_step.restype = ctypes.c_longlong
        self.fma_flops = float(self._library.gconv_fma_flops_of_step()) * _STEPS * tasks
        steps = struct.pack("q", _STEPS)
        self.fma_loop = lambda: self._parallel("gconv_fma_loop", steps, tasks, threads)
        rates = {name: self._copy_rate(size) for name, size in _COPIES.items()}
        # Twice what the copy moves: a working set of that size still mostly lies there.
        self.bandwidths = [(2.0 * 2 * _COPIES["cache"], rates["cache"], "cache"), (float("inf"), rates["memory"], "memory")]

    def peak(self) -> float:
        """The FMA rate now, in GFLOP/s."""
        return self.fma_flops / _median_seconds(self.fma_loop) / 1e9

    def _copy_rate(self, size: int) -> float:
        """Bytes a second, read and written ones together."""
        source, target = np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)
        tasks = self.threads * _TASKS_OF_A_THREAD
        share = size // 4 // tasks // 64 * 64
        args = struct.pack("QQq", source.ctypes.data, target.ctypes.data, share)
        seconds = _median_seconds(lambda: self._parallel("gconv_copy_loop", args, tasks, self.threads))
        return 2 * 4 * share * tasks / seconds


def _median_seconds(call: Callable[[], Any], repeats: int = 7) -> float:
    times = []
    call()
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
