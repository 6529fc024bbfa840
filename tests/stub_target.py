"""A target played by NumPy: it reads the packed argument block as a kernel would, and fails on request."""

from __future__ import annotations

import ctypes
import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np

from gconvdsl.backends.base import Artifact, Backend, Detection
from gconvdsl.config import KernelConfig
from gconvdsl.errors import error
from gconvdsl.plan import Launch, Lowered, Plan, three
from gconvdsl.problem import ConvProblem

ARCH = "gfx942"


class StubBackend(Backend):
    """Compiles nothing; ``launch`` computes fp32 convolutions with bias ``operand[0]`` straight from the addresses."""

    name = "stub"

    def __init__(self, host: bool = True) -> None:
        self.host_memory = host
        self.problem: ConvProblem | None = None
        self.compiled: list[str] = []
        self.launched: list[str] = []
        self.uncompilable: set[str] = set()
        self.unlaunchable: set[str] = set()

    def archs(self) -> tuple[str, ...]:
        return (ARCH,)

    def detect(self) -> Detection:
        return Detection(True, ARCH, "a stub")

    def lower(self, spec: Any, problem: ConvProblem, config: KernelConfig, target: str, arch: str) -> Lowered:
        self.problem = problem
        return Lowered(config.pipeline[0], Plan((Launch("k"),), problem.args(), workspace=64), config, ("a note",))

    def compile(self, source: str, arch: str, kernel: str) -> Artifact:
        self.compiled.append(source)
        if source in self.uncompilable:
            raise error("compile.failed", tool="stubcc", kernel=kernel, arch=arch, status=1, hint="")
        return Artifact(Path("none"), 0, {"source": source})

    def load(self, artifact: Artifact) -> Any:
        return artifact.meta["source"]

    def launch(self, module: Any, plan: Plan, args: bytes, stream: Any = None) -> None:
        self.launched.append(module)
        if module in self.unlaunchable:
            raise error("launch.failed", kernel="k", target="stub", reason="it was asked to", hint="")
        assert self.problem is not None
        compute(self.problem, args)


def _view(address: int, strides: tuple[int, ...]) -> Any:
    """An fp32 array over raw memory, by element strides that may be negative or 0."""
    def at(index: tuple[int, ...]) -> Any:
        return ctypes.c_float.from_address(address + 4 * sum(i * s for i, s in zip(index, strides)))
    return at


def compute(problem: ConvProblem, args: bytes) -> None:
    """All three directions by loops over (n, g, k, output, tap, c), in float64, with the bias added where there is one."""
    pointers, views = struct.unpack_from("<12Q", args), struct.unpack_from("<18q", args, 96)
    x, w, y = (_view(pointers[i], views[6 * i:6 * i + 6]) for i in range(3))
    low = [0] * (3 - problem.ndim) + [pad[0] for pad in problem.pad]
    size, taps, out = three(problem.input, 1), three(problem.filter, 1), three(problem.output, 1)
    step, spread = three(problem.stride, 1), three(problem.dilation, 1)
    sums: dict[tuple[int, ...], float] = {}
    ranges = [range(problem.N), range(problem.G), range(problem.Kg), range(problem.Cg), *map(range, out), *map(range, taps)]
    for n, g, k, c, o0, o1, o2, t0, t1, t2 in itertools.product(*ranges):
        place = [o * s - p + t * d for o, s, p, t, d in zip((o0, o1, o2), step, low, (t0, t1, t2), spread)]
        if all(0 <= i < limit for i, limit in zip(place, size)):
            ix, iw, iy = (n, g, *place, c), (k, g, t0, t1, t2, c), (n, g, o0, o1, o2, k)
            target, first, second = {"y": (iy, x(ix), w(iw)), "x": (ix, y(iy), w(iw)), "w": (iw, x(ix), y(iy))}[problem.result]
            sums[target] = sums.get(target, 0.0) + first.value * second.value
    _store(problem, {"x": x, "w": w, "y": y}[problem.result], sums, pointers[4])


def _store(problem: ConvProblem, result: Any, sums: dict[tuple[int, ...], float], bias: int) -> None:
    sizes = problem.sizes(problem.result)
    spatial = [sizes[a] for a in sizes if a in "dhwzyx"]
    first, last = {"w": ("k", "c"), "y": ("n", "k"), "x": ("n", "c")}[problem.result]
    outer, channel = sizes[first], sizes[last]
    full = [outer, problem.G, *([1] * (3 - problem.ndim) + spatial), channel]
    for index in itertools.product(*map(range, full)):
        added = ctypes.c_float.from_address(bias + 4 * (index[1] * channel + index[5])).value if bias else 0.0
        result(index).value = np.float32(sums.get(index, 0.0) + added)
