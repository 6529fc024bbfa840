"""A session of the REPL, from piped input: declarations, runs, an expression, and a mistake that does not end it.

    python examples/08_repl_session.py [--target cpu] [--arch gfx942]
"""

from __future__ import annotations

import os
import subprocess
import sys

from gconvdsl.scripts import parser, target_of

SESSION = """\
problem small { N = 1  G = 4  C = 32  K = 32  input = 8x8  filter = 3x3  pad = 1  dtype = fp16 }
kernel fused for forward (bias: per_k) { epilogue = relu(acc + bias) }
run fused on small
small.flops / 1e6
:memo on
run fused on small
run fused on small
kernel odd for forward { pipeline = compv9 }
:explain fused on small
"""


def main() -> int:
    target = target_of(parser(str(__doc__).splitlines()[0]).parse_args())
    done = subprocess.run([sys.executable, "-m", "gconvdsl.cli", "repl"], input=SESSION, text=True, capture_output=True,
                          env={**os.environ, "GCONV_TARGET": target})
    print(done.stdout + done.stderr)
    text = done.stdout + done.stderr
    expected = {"runs": text.count("  ok") == 3, "an expression": "0.294912" in text, "the mistake": "compv9" in text,
                "an explanation": "runs       " in text}
    for what, seen in expected.items():
        if not seen:
            print(f"missing from the session: {what}")
    return 0 if done.returncode == 1 and all(expected.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
