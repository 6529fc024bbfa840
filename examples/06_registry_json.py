"""A registry of kernels from a JSON configuration, selection with reasons, and the registry written back as JSON.

    python examples/06_registry_json.py [--config FILE] [--out FILE] [--target sim] [--arch gfx950]

FILE has the form of CK Tile's benchmark configurations (tile_config and trait_config with lists of values), or is a registry that
this script wrote.
"""

from __future__ import annotations

import sys

import gconvdsl as gconv
from gconvdsl.scripts import parser, target_of, verified_run
from gconvdsl.seed_config import registry_of

CONFIG = {
    "variant": "forward", "ndim_spatial": 2, "dtype": "bf16", "layout": "nhwgc",
    "tile_config": {"tile_m": {"values": [32, 64]}, "tile_n": [32], "tile_k": [32], "warp_m": [2], "warp_n": [1], "warp_k": [1],
                    "warp_tile_m": [16], "warp_tile_n": [16], "warp_tile_k": [16]},
    "trait_config": {"pipeline": {"values": ["basic_v1", "compv3", "compv4", "mem"]}, "scheduler": {"values": ["intrawave", "interwave"]}},
}
PROBLEM = gconv.parse_problem("N=1 G=2 C=64 K=64 input=8x8 filter=3x3 pad=1 dtype=bf16")


def main() -> int:
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--config", metavar="FILE", help="read this instead of the built-in configuration")
    arguments.add_argument("--out", metavar="FILE", help="write the registry there")
    options = arguments.parse_args()
    target = target_of(options)
    registry = gconv.Registry.load(options.config) if options.config else registry_of(CONFIG, "the built-in configuration")
    print(f"{len(registry)} kernels:")
    for entry in registry:
        print(f"  {entry.name}")
    found = registry.select(PROBLEM, target=target)
    print(found)
    if options.out:
        registry.save(options.out)
        assert gconv.Registry.load(options.out) == registry
    if found.entry is None:
        return 1
    _, report = verified_run(PROBLEM, target, found.entry.spec)
    return 0 if report.ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except gconv.GconvError as failure:
        sys.exit(str(failure))
