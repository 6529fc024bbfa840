"""The options double_smem_buffer, num_groups_to_merge, split_image, explicit_gemm and two_stage, in every direction.

    python examples/12_test_config_options.py [--target sim] [--arch gfx1201] [--only split_image] [--json FILE]
"""

from __future__ import annotations

import sys
from typing import Any

from gconvdsl.harness import Trial, main, tile_for
from gconvdsl.pipelines import PIPELINES

PROBLEM = "N=1 G=2 C=64 K=64 input=8x8 filter=3x3 pad=1 dtype=bf16"
POINTWISE = "N=1 G=2 C=64 K=64 input=8x8 filter=1x1 dtype=bf16"
DIRECTIONS = ("forward", "bwd_data", "bwd_weight")

# option, value, pipeline, problem, the directions that have it
OPTIONS: list[tuple[str, Any, str, str, tuple[str, ...]]] = [
    ("double_smem_buffer", True, "compv4", PROBLEM, DIRECTIONS),
    ("double_smem_buffer", True, "comp_async", PROBLEM, DIRECTIONS),
    ("double_smem_buffer", False, "compv4", PROBLEM, ()),
    ("double_smem_buffer", True, "basic_v1", PROBLEM, DIRECTIONS),
    ("num_groups_to_merge", 2, "compv3", PROBLEM, DIRECTIONS),
    ("num_groups_to_merge", 3, "compv3", PROBLEM, ()),
    ("split_image", True, "compv3", PROBLEM, ("forward", "bwd_data")),
    ("explicit_gemm", True, "compv3", POINTWISE, DIRECTIONS),
    ("explicit_gemm", True, "compv3", PROBLEM, ()),
    ("two_stage", True, "compv3", PROBLEM, ("bwd_weight",)),
]


def tests(target: str) -> list[Trial]:
    """One test for each option, value and direction; where it has no meaning it must be refused."""
    tile = tile_for(target)
    return [Trial(f"{direction} {pipeline} {option}={value}{' 1x1' if problem == POINTWISE else ''}", f"{direction} {option}",
                 f"{problem} direction={direction}",
                 {"tile": tile, "pipeline": pipeline, **PIPELINES[pipeline].implied_options, option: value}, target,
                 refused=direction not in legal)
            for direction in DIRECTIONS for option, value, pipeline, problem, legal in OPTIONS]


if __name__ == "__main__":
    sys.exit(main(str(__doc__).splitlines()[0], tests, __file__))
