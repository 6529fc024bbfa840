"""Arrays in GPU memory, of torch, CuPy, JAX, Numba or anything that speaks DLPack or ``__cuda_array_interface__``: taken without
a copy, and results made by the same library.

A `DeviceArray` describes such an array. What has to be done with elements (an array for the result, a contiguous copy) is done by
the array's `Library` in the order of the call's stream. No library is imported that is not already.
"""

from __future__ import annotations

import importlib
import math
import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Callable

import numpy as np

from . import dlpack
from .dtypes import DTYPES
from .errors import error

__all__ = ["DeviceArray", "Library", "adopt", "dense_strides", "memory_span", "shadow", "stream_handle"]

Shape = tuple[int, ...]

Maker = Callable[[Any, int], tuple[Any, int]]
"""Makes an array where the first array of a call lies, in the order of a stream: as the caller gets it, and its address."""

_TARGETS = {dlpack.CUDA: "cuda", dlpack.ROCM: "hip"}
_DLPACK_TYPES = {target: number for number, target in _TARGETS.items()}
_LEGACY_STREAM = 1      # how the array protocols write the default stream, whose handle is 0


class Library:
    """What makes and copies arrays of one kind. This one: memory of the target itself, copied by way of the host."""

    channels_first = False
    """Whether arrays are logical NC<spatial> in any strides, as torch's are; otherwise their shape is that of the layout."""

    def empty(self, like: DeviceArray, shape: Shape, strides: Shape, dtype: np.dtype[Any]) -> DeviceArray:
        """A new array on the device of ``like``, with these strides in bytes."""
        low, high = memory_span(shape, strides, dtype.itemsize)
        memory = _backend(like.target).allocate(high - low)
        return replace(like, address=memory.address - low, shape=shape, strides=strides, dtype=dtype, owner=memory,
                       writeable=True)

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        """Write the elements of ``source`` into ``target``, converted to its dtype. The shapes are equal."""
        memory, elements = self._fetched(target)
        np.copyto(elements, self._fetched(source)[1], casting="unsafe")
        _backend(target.target).upload(_Span(target), memory)

    def _fetched(self, array: DeviceArray) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The bytes from the array's first to its last element on the host, and its elements as a view of them."""
        span = _Span(array)
        memory = np.empty(span.nbytes, np.uint8)
        _backend(array.target).download(span, memory)
        elements: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, memory, array.address - span.address, array.strides)
        return memory, elements

    def stream(self, device: int) -> int | None:
        """The handle of the stream that the library works on; None if it has no notion of one."""
        return None

    def scope(self, device: int, stream: int) -> AbstractContextManager[Any]:
        """Inside, the library works on this device and stream."""
        return nullcontext()

    def to_caller(self, array: DeviceArray) -> Any:
        """The array as an object of the library."""
        return array

    def maker(self, like: DeviceArray) -> Maker:
        """What makes arrays like this one."""
        def made(first: Any, stream: int) -> tuple[Any, int]:
            near = replace(first, stream=None if first.stream is None else stream)
            array = self.empty(near, like.shape, like.strides, like.dtype)
            return self.to_caller(array), array.address
        return made


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array in the memory of a GPU: ``strides`` in bytes, ``device`` an ordinal of ``target``, ``owner`` what keeps it alive.

    ``stream`` is the stream whose order its elements are ready in, None where that is its library's business. Results of arrays
    that no library claims are of this class: they speak ``__cuda_array_interface__`` and DLPack.
    """

    address: int
    shape: Shape
    strides: Shape
    dtype: np.dtype[Any]
    target: str
    device: int
    library: Library
    owner: Any
    writeable: bool = True
    stream: int | None = None

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def place(self) -> str:
        """The device as torch writes it: ``cuda:0``."""
        return f"{self.target}:{self.device}"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "strides": self.strides, "typestr": self.dtype.str, "version": 3,
                "data": (self.address if self.size else 0, not self.writeable),
                "stream": None if self.stream is None else self.stream or _LEGACY_STREAM}

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_TYPES[self.target], self.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """A capsule; ``stream`` (-1: none) waits until the elements are ready."""
        if stream != -1 and self.stream is not None:
            backend, consumer = _backend(self.target), 0 if stream in (None, _LEGACY_STREAM) else stream
            with backend.activate(_arch(self), self.device, consumer):
                backend.wait_for(self.stream)
        return dlpack.export(self.address, self.shape, self.strides, self.dtype, self.__dlpack_device__(), self)


class _Span:
    """The memory of an array as a buffer of the backend."""

    def __init__(self, array: DeviceArray) -> None:
        low, high = memory_span(array.shape, array.strides, array.itemsize)
        self.address, self.nbytes = array.address + low, high - low


def _backend(target: str) -> Any:
    from .backends.base import get

    return get(target)


def _arch(array: DeviceArray) -> str:
    return str(_backend(array.target).detect().devices[array.device].arch)


def memory_span(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Where an array's memory begins and ends, in bytes from its first element."""
    if 0 in shape:
        return 0, 0
    reach = [(size - 1) * stride for size, stride in zip(shape, strides)]
    return sum(min(0, r) for r in reach), sum(max(0, r) for r in reach) + itemsize


