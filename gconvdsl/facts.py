"""What a call's signature holds of each argument, and its address: taken in a microsecond, where `arrays.bind` takes twenty.

Two arrays of equal facts are bound alike, copies excepted, which depend on the address. Only kinds whose facts are cheap are known:
NumPy arrays, torch tensors, `DeviceArray`, numbers and None. A call with any other kind has no signature.
"""

from __future__ import annotations

import sys
from functools import partial
from types import NoneType
from typing import Any, Callable, Hashable

import numpy as np

from .arrays import address_of
from .devicearrays import DeviceArray

__all__ = ["Unknown", "address_reader", "facts_of", "out_facts"]

Facts = Callable[[Any], Hashable]


class Unknown(Exception):
    """A kind of argument that is not known here."""


def _of_numpy(array: np.ndarray) -> Hashable:
    return array.shape, array.strides, array.dtype


def _of_device(array: DeviceArray) -> Hashable:
    # Its stream is a matter of each call.
    return array.shape, array.strides, array.dtype, array.target, array.device, array.library, array.writeable


def _of_torch(tensor: Any) -> Hashable:
    if tensor.layout is not sys.modules["torch"].strided:
        raise Unknown
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_neg()


def _of_number(value: Any) -> Hashable:
    return None                                  # the value is taken at each call


_FACTS: dict[type, Facts] = {
    np.ndarray: _of_numpy, DeviceArray: _of_device, NoneType: _of_number, int: _of_number, float: _of_number, np.float32: _of_number,
    np.float64: _of_number,
}


def facts_of(value: Any) -> Hashable:
    """The type of a value and what else decides how it is bound. Raises `Unknown`."""
    kind = type(value)
    return kind, (_FACTS.get(kind) or _learnt(kind))(value)


def out_facts(value: Any) -> Hashable:
    """The same for an array that is written."""
    return facts_of(value), value.flags.writeable if type(value) is np.ndarray else None


def _learnt(kind: type) -> Facts:
    """Tensors themselves and parameters; other subclasses of tensors may mean other things."""
    torch = sys.modules.get("torch")
    if kind.__module__.partition(".")[0] != "torch" or kind not in (getattr(torch, "Tensor", None), _parameter(torch)):
        raise Unknown
    _FACTS[kind] = _of_torch
    return _of_torch


def _parameter(torch: Any) -> Any:
    return getattr(getattr(torch, "nn", None), "Parameter", None)


def address_reader(value: Any) -> Callable[[Any], int]:
    """A function that gives the address of arrays with the facts of ``value``."""
    if isinstance(value, (np.ndarray, DeviceArray)):
        quick = isinstance(value, np.ndarray) and value.flags.c_contiguous and value.dtype.isbuiltin == 1
        return _buffer_reader() if quick else address_of
    return _of_tensor


def _of_tensor(tensor: Any) -> int:
    return int(tensor.data_ptr())


def _buffer_reader() -> Callable[[np.ndarray], int]:
    """By the buffer protocol, which knows NumPy's own dtypes only and takes a third of the time of ``__array_interface__``."""
    from .backends._cpu_api import ffi

    return partial(_read, ffi.from_buffer, ffi.cast, ffi.typeof("unsigned long long"))


def _read(from_buffer: Any, cast: Any, number: Any, array: np.ndarray) -> int:
    return int(cast(number, from_buffer(array)))
