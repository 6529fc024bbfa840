"""The table of vector instructions: types of result and sources, and the function between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from .emu_state import Array
from .emu_vector_math import (
    bit_count,
    bit_field,
    bit_field_signed,
    bit_reverse,
    byte_permute,
    f32_to_bf16,
    find_first,
    float_to_int,
    fma,
    high_product,
    leading_zeros,
    median,
    round_to_zero_f16,
)

__all__ = ["OPERATIONS", "PACKED", "Operation"]

u16, u32, u64, i32, i64, f16, f32 = np.uint16, np.uint32, np.uint64, np.int32, np.int64, np.float16, np.float32


@dataclass(frozen=True)
class Operation:
    """``result`` and ``sources`` are types such as "u32"; ``accumulates``: the destination's old value is a last source."""

    result: str
    sources: tuple[str, ...]
    function: Callable[..., Array]
    accumulates: bool = False


def _shift(a: Array) -> Array:
    return a & a.dtype.type(a.dtype.itemsize * 8 - 1)


def _24(a: Array) -> Array:
    return a & u32(0xFFFFFF)


def _signed24(a: Array) -> Array:
    return (a << i32(8)) >> i32(8)


def _pair(low: Array, high: Array) -> Array:
    """Two 16-bit values in one register."""
    return np.asarray(low.view(u16).astype(u32) | high.view(u16).astype(u32) << u32(16))


def _ldexp(a: Array, by: Array) -> Array:
    return np.ldexp(a, np.clip(by, -400, 400)).astype(a.dtype)


def _fract(a: Array) -> Array:
    return np.minimum(a - np.floor(a), np.nextafter(f32(1), f32(0))).astype(a.dtype)


def _exponent(a: Array) -> Array:
    exponent: Any = np.frexp(a)[1]
    return np.where(np.isfinite(a), exponent, 0).astype(i32)


def _mantissa(a: Array) -> Array:
    mantissa: Any = np.frexp(a)[0]
    return np.where(np.isfinite(a), mantissa, a).astype(a.dtype)


