"""A sweep: several kernels of several problems, compiled in parallel, verified, then timed one at a time; failures are rows too.

    python examples/05_benchmark.py [--configs few|pipelines|default|FILE.json] [--most 6] [--csv rows.csv] [--target cpu] [--arch gfx942]

A second run measures nothing again: what the file of results holds is taken from there (--again measures anew).
"""

from __future__ import annotations

import sys

import gconvdsl as gconv
from gconvdsl.cli_sweep import measure_items, usual_workers
from gconvdsl.results import Results
from gconvdsl.runner import bare_spec
from gconvdsl.scripts import parser, target_of
from gconvdsl.search import config_set
from gconvdsl.sweep import Options, items_for

PROBLEMS = [gconv.parse_problem(text) for text in (
    "N=1 G=4 C=64 K=64 input=12x12 filter=3x3 pad=1 dtype=fp32",
    "N=1 G=32 C=32 K=32 input=14x14 filter=3x3 pad=1 dtype=fp32",
    "N=1 G=2 C=32 K=64 input=9x9 filter=3x3 stride=2 pad=1 dtype=fp32 direction=bwd_data",
)]


def main() -> int:
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--configs", default="few", help="a set (default, pipelines, few, all) or a .json file (default few)")
    arguments.add_argument("--most", type=int, default=4, help="at most how many configurations of a problem (default 4)")
    arguments.add_argument("--csv", metavar="FILE", help="write the rows there")
    arguments.add_argument("--store", metavar="FILE", help="the file of results (default: that of gconv results)")
    arguments.add_argument("--again", action="store_true", help="measure also what the results hold")
    options = arguments.parse_args()
    target, configs = target_of(options), config_set(options.configs)
    items = items_for(PROBLEMS, lambda problem, name, arch: configs(problem, name, arch)[:options.most], target, bare_spec)
    settings = Options(target, workers=usual_workers(), seconds=0.05, again=options.again)
    return measure_items(items, settings, Results(options.store), (options.csv,))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except gconv.GconvError as failure:
        sys.exit(str(failure))
