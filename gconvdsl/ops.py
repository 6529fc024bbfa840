"""The one table of the operations an expression may use: arity, float64 meaning, C++ spelling, error rule.

An error rule answers: if every argument ``a`` was computed as some ``a~`` with ``|a~ - a| <= e``, how far can the exact operation
on the ``a~`` be from the exact operation on the ``a``? `Op.ulps` then covers the rounding of the operation itself, in units of
2^-24 relative: 1 for one IEEE operation, more for the functions of gconv/math.hpp (about twice the worst error measured in
tests/test_math_header.py, since devices contract products and sums). Rules use monotony or the largest derivative over
``[a - e, a + e]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from .dtypes import DTYPES, round_to

__all__ = ["ALIASES", "FLOAT_MAX", "OPS", "Op", "Pair", "TINY", "UNIT"]

Array = Any                                     # float64 arrays or scalars that broadcast
Pair = tuple[Array, Array]                      # (value, error bound)

UNIT = 2.0**-24                                 # unit roundoff of float32
TINY = 2.0**-143                                # a subnormal rounding inside a function, times an argument of at most 104
FLOAT_MAX = DTYPES["fp32"].max

ALIASES = {"min": "minimum", "max": "maximum"}  # other spellings that ``.gconv`` text accepts


@dataclass(frozen=True)
class Op:
    """One operation.

    ``numpy(*args)`` is the float64 meaning; ``cpp`` an infix symbol or the name of a function in ``gconv::math``;
    ``error(result, *pairs)`` the rule above, None for comparisons; ``defaults`` fill missing last arguments.
    """

    name: str
    arity: int
    numpy: Callable[..., Array]
    error: Callable[..., Array] | None
    ulps: float = 1.0
    cpp: str = ""
    infix: bool = False
    precedence: int = 9                         # 1 comparison, 2 + -, 3 * /, 4 unary minus, 9 call
    defaults: tuple[float, ...] = ()

    @property
    def condition(self) -> bool:
        """True for comparisons: their result may only be the condition of where."""
        return self.precedence == 1


# --- float64 meanings that NumPy does not have

_erf = np.frompyfunc(math.erf, 1, 1)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def _f_erf(a: Array) -> Array:
    return np.asarray(_erf(a), np.float64)


def _f_normal_cdf(a: Array) -> Array:
    return 0.5 * np.asarray(_erfc(-np.asarray(a, np.float64) / math.sqrt(2.0)), np.float64)


def _f_sigmoid(a: Array) -> Array:
    z = np.exp(-np.abs(a))
    return np.where(np.asarray(a) >= 0, 1.0, z) / (1.0 + z)


def _f_gelu(a: Array) -> Array:
    return a * _f_normal_cdf(a)


def _f_gelu_inner(a: Array) -> Array:
    return 2.0 * math.sqrt(2.0 / math.pi) * (a + 0.044715 * np.asarray(a) ** 3)


def _f_gelu_tanh(a: Array) -> Array:
    """0.5 a (1 + tanh(t)), written as a sigmoid(2 t) so that it does not cancel."""
    return a * _f_sigmoid(_f_gelu_inner(a))


def _f_silu(a: Array) -> Array:
    return a * _f_sigmoid(a)


def _f_relu(a: Array) -> Array:
    return np.maximum(a, 0.0)


def _f_leaky_relu(a: Array, slope: Array) -> Array:
    return np.where(np.asarray(a) >= 0, a, np.asarray(slope) * a)


def _f_clamp(a: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(a, low), high)


# --- error rules

def _near(p: Pair) -> Array:
    """The smallest magnitude in ``[a - e, a + e]``."""
    return np.maximum(np.abs(p[0]) - p[1], 0.0)


def _e_same(_: Array, a: Pair) -> Array:
    return a[1]


def _e_sum(_: Array, a: Pair, b: Pair) -> Array:
    return a[1] + b[1]


def _e_mul(_: Array, a: Pair, b: Pair) -> Array:
    return np.abs(a[0]) * b[1] + np.abs(b[0]) * a[1] + a[1] * b[1]


def _e_div(v: Array, a: Pair, b: Pair) -> Array:
    """|a~/b~ - a/b| = |(a~ - a) - (a/b)(b~ - b)| / |b~|."""
    return np.where((_near(b) > 0) | (b[1] == 0), (a[1] + np.abs(v) * b[1]) / _near(b), np.inf)


def _e_maximum(v: Array, a: Pair, b: Pair) -> Array:
    chosen = np.where(np.asarray(a[0]) >= b[0], a[1], b[1])
    certain = np.abs(np.asarray(a[0]) - b[0]) > np.asarray(a[1]) + b[1]
    return np.where(certain, chosen, np.maximum(a[1], b[1]))


def _e_minimum(v: Array, a: Pair, b: Pair) -> Array:
    return _e_maximum(v, (-np.asarray(a[0]), a[1]), (-np.asarray(b[0]), b[1]))


def _e_clamp(v: Array, a: Pair, low: Pair, high: Pair) -> Array:
    inner = np.maximum(a[0], low[0])
    return _e_minimum(v, (inner, _e_maximum(inner, a, low)), high)


def _e_exp(v: Array, a: Pair) -> Array:
    return v * np.expm1(a[1])


def _e_log(_: Array, a: Pair) -> Array:
    return np.where(np.asarray(a[0]) > a[1], -np.log1p(-a[1] / np.abs(a[0])), np.where(np.asarray(a[1]) == 0, 0.0, np.inf))


def _e_sqrt(v: Array, a: Pair) -> Array:
    low = np.asarray(a[0]) - a[1]
    return np.where(np.asarray(a[1]) == 0, 0.0, np.where(low >= 0, v - np.sqrt(np.maximum(low, 0.0)), np.inf))


def _e_rsqrt(v: Array, a: Pair) -> Array:
    low = np.asarray(a[0]) - a[1]
    return np.where(np.asarray(a[1]) == 0, 0.0, np.where(low > 0, 1.0 / np.sqrt(np.maximum(low, 0.0)) - v, np.inf))


def _e_tanh(_: Array, a: Pair) -> Array:
    """tanh' = 1 / cosh^2."""
    return a[1] / np.cosh(np.minimum(_near(a), 300.0)) ** 2


