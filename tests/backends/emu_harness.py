"""Runs kernels on the emulator: small sources with arrays in and out, and lowered convolutions with instructions removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from gconvdsl import choose
from gconvdsl.backends import base
from gconvdsl.backends.emu_decode import Instruction
from gconvdsl.backends.emu_run import Observer
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.inputs import make_inputs
from gconvdsl.plan import ConvArgs, Launch, Plan, TensorView
from gconvdsl.problem import ConvProblem
from gconvdsl.runner import bare_spec

Array = np.ndarray[Any, Any]

HEADER = '#include "gconv/device.hpp"\nusing namespace gconv;\n'
_VIEW = TensorView(0, 0, (0, 0, 0), 0)


def run(
    source: str,
    kernel: str,
    arrays: Sequence[Array],
    *,
    arch: str = "gfx942",
    grid: tuple[int, int, int] = (1, 1, 1),
    block: int = 64,
    n: int = 1,
    header: str = HEADER,
) -> list[Array]:
    """Launch ``kernel`` with up to four ``arrays`` as x, w, y, workspace and N = n; the arrays afterwards."""
    backend = base.get("emu")
    module = backend.load(backend.compile(header + source, arch, kernel))
    buffers = [backend.allocate(array.nbytes) for array in arrays]
    for buffer, array in zip(buffers, arrays):
        backend.upload(buffer, array)
    args = ConvArgs(_VIEW, _VIEW, _VIEW, n, 1, (1, 1, 1), (1, 1, 1), (0, 0, 0))
    addresses = [buffer.address for buffer in buffers] + [0] * (4 - len(buffers))
    backend.launch(module, Plan((Launch(kernel, grid, block),), args), args.pack(*addresses))
    results = [np.empty_like(array) for array in arrays]
    for buffer, result in zip(buffers, results):
        backend.download(buffer, result)
    return results


@dataclass
class Prepared:
    """A lowered convolution with its operands in place."""

    module: Any
    plan: Plan
    args: bytes
    result: Any
    shape: tuple[int, ...]
    dtype: Any
    keep: Any = None

    def run(self, removed: frozenset[int] = frozenset(), observe: Observer | None = None) -> Array:
        """The result, with the instructions of these numbers left out. Raises `LaunchError` for a fault."""
        backend = base.get("emu")
        backend.upload(self.result, np.full(self.shape, np.nan, self.dtype))
        for launch in self.plan.launches:
            self.module.run(launch, self.args, backend.memory, removed, observe)
        found = np.empty(self.shape, self.dtype)
        backend.download(self.result, found)
        return found

    def reached(self) -> list[Instruction]:
        """The instructions that a run has reached."""
        programs = [self.module.function(name) for name in self.module.code.kernels]
        return [step.ins for program in programs for step in program.steps if step is not None]


def prepare(
    problem: ConvProblem, arch: str, pipeline: str | tuple[()] = "basic_v1", tile: Tile | None = None, kind: str = "integers", **options: Any
) -> Prepared:
    """Lower and compile a bare convolution and upload seeded inputs."""
    backend = base.get("emu")
    config = KernelConfig(pipeline=pipeline, tile=tile, **options)
    decision = choose.decide(bare_spec(problem.direction), problem, config, backend, arch)
    first, second = make_inputs(problem, kind, 0)
    result = np.full(problem.shape(problem.result), np.nan, first.dtype)
    arrays = {**dict(zip(problem.operands, (first, second))), problem.result: result}
    buffers = {name: backend.allocate(array.nbytes) for name, array in arrays.items()}
    for name, array in arrays.items():
        backend.upload(buffers[name], array)
    plan = decision.lowered.plan
    workspace = backend.allocate(max(plan.workspace, 1))
    args = plan.args.pack(*(buffers[name].address for name in "xwy"), workspace.address)
    return Prepared(decision.built.module, plan, args, buffers[problem.result], result.shape, result.dtype, (buffers, workspace))
