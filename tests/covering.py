"""A covering array: problems and configurations such that every two values of different factors meet, and every value meets every
pipeline in every direction.

Greedy: of random legal rows the one with the most new meetings is taken, until none has any. `rules.check` says what is legal.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from gconvdsl.config import KernelConfig
from gconvdsl.pipelines import PIPELINES
from gconvdsl.problem import ConvProblem
from gconvdsl.rules import check
from tests.pipeline_cases import DIRECTIONS, legal, small_tile

__all__ = ["FACTORS", "Row", "case_of", "covering_array", "meetings"]

Row = tuple[tuple[str, Any], ...]           # the value of each factor, in order

FACTORS: dict[str, tuple[Any, ...]] = {
    "direction": DIRECTIONS, "dtype": ("fp16", "bf16", "fp32"), "ndim": (1, 2, 3), "stride": (1, 2), "dilation": (1, 2),
    "pad": ("none", "asymmetric"), "channels": ("odd", "even", "depthwise"), "num_groups_to_merge": (None, 2), "split_k": (1, 2),
    "epilogue": ("default", "cshuffle"), "double_smem_buffer": (None, True), "split_image": (None, True),
    "explicit_gemm": (None, True), "two_stage": (None, True), "block_per_cu": (None, 2), "vector": (8, 2),
}
_CHANNELS = {"odd": (35, 37), "even": (40, 48), "depthwise": (1, 2)}
_SPACE = {1: ((37,), (5,)), 2: ((9, 8), (3, 2)), 3: ((5, 4, 5), (2, 2, 3))}
_OPTIONS = ("num_groups_to_merge", "split_k", "epilogue", "double_smem_buffer", "split_image", "explicit_gemm", "two_stage",
            "block_per_cu")
_POOL = 120                                 # random rows that compete for a place
_MISSES = 4                                 # pools without a new meeting after which there are none


def case_of(row: Row, arch: str) -> tuple[ConvProblem, KernelConfig]:
    """The problem and configuration of a row; they may be illegal."""
    one = dict(row)
    pipeline, scheduler = one["pipeline"]
    (size, taps), (c, k) = _SPACE[one["ndim"]], _CHANNELS[one["channels"]]
    pointwise = bool(one["explicit_gemm"])
    if pointwise and one["channels"] != "depthwise":  # without taps the depth has to come from the channels
        c, k = 4 * c, 4 * k
    problem = ConvProblem(
        N=2, G=2, C=2 * c, K=2 * k, input=size, filter=(1,) * len(size) if pointwise else taps, stride=one["stride"],
        dilation=one["dilation"], pad=0 if one["pad"] == "none" else ((2, 1),) * len(size), dtype=one["dtype"],
        direction=one["direction"])
    tile = small_tile(arch, one["dtype"])
    tile = type(tile)(tile.block, tile.waves, tile.wave_tile, (one["vector"],) * 3)
    options = {name: one[name] for name in _OPTIONS if one[name] is not None}
    implied = PIPELINES[pipeline].implied_options
    return problem, KernelConfig(tile=tile, pipeline=pipeline, **{**implied, "scheduler": scheduler, **options})


def is_legal(row: Row, arch: str) -> bool:
    """Whether the rules admit it."""
    return not check(*case_of(row, arch), arch)


def meetings(row: Row) -> set[frozenset[tuple[str, Any]]]:
    """The pairs of a row, and its triples with pipeline and direction."""
    pairs = {frozenset(pair) for pair in itertools.combinations(row, 2)}
    anchor = (row[0], next(part for part in row if part[0] == "direction"))
    return pairs | {frozenset((*anchor, other)) for other in row if other not in anchor}


def random_rows(arch: str, draw: random.Random) -> Iterator[Row]:
    """Random legal rows, without end. The first factor is the pipeline with its scheduler."""
    factors = {"pipeline": tuple(legal(arch)), **FACTORS}
    while True:
        row = tuple(_possible({name: draw.choice(values) for name, values in factors.items()}).items())
        if is_legal(row, arch):
            yield row


def _possible(one: dict[str, Any]) -> dict[str, Any]:
    """The row without what its other values rule out: most random rows would be illegal. The rules have the last word."""
    if one["explicit_gemm"]:
        one |= {"stride": 1, "pad": "none"}
    if one["direction"] == "bwd_weight":
        one |= {"split_image": None}
    else:
        one |= {"two_stage": None}
    if one["split_image"]:
        one |= {"split_k": 1}
    return one


def covering_array(arch: str, seed: int = 0) -> list[Row]:
    """The rows for an arch, the same every time."""
    candidates, covered, rows, missed = random_rows(arch, random.Random(seed)), set(), [], 0
    while missed < _MISSES:
        pool = [(row, meetings(row)) for row in itertools.islice(candidates, _POOL)]
        before = len(rows)
        for _ in range(5):
            best, met = max(pool, key=lambda each: len(each[1] - covered))
            if met <= covered:
                break
            rows.append(best)
            covered |= met
        missed = missed + 1 if len(rows) == before else 0
    return rows
