"""Every pipeline with both schedulers in every direction; a pipeline counts as supported if one scheduler runs.

    python examples/11_test_schedulers.py [--target sim] [--arch gfx1201] [--only mem] [--json FILE]
"""

from __future__ import annotations

import sys

from gconvdsl.harness import Trial, main, tile_for
from gconvdsl.pipelines import PIPELINES, SCHEDULERS

PROBLEM = "N=1 G=2 C=64 K=64 input=8x8 filter=3x3 pad=1 dtype=bf16"


def tests(target: str) -> list[Trial]:
    """One test for each direction, pipeline and scheduler; those that the pipeline does not have must be refused."""
    tile = tile_for(target)
    return [Trial(f"{direction} {row.name} {scheduler}", f"{direction} {row.name}", f"{PROBLEM} direction={direction}",
                 {"tile": tile, "pipeline": row.name, **row.implied_options, "scheduler": scheduler}, target,
                 refused=scheduler not in row.schedulers)
            for direction in ("forward", "bwd_data", "bwd_weight") for row in PIPELINES.values() for scheduler in SCHEDULERS]


if __name__ == "__main__":
    sys.exit(main(str(__doc__).splitlines()[0], tests, __file__))
