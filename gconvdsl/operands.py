"""The extra operands of a kernel (bias, residual, scale ...) as the argument block wants them.

``per_k`` and ``per_c`` become contiguous float32 vectors, ``like_y`` an array with the dtype and strides of the result,
``scalar`` a number. An operand's index in the block is its position in the declaration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Mapping

import numpy as np

from .arrays import AnyArray, Bound, address_of, as_array, bind, copy_array, new_array
from .devicearrays import DeviceArray
from .dtypes import DTYPES, dtype_of
from .errors import error
from .problem import ConvProblem
from .spec import KernelSpec

__all__ = ["BoundOperands", "bind_operands", "number_of"]


@dataclass(frozen=True)
class BoundOperands:
    """Operands by index: ``vectors`` (float32), ``likes`` (result-shaped), ``scalars``."""

    vectors: dict[int, AnyArray] = field(default_factory=dict)
    likes: dict[int, Bound] = field(default_factory=dict)
    scalars: dict[int, float] = field(default_factory=dict)

    def matching(self, result: Bound, alignment: int = 1) -> BoundOperands:
        """With every ``like_y`` array in the strides of ``result``, aligned to ``alignment`` bytes; copies if need be."""
        if not self.likes:
            return self
        return replace(self, likes={i: like if _matches(like, result, alignment) else _restride(like, result)
                                    for i, like in self.likes.items()})

    def match(self, result: Bound, alignment: int = 1) -> bool:
        """Whether every ``like_y`` array has these strides and this alignment already."""
        return all(_matches(like, result, alignment) for like in self.likes.values())

    def addresses(self) -> dict[int, int]:
        """Addresses by operand index, in the memory where the arrays lie."""
        vectors = {i: address_of(vector) for i, vector in self.vectors.items()}
        return {**vectors, **{i: like.address for i, like in self.likes.items()}}


def _matches(like: Bound, result: Bound, alignment: int) -> bool:
    return like.view == result.view and like.address % alignment == 0


def bind_operands(spec: KernelSpec, problem: ConvProblem, given: Mapping[str, Any]) -> BoundOperands:
    """The operands that ``spec`` declares, from values by name. Raises array.missing, array.extra and the errors of arrays."""
    names = [operand.name for operand in spec.operands]
    for name in given:
        if name not in names:
            raise error("array.extra", kernel=spec.name, name=f"operand {name!r}", signature=_signature(spec))
    bound = BoundOperands()
    for index, operand in enumerate(spec.operands):
        if given.get(operand.name) is None:
            raise error("array.missing", kernel=spec.name, name=operand.name, signature=_signature(spec))
        _bind_one(bound, index, operand.kind, operand.name, given[operand.name], problem)
    return bound


def _signature(spec: KernelSpec) -> str:
    from .arrays import argument_names

    names = [*argument_names(spec.conv.direction), *(operand.name for operand in spec.operands)]
    return f"{spec.name}({', '.join(names)})"


def _bind_one(bound: BoundOperands, index: int, kind: str, name: str, value: Any, problem: ConvProblem) -> None:
    if kind == "scalar":
        bound.scalars[index] = number_of(value, name)
    elif kind == "like_y":
        bound.likes[index] = bind(problem, problem.result, value, name, problem.out_dtype)
    else:
        bound.vectors[index] = _vector(value, name, problem.K if kind == "per_k" else problem.C, "K" if kind == "per_k" else "C")


def number_of(value: Any, name: str) -> float:
    """The number as float32 has it; what is finite must stay finite."""
    number = value.item() if getattr(value, "shape", None) == () else value
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        if abs(number) < DTYPES["fp32"].overflow or (isinstance(number, float) and not math.isfinite(number)):
            return float(np.float32(number))
    raise error("array.scalar", name=name, got=f"{value!r:.60}")


def _vector(value: Any, name: str, size: int, letter: str) -> AnyArray:
    array, _ = as_array(value, name)
    if dtype_of(array.dtype) is None and array.dtype != np.float64:
        raise error("array.dtype", name=name, got=str(array.dtype), expected="float32")
    if array.shape != (size,):
        raise error("array.shape", name=name, got=array.shape, expected=(size,),
                    hint=f"It holds one value for each of the {letter} channels.")
    if array.dtype == np.float32 and array.strides == (4,):
        return array
    made = new_array(array, array.shape, [0], np.dtype(np.float32))
    copy_array(made, array)
    return made


def _restride(like: Bound, result: Bound) -> Bound:
    """A copy of a result-shaped array with exactly the strides of the result, gaps included."""
    if isinstance(result.array, DeviceArray) or isinstance(like.array, DeviceArray):
        return _restride_on_device(like, result)
    shape, strides, item = result.array.shape, result.array.strides, result.array.itemsize
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides) if n)
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides) if n)
    memory = np.empty((high - low) // item + 1, result.array.dtype)
    array = np.lib.stride_tricks.as_strided(memory[-low // item:], shape, strides)
    np.copyto(array, like.array if like.axes == result.axes else like.array.reshape(shape))
    return replace(result, array=array)


def _restride_on_device(like: Bound, result: Bound) -> Bound:
    wanted = result.array
    assert isinstance(wanted, DeviceArray) and isinstance(like.array, DeviceArray), "one call has all its arrays in one place"
    if like.axes != result.axes:
        raise error("array.shape", name="an operand like the result", got=like.array.shape, expected=wanted.shape,
                    hint="In GPU memory both are either split into groups or not.")
    array = wanted.library.empty(wanted, wanted.shape, wanted.strides, wanted.dtype)
    wanted.library.copy(array, like.array)
    return replace(result, array=array)
