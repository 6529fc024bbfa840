"""Arithmetic of the emulated instructions on NumPy arrays: what NumPy has no function for."""

from __future__ import annotations

from typing import Any

import numpy as np

from .emu_state import Array

__all__ = [
    "bf16_to_f32",
    "bit_count",
    "bit_field",
    "bit_field_signed",
    "bit_reverse",
    "byte_permute",
    "f32_to_bf16",
    "find_first",
    "float_to_int",
    "fma",
    "high_product",
    "leading_zeros",
    "median",
    "round_to_zero_f16",
]

u8, u16, u32, u64, i32, i64, f16, f32, f64 = (
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int32,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a b + c in the type of a, rounded through float64: for float32 off by a double rounding in one of about 2^28 cases."""
    return (a.astype(f64) * b.astype(f64) + c.astype(f64)).astype(a.dtype)


def high_product(a: Array, b: Array) -> Array:
    """The upper 32 bits of a 32-bit product, signed or unsigned as a is."""
    wide = i64 if a.dtype == i32 else u64
    return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)


def bit_reverse(a: Array) -> Array:
    """32 bits in the other order."""
    result = np.zeros_like(a)
    for bit in range(32):
        result |= (a >> u32(bit) & u32(1)) << u32(31 - bit)
    return result


def bit_count(a: Array) -> Array:
    """Bits that are set."""
    bits = a.dtype.itemsize * 8
    one = a.dtype.type(1)
    return sum(((a >> a.dtype.type(i) & one).astype(u32) for i in range(bits)), np.zeros(a.shape, u32))


def find_first(a: Array) -> Array:
    """Number of the lowest bit that is set; all ones if none is."""
    lowest = a & (~a + a.dtype.type(1))
    return np.where(a == 0, u32(0xFFFFFFFF), np.log2(np.maximum(lowest, a.dtype.type(1)).astype(f64)).astype(u32))


def leading_zeros(a: Array) -> Array:
    """Zeros above the highest bit that is set; all ones if none is."""
    result = np.full(a.shape, 0xFFFFFFFF, u32)
    bits = a.dtype.itemsize * 8
    for bit in range(bits):
        result = np.where(a >> a.dtype.type(bit) & a.dtype.type(1) != 0, u32(bits - 1 - bit), result)
    return result


def float_to_int(a: Array, to: Any) -> Array:
    """Rounded to zero and saturated; NaN gives 0."""
    limits = np.iinfo(to)
    return np.clip(
        np.nan_to_num(np.trunc(a.astype(f64)), nan=0.0, posinf=2.0**40, neginf=-(2.0**40)), limits.min, limits.max
    ).astype(to)


def bit_field(value: Array, offset: Array, width: Array) -> Array:
    """``width`` bits of an unsigned value from ``offset`` on."""
    return value >> (offset & u32(31)) & ((u32(1) << (width & u32(31))) - u32(1))


def bit_field_signed(value: Array, offset: Array, width: Array) -> Array:
    """The same, sign-extended."""
    found = bit_field(value.view(u32) if value.dtype == i32 else value, offset, width)
    sign = u32(1) << (((width & u32(31)) + u32(31)) & u32(31))
    return np.where(width & u32(31) == 0, u32(0), (found ^ sign) - sign)


def byte_permute(a: Array, b: Array, selector: Array) -> Array:
    """``v_perm_b32``: four bytes out of the eight of a:b (b low); 12 gives 0, 13 and more give 255, 8 to 11 signs."""
    both = a.astype(u64) << u64(32) | b
    result: Any = u32(0)
    for i in range(4):
        choice = selector >> u32(8 * i) & u32(0xFF)
        byte = (both >> (np.minimum(choice, u32(7)).astype(u64) * u64(8)) & u64(0xFF)).astype(u32)
        sign_of = np.minimum((choice.astype(i64) - 8) * 2 + 1, 7).clip(0)
        sign = (both >> (sign_of.astype(u64) * u64(8) + u64(7)) & u64(1)).astype(u32) * u32(0xFF)
        byte = np.where(choice < 8, byte, np.where(choice < 12, sign, np.where(choice == 12, u32(0), u32(0xFF))))
        result = result | byte << u32(8 * i)
    return np.asarray(result)


def median(a: Array, b: Array, c: Array) -> Array:
    """The middle one of three."""
    low, high = (np.fmin, np.fmax) if a.dtype.kind == "f" else (np.minimum, np.maximum)
    return high(low(a, b), low(high(a, b), c))


def bf16_to_f32(bits: Array) -> Array:
    """16-bit patterns to float32."""
    return (bits.astype(u32) << u32(16)).view(f32)


def f32_to_bf16(values: Array) -> Array:
    """float32 to 16-bit patterns, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, f32).view(u32)
    rounded = bits + (u32(0x7FFF) + (bits >> u32(16) & u32(1))) >> u32(16)
    return np.where(np.isnan(values), bits >> u32(16) | u32(0x40), rounded).astype(u32)


def round_to_zero_f16(values: Array) -> Array:
    """float32 to float16, rounded towards zero."""
    nearest = values.astype(f16)
    too_far = np.abs(nearest.astype(f32)) > np.abs(values)
    down = np.where(too_far & ~np.isnan(values), (nearest.view(u16) - u16(1)), nearest.view(u16))
    return down.astype(u16).view(f16)
