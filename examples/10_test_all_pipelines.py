"""Every pipeline in every direction with the scheduler intrawave, each in a process of its own, against the float64 reference.

    python examples/10_test_all_pipelines.py [--target sim] [--arch gfx1201] [--only compv4] [--json FILE]
"""

from __future__ import annotations

import sys

from gconvdsl.harness import Trial, main, tile_for
from gconvdsl.pipelines import PIPELINES

PROBLEM = "N=1 G=2 C=64 K=64 input=8x8 filter=3x3 pad=1 dtype=bf16"


def tests(target: str) -> list[Trial]:
    """One test for each direction and pipeline."""
    tile = tile_for(target)
    return [Trial(f"{direction} {row.name}", f"{direction} {row.name}", f"{PROBLEM} direction={direction}",
                 {"tile": tile, "pipeline": row.name, **row.implied_options, "scheduler": "intrawave"}, target)
            for direction in ("forward", "bwd_data", "bwd_weight") for row in PIPELINES.values()]


if __name__ == "__main__":
    sys.exit(main(str(__doc__).splitlines()[0], tests, __file__))
