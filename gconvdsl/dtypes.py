"""The dtypes of tensors: fp32, fp16 and bf16, with the numbers that rounding analysis needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import error

__all__ = ["DTYPES", "Dtype", "dtype", "dtype_of", "round_to"]


@dataclass(frozen=True)
class Dtype:
    """A storage format.

    ``digits`` counts significand bits with the hidden one, ``min_exponent`` is the exponent of the smallest subnormal:
    every finite value is a multiple of ``2**min_exponent``.
    """

    name: str
    numpy_name: str
    bytes: int
    digits: int
    min_exponent: int
    max: float

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of one rounding to nearest, ``2**-digits``."""
        return 2.0 ** -self.digits

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive value."""
        return 2.0 ** self.min_exponent

    @property
    def overflow(self) -> float:
        """The smallest magnitude that rounds to infinity."""
        return math.ldexp(2.0 - self.unit_roundoff, math.frexp(self.max)[1] - 1)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; bf16 is that of ``ml_dtypes``, imported on first use."""
        if self.name != "bf16":
            return np.dtype(self.numpy_name)
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found


DTYPES: dict[str, Dtype] = {
    d.name: d for d in (
        Dtype("fp32", "float32", 4, 24, -149, float(np.finfo(np.float32).max)),
        Dtype("fp16", "float16", 2, 11, -24, 65504.0),
        Dtype("bf16", "bfloat16", 2, 8, -133, (2.0 - 2.0 ** -7) * 2.0 ** 127),
    )
}
_NAMES = {**{d: d for d in DTYPES}, **{d.numpy_name: d.name for d in DTYPES.values()}}


def dtype_of(value: object) -> str | None:
    """The name here of a NumPy or torch dtype, scalar type, or a name in NumPy's spelling; None if it is none of the three."""
    if type(value).__module__ == "torch":
        value = str(value).removeprefix("torch.")
    if not isinstance(value, str):
        try:
            value = np.dtype(value).name  # type: ignore[call-overload]
        except (TypeError, ValueError):
            return None
    return _NAMES.get(str(value).lower())


def dtype(value: object, field: str = "dtype") -> Dtype:
    """The `Dtype` named by ``value``; ``problem.dtype`` if there is none. ``field`` is what the error calls it."""
    name = dtype_of(value)
    if name is None:
        raise error("problem.dtype", field=field, value=value, allowed=", ".join(DTYPES))
    return DTYPES[name]


def round_to(values: Any, name: str) -> np.ndarray[Any, Any]:
    """``values`` (float64) after exactly one rounding to nearest-even to the dtype, still as float64; overflow gives Inf.

    Written out because a cast from float64 to bf16 may round twice, through float32.
    """
    fmt = DTYPES[name]
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        exponent = np.frexp(values)[1]
        quantum = np.maximum(exponent - fmt.digits, fmt.min_exponent)
        rounded = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
        rounded = np.where(np.abs(rounded) > fmt.max, np.copysign(np.inf, values), rounded)
        result: np.ndarray[Any, Any] = np.where(np.isfinite(values), rounded, values)
    return result
