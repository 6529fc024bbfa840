"""``gconv inspect --what loop|mca``, ``gconv compare`` and ``gconv rank``: static figures, no device needed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import choose
from .cli_table import print_table
from .config import KernelConfig
from .errors import GconvError, error
from .loop_report import loop_report, mca_report
from .runner import bare_spec

if TYPE_CHECKING:
    from .backends.base import Backend
    from .plan import Lowered
    from .problem import ConvProblem

__all__ = ["compare", "print_figures", "rank_candidates"]

_RESOURCES = {"vgpr": "VGPR", "agpr": "AGPR", "sgpr": "SGPR", "lds_bytes": "LDS bytes", "vgpr_spills": "VGPR spills",
              "sgpr_spills": "SGPR spills", "occupancy": "occupancy (waves a SIMD)"}

Rows = list[tuple[str, str]]


def print_figures(what: str, backend: Backend, lowered: Lowered, problem: ConvProblem, arch: str, name: str) -> None:
    """Print the main loop's figures ("loop") or llvm-mca's prediction ("mca")."""
    if what == "loop":
        rows = loop_report(backend, lowered, problem, arch, name).rows()
    else:
        rows = mca_report(backend, lowered, arch, name).rows()
    print_table(["one pass of the main loop, one wave", "value"], rows, ["value"])


def compare(options: argparse.Namespace) -> int:
    """Print resources, main loop and prediction of two configurations side by side."""
    from .problem_text import parse_problem

    problem = parse_problem(options.problem)
    problem = problem.as_(options.direction) if options.direction else problem
    left, right = (_figures(problem, _config(text, problem.direction), options.arch) for text in (options.a, options.b))
    rows = [[name, value, dict(right).get(name, "-")] for name, value in left]
    print_table(["figure", "A", "B"], rows, ["A", "B"])
    return 0


def rank_candidates(options: argparse.Namespace) -> int:
    """Print the candidates of a problem, the lowest predicted cost first; exit code 1 if none compiles."""
    from .problem_text import parse_problem
    from .static_rank import rank

    problem = parse_problem(options.problem)
    found = rank(problem.as_(options.direction) if options.direction else problem, options.arch, options.limit)
    columns = ("configuration", "VGPR", "LDS", "blocks", "on a CU", "limited by", "matrix use", "cycles", "relative")
    rows = [(choose.describe_config(one.config), str(one.registers), str(one.lds_bytes), str(one.blocks),
             str(one.resident), one.bound, f"{100 * one.utilisation:.0f} %", f"{one.cycles:.0f}",
             f"{one.cycles / found[0].cycles:.2f}") for one in found]
    print_table(columns, rows, right=columns[1:5] + columns[6:])
    return 0 if found else 1


def _config(text: str, direction: str) -> KernelConfig:
    """The configuration that fields of a kernel statement state."""
    from .grammar import loads

    module = loads(f"kernel it for {direction} {{ {text} }}", "<configuration>")
    config: KernelConfig = module.kernels["it"].config
    return config


def _figures(problem: ConvProblem, config: KernelConfig, arch: str) -> Rows:
    backend, found = choose.resolve_target("hip", arch)
    lowered = choose.decide(bare_spec(problem.direction), problem, config, backend, found, compiled=False).lowered
    if not lowered.config.pipeline:
        raise error("usage.option", what="loop figures of", value="a kernel without a pipeline", hint="Name a pipeline.")
    resources = backend.resources(lowered.source, found, "compare")[lowered.plan.launches[0].kernel]
    blocks = sum(grid[0] * grid[1] * grid[2] for grid in (launch.grid for launch in lowered.plan.launches[:1]))
    return [("configuration", choose.short_config(lowered.config)), ("blocks", str(blocks)),
            *((title, str(resources.get(key, 0))) for key, title in _RESOURCES.items()),
            *loop_report(backend, lowered, problem, found, "compare").rows(), *_prediction(backend, lowered, found)]


def _prediction(backend: Backend, lowered: Lowered, arch: str) -> Rows:
    """llvm-mca's rows; none where it is not installed or does not know the arch."""
    try:
        return mca_report(backend, lowered, arch, "compare").rows()
    except GconvError:
        return []
