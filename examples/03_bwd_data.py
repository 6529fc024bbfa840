"""Backward data: ``run(dY, W, problem)`` gives the gradient of the input, here also with a stride.

    python examples/03_bwd_data.py [--target cpu] [--arch gfx950]
"""

from __future__ import annotations

import sys

import gconvdsl as gconv
from gconvdsl import Runner
from gconvdsl.inputs import make_inputs
from gconvdsl.scripts import parser, print_run, target_of

PROBLEMS = [gconv.parse_problem(f"{text} direction=bwd_data") for text in (
    "N=1 G=2 C=64 K=64 input=8x8 filter=3x3 pad=1 dtype=fp16",
    "N=2 G=4 C=32 K=48 input=13x11 filter=3x3 stride=2 pad=1 dtype=bf16",
    "N=1 G=8 C=8 K=8 input=6x7x5 filter=3x3x3 pad=1 dtype=fp32",
)]


def main() -> int:
    runner, wrong = Runner(target=target_of(parser(str(__doc__).splitlines()[0]).parse_args())), 0
    for problem in PROBLEMS:
        dy, w = make_inputs(problem)
        result = runner.run(dy, w, problem)
        if not result.success:
            print(f"{problem.describe()}: {result.error}")
            wrong += 1
            continue
        report = gconv.compare(problem, result.output, dy, w)
        print_run(problem, result, report)
        wrong += not report.ok
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