def _e_erf(_: Array, a: Pair) -> Array:
    """erf' = 2 / sqrt(pi) exp(-a^2)."""
    return a[1] * (2.0 / math.sqrt(math.pi)) * np.exp(-_near(a) ** 2)


def _sigmoid_slope(a: Pair) -> Array:
    z = np.exp(-_near(a))
    return z / (1.0 + z) ** 2


def _e_sigmoid(_: Array, a: Pair) -> Array:
    return a[1] * _sigmoid_slope(a)


def _e_relu(_: Array, a: Pair) -> Array:
    return np.where(np.asarray(a[0]) + a[1] <= 0, 0.0, a[1])


def _e_leaky_relu(_: Array, a: Pair, slope: Pair) -> Array:
    scaled = slope[0] * np.asarray(a[0])
    below = _e_mul(scaled, a, slope) + UNIT * np.abs(scaled)
    return np.where(_near(a) > 0, np.where(np.asarray(a[0]) > 0, a[1], below), np.maximum(a[1], below))


def _e_gelu(_: Array, a: Pair) -> Array:
    """gelu' = Phi(a) + a phi(a), bounded over the interval by its two parts."""
    high = np.asarray(a[0]) + a[1]
    density = np.exp(-0.5 * _near(a) ** 2) / math.sqrt(2.0 * math.pi)
    return a[1] * (_f_normal_cdf(high) + (np.abs(a[0]) + a[1]) * density)


def _e_gelu_tanh(v: Array, a: Pair) -> Array:
    """Lipschitz constant 1.13; the rounding of the sigmoid's argument t moves it by at most |t| s (1 - s) of that rounding."""
    t = _f_gelu_inner(a[0])
    return 1.13 * a[1] + 6.0 * UNIT * np.abs(v) * np.abs(t) * _f_sigmoid(-t)


def _e_silu(_: Array, a: Pair) -> Array:
    """silu' = s + a s (1 - s), bounded over the interval by its two parts."""
    return a[1] * (_f_sigmoid(np.asarray(a[0]) + a[1]) + (np.abs(a[0]) + a[1]) * _sigmoid_slope(a))


def _e_where(v: Array, condition: Pair, a: Pair, b: Pair) -> Array:
    """Near the switch (the condition's error is not 0) either branch may have been taken."""
    chosen, other = np.where(condition[0], a[1], b[1]), np.where(condition[0], b[1], a[1])
    jump = np.abs(np.asarray(a[0]) - b[0]) + other
    return np.where(np.asarray(condition[1]) == 0, chosen, np.maximum(chosen, jump))


_ROWS = (
    Op("add", 2, np.add, _e_sum, 1, "+", True, 2),
    Op("sub", 2, np.subtract, _e_sum, 1, "-", True, 2),
    Op("mul", 2, np.multiply, _e_mul, 1, "*", True, 3),
    Op("div", 2, np.divide, _e_div, 2, "/", True, 3),
    Op("neg", 1, np.negative, _e_same, 0, "-", precedence=4),
    Op("lt", 2, np.less, None, 0, "<", True, 1),
    Op("le", 2, np.less_equal, None, 0, "<=", True, 1),
    Op("gt", 2, np.greater, None, 0, ">", True, 1),
    Op("ge", 2, np.greater_equal, None, 0, ">=", True, 1),
    Op("eq", 2, np.equal, None, 0, "==", True, 1),
    Op("ne", 2, np.not_equal, None, 0, "!=", True, 1),
    Op("where", 3, np.where, _e_where, 0),
    Op("abs", 1, np.abs, _e_same, 0),
    Op("minimum", 2, np.minimum, _e_minimum, 0),
    Op("maximum", 2, np.maximum, _e_maximum, 0),
    Op("clamp", 3, _f_clamp, _e_clamp, 0),
    Op("relu", 1, _f_relu, _e_relu, 0),
    Op("leaky_relu", 2, _f_leaky_relu, _e_leaky_relu, 0, defaults=(0.01,)),
    Op("exp", 1, np.exp, _e_exp, 4),
    Op("log", 1, np.log, _e_log, 4),
    Op("sqrt", 1, np.sqrt, _e_sqrt, 2),
    Op("rsqrt", 1, lambda a: 1.0 / np.sqrt(a), _e_rsqrt, 4),
    Op("tanh", 1, np.tanh, _e_tanh, 5),
    Op("erf", 1, _f_erf, _e_erf, 5),
    Op("sigmoid", 1, _f_sigmoid, _e_sigmoid, 6),
    Op("gelu", 1, _f_gelu, _e_gelu, 10),
    Op("gelu_tanh", 1, _f_gelu_tanh, _e_gelu_tanh, 12),
    Op("silu", 1, _f_silu, _e_silu, 8),
    Op("cast", 1, round_to, None, 0),           # the dtype is Expr.value; its error rule is in expr.py
)

OPS: dict[str, Op] = {op.name: op for op in _ROWS}
"""Every operation by name. Functions of ``.gconv`` and ``gconv.NAME`` are the rows that are not infix."""
