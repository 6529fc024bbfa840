"""Whether a kernel takes an array as it lies in memory, and the copy that it takes otherwise."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from .arrays import Bound, compact, kernel_takes
from .build import ANY_STRIDES
from .devicearrays import DeviceArray
from .problem import ConvProblem

if TYPE_CHECKING:
    from .backends.base import Backend
    from .plan import Plan, TensorView

__all__ = ["fits", "fitted", "uploads"]


def uploads(backend: Backend, bound: Bound) -> bool:
    """Whether an array has to travel to the target's memory."""
    return not backend.host_memory and not isinstance(bound.array, DeviceArray)


def fits(bound: Bound, problem: ConvProblem, tensor: str, plan: Plan, backend: Backend) -> bool:
    """Whether the array need not be copied for this tensor ("x", "w" or "y")."""
    if backend.name in ANY_STRIDES:
        return True
    planned: TensorView = getattr(plan.args, tensor + "v")
    if uploads(backend, bound):
        return bound.view == planned
    limits = dict(plan.alignment).get(tensor, 1), plan.offset_bits
    contiguous = bound.view == planned and bound.address % limits[0] == 0
    return contiguous or (not plan.dense and kernel_takes(bound, planned, _view_sizes(problem, tensor), *limits))


def fitted(bound: Bound, problem: ConvProblem, tensor: str, plan: Plan, backend: Backend) -> Bound:
    """The array as the kernel takes it: itself, or a contiguous copy."""
    return bound if fits(bound, problem, tensor, plan, backend) else compact(bound, problem, tensor)


@lru_cache(maxsize=256)
def _view_sizes(problem: ConvProblem, tensor: str) -> tuple[int, ...]:
    """The sizes along the strides of a `TensorView`."""
    return problem.view(tensor, problem.sizes(tensor)).flat()
