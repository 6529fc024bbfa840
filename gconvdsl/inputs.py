"""Inputs for verification: each kind exposes a class of faults that the others can miss."""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, NamedTuple

import numpy as np

from .dtypes import DTYPES
from .errors import error
from .problem import ConvProblem

__all__ = ["KINDS", "Kind", "kinds_for", "make_inputs", "make_operands"]

Array = np.ndarray[Any, Any]
_Maker = Callable[[np.random.Generator, ConvProblem, tuple[int, ...], tuple[int, ...]], tuple[Array, Array]]
_BLIND = 500          # beyond this depth the error bound starts to hide a single wrong term
_TERMS = 64           # non-zero terms in a sum of wide integers: about 2^17 * 64 stays below 2^24


class Kind(NamedTuple):
    """A way to fill the two operands; ``exact``: sums of their products are exact in fp32 in any order."""

    make: _Maker
    exact: bool
    purpose: str


def _normal(rng: np.random.Generator, problem: ConvProblem, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Array, Array]:
    return rng.standard_normal(a), rng.standard_normal(b)


def _integers(rng: np.random.Generator, problem: ConvProblem, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Array, Array]:
    """As large as exact sums allow, but so that fp16 results seldom overflow (the sums grow with the root of the depth)."""
    depth = max(1, problem.depth)
    largest = min(math.isqrt(int(2 ** 24 - 1) // depth), 2 ** DTYPES[problem.dtype].digits)
    if problem.out_dtype == "fp16":
        largest = min(largest, math.isqrt(int(2 ** 15 / math.sqrt(depth))))
    largest = max(1, largest)
    return rng.integers(-largest, largest + 1, a), rng.integers(-largest, largest + 1, b)


def _ones(rng: np.random.Generator, problem: ConvProblem, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Array, Array]:
    return np.ones(a), np.ones(b)


def _signs(rng: np.random.Generator, problem: ConvProblem, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Array, Array]:
    return rng.choice([-1.0, 1.0], a), rng.choice([-1.0, 1.0], b)


def _wide(rng: np.random.Generator, problem: ConvProblem, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Array, Array]:
    """Odd integers of 17 bits (or what the dtype holds) against a few of -1, 0, 1: tf32 and two bf16 parts lose the last bits."""
    bits = min(17, DTYPES[problem.dtype].digits)
    wide = rng.choice([-1.0, 1.0], a) * (2 ** (bits - 1) + 1 + 2 * rng.integers(0, 2 ** (bits - 2), a))
    few = rng.choice([-1.0, 1.0], b) * (rng.random(b) < min(1.0, _TERMS / max(1, problem.depth)))
    return wide, few


def _wide_second(rng: np.random.Generator, problem: ConvProblem, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Array, Array]:
    second, first = _wide(rng, problem, b, a)
    return first, second


def _nonfinite(rng: np.random.Generator, problem: ConvProblem, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Array, Array]:
    """An Inf, a -Inf and a NaN among normals, in the first operand only: the second also meets padding zeros."""
    first, second = _normal(rng, problem, a, b)
    flat = first.reshape(-1)
    places = rng.permutation(flat.size)[:3]
    flat[places] = np.array([np.inf, -np.inf, np.nan])[:places.size]
    return first, second


KINDS: dict[str, Kind] = {
    "normal": Kind(_normal, False, "zero-mean values: cancellation shows low-precision sums and wrong terms"),
    "integers": Kind(_integers, True, "integers with exact sums: shows a single wrong term, a second rounding, truncation"),
    "ones": Kind(_ones, True, "all ones: sums count their terms, and stall in a narrow accumulator"),
    "signs": Kind(_signs, True, "plus and minus one: every term of a long sum counts"),
    "wide": Kind(_wide, True, "17-bit integers in the first operand: shows narrowed inputs in long sums"),
    "wide_second": Kind(_wide_second, True, "17-bit integers in the second operand"),
    "nonfinite": Kind(_nonfinite, False, "Inf and NaN: must not turn finite"),
}


def kinds_for(problem: ConvProblem) -> tuple[str, ...]:
    """The kinds that tell something about this problem: ones for dW, signs for long sums, wide for fp32."""
    chosen = ["normal", "integers"]
    if problem.direction == "bwd_weight":
        chosen.append("ones")
    if problem.depth > _BLIND:
        chosen.append("signs")
    if problem.dtype == "fp32":
        chosen += ["wide", "wide_second"]
    return (*chosen, "nonfinite")


def make_inputs(problem: ConvProblem, kind: str = "normal", seed: int = 0) -> tuple[Array, Array]:
    """The two operands in the problem's dtype and in the shapes of its layout; the same for the same seed."""
    if kind not in KINDS:
        raise error("usage.option", what="The kind of inputs", value=kind, hint=f"Use one of: {', '.join(KINDS)}.")
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    first, second = (problem.array_shape(tensor) for tensor in problem.operands)
    target = DTYPES[problem.dtype].numpy
    a, b = KINDS[kind].make(rng, problem, first, second)
    return a.astype(np.float32).astype(target), b.astype(np.float32).astype(target)


def make_operands(problem: ConvProblem, spec: Any, seed: int = 0) -> dict[str, Any]:
    """Values for the operands of a spec: normals, float32 for per_k and per_c, the result's dtype for like_y."""
    rng = np.random.default_rng([seed, len(KINDS)])
    return {operand.name: _operand(rng, problem, operand.kind) for operand in spec.operands}


def _operand(rng: np.random.Generator, problem: ConvProblem, kind: str) -> Any:
    if kind == "scalar":
        return float(np.float32(rng.standard_normal()))
    shapes: Mapping[str, tuple[int, ...]] = {
        "per_k": (problem.K,), "per_c": (problem.C,), "like_y": problem.array_shape(problem.result)}
    values: Array = rng.standard_normal(shapes[kind]).astype(np.float32)
    return values.astype(DTYPES[problem.out_dtype].numpy) if kind == "like_y" else values