def _divide(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """The end of a division: the correctly rounded quotient, whatever the approximation before."""
    return numerator / denominator


_BITOPS = {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "xnor": lambda a, b: ~(a ^ b)}


def _table() -> dict[str, Operation]:
    rows: dict[str, Operation] = {}

    def add(names: str, types: str, function: Callable[..., Any], accumulates: bool = False) -> None:
        result, _, sources = types.partition(" ")
        for name in names.split():
            rows[name] = Operation(result, tuple(sources.split()), function, accumulates)

    add("v_mov_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32", "u32 u32", lambda a: a)
    add("v_mov_b64", "u64 u64", lambda a: a)
    add("v_mov_b16", "u16 u16", lambda a: a)
    add("v_not_b32", "u32 u32", lambda a: ~a)
    add("v_not_b16", "u16 u16", lambda a: ~a)
    for name, function in _BITOPS.items():
        add(f"v_{name}_b32", "u32 u32 u32", function)
        add(f"v_{name}_b16", "u16 u16 u16", function)
    _integers(add)
    _shifts(add)
    _small_integers(add)
    _floats(add)
    _halves(add)
    _conversions(add)
    return rows


def _integers(add: Callable[..., None]) -> None:
    add("v_add_u32 v_add_nc_u32", "u32 u32 u32", np.add)
    add("v_sub_u32 v_sub_nc_u32", "u32 u32 u32", np.subtract)
    add("v_subrev_u32 v_subrev_nc_u32", "u32 u32 u32", lambda a, b: b - a)
    add("v_add_nc_i32 v_add_i32", "i32 i32 i32", np.add)
    add("v_add_nc_u64", "u64 u64 u64", np.add)
    add("v_sub_nc_u64", "u64 u64 u64", np.subtract)
    add("v_add3_u32", "u32 u32 u32 u32", lambda a, b, c: a + b + c)
    add("v_xad_u32", "u32 u32 u32 u32", lambda a, b, c: (a ^ b) + c)
    add("v_mul_lo_u32", "u32 u32 u32", np.multiply)
    add("v_mul_u64", "u64 u64 u64", np.multiply)
    add("v_mul_hi_u32", "u32 u32 u32", high_product)
    add("v_mul_hi_i32", "i32 i32 i32", high_product)
    add("v_mad_u32", "u32 u32 u32 u32", lambda a, b, c: a * b + c)
    add("v_mul_u32_u24", "u32 u32 u32", lambda a, b: _24(a) * _24(b))
    add("v_mul_i32_i24", "i32 i32 i32", lambda a, b: _signed24(a) * _signed24(b))
    add("v_mul_hi_u32_u24", "u32 u32 u32", lambda a, b: (_24(a).astype(u64) * _24(b) >> u64(32)).astype(u32))
    add("v_mad_u32_u24", "u32 u32 u32 u32", lambda a, b, c: _24(a) * _24(b) + c)
    add("v_mad_i32_i24", "i32 i32 i32 i32", lambda a, b, c: _signed24(a) * _signed24(b) + c)
    for kind in ("u32", "i32", "i64", "u64"):
        add(f"v_min_{kind}", f"{kind} {kind} {kind}", np.minimum)
        add(f"v_max_{kind}", f"{kind} {kind} {kind}", np.maximum)
    for kind in ("u32", "i32"):
        add(f"v_min3_{kind}", f"{kind} {kind} {kind} {kind}", lambda a, b, c: np.minimum(np.minimum(a, b), c))
        add(f"v_max3_{kind}", f"{kind} {kind} {kind} {kind}", lambda a, b, c: np.maximum(np.maximum(a, b), c))
        add(f"v_med3_{kind}", f"{kind} {kind} {kind} {kind}", median)
    add("v_sad_u32", "u32 u32 u32 u32", lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c)
    add("v_bcnt_u32_b32", "u32 u32 u32", lambda a, b: bit_count(a) + b)
    add("v_ffbl_b32 v_ctz_i32_b32", "u32 u32", find_first)
    add("v_ffbh_u32 v_clz_i32_u32", "u32 u32", leading_zeros)
    add("v_bfrev_b32", "u32 u32", bit_reverse)


def _shifts(add: Callable[..., None]) -> None:
    add("v_lshlrev_b32", "u32 u32 u32", lambda a, b: b << _shift(a))
    add("v_lshrrev_b32", "u32 u32 u32", lambda a, b: b >> _shift(a))
    add("v_ashrrev_i32", "i32 i32 i32", lambda a, b: b >> _shift(a))
    add("v_lshlrev_b64", "u64 u32 u64", lambda a, b: b << (a & u32(63)).astype(u64))
    add("v_lshrrev_b64", "u64 u32 u64", lambda a, b: b >> (a & u32(63)).astype(u64))
    add("v_ashrrev_i64", "i64 u32 i64", lambda a, b: b >> (a & u32(63)).astype(i64))
    add("v_lshlrev_b16", "u16 u16 u16", lambda a, b: b << _shift(a))
    add("v_lshrrev_b16", "u16 u16 u16", lambda a, b: b >> _shift(a))
    add("v_ashrrev_i16", "i16 i16 i16", lambda a, b: b >> _shift(a))
    add("v_lshl_add_u32", "u32 u32 u32 u32", lambda a, b, c: (a << _shift(b)) + c)
    add("v_add_lshl_u32", "u32 u32 u32 u32", lambda a, b, c: a + b << _shift(c))
    add("v_lshl_or_b32", "u32 u32 u32 u32", lambda a, b, c: a << _shift(b) | c)
    add("v_lshl_add_u64", "u64 u64 u32 u64", lambda a, b, c: (a << (b & u32(7)).astype(u64)) + c)
    add("v_and_or_b32", "u32 u32 u32 u32", lambda a, b, c: a & b | c)
    add("v_or3_b32", "u32 u32 u32 u32", lambda a, b, c: a | b | c)
    add("v_xor3_b32", "u32 u32 u32 u32", lambda a, b, c: a ^ b ^ c)
    add("v_bfe_u32", "u32 u32 u32 u32", bit_field)
    add("v_bfe_i32", "u32 u32 u32 u32", bit_field_signed)
    add("v_bfi_b32", "u32 u32 u32 u32", lambda a, b, c: a & b | ~a & c)
    add(
        "v_alignbit_b32", "u32 u32 u32 u32", lambda a, b, c: ((a.astype(u64) << u64(32) | b) >> _shift(c).astype(u64)).astype(u32)
    )
    add(
        "v_alignbyte_b32",
        "u32 u32 u32 u32",
        lambda a, b, c: ((a.astype(u64) << u64(32) | b) >> ((c & u32(3)) * u32(8)).astype(u64)).astype(u32),
    )
    add("v_perm_b32", "u32 u32 u32 u32", byte_permute)


def _small_integers(add: Callable[..., None]) -> None:
    for kind in ("u16", "i16"):
        add(f"v_add_{kind} v_add_nc_{kind}", f"{kind} {kind} {kind}", np.add)
        add(f"v_sub_{kind} v_sub_nc_{kind}", f"{kind} {kind} {kind}", np.subtract)
        add(f"v_min_{kind}", f"{kind} {kind} {kind}", np.minimum)
        add(f"v_max_{kind}", f"{kind} {kind} {kind}", np.maximum)
    add("v_subrev_u16", "u16 u16 u16", lambda a, b: b - a)
    add("v_mul_lo_u16", "u16 u16 u16", np.multiply)
    add("v_mad_u16 v_mad_legacy_u16", "u16 u16 u16 u16", lambda a, b, c: a * b + c)
    add("v_pack_b32_f16", "u32 u16 u16", _pair)
    add("v_pack_b32_u16", "u32 u16 u16", _pair)


def _floats(add: Callable[..., None]) -> None:
    for name, function in {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "max": np.fmax,
        "min": np.fmin,
        "max_num": np.fmax,
        "min_num": np.fmin,
        "mul_dx9_zero": np.multiply,
        "mul_legacy": np.multiply,
    }.items():
        add(f"v_{name}_f32", "f32 f32 f32", function)
    add("v_subrev_f32", "f32 f32 f32", lambda a, b: b - a)
    add("v_fma_f32 v_mad_f32 v_fmaak_f32 v_madak_f32 v_fmamk_f32 v_madmk_f32", "f32 f32 f32 f32", fma)
    add("v_fmac_f32 v_mac_f32", "f32 f32 f32", fma, True)
    add("v_div_fmas_f32", "f32 f32 f32 f32", fma)
    add("v_div_fixup_f32", "f32 f32 f32 f32", _divide)
    add("v_max3_f32 v_max3_num_f32", "f32 f32 f32 f32", lambda a, b, c: np.fmax(np.fmax(a, b), c))
    add("v_min3_f32 v_min3_num_f32", "f32 f32 f32 f32", lambda a, b, c: np.fmin(np.fmin(a, b), c))
    add("v_med3_f32 v_med3_num_f32", "f32 f32 f32 f32", median)
    for name, one in {
        "exp": np.exp2,
        "log": np.log2,
        "sqrt": np.sqrt,
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
        "rndne": np.rint,
        "rcp": lambda a: f32(1) / a,
        "rcp_iflag": lambda a: f32(1) / a,
        "rsq": lambda a: f32(1) / np.sqrt(a),
        "fract": _fract,
        "frexp_mant": _mantissa,
    }.items():
        add(f"v_{name}_f32", "f32 f32", one)
    add("v_sin_f32", "f32 f32", lambda a: np.sin(a.astype(np.float64) * 2 * np.pi).astype(f32))
    add("v_cos_f32", "f32 f32", lambda a: np.cos(a.astype(np.float64) * 2 * np.pi).astype(f32))
    add("v_frexp_exp_i32_f32", "i32 f32", _exponent)
    add("v_ldexp_f32", "f32 f32 i32", _ldexp)


def _halves(add: Callable[..., None]) -> None:
    for name, function in {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "max": np.fmax,
        "min": np.fmin,
        "max_num": np.fmax,
        "min_num": np.fmin,
    }.items():
        add(f"v_{name}_f16", "f16 f16 f16", function)
    add("v_fma_f16", "f16 f16 f16 f16", fma)
    add("v_fmac_f16", "f16 f16 f16", fma, True)


def _conversions(add: Callable[..., None]) -> None:
    add("v_cvt_f32_u32", "f32 u32", lambda a: a.astype(f32))
    add("v_cvt_f32_i32", "f32 i32", lambda a: a.astype(f32))
    add("v_cvt_u32_f32", "u32 f32", lambda a: float_to_int(a, u32))
    add("v_cvt_i32_f32", "i32 f32", lambda a: float_to_int(a, i32))
    add("v_cvt_f16_f32", "f16 f32", lambda a: a.astype(f16))
    add("v_cvt_f32_f16", "f32 f16", lambda a: a.astype(f32))
    add("v_cvt_f32_bf16", "f32 u16", lambda a: (a.astype(u32) << u32(16)).view(f32))
    add("v_cvt_pkrtz_f16_f32 v_cvt_pk_rtz_f16_f32", "u32 f32 f32", lambda a, b: _pair(round_to_zero_f16(a), round_to_zero_f16(b)))
    add("v_cvt_pk_f16_f32", "u32 f32 f32", lambda a, b: _pair(a.astype(f16), b.astype(f16)))
    add("v_cvt_pk_bf16_f32", "u32 f32 f32", lambda a, b: f32_to_bf16(a) | f32_to_bf16(b) << u32(16))
    for byte in range(4):
        add(f"v_cvt_f32_ubyte{byte}", "f32 u32", lambda a, byte=byte: (a >> u32(8 * byte) & u32(0xFF)).astype(f32))


OPERATIONS = _table()

PACKED: dict[str, Operation] = {
    **{
        f"v_pk_{name}_f32": Operation("f32", ("f32", "f32"), function)
        for name, function in (("add", np.add), ("mul", np.multiply))
    },
    "v_pk_fma_f32": Operation("f32", ("f32", "f32", "f32"), fma),
    **{
        f"v_pk_{name}_f16": Operation("f16", ("f16", "f16"), function)
        for name, function in (
            ("add", np.add),
            ("mul", np.multiply),
            ("max", np.fmax),
            ("min", np.fmin),
            ("max_num", np.fmax),
            ("min_num", np.fmin),
        )
    },
    "v_pk_fma_f16": Operation("f16", ("f16", "f16", "f16"), fma),
    **{
        f"v_pk_{name}": Operation(name[-3:], (name[-3:],) * 2, function)
        for name, function in (
            ("add_u16", np.add),
            ("sub_u16", np.subtract),
            ("mul_lo_u16", np.multiply),
            ("max_i16", np.maximum),
            ("min_i16", np.minimum),
        )
    },
    "v_pk_lshlrev_b16": Operation("u16", ("u16", "u16"), lambda a, b: b << _shift(a)),
    "v_pk_lshrrev_b16": Operation("u16", ("u16", "u16"), lambda a, b: b >> _shift(a)),
}
