"""Tensor maps on NVIDIA devices: encoded by the driver, once for each map and address."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..tensor_map import MAP_BYTES, TensorMap
from .gpu_driver import Driver

__all__ = ["TensorMaps", "maps_of"]

_ALIGNMENT = 64                                             # of a CUtensorMap
_DATA_TYPE = {"fp16": 6, "fp32": 7, "bf16": 9}              # CU_TENSOR_MAP_DATA_TYPE_
_SWIZZLE = {0: 0, 32: 1, 64: 2, 128: 3}                     # CU_TENSOR_MAP_SWIZZLE_
_NOT_INTERLEAVED, _PROMOTION_128, _ZEROS_OUTSIDE = 0, 2, 0  # CU_TENSOR_MAP_INTERLEAVE_, L2_PROMOTION_, FLOAT_OOB_FILL_
_MOST_KEPT = 1024


class TensorMaps:
    """The encoded maps of a driver. An address can come back for another tensor: the key is all that the encoding depends on."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._ffi = driver, driver.ffi
        self._encoded: dict[tuple[TensorMap, int], tuple[Any, Any]] = {}

    def encoded(self, wanted: TensorMap, address: int, kernel: str) -> tuple[Any, Any]:
        """A pointer to the driver's form of a map for a tensor at ``address``, and what keeps it valid. Raises `LaunchError`."""
        key = wanted, address
        found = self._encoded.get(key)
        if found is None:
            if len(self._encoded) >= _MOST_KEPT:
                self._encoded.clear()
            found = self._encoded[key] = self._encode(wanted, address, kernel)
        return found

    def _encode(self, one: TensorMap, address: int, kernel: str) -> tuple[Any, Any]:
        ffi, rank = self._ffi, len(one.dims)
        storage = ffi.new(f"unsigned char[{MAP_BYTES + _ALIGNMENT}]")
        start = int(ffi.cast("uintptr_t", storage))
        pointer = ffi.cast("void *", -(-start // _ALIGNMENT) * _ALIGNMENT)
        self._driver.call(
            "TensorMapEncodeTiled", pointer, _DATA_TYPE[one.dtype], rank, ffi.cast("void *", address),
            ffi.new("unsigned long long[]", one.dims), ffi.new("unsigned long long[]", [*one.strides, 0]),
            ffi.new("unsigned int[]", one.box), ffi.new("unsigned int[]", one.steps or (1,) * rank), _NOT_INTERLEAVED,
            _SWIZZLE[one.swizzle], _PROMOTION_128, _ZEROS_OUTSIDE, kernel=kernel)
        return pointer, storage


@cache
def maps_of(driver: Driver) -> TensorMaps:
    """The one `TensorMaps` of a driver."""
    return TensorMaps(driver)
