"""A convolution with batch normalisation before it, and bias, residual and SiLU after it, in one kernel.

    python examples/07_fused_epilogue.py [--target cpu] [--arch gfx1201]
"""

from __future__ import annotations

import sys

import gconvdsl as gconv
from gconvdsl.scripts import parser, target_of, verified_run

PROBLEM = gconv.parse_problem("N=2 G=4 C=32 K=32 input=12x10 filter=3x3 pad=1 dtype=fp16")


def normalised(x, scale, shift):                 # helper functions compose: tracing sees through them
    return gconv.relu(x * scale + shift)


@gconv.kernel
def block(x, w, scale: gconv.PerC, shift: gconv.PerC, bias: gconv.PerK, residual: gconv.LikeY, gain: gconv.Scalar):
    acc = gconv.conv(normalised(x, scale, shift), w, pad=1, groups=4)
    return gconv.silu(acc + bias) * gain + residual


def main() -> int:
    target = target_of(parser(str(__doc__).splitlines()[0]).parse_args())
    _, fused = verified_run(PROBLEM, target, block.spec)
    print("\nthe part of the source that was traced:")
    source = block.inspect_source(PROBLEM, target=target)
    print("\n".join(line for line in source.splitlines() if "operand" in line or "gconv::math" in line))
    return 0 if fused.ok else 1


if __name__ == "__main__":
    sys.exit(main())
