"""Learned selection: measure a few kernels on some problems, train a model, and let it choose for problems that it has not seen.

    python examples/09_ml_heuristic.py [--target cpu] [--problems 8] [--configs 5]

Training needs LightGBM (python3 -m pip install "gconvdsl[ml]"); without it the model that comes with the package chooses. A real
model needs hundreds of problems: gconv bench --configs ..., then gconv train.
"""

from __future__ import annotations

import importlib.util
import sys

import gconvdsl as gconv
from gconvdsl.cases import check_case
from gconvdsl.learn import Pool, at_random, by_model, by_rule, evaluate, train
from gconvdsl.model import model_for
from gconvdsl.model_choice import candidates_of
from gconvdsl.runner import bare_spec
from gconvdsl.scripts import parser, target_of

SHAPES = [(4, 32, 16, 3), (8, 64, 12, 3), (64, 64, 14, 3), (2, 48, 10, 5), (16, 64, 9, 3), (1, 32, 12, 3), (32, 32, 20, 5), (4, 96, 8, 3),
          (6, 48, 11, 3), (1, 64, 8, 1), (12, 24, 15, 3), (3, 36, 13, 3)]


def measured(problem: gconv.ConvProblem, target: str, most: int) -> Pool:
    """Verified times of some configurations of one problem."""
    name, _, arch = target.partition(":")
    configs = candidates_of(problem, name, arch)[:most]
    outcomes = [check_case(bare_spec(problem.direction), config, problem, target, kinds=("normal",)) for config in configs]
    times = tuple(one.run_s * 1e3 if one.ok else float("inf") for one in outcomes)
    print(f"  {problem.describe()}: {len(configs)} kernels, best {min(times):.3f} ms", flush=True)
    return Pool(problem, tuple(configs), times)


def main() -> int:
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--problems", type=int, default=8, help="how many problems to measure (default 8)")
    arguments.add_argument("--configs", type=int, default=5, help="at most how many kernels of each (default 5)")
    options = arguments.parse_args()
    target = target_of(options)
    arch = "cpu" if target.startswith("cpu") else target.partition(":")[2]
    problems = [gconv.ConvProblem(N=1, G=groups, C=channels, K=channels, input=(size, size), filter=(taps, taps), pad=taps // 2,
                                  name=f"shape.{i}")
                for i, (groups, channels, size, taps) in enumerate(SHAPES[:options.problems])]
    print("measured and verified:")
    pools = [measured(problem, target, options.configs) for problem in problems]
    if any(pool.best == float("inf") for pool in pools):
        print("a problem has no right kernel")
        return 1
    seen, unseen = pools[::2], pools[1::2]
    if importlib.util.find_spec("lightgbm"):
        model = train(seen, arch, rounds=60, parameters={"min_data_in_leaf": 2})[0]
        print(f"trained on {len(seen)} problems")
    else:
        found = model_for(arch)
        if found is None:
            print(f"LightGBM is not installed, and no model comes with the package for {arch}")
            return 1
        model = found
        print("LightGBM is not installed: the package's model chooses")
    for name, score in evaluate(unseen, {"model": by_model(model), "random": at_random(), "rule": by_rule}).items():
        print(f"unseen problems, {name:7} {score}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
