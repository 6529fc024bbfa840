"""DLPack: arrays of other libraries taken without a copy, and arrays of ours given away.

The structures are those of version 0.8 of the protocol (https://dmlc.github.io/dlpack/latest/c_api.html), which every library
still speaks when asked without ``max_version``.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

__all__ = ["CUDA", "ROCM", "export", "take"]

CUDA, ROCM = 2, 10      # kDLCUDA, kDLROCM
_KINDS = {0: "i", 1: "u", 2: "f", 4: "bf", 6: "b"}     # DLDataTypeCode
_NAME, _USED = b"dltensor", b"used_dltensor"


_INTS = ctypes.POINTER(ctypes.c_int64)


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", _INTS), ("strides", _INTS), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _api(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the Python C API; the interpreter's lock is held while it runs."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)
_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
# A capsule that is being destroyed is passed as an address, so that nothing counts references to it.
_dying_is_named = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_dying_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


class _Taken:
    """What another library lent; given back when it is no longer referenced."""

    def __init__(self, managed: Any) -> None:
        if managed.contents.deleter:
            weakref.finalize(self, managed.contents.deleter, managed).atexit = False


def take(capsule: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], np.dtype[Any] | str, Any]:
    """(address, shape, strides in bytes, dtype, owner) of a capsule from ``__dlpack__``. A dtype that NumPy lacks is a text."""
    managed = ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_Managed))
    _rename(capsule, _USED)
    owner, tensor = _Taken(managed), managed.contents.tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    size = tensor.bits * tensor.lanes // 8
    steps = [tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides else _dense(shape)
    return (tensor.data or 0) + tensor.byte_offset, shape, tuple(step * size for step in steps), _dtype(tensor), owner


def _dense(shape: tuple[int, ...]) -> list[int]:
    steps = [1]
    for size in reversed(shape[1:]):
        steps.insert(0, steps[0] * size)
    return steps[:len(shape)]


def _dtype(tensor: _Tensor) -> np.dtype[Any] | str:
    kind = _KINDS.get(tensor.code, f"DLPack type {tensor.code}, ")
    if (kind, tensor.bits, tensor.lanes) == ("bf", 16, 1):
        from .dtypes import DTYPES

        return DTYPES["bf16"].numpy
    try:
        return np.dtype(f"{kind}{tensor.bits // 8}") if tensor.lanes == 1 else f"{kind}{tensor.bits}x{tensor.lanes}"
    except TypeError:
        return f"{kind}{tensor.bits} bits"


# --- giving away

_given: dict[int, Any] = {}
"""Address of a managed tensor -> what has to live as long as it."""


def export(address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], device: tuple[int, int],
           owner: Any) -> Any:
    """A capsule over memory that ``owner`` keeps alive; ``strides`` in bytes, ``device`` as DLPack names it (type, ordinal)."""
    ndim, managed = len(shape), _Managed()
    sizes = (ctypes.c_int64 * ndim)(*shape)
    steps = (ctypes.c_int64 * ndim)(*(stride // dtype.itemsize for stride in strides))
    code = next(code for code, kind in _KINDS.items() if kind == ("bf" if dtype.name == "bfloat16" else dtype.kind))
    managed.tensor = _Tensor(address, *device, ndim, code, dtype.itemsize * 8, 1, ctypes.cast(sizes, _INTS),
                             ctypes.cast(steps, _INTS), 0)
    managed.deleter = _deleter
    place = ctypes.addressof(managed)
    _given[place] = managed, sizes, steps, owner
    return _new(place, _NAME, _destructor)


def _delete(managed: Any) -> None:
    _given.pop(ctypes.addressof(managed.contents), None)


def _destroy(capsule: int) -> None:
    """A capsule that nobody took still owns its tensor."""
    if _dying_is_named(capsule, _NAME):
        _given.pop(_dying_pointer(capsule, _NAME), None)


_deleter, _destructor = _DELETER(_delete), _DESTRUCTOR(_destroy)
