"""What a model sees of a problem and a configuration: one function for training and for prediction.

Sizes enter as base-2 logarithms. The GEMM view is that of the problem's own direction, per group; every pipeline, scheduler and CPU
algorithm of the tables has a flag of its own, so that a new row there is a new feature.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Any, Iterable

import numpy as np

from .archs import Arch, arch as find_arch, arithmetic
from .config import KernelConfig, Tile
from .dtypes import DTYPES
from .families import family_name
from .pipelines import PIPELINES, SCHEDULERS
from .lower_cpu import ALGORITHMS
from .problem import DIRECTIONS, ConvProblem
from .rules import gemms
from .tile_cost import lds_bytes, registers_per_lane

__all__ = ["NAMES", "SCHEMA", "features", "matrix"]

_AXES = "dhw"
_PROBLEM = ("n", "g", "c", "k", "cg", "kg",
            *(f"{what}_{axis}" for what in ("in", "out", "filter", "stride", "dilation", "pad") for axis in _AXES),
            "ndim", "taps", "flops", "bytes", "intensity", "depthwise", "element_bytes", *(f"is_{one}" for one in DIRECTIONS))
_GEMM = ("gemm_m", "gemm_n", "gemm_k", "gemms")
_TILE = ("tile_m", "tile_n", "tile_k", "waves", "wave_m", "wave_n", "instruction_m", "instruction_k", "vector_a", "vector_b", "vector_c",
         "lds", "lds_share", "registers", "occupancy", "efficiency_m", "efficiency_n", "efficiency_k", "blocks", "steps", "wave_fill",
         "waves_of_blocks", "tile_flops", "tile_bytes", "merge", "double_buffer", "split_k", "two_stage", "chosen_tile", "family")
_CPU = ("cpu_points", "cpu_vectors", "cpu_columns_fill", "cpu_lanes_fill")
NAMES: tuple[str, ...] = (*_PROBLEM, *_GEMM, *_TILE, *(f"pipeline_{name}" for name in PIPELINES),
                          *(f"scheduler_{name}" for name in SCHEDULERS), *_CPU, *(f"algorithm_{one.name}" for one in ALGORITHMS))
"""The features in the order of `matrix`."""

SCHEMA = hashlib.sha256("\n".join(NAMES).encode()).hexdigest()[:16]
"""Changes whenever a feature is added, removed or moved; models say which they were trained with."""

_LANES = 16


def features(problem: ConvProblem, config: KernelConfig, arch: str) -> dict[str, float]:
    """Name -> value for every name of `NAMES`. ``arch`` is a GPU arch, or "cpu"."""
    row = dict.fromkeys(NAMES, 0.0)
    row.update(_of_problem(problem))
    if arch == "cpu":
        row.update(_of_cpu(problem, config))
    else:
        row.update(_of_gpu(problem, config, find_arch(arch)))
    return row


def matrix(problem: ConvProblem, configs: Iterable[KernelConfig], arch: str) -> np.ndarray[Any, Any]:
    """One row for each configuration, float64."""
    rows = [features(problem, config, arch) for config in configs]
    return np.array([[row[name] for name in NAMES] for row in rows], dtype=np.float64).reshape(len(rows), len(NAMES))


def _log(value: float) -> float:
    return math.log2(value) if value > 0 else -1.0


@lru_cache(maxsize=1024)
def _of_problem(problem: ConvProblem) -> dict[str, float]:
    missing = 3 - problem.ndim
    row: dict[str, float] = {"n": _log(problem.N), "g": _log(problem.G), "c": _log(problem.C), "k": _log(problem.K), "cg": _log(problem.Cg),
                             "kg": _log(problem.Kg)}
    for what, values in (("in", problem.input), ("out", problem.output), ("filter", problem.filter)):
        row.update({f"{what}_{axis}": _log(value) for axis, value in zip(_AXES, (1,) * missing + values)})
    for what, values in (("stride", problem.stride), ("dilation", problem.dilation)):
        row.update({f"{what}_{axis}": float(value) for axis, value in zip(_AXES, (1,) * missing + values)})
    row.update({f"pad_{axis}": float(low + high) for axis, (low, high) in zip(_AXES, ((0, 0),) * missing + problem.pad)})
    row.update({"ndim": problem.ndim, "taps": _log(problem.taps), "flops": _log(problem.flops), "bytes": _log(problem.bytes),
                "intensity": _log(problem.flops / max(1, problem.bytes)), "depthwise": float(problem.Cg == problem.Kg == 1),
                "element_bytes": DTYPES[problem.dtype].bytes})
    row.update({f"is_{one}": float(problem.direction == one) for one in DIRECTIONS})
    parts = gemms(problem)
    m, n, k = max(parts, key=math.prod) if parts else (0, 0, 0)
    row.update({"gemm_m": _log(m), "gemm_n": _log(n), "gemm_k": _log(k), "gemms": len(parts)})
    return row


def _of_gpu(problem: ConvProblem, config: KernelConfig, arch: Arch) -> dict[str, float]:
    tile = config.tile_for(arch.family)
    if tile is None:
        return {"chosen_tile": 1.0, "family": float(bool(family_name(problem, config, f"{arch.target}:{arch.name}"))), **_flags(config)}
    merge, threads = config.num_groups_to_merge or 1, math.prod(tile.waves) * arch.wave
    row = {"tile_m": _log(tile.m), "tile_n": _log(tile.n), "tile_k": _log(tile.k), "waves": math.prod(tile.waves),
           "wave_m": tile.waves[0], "wave_n": tile.waves[1], "instruction_m": tile.wave_tile[0], "instruction_k": tile.wave_tile[2],
           "merge": _log(merge),
           "double_buffer": float(bool(config.double_smem_buffer)), "split_k": _log(config.split_k or 1),
           "two_stage": float(bool(config.two_stage))}
    row.update({f"vector_{name}": float(width) for name, width in zip("abc", tile.vector)})
    row.update(_resources(problem, config, tile, arch, merge, threads))
    row.update(_quantisation(problem, tile, arch, merge))
    return {**row, **_flags(config)}


def _flags(config: KernelConfig) -> dict[str, float]:
    scheduler = {f"scheduler_{config.scheduler}": 1.0} if config.scheduler else {}
    return {**{f"pipeline_{name}": 1.0 for name in config.pipeline[:1]}, **scheduler}


def _resources(problem: ConvProblem, config: KernelConfig, tile: Tile, arch: Arch, merge: int, threads: int) -> dict[str, float]:
    name = config.pipeline[0] if config.pipeline else None
    lds = lds_bytes(tile, problem.dtype, name, merge, double_smem_buffer=config.double_smem_buffer, epilogue=config.epilogue)
    instruction = arch.instruction(arithmetic(problem.dtype, config.precision), tile.wave_tile)
    registers = registers_per_lane(tile, problem.dtype, arch, name, instruction, merge)
    resident = min(arch.lds // max(1, lds), arch.max_threads * 2 // threads, arch.register_file // max(1, registers * threads))
    return {"lds": _log(lds), "lds_share": lds / arch.lds, "registers": float(registers),
            "occupancy": float(resident * threads // arch.wave)}


def _quantisation(problem: ConvProblem, tile: Tile, arch: Arch, merge: int) -> dict[str, float]:
    """How full tiles are, how many there are, and how full the last round over the compute units is."""
    parts = gemms(problem) or [(0, 0, 0)]
    m, n, k = max(parts, key=math.prod)
    counts = [max(1, -(-side // block)) for side, block in zip((m, n, k), tile.block)]
    blocks = counts[0] * counts[1] * max(1, problem.G // merge) * len(parts)
    rounds = blocks / arch.compute_units
    size = DTYPES[problem.dtype].bytes
    return {**{f"efficiency_{axis}": side / (count * block) for axis, side, count, block in zip("mnk", (m, n, k), counts, tile.block)},
            "blocks": _log(blocks), "steps": _log(counts[2]), "waves_of_blocks": rounds, "wave_fill": rounds / max(1, math.ceil(rounds)),
            "tile_flops": _log(2 * math.prod(tile.block)), "tile_bytes": _log((tile.m + tile.n) * tile.k * size)}


def _of_cpu(problem: ConvProblem, config: KernelConfig) -> dict[str, float]:
    target = problem.Cg if problem.direction == "bwd_data" else problem.Kg
    vectors, points = config.cpu_vectors or 0, config.cpu_points or 0
    width, columns = max(1, vectors) * _LANES, problem.output[-1]
    row = {"cpu_points": float(points), "cpu_vectors": float(vectors), "cpu_lanes_fill": target / (-(-target // width) * width),
           "cpu_columns_fill": columns / (-(-columns // points) * points) if points else 0.0}
    if config.cpu_algorithm:
        row[f"algorithm_{config.cpu_algorithm}"] = 1.0
    return row
