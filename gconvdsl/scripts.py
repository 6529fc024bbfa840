"""What example scripts and users' own share: ``--target`` and ``--arch``, and a verified run as a line of text and an exit code."""

from __future__ import annotations

import argparse
from typing import Any, Mapping

from . import choose
from .config import KernelConfig
from .inputs import make_inputs, make_operands
from .problem import ConvProblem
from .runner import Result, bare_spec, execute
from .spec import KernelSpec
from .verify import Report, compare

__all__ = ["parser", "print_run", "target_of", "verified_run"]


def parser(title: str) -> argparse.ArgumentParser:
    """A parser with ``--target`` and ``--arch``."""
    made = argparse.ArgumentParser(description=title)
    made.add_argument("--target", help="TARGET[:ARCH] (default: a GPU that is here, else cpu)")
    made.add_argument("--arch", help="such as gfx950 or sm_90; without a device of that kind it is simulated")
    return made


def target_of(options: argparse.Namespace) -> str:
    """The target that the options mean, with its arch; printed by scripts, so that nobody takes a simulation for a device."""
    found = choose.detect_arch()
    if options.target is None and options.arch and options.arch != found:
        backend, arch = choose.resolve_target("cpu" if options.arch == "cpu" else f"sim:{options.arch}")
    else:
        backend, arch = choose.resolve_target(options.target, options.arch)
    text = f"{backend.name}:{arch}"
    print(f"GPU arch found here: {found}; running on {text}", flush=True)
    return text


def verified_run(problem: ConvProblem, target: str, spec: KernelSpec | None = None, config: KernelConfig | None = None,
                 operands: Mapping[str, Any] | None = None, seed: int = 0) -> tuple[Result, Report]:
    """Run on seeded data, compare with the float64 reference, print one line. ``operands`` default to seeded ones."""
    spec = spec or bare_spec(problem.direction)
    a, b = make_inputs(problem, "normal", seed)
    given = dict(operands) if operands is not None else make_operands(problem, spec, seed)
    result = execute(spec, config, problem, (a, b), given, target=target, poison=True)
    report = compare(problem, result.output, a, b, spec, given)
    print_run(problem, result, report)
    return result, report


def print_run(problem: ConvProblem, result: Result, report: Report) -> None:
    """The problem; time, rate, verdict, and whether the kernel was compiled now or came from the cache."""
    built = result.decision.built if result.decision else None
    origin = "" if built is None else "kernel from the cache" if built.artifact.cached else f"compiled in {built.artifact.seconds:.1f} s"
    print(f"{problem.describe()}\n  {result.time_ms:.3f} ms  {result.tflops:.3f} TFLOP/s  {report}  {origin}".rstrip(), flush=True)
