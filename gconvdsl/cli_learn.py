"""``gconv convert-csv``, ``train``, ``predict`` and ``evaluate``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .archs import arch as find_arch
from .cli_table import print_table
from .config import KernelConfig
from .errors import UsageError, error
from .learn import Pool, Score, at_random, by_model, by_rule, cross_validate, evaluate, pools_of, train
from .measurement import Measurement
from .model import Model, model_for
from .problem import ConvProblem
from .results import Results
from .results_table import read_table, write_table

__all__ = ["convert_csv", "evaluate_model", "predict", "train_model"]


def convert_csv(options: argparse.Namespace) -> int:
    """Read a table of measurements and write it as Parquet, one arch of it if ``--arch`` names one."""
    rows = read_table(options.input)
    kept = [one for one in rows if options.arch in (None, one.case.arch)]
    print(f"{write_table(options.output, kept)} of {len(rows)} rows in {options.output}")
    return 0


def train_model(options: argparse.Namespace) -> int:
    """Train a model on measurements, cross-validated by problem and, apart, by network."""
    if options.op != "grouped_conv" or options.targets != "tflops":
        raise error("usage.option", what="--op and --targets", value=f"{options.op}, {options.targets}",
                    hint="They are grouped_conv and tflops.")
    pools = [pool for pool in pools_of(_measurements(options.data_dir), options.arch) if options.dtype in (None, pool.problem.dtype)]
    if not pools:
        raise error("usage.empty", what="train on", reason=f"{options.data_dir or 'the results'} hold no pool of arch {options.arch}",
                    hint="Measure with gconv bench --configs.")
    scores: dict[str, dict[str, Score]] = {}
    for by in ("problem", "network"):
        try:
            scores[by] = cross_validate(pools, options.arch, options.n_splits, by)
        except UsageError as few:
            print(few)
    model, text = train(pools, options.arch)
    model.facts["cross_validation"] = {by: {name: vars(score) for name, score in one.items()} for by, one in scores.items()}
    model.save(options.out_dir, text)
    for by, one in scores.items():
        for name, score in one.items():
            print(f"held out by {by:8} {name:7} {score}")
    print(f"trained on {model.facts['problems']} problems, {model.facts['rows']} rows; {options.out_dir}")
    return 0


def predict(options: argparse.Namespace) -> int:
    """Rank configurations for a problem by what a model expects."""
    from .problem_text import parse_problem

    model = _model(options)
    problem = parse_problem(options.problem)
    problem = problem.as_(options.direction) if options.direction else problem
    configs = _pool(options, problem, model.arch)
    scores = model.predict(problem, configs)
    order = sorted(range(len(configs)), key=lambda i: -scores[i])[:options.top]
    rows = [[f"{scores[i]:.4g}", json.dumps(configs[i].to_dict())] for i in order]
    print_table(["expected TFLOP/s", "configuration"], rows, ["expected TFLOP/s"])
    return 0


def evaluate_model(options: argparse.Namespace) -> int:
    """Efficiency of a model's choices against the best that was measured, beside random choice and the rule of thumb."""
    model = _model(options)
    pools = pools_of(_measurements(options.data_dir), model.arch)
    wide = [pool for pool in pools if pool.spread >= options.spread]
    if not wide:
        raise error("usage.empty", what="evaluate", reason=f"no pool's median is {options.spread} times its best", hint="Measure more.")
    for name, score in evaluate(wide, {"model": by_model(model), "random": at_random(), "rule": by_rule}).items():
        print(f"{name:7} {score}")
    return 0


def _model(options: argparse.Namespace) -> Model:
    if options.model:
        return Model.load(options.model)
    found = model_for(options.arch)
    if found is None:
        raise error("usage.option", what="arch", value=options.arch,
                    hint="No model comes with the package for it: name one with --model DIR.")
    return found


def _measurements(place: str | None) -> list[Measurement]:
    """Of all tables of a directory, of one table, or of the file of results."""
    if place is None:
        return Results().find()
    path = Path(place)
    files = sorted([*path.glob("*.parquet"), *path.glob("*.csv")]) if path.is_dir() else [path]
    return [one for file in files for one in read_table(str(file))]


def _pool(options: argparse.Namespace, problem: ConvProblem, arch: str) -> list[KernelConfig]:
    if options.pool:
        pools: list[Pool] = pools_of(_measurements(options.pool), arch, 1)
        return list({config.identity(): config for pool in pools for config in pool.configs}.values())
    from .lower_cpu import ISAS
    from .model_choice import candidates_of

    return candidates_of(problem, "cpu" if arch == "cpu" else find_arch(arch).target, next(iter(ISAS)) if arch == "cpu" else arch)
