"""Problems, tiles and configurations that reach the main loop of every pipeline, shared by the tests of pipelines.

Binaries are compiled per filter, stride, dilation, channels and configuration; N, sizes and padding are run-time values, so the
problems of one family share a binary.
"""

from __future__ import annotations

from gconvdsl.archs import arch as find_arch
from gconvdsl.cases import Outcome, check_case
from gconvdsl.config import KernelConfig, Size, Tile
from gconvdsl.pipelines import PIPELINES
from gconvdsl.problem import ConvProblem
from gconvdsl.rules import check
from gconvdsl.runner import bare_spec

__all__ = ["AMD_ARCHS", "DIRECTIONS", "FAMILIES", "config_for", "legal", "problems_of", "small_tile", "verified"]

AMD_ARCHS = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200", "gfx1201", "gfx1250")
DIRECTIONS = ("forward", "bwd_data", "bwd_weight")
FAMILIES = ("odd", "even", "window")

# Three groups of 35 channels, strides, dilation, unequal padding, three axes: loads of single elements, tails in m, n and k.
_ODD = ConvProblem(N=2, G=3, C=105, K=105, input=(4, 5, 6), filter=(2, 3, 2), stride=(2, 1, 1), dilation=(1, 2, 1),
                   pad=((0, 1), 2, 1), dtype="fp16")
# Whole vectors, which go to LDS directly where that exists.
_EVEN = ConvProblem(N=2, G=2, C=80, K=96, input=(9, 8), filter=(3, 3), pad=((0, 2), (1, 1)), dtype="bf16")
# Staged as a window; 5 K-steps are 5 chunks of one instruction's k.
_WINDOW = {16: ConvProblem(N=2, G=2, C=160, K=48, input=(7, 9), filter=(3, 3), pad=((0, 2), (1, 1)), dtype="fp16"),
           32: ConvProblem(N=2, G=2, C=320, K=48, input=(7, 9), filter=(3, 3), pad=((0, 2), (1, 1)), dtype="fp16")}
# Output pixels of few K-steps: what comes before and after a pipeline's main loop.
_SHORT = ((1, (1, 1, 1)), (1, (1, 1, 33)), (2, (1, 1, 40)), (2, (1, 1, 60)))


def small_tile(arch: str, dtype: str = "fp16", *, block: Size = (32, 32, 32), waves: Size = (2, 1, 1)) -> Tile:
    """A block with the first instruction of the arch."""
    one = find_arch(arch).instructions_for(dtype)[0]
    return Tile(block, waves, (one.m, one.n, max(one.k, 16) if one.name == "fma" else one.k))


def config_for(arch: str, pipeline: str, scheduler: str, family: str = "even", **options: object) -> KernelConfig:
    """The pipeline with what it needs, on a tile that suits the family."""
    tile = small_tile(arch)
    if family == "window":
        tile = small_tile(arch, block=(64, 16, 9 * tile.wave_tile[2]), waves=(2, 2, 1))
        options = {"num_groups_to_merge": 2, **options}
    implied = PIPELINES[pipeline].implied_options
    return KernelConfig(tile=tile, pipeline=pipeline, **{**implied, "scheduler": scheduler, **options})


def legal(arch: str) -> list[tuple[str, str]]:
    """The pipelines with each scheduler that the rules admit on an arch."""
    return [(row.name, scheduler) for row in PIPELINES.values() for scheduler in ("intrawave", "interwave")
            if not check(_EVEN, config_for(arch, row.name, scheduler), arch)]


def problems_of(arch: str, family: str, direction: str) -> list[ConvProblem]:
    """The problems of a family in a direction; the first has at least 5 K-steps."""
    if family == "window":
        return [_WINDOW[small_tile(arch).wave_tile[2]].as_(direction)] if direction != "bwd_weight" else []
    first = (_ODD if family == "odd" else _EVEN).as_(direction)
    if family == "even" or direction != "bwd_weight":
        return [first]
    # A filter of (2, 3, 2) with dilation (1, 2, 1) gives one output from inputs of (2, 5, 2).
    short = [first.replace(N=n, pad=0, input=(out[0] + 1, out[1] + 4, out[2] + 1)) for n, out in _SHORT]
    return [first, *short]


def verified(problem: ConvProblem, config: KernelConfig, target: str) -> Outcome:
    """Run through the gate on every kind of inputs that tells. Nothing may run in the configuration's place."""
    outcome = check_case(bare_spec(problem.direction), config, problem, target, timed=False)
    assert not outcome.fallbacks, outcome.fallbacks
    return outcome