def dense_strides(shape: Shape, order: list[int], itemsize: int) -> Shape:
    """Strides in bytes without gaps; ``order`` lists the axes from outermost to innermost."""
    strides, step = [0] * len(shape), itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


class _Interface:
    def __init__(self, facts: dict[str, Any]) -> None:
        self.__array_interface__ = facts


def shadow(array: DeviceArray) -> np.ndarray[Any, Any]:
    """A NumPy array with the same addresses, to ask NumPy about overlap. Its elements must not be touched."""
    return np.asarray(_Interface({"shape": array.shape, "strides": array.strides, "typestr": f"|V{array.itemsize}", "version": 3,
                                  "data": (array.address, False)}))


# --- the libraries

class _Torch(Library):
    channels_first = True

    def view(self, tensor: Any, name: str) -> DeviceArray:
        """The tensor without its history for gradients."""
        torch = sys.modules["torch"]
        if tensor.layout != torch.strided:
            raise error("array.kind", name=name, got=f"a torch tensor with layout {tensor.layout}, not a strided one")
        tensor = tensor.detach().resolve_neg()
        dtype = _dtype(str(tensor.dtype).partition(".")[2], name)
        strides = tuple(stride * dtype.itemsize for stride in tensor.stride())
        return DeviceArray(tensor.data_ptr(), tuple(tensor.shape), strides, dtype, self._target(), tensor.device.index or 0, self,
                           tensor)

    def _target(self) -> str:
        return "hip" if getattr(sys.modules["torch"].version, "hip", None) else "cuda"

    def empty(self, like: DeviceArray, shape: Shape, strides: Shape, dtype: np.dtype[Any]) -> DeviceArray:
        torch, steps = sys.modules["torch"], tuple(stride // dtype.itemsize for stride in strides)
        return self.view(torch.empty_strided(shape, steps, dtype=getattr(torch, dtype.name), device=like.owner.device), "out")

    def maker(self, like: DeviceArray) -> Maker:
        torch, steps = sys.modules["torch"], tuple(stride // like.itemsize for stride in like.strides)
        shape, dtype, device = like.shape, like.owner.dtype, like.owner.device

        def made(first: Any, stream: int) -> tuple[Any, int]:
            tensor = torch.empty_strided(shape, steps, dtype=dtype, device=device)
            return tensor, int(tensor.data_ptr())
        return made

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        target.owner.copy_(source.owner if source.library is self else sys.modules["torch"].from_dlpack(source))

    def stream(self, device: int) -> int:
        torch = sys.modules["torch"]
        raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)     # makes no object: a tenth of the time
        return int(raw(device) if raw else torch.cuda.current_stream(device).cuda_stream)

    def scope(self, device: int, stream: int) -> AbstractContextManager[Any]:
        if stream == self.stream(device):
            return nullcontext()
        cuda = sys.modules["torch"].cuda
        wanted = cuda.ExternalStream(stream, device=device) if stream else cuda.default_stream(device)
        scope: AbstractContextManager[Any] = cuda.stream(wanted)
        return scope

    def to_caller(self, array: DeviceArray) -> Any:
        return array.owner


class _CuPy(Library):
    channels_first = True

    def view(self, array: Any, name: str) -> DeviceArray:
        """The array; CuPy keeps no history."""
        target, dtype = "hip" if sys.modules["cupy"].cuda.runtime.is_hip else "cuda", _dtype(array.dtype, name)
        return DeviceArray(array.data.ptr, array.shape, array.strides, dtype, target, array.device.id, self, array)

    def empty(self, like: DeviceArray, shape: Shape, strides: Shape, dtype: np.dtype[Any]) -> DeviceArray:
        cupy = sys.modules["cupy"]
        low, high = memory_span(shape, strides, dtype.itemsize)
        memory = cupy.cuda.alloc(max(high - low, 1)) + -low
        return self.view(cupy.ndarray(shape, dtype, memory, strides), "out")

    def maker(self, like: DeviceArray) -> Maker:
        make = super().maker(like)

        def made(first: Any, stream: int) -> tuple[Any, int]:
            with self.scope(like.device, stream):
                return make(first, stream)
        return made

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        target.owner[...] = source.owner if source.library is self else sys.modules["cupy"].from_dlpack(source)

    def stream(self, device: int) -> int:
        cuda = sys.modules["cupy"].cuda
        with cuda.Device(device):
            return int(cuda.get_current_stream().ptr)

    def scope(self, device: int, stream: int) -> AbstractContextManager[Any]:
        cuda, stack = sys.modules["cupy"].cuda, ExitStack()
        stack.enter_context(cuda.Device(device))
        if stream != int(cuda.get_current_stream().ptr):
            stack.enter_context(cuda.ExternalStream(stream, device) if stream else cuda.Stream.null)
        return stack

    def to_caller(self, array: DeviceArray) -> Any:
        return array.owner


class _Foreign(Library):
    """A library known by the protocols alone; ``module`` and ``function`` make its array of one of ours."""

    def __init__(self, module: str, function: str) -> None:
        self._module, self._function = module, function

    def to_caller(self, array: DeviceArray) -> Any:
        return getattr(importlib.import_module(self._module), self._function)(array)


_OWN, _TORCH, _CUPY = Library(), _Torch(), _CuPy()
_FOREIGN = {"jax": _Foreign("jax.dlpack", "from_dlpack"), "jaxlib": _Foreign("jax.dlpack", "from_dlpack"),
            "numba": _Foreign("numba.cuda", "as_cuda_array")}
_READ_ONLY = ("jax", "jaxlib")


def _dtype(value: Any, name: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype's name."""
    try:
        found: np.dtype[Any] = DTYPES["bf16"].numpy if str(value) == "bfloat16" else np.dtype(value)
        return found
    except TypeError:
        raise error("array.dtype", name=name, got=str(value), expected="float32, float16 or bfloat16") from None


# --- taking arrays

def adopt(value: Any, name: str, stream: int | None = None) -> Any:
    """A `DeviceArray` for anything in GPU memory; everything else as it is. ``stream``: the call's, if the caller names one."""
    if isinstance(value, (np.ndarray, DeviceArray)):
        return value
    root = type(value).__module__.partition(".")[0]
    if root == "torch":
        return _TORCH.view(value, name) if hasattr(value, "device") and value.device.type == "cuda" else value
    if root == "cupy":
        return _CUPY.view(value, name) if hasattr(value, "data") else value
    take = _protocol(value)
    return take(value, name, _FOREIGN.get(root, _OWN), root not in _READ_ONLY, stream) if take else value


def _protocol(value: Any) -> Callable[..., DeviceArray] | None:
    """DLPack where the value is on a GPU by its own account, since it knows bf16; else the CUDA array interface."""
    if hasattr(type(value), "__dlpack_device__"):
        return _from_dlpack if value.__dlpack_device__()[0] in _TARGETS else None
    return _from_interface if hasattr(value, "__cuda_array_interface__") else None


def _from_dlpack(value: Any, name: str, library: Library, writeable: bool, stream: int | None) -> DeviceArray:
    kind, device = value.__dlpack_device__()
    address, shape, strides, found, owner = dlpack.take(value.__dlpack__(stream=stream or _LEGACY_STREAM))
    dtype = _dtype(found, name)
    return DeviceArray(address, shape, strides, dtype, _TARGETS[kind], device, library, owner, writeable, stream or 0)


def _from_interface(value: Any, name: str, library: Library, writeable: bool, stream: int | None) -> DeviceArray:
    facts = value.__cuda_array_interface__
    if facts.get("mask") is not None:
        raise error("array.kind", name=name, got="a masked array, whose mask would be lost")
    (address, read_only), shape, dtype = facts["data"], tuple(facts["shape"]), _dtype(facts["typestr"], name)
    strides = facts.get("strides") or dense_strides(shape, list(range(len(shape))), dtype.itemsize)
    device = _backend("cuda").device_of(address) if address else 0
    ready = facts.get("stream")
    return DeviceArray(address, shape, tuple(strides), dtype, "cuda", device, library, value, writeable and not read_only,
                       0 if ready in (None, _LEGACY_STREAM) else ready)


def stream_handle(stream: Any) -> int | None:
    """The handle of a stream: an int, or a stream of torch, CuPy, Numba or of what has ``__cuda_stream__``. None stays None."""
    if stream is None or isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        found = stream.__cuda_stream__
        return int((found() if callable(found) else found)[1])
    for attribute in ("cuda_stream", "ptr", "handle"):
        handle = getattr(stream, attribute, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or 0)
    raise error("kernel.bind", kernel="this kernel", reason=f"{stream!r:.60} is not a stream",
                hint="Pass the handle as an int, or a stream of torch, CuPy or Numba.")
