"""The cases of ``gconv verify --all``: a fixed set for one target, for reports from machines that nobody here has.

Chosen kernels (nothing asked for) on every problem, each pipeline with each scheduler on a deep and an awkward problem, and each
option on what it is for: in every direction and dtype where the rules admit it (216 to 288 cases, 72 on cpu).
docs/amd.md says how to run it and what to send.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._version import __version__
from .backends.base import Backend
from .config import KernelConfig
from .dtypes import DTYPES
from .pipelines import PIPELINES
from .problem import DIRECTIONS, ConvProblem
from .problem_text import parse_problem
from .rules import check

__all__ = ["Case", "cases_of", "header"]

_PROBLEMS = {
    "deep": "N=2 G=2 C=128 K=96 input=9x10 filter=3x3 pad=0:2x1:1",
    "awkward": "N=2 G=3 C=105 K=111 input=4x5x6 filter=2x3x2 stride=2x1x1 dilation=1x2x1 pad=0:1x2:2x1:1",
    "strided": "N=3 G=4 C=32 K=48 input=13x11 filter=3x3 stride=2 pad=1",
    "1-D": "N=2 G=2 C=40 K=24 input=37 filter=5 stride=3 pad=2:1",
    "pointwise": "N=2 G=2 C=64 K=80 input=8x8 filter=1x1",
    "narrow": "N=4 G=32 C=128 K=128 input=14x14 filter=3x3 pad=1",
    "depthwise": "N=2 G=24 C=24 K=24 input=13x14 filter=5x3 pad=2x1",
    "dense": "N=2 G=1 C=130 K=136 input=12x12 filter=3x3 pad=1",
}
"""``deep``: five K-steps and more, whole vectors. ``awkward``: three axes, odd channels, strides, dilation, tails."""

_OF_PIPELINES = ("deep", "awkward")
_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("deep", "compv3", {"num_groups_to_merge": 2}),
    ("deep", "compv3", {"split_image": True}),
    ("pointwise", "compv3", {"explicit_gemm": True}),
    ("deep", "compv3", {"two_stage": True}),
    ("deep", "mem", {"split_k": 2}),
    ("deep", "compv4", {"epilogue": "cshuffle"}),
    ("strided", "basic_v1", {"block_per_cu": 2, "num_groups_to_merge": 2, "epilogue": "cshuffle"}),
)


@dataclass(frozen=True)
class Case:
    """One verification: ``name`` says what it is for."""

    name: str
    problem: ConvProblem
    config: KernelConfig


def cases_of(target: str, arch: str) -> list[Case]:
    """The set for a target, in order; the same every time."""
    chosen = [Case(f"chosen {name}", problem, KernelConfig()) for name in _PROBLEMS for problem in _problems(name)]
    if target == "cpu":         # it has no pipelines and options
        return chosen
    return chosen + [case for case in (*_pipelines(), *_options()) if not check(case.problem, case.config, arch)]


def _problems(name: str) -> Iterator[ConvProblem]:
    whole = parse_problem(_PROBLEMS[name])
    for direction, dtype in itertools.product(DIRECTIONS, DTYPES):
        yield whole.replace(direction=direction, dtype=dtype, out_dtype=None)


def _pipelines() -> Iterator[Case]:
    for row in PIPELINES.values():
        for scheduler, name in itertools.product(row.schedulers, _OF_PIPELINES):
            config = KernelConfig(pipeline=row.name, **{**row.implied_options, "scheduler": scheduler})
            yield from (Case(f"{row.name} {scheduler} {name}", problem, config) for problem in _problems(name))


def _options() -> Iterator[Case]:
    for name, pipeline, options in _OPTIONS:
        config = KernelConfig(pipeline=pipeline, **{**PIPELINES[pipeline].implied_options, **options})
        text = " ".join(f"{option}={value}" for option, value in options.items())
        yield from (Case(f"{text} {name}", problem, config) for problem in _problems(name) if problem.dtype != "fp32")


def header(backend: Backend, arch: str, cases: int) -> dict[str, Any]:
    """What a report begins with: versions, the device, its driver, the compiler, the system."""
    devices = [{"name": one.name, "arch": one.arch, "memory": one.memory, "driver": one.driver}
               for one in backend.detect().devices]
    return {"report": "gconv verify --all", "version": __version__, "target": f"{backend.name}:{arch}", "cases": cases,
            **backend.identity(arch), "devices": devices, "python": platform.python_version(), "system": platform.platform()}
