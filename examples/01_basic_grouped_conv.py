"""A first look: declare a kernel, build it, run it, and compare the result with a float64 reference.

    python examples/01_basic_grouped_conv.py [--target cpu] [--arch gfx950]
"""

from __future__ import annotations

import sys

import gconvdsl as gconv
from gconvdsl.scripts import parser, target_of, verified_run


@gconv.problem
class layer:
    N, G, C, K, input, filter, pad, dtype = 1, 2, 64, 64, (8, 8), (3, 3), 1, "fp16"


@gconv.kernel
def conv(x, w):
    return gconv.conv(x, w)          # stride, padding and groups come from the problem


def main() -> int:
    target = target_of(parser(str(__doc__).splitlines()[0]).parse_args())
    _, report = verified_run(layer, target, conv.spec)
    print(conv.explain(layer, target=target))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
