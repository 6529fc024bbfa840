"""The kernels on warpgroup matrix instructions, executed by the simulator: each kind of tile, ring and store.

The simulator's products follow the descriptors of their operands (platform/sim_wgmma.hpp), so that windows, offsets of taps,
swizzles, stages, walks and stores are those of the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import gconvdsl as gconv
from gconvdsl import lower_wgmma
from gconvdsl.archs import arch as find_arch
from gconvdsl.config import KernelConfig
from gconvdsl.problem import ConvProblem
from gconvdsl.runner import bare_spec, execute
from gconvdsl.spec import KernelSpec
from gconvdsl.verify import make_operands, verify
from gconvdsl.wgmma_shape import ConvShape
from gconvdsl.wgmma_weight_shape import WeightShape

Shape = ConvShape | WeightShape
SQUARES, LINE, IMAGES = (1, 8, 8), (1, 1, 64), (8, 1, 8)

GROUPS = dict(N=2, G=5, C=240, K=240, input=(9, 12), filter=3, pad=1, dtype="bf16")
UNEQUAL = dict(N=3, G=2, C=96, K=144, input=(9, 7), filter=(3, 2), pad=((1, 0), (2, 1)), dtype="fp16")
DEEP = dict(N=9, G=1, C=136, K=104, input=(5, 6), filter=(1, 3), pad=(0, 1), dtype="bf16")
ROW = dict(N=2, G=2, C=96, K=96, input=300, filter=5, pad=2, dilation=2, dtype="fp16")
POINT = dict(N=2, G=1, C=72, K=80, input=(9, 8), filter=1, dtype="bf16")

CASES: list[tuple[str, dict[str, Any], str, Shape]] = [
    ("weights of several groups stay in turn", GROUPS, "forward", ConvShape(SQUARES, (1, 1, 2), 48, 2, resident=True)),
    ("the same for bwd_data", GROUPS, "bwd_data", ConvShape(SQUARES, (2, 1, 1), 48, 2, resident=True)),
    ("streamed weights, two tiles each", UNEQUAL, "forward", ConvShape(SQUARES, (2, 2, 1), 40, 2, weights=4)),
    ("columns in two blocks of 64", UNEQUAL, "bwd_data", ConvShape(SQUARES, (1, 2, 1), 48, 2, weights=3)),
    ("images first, channels in chunks", DEEP, "forward", ConvShape(IMAGES, (1, 3, 1), 56, 3, windows=3, weights=3)),
    ("images first, columns over 64", DEEP, "bwd_data", ConvShape(IMAGES, (1, 2, 2), 136, 2, weights=3)),
    ("a window in pieces", ROW, "forward", ConvShape(LINE, (1, 1, 4), 48, 2, weights=3)),
    ("a line of pixels", ROW, "bwd_data", ConvShape(LINE, (1, 1, 2), 24, 2, resident=True)),
    ("pixels in one row", POINT, "forward", ConvShape(LINE, (1, 1, 2), 40, 2, windows=4, resident=True)),
    ("fp32 results", {**DEEP, "out_dtype": "fp32"}, "forward", ConvShape(SQUARES, (1, 1, 2), 104, 2, weights=3)),
    ("three taps in one instruction", GROUPS, "bwd_weight", WeightShape(3, 192, 3, (1, 1, 3, 1), (3, 4), 2, 2)),
    ("an odd box, chunks of both channels", DEEP, "bwd_weight", WeightShape(1, 64, 2, (2, 2, 1, 1), (5, 3), 2, 1)),
    ("rows of an odd width", UNEQUAL, "bwd_weight", WeightShape(2, 128, 3, (1, 1, 3, 1), (2, 7), 2, 3)),
    ("runs of taps over the filter's end", ROW, "bwd_weight", WeightShape(2, 128, 3, (1, 1, 1, 3), (1, 20), 3, 1)),
    ("positions in one row", POINT, "bwd_weight", WeightShape(1, 64, 2, (1, 2, 1, 1), (1, 4), 2, 4)),
]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The simulator takes the family too, with three multiprocessors, so that blocks have several tiles."""
    monkeypatch.setattr(lower_wgmma, "TARGETS", ("cuda", "sim"))
    monkeypatch.setattr(lower_wgmma, "find_arch", lambda name: replace(find_arch(name), compute_units=3))
    return monkeypatch


def _gate(problem: ConvProblem, spec: KernelSpec, kinds: list[str] | None) -> None:
    operands = make_operands(problem, spec, seed=1)

    def run(a: Any, b: Any, out: Any) -> None:
        result = execute(spec, KernelConfig(), problem, (a, b), operands, out, "sim:sm_90", poison=True)
        assert result.decision.lowered.notes[0].startswith("wgmma") and not result.decision.fallbacks

    verify(problem, run, spec=spec, operands=operands, kinds=kinds).require()


@pytest.mark.parametrize(("sizes", "direction", "shape"), [one[1:] for one in CASES], ids=[one[0] for one in CASES])
def test_integers_are_exact(sizes: dict[str, Any], direction: str, shape: Shape, served: pytest.MonkeyPatch) -> None:
    served.setattr(lower_wgmma, "_shape", lambda problem, arch: shape)
    problem = ConvProblem(**sizes, direction=direction)
    assert shape.lds(problem) <= find_arch("sm_90").lds
    _gate(problem, bare_spec(direction), ["integers"])


@pytest.mark.nightly
@pytest.mark.parametrize(("sizes", "direction", "shape"), [one[1:] for one in CASES], ids=[one[0] for one in CASES])
def test_the_whole_gate(sizes: dict[str, Any], direction: str, shape: Shape, served: pytest.MonkeyPatch) -> None:
    served.setattr(lower_wgmma, "_shape", lambda problem, arch: shape)
    _gate(ConvProblem(**sizes, direction=direction), bare_spec(direction), None)


def test_an_epilogue_reads_only_what_is_there(served: pytest.MonkeyPatch) -> None:
    @gconv.kernel
    def fused(x: Any, w: Any, bias: gconv.PerK, residual: gconv.LikeY) -> Any:
        return gconv.relu(gconv.conv(x, w) + bias + residual)

    served.setattr(lower_wgmma, "_shape", lambda problem, arch: ConvShape(SQUARES, (1, 1, 2), 40, 2, weights=3))
    _gate(ConvProblem(**UNEQUAL), fused.spec, ["normal"])
