"""Forward: ``run(X, W, problem)`` on NHWGC arrays, with groups, stride, dilation and uneven padding.

    python examples/02_forward.py [--target cpu] [--arch gfx950]
"""

from __future__ import annotations

import sys

import gconvdsl as gconv
from gconvdsl import Runner
from gconvdsl.inputs import make_inputs
from gconvdsl.scripts import parser, print_run, target_of

PROBLEMS = [gconv.parse_problem(f"{text} direction=forward") for text in (
    "N=1 G=2 C=64 K=64 input=8x8 filter=3x3 pad=1 dtype=fp16",
    "N=2 G=4 C=32 K=48 input=13x11 filter=3x3 stride=2x1 pad=0:1x1 dtype=bf16",
    "N=1 G=3 C=9 K=15 input=10 filter=5 dilation=2 pad=4 dtype=fp32",
)]


def main() -> int:
    runner, wrong = Runner(target=target_of(parser(str(__doc__).splitlines()[0]).parse_args())), 0
    for problem in PROBLEMS:
        x, w = make_inputs(problem)
        result = runner.run(x, w, problem)
        if not result.success:
            print(f"{problem.describe()}: {result.error}")
            wrong += 1
            continue
        report = gconv.compare(problem, result.output, x, w)
        print_run(problem, result, report)
        wrong += not report.ok
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
