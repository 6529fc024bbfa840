"""Runs a small kernel source on the simulator: arrays in, arrays out."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from gconvdsl.backends import base
from gconvdsl.plan import ConvArgs, Launch, Plan, TensorView
from gconvdsl.tensor_map import TensorMap

Array = np.ndarray[Any, Any]

HEADER = '#include "gconv/device.hpp"\nusing namespace gconv;\n'
_VIEW = TensorView(0, 0, (0, 0, 0), 0)


def run(source: str, kernel: str, arrays: Sequence[Array], *, arch: str = "gfx942", grid: tuple[int, int, int] = (1, 1, 1),
        block: int = 64, n: int = 1, g: int = 1, maps: tuple[TensorMap, ...] = ()) -> list[Array]:
    """Launch ``kernel`` with up to four ``arrays`` as x, w, y, workspace, N = n, G = g, and tensor maps; the arrays afterwards."""
    backend = base.get("sim")
    module = backend.load(backend.compile(HEADER + source, arch, kernel))
    buffers = [backend.allocate(array.nbytes) for array in arrays]
    for buffer, array in zip(buffers, arrays):
        backend.upload(buffer, array)
    args = ConvArgs(_VIEW, _VIEW, _VIEW, n, g, (1, 1, 1), (1, 1, 1), (0, 0, 0))
    addresses = [buffer.address for buffer in buffers] + [0] * (4 - len(buffers))
    backend.launch(module, Plan((Launch(kernel, grid, block, maps=maps),), args), args.pack(*addresses))
    results = [np.empty_like(array) for array in arrays]
    for buffer, result in zip(buffers, results):
        backend.download(buffer, result)
    return results


def line_of(source: str, text: str) -> int:
    """The line in the compiled file at which ``text`` stands."""
    lines = (HEADER + source).splitlines()
    return 1 + next(i for i, line in enumerate(lines) if text in line)
