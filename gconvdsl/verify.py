"""Verification: how far a result may be from the reference, and the procedure that a kernel must pass.

The bound per element, for a sum of ``depth`` products accumulated in fp32 and rounded once to an output format of unit
roundoff u: ``1.01 * (u |ref| + (2 + lam sqrt(depth)) 2^-24 sum|a b| + half the smallest subnormal)``. The middle term is the
probabilistic bound on accumulated rounding errors (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis,
2019): right results stay under it in any order of summation, low-precision partial sums and missing terms do not. Partial sums
of zero-mean inputs, as `verify` makes them, stay far below sum|a b|, and lam = 1 suffices. Partial sums of other data can stay
near it; each rounding then has a standard deviation of up to 2^-24 sum|a b| / sqrt(3), and lam = 3 is 5 of their sum. It goes
blind for very long sums, so inputs of small integers, whose sums are exact in fp32 in any order, must come out exactly after
one rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping

import numpy as np

from .dtypes import DTYPES, dtype_of, round_to
from .errors import error
from .inputs import KINDS, kinds_for, make_inputs, make_operands
from .problem import ConvProblem
from .reference import Array, applies, canonical, contract, operand_values, reached, restore

__all__ = ["Expected", "KINDS", "Report", "ZERO_MEAN", "compare", "expect", "judge", "make_inputs", "make_operands", "verify"]

_FP32_ROUNDOFF = 2.0 ** -24
_SLACK = 1.01
_EXACT = 2.0 ** 24
ZERO_MEAN, _ANY_DATA = 1.0, 3.0          # lam of the bound


@dataclass(frozen=True)
class Report:
    """What a comparison found.

    ``error_ratio`` is the worst error over its bound (at most 1 is right), ``index`` where in the result array, with ``got`` and
    ``expected`` there. ``zeros_exact``: elements that no product reaches are exactly right. ``unwritten`` counts NaN where the
    reference is finite. ``nonfinite_ok``: no Inf or NaN of the reference became finite. ``kind`` names the inputs; a `verify`
    holds one part for each kind of inputs and repeats the worst part's figures.
    """

    ok: bool
    error_ratio: float
    zeros_exact: bool
    index: tuple[int, ...] | None
    nonfinite_ok: bool
    unwritten: int
    reason: str = ""
    got: float = math.nan
    expected: float = math.nan
    kind: str = ""
    parts: tuple[Report, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    def summary(self) -> str:
        """One line: the verdict, the worst error, and where and why it failed."""
        if self.ok:
            return f"ok: worst error {self.error_ratio:.3g} of the bound"
        kind = f"{self.kind} inputs: " if self.kind else ""
        return (f"WRONG: {kind}{self.reason}; worst error {self.error_ratio:.3g} of the bound at {self.index}: "
                f"got {self.got:.9g}, expected {self.expected:.9g}")

    __str__ = summary

    def require(self) -> Report:
        """This report; `VerifyError` if it is not ok."""
        if not self.ok:
            raise error("verify.failed", summary=self.summary().removeprefix("WRONG: "))
        return self


@dataclass(frozen=True)
class Expected:
    """Canonical float64 arrays: the reference value and the largest error a right result can have."""

    value: Array
    bound: Array
    exact: bool
    finite_sums: Array


def compare(problem: ConvProblem, result: Any, a: Any, b: Any, spec: Any = None, operands: Mapping[str, Any] | None = None, *,
            exact: bool = False, strict_nonfinite: bool = False, kind: str = "", lam: float = _ANY_DATA) -> Report:
    """Whether ``result`` is a right answer for ``a`` and ``b`` (ordered and shaped as for `reference`).

    ``exact``: the inputs are integers with ``sum|a b| < 2^24``, so the sums must be exact and, without an epilogue, the result
    equal to the sum rounded once. ``strict_nonfinite``: Inf and NaN appear only where the reference has them; otherwise they
    may have spread to other channels of the same pixel (for dW: of the same tap). ``lam`` widens the bound on sums: the default
    holds for any data, 1 for zero-mean data. Raises `ArrayError` for arrays that do not fit.
    """
    with np.errstate(all="ignore"):
        want = expect(problem, a, b, spec, operands, exact=exact, lam=lam)
    return judge(problem, result, want, b, strict_nonfinite=strict_nonfinite, kind=kind)


def judge(problem: ConvProblem, result: Any, want: Expected, b: Any, *, strict_nonfinite: bool = False, kind: str = "") -> Report:
    """`compare` with what `expect` computed once for several results of the same inputs."""
    if dtype_of(np.asarray(result).dtype) != problem.out_dtype:
        raise error("array.dtype", name="result", got=np.asarray(result).dtype, expected=problem.out_dtype)
    found = canonical(problem, problem.result, result, "result")
    with np.errstate(all="ignore"):
        ratio = _ratios(found, want, problem.out_dtype)
        finite = np.isfinite(want.value)
        lost = ~finite & (np.isfinite(found) | ((found != want.value) & np.isinf(found) & np.isinf(want.value)))
        spread = finite & ~np.isfinite(found) & _may_spread(problem, want.finite_sums, b, strict_nonfinite)
    ratio = np.where(spread, 0.0, np.where(lost, np.inf, ratio))
    unwritten = np.isnan(found) & finite & ~spread
    idle = ~np.broadcast_to(reached(problem), found.shape)
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape) if ratio.size else None
    fused = np.ndim(result) == len(problem.fused_shape(problem.result))
    report = Report(
        ok=True, error_ratio=float(ratio[worst]) if worst is not None else 0.0, zeros_exact=bool(np.all(ratio[idle] <= 1.0)),
        index=_place(problem, worst, found.shape, fused) if worst is not None else None, nonfinite_ok=not lost.any(),
        unwritten=int(unwritten.sum()), kind=kind, got=float(found[worst]) if worst is not None else math.nan,
        expected=float(want.value[worst]) if worst is not None else math.nan)
    reason = _reason(report, want.exact)
    return replace(report, ok=not reason, reason=reason)


def _reason(report: Report, exact: bool) -> str:
    if report.unwritten:
        return f"{report.unwritten} elements are NaN or were not written"
    if not report.nonfinite_ok:
        return "an infinity or NaN was lost"
    if not report.zeros_exact:
        return "elements that no product reaches are not exact"
    if report.error_ratio > 1.0:
        return "an exact sum is not exact" if exact else "the error exceeds the bound"
    return ""


def expect(problem: ConvProblem, a: Any, b: Any, spec: Any = None, operands: Mapping[str, Any] | None = None, *,
           exact: bool = False, lam: float = ZERO_MEAN) -> Expected:
    """The reference and its bound; errors of a prologue run through the sums, those of the sums through the epilogue."""
    first, second = (canonical(problem, tensor, array) for tensor, array in zip(problem.operands, (a, b)))
    with_spec = applies(problem, spec)
    env = {name: (value, 0.0) for name, value in operand_values(problem, spec, operands).items()}
    first_error = None
    if with_spec and spec.prologue.op != "x":
        first, first_error = _prologue(problem, spec, env, first)
    value = contract(problem, first, second)
    finite_sums = np.isfinite(value)        # an epilogue may hide an infinity that has spread (relu)
    magnitude = contract(problem, np.abs(first), np.abs(second))
    exact = exact and first_error is None and bool(np.all(magnitude < _EXACT))
    bound = np.zeros_like(value) if exact else (2 + lam * math.sqrt(problem.depth)) * _FP32_ROUNDOFF * magnitude
    bound = np.where(magnitude > DTYPES["fp32"].max, np.inf, bound)
    if first_error is not None:
        bound = bound + contract(problem, first_error, np.abs(second))
    if with_spec and spec.epilogue.op != "acc":
        pair = spec.epilogue.evaluate_with_error({**env, "acc": (value, bound)})
        value, bound = (np.broadcast_to(part, value.shape) for part in pair)
        exact = False
    if exact:
        return Expected(round_to(value, problem.out_dtype), bound, True, finite_sums)
    out = DTYPES[problem.out_dtype]
    return Expected(value, _SLACK * (out.unit_roundoff * np.abs(value) + bound + out.smallest_subnormal / 2), False,
                     finite_sums)


def _prologue(problem: ConvProblem, spec: Any, env: Mapping[str, Any], x: Array) -> tuple[Array, Array]:
    """The transformed x and its error, with one rounding to the dtype of x allowed: matrix instructions read that dtype."""
    value, bound = (np.broadcast_to(part, x.shape) for part in spec.prologue.evaluate_with_error({**env, "x": (x, 0.0)}))
    fmt = DTYPES[problem.dtype]
    return value, bound + fmt.unit_roundoff * np.abs(value) + fmt.smallest_subnormal / 2


def _ratios(found: Array, want: Expected, out_dtype: str) -> Array:
    """Error over bound; infinite where only one of the two is finite, unless the reference is at the edge of overflow."""
    off = np.abs(found - want.value)
    ratio = np.where(off == 0, 0.0, np.where(want.bound > 0, off / want.bound, np.inf))
    ratio = np.where(np.isinf(want.bound), 0.0, ratio)
    overflowed = np.isinf(found) & (np.sign(found) == np.sign(want.value))
    ratio = np.where(overflowed & (np.abs(want.value) + want.bound >= DTYPES[out_dtype].overflow), 0.0, ratio)
    ratio = np.where(np.isnan(ratio) | (np.isnan(found) & np.isfinite(want.value)), np.inf, ratio)
    return np.where(~np.isfinite(want.value), 0.0, ratio)


def _may_spread(problem: ConvProblem, finite: Array, b: Any, strict: bool) -> Array:
    """Where Inf and NaN may appear although the reference is finite: across channels and groups of a pixel where some sum is not
    (``finite`` are the sums), and, from a non-finite ``b``, anywhere, since then a kernel multiplies them by padding zeros as well."""
    if strict or finite.all():
        return np.zeros(finite.shape, dtype=bool)
    if not np.all(np.isfinite(np.asarray(b).astype(np.float64))):
        return np.ones(finite.shape, dtype=bool)
    axes = (0, 1, finite.ndim - 1) if problem.result == "w" else (0, finite.ndim - 1)
    return np.broadcast_to((~finite).any(axis=axes, keepdims=True), finite.shape)


def _place(problem: ConvProblem, worst: tuple[Any, ...], shape: tuple[int, ...], fused: bool) -> tuple[int, ...]:
    """A canonical index as an index into the result array."""
    flags = np.zeros(shape, dtype=bool)
    flags[worst] = True
    return tuple(int(axis[0]) for axis in np.nonzero(restore(problem, problem.result, flags, fused)))


def verify(problem: ConvProblem, run: Callable[[Array, Array, Array], Any], *, spec: Any = None,
           operands: Mapping[str, Any] | None = None, seed: int = 0, kinds: tuple[str, ...] | None = None,
           strict_nonfinite: bool = False) -> Report:
    """The whole procedure: ``run(a, b, out)`` on every kind of inputs that tells for this problem (or ``kinds``).

    ``out`` has the layout's shape and ``out_dtype`` and is full of NaN before each run; ``run`` fills it, or returns another
    array of the same dtype. ``run`` supplies the operands of ``spec`` itself, with the values given here. The report repeats the
    worst part: among those that failed, if any did, the one with the largest error.
    """
    chosen = kinds_for(problem) if kinds is None else kinds
    parts = []
    for kind in chosen:
        a, b = make_inputs(problem, kind, seed)
        out = np.full(problem.array_shape(problem.result), np.nan, dtype=DTYPES[problem.out_dtype].numpy)
        returned = run(a, b, out)
        parts.append(compare(problem, out if returned is None else returned, a, b, spec, operands, exact=KINDS[kind].exact,
                             strict_nonfinite=strict_nonfinite, kind=kind, lam=ZERO_MEAN))
    return _combined(tuple(parts))


def _combined(parts: tuple[Report, ...]) -> Report:
    if not parts:
        hint = f"Use some of: {', '.join(KINDS)}."
        raise error("usage.empty", what="verify", reason="no kind of inputs was named", hint=hint)
    worst = max(parts, key=lambda part: (not part.ok, part.error_ratio))
    return replace(worst, error_ratio=max(part.error_ratio for part in parts), parts=parts,
                   zeros_exact=all(part.zeros_exact for part in parts), nonfinite_ok=all(part.nonfinite_ok for part in parts),
                   unwritten=sum(part.unwritten for part in parts))
