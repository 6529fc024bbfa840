"""One call made ready: everything that its signature settles is settled, addresses and scalars are filled into a copy of the
argument block, and the kernels are launched.

What addresses decide (alignment, overlap of ``out`` with an input) is looked at in each call. Where they do not fit, `Ready.run`
gives None, and the call goes the whole way of `runner`, which copies or refuses. So does a call whose launch fails.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from . import memory
from .arrays import AnyArray, Bound, address_of
from .devicearrays import DeviceArray, memory_span
from .errors import LaunchError
from .facts import address_reader
from .fitting import fits, uploads
from .operands import BoundOperands, number_of
from .plan import MAX_OPERANDS, POINTERS, ArgumentBlock

if TYPE_CHECKING:
    from .choose import Decision
    from .config import KernelConfig
    from .placement import Placement
    from .problem import ConvProblem
    from .spec import KernelSpec

__all__ = ["Call", "Outcome", "Ready", "make_ready"]

_WORKSPACE = POINTERS.index("workspace")

Maker = Callable[["Call", int], tuple[Any, int]]
"""The array for the result of a call on a stream (0 on the host), as the caller gets it, and its address."""


class Call(NamedTuple):
    """The arguments of one call, as `runner.execute` takes them; ``stream`` is a handle."""

    spec: KernelSpec
    config: KernelConfig | None
    problem: ConvProblem | None
    arrays: Sequence[Any]
    operands: Mapping[str, Any]
    out: Any
    target: str | None
    arch: str | None
    out_dtype: Any
    stream: int | None
    timed: bool


class Outcome(NamedTuple):
    """What a call gave: the caller's result, the milliseconds of its launches (0: not taken), and the decision behind it."""

    output: Any
    time_ms: float
    decision: Decision


class _Slot(NamedTuple):
    """Where an array's address goes, how it is read, what it must be a multiple of, and the bytes around it that are touched."""

    place: int
    address: Callable[[Any], int]
    alignment: int
    low: int
    high: int


class Ready:
    """A call of one signature on arrays in host memory."""

    def __init__(self, call: Call, generation: int, where: Placement, decision: Decision, launch: Callable[[Any], None],
                 slots: Mapping[Any, _Slot], block: ArgumentBlock, make: Maker) -> None:
        self.generation, self._where, self._decision = generation, where, decision
        self._held = call.spec, call.config, call.problem       # named by identity in the signature
        self._launch, self._block, self._make = launch, block, make
        problem, operands = decision.problem, list(enumerate(decision.spec.operands))
        self._operands = [one.name for i, one in operands if one.kind != "scalar"]
        self._slots = [slots[name] for name in (*problem.operands, *(i for i, one in operands if one.kind != "scalar"))]
        self._result = slots[problem.result]
        self._overlapping = [slots[name] for name in problem.operands]
        self._overlapping += [slots[i] for i, one in operands if one.kind == "like_y"]
        self._scalars = [(one.name, i) for i, one in operands if one.kind == "scalar"]

    def run(self, call: Call) -> Outcome | None:
        """Run a call of this signature; None if it has to go the whole way."""
        return self._run(call, 0)

    def _run(self, call: Call, stream: int) -> Outcome | None:
        pointers, arrays = [0] * len(POINTERS), call.arrays
        if self._operands:
            arrays = [*arrays, *(call.operands[name] for name in self._operands)]
        for value, (place, address_of_value, alignment, _, _) in zip(arrays, self._slots):
            address = address_of_value(value)
            if address % alignment:
                return None
            pointers[place] = address
        if call.out is None:
            output, address = self._make(call, stream)
        else:
            output, address = call.out, self._result.address(call.out)
            if self._overlaps(address, pointers):
                return None
        if address % self._result.alignment:
            return None
        pointers[self._result.place] = address
        return self._launched(call, output, pointers)

    def _overlaps(self, address: int, pointers: list[int]) -> bool:
        """Whether the result may share memory with an input. By first and last byte only: the whole way looks closer."""
        low, high = address + self._result.low, address + self._result.high
        return any(low < pointers[one.place] + one.high and pointers[one.place] + one.low < high for one in self._overlapping)

    def _launched(self, call: Call, output: Any, pointers: list[int]) -> Outcome | None:
        backend, decision = self._where.backend, self._decision
        size = decision.lowered.plan.workspace
        scratch = backend.allocate(size) if size else None
        if scratch is not None:
            pointers[_WORKSPACE] = scratch.address
        block = self._block.filled(pointers, self._numbers(call))
        try:
            if not call.timed:
                self._launch(block)
                return Outcome(output, 0.0, decision)
            start = backend.record()
            self._launch(block)
            return Outcome(output, backend.elapsed_ms(start, backend.record()), decision)
        except LaunchError:             # the whole way falls back, or raises it again
            return None

    def _numbers(self, call: Call) -> list[float]:
        if not self._scalars:
            return []
        numbers = [0.0] * MAX_OPERANDS
        for name, index in self._scalars:
            numbers[index] = number_of(call.operands[name], name)
        return numbers


class _DeviceReady(Ready):
    """A call of one signature on arrays in the memory of a device. What is timed goes the whole way, since it waits anyway."""

    def run(self, call: Call) -> Outcome | None:
        where, first = self._where, call.arrays[0]
        assert where.library is not None and where.device is not None
        stream = where.library.stream(where.device)
        if call.timed or (stream is not None and call.stream not in (None, stream)):
            return None                 # another stream than the library's: its allocator has to be told
        if stream is None:
            stream = (first.stream or 0) if call.stream is None else call.stream
        with where.backend.activate(where.arch, where.device, stream):
            for value in (*call.arrays, *call.operands.values(), call.out):
                if isinstance(value, DeviceArray) and value.stream not in (None, stream):
                    where.backend.wait_for(value.stream)
            return self._run(call, stream)


def make_ready(call: Call, generation: int, where: Placement, decision: Decision, bound: Mapping[str, Bound],
               extra: BoundOperands) -> Ready | None:
    """The call made ready, after it ran on these arrays; None where an array was copied or the target is not launched this way.

    ``bound`` holds x, w and y, ``generation`` that of `choose` before the decision was looked up. Only inside `Placement.entered`.
    """
    problem, plan, backend = decision.problem, decision.lowered.plan, where.backend
    if decision.built is None or bound[problem.result].array.size == 0 or uploads(backend, bound[problem.result]):
        return None
    slots = _slots(call, decision, bound, extra)
    launch = backend.launcher(decision.built.module, plan)
    if launch is None or slots is None or not all(fits(one, problem, name, plan, backend) for name, one in bound.items()):
        return None
    block = ArgumentBlock(plan.args.with_views(**{f"{name}v": one.view for name, one in bound.items()}))
    kind = Ready if backend.host_memory else _DeviceReady
    return kind(call, generation, where, decision, launch, slots, block, _maker(bound[problem.result]))


def _slots(call: Call, decision: Decision, bound: Mapping[str, Bound], extra: BoundOperands) -> dict[Any, _Slot] | None:
    """The slots of all arrays by tensor and by operand index; None where an array is not passed as the caller gave it."""
    problem, least = decision.problem, dict(decision.lowered.plan.alignment)
    aligned = least.get(problem.result, 1)
    if not extra.match(bound[problem.result], aligned):
        return None
    given: dict[Any, Any] = {**dict(zip(problem.operands, call.arrays)), problem.result: call.out}
    given.update(enumerate(call.operands[one.name] for one in decision.spec.operands))
    arrays: dict[Any, tuple[AnyArray, int]] = {name: (one.array, max(least.get(name, 1), one.array.itemsize))
                                               for name, one in bound.items()}
    arrays.update({i: (like.array, max(aligned, like.array.itemsize)) for i, like in extra.likes.items()})
    arrays.update({i: (vector, 1) for i, vector in extra.vectors.items()})
    slots = {name: _slot(name, array, given[name], alignment) for name, (array, alignment) in arrays.items()}
    found = {name: slot for name, slot in slots.items() if slot is not None}
    return found if len(found) == len(slots) else None


def _slot(name: Any, array: AnyArray, value: Any, alignment: int) -> _Slot | None:
    """None where ``array`` is a copy of the caller's ``value`` (None: a result that is made anew)."""
    low, high = memory_span(array.shape, array.strides, array.itemsize)
    read = address_of if value is None else address_reader(value)
    if value is not None and read(value) != address_of(array):
        return None
    return _Slot(POINTERS.index(name), read, alignment, low, high)


def _maker(result: Bound) -> Maker:
    """What makes further arrays like ``result``."""
    array = result.array
    if isinstance(array, DeviceArray):
        make = array.library.maker(array)
        return lambda call, stream: make(call.arrays[0], stream)
    if result.torch:
        return _tensor_maker(array)
    shape, dtype, nbytes, read = array.shape, array.dtype, array.nbytes, address_reader(array)
    if memory.pays(nbytes):
        return lambda call, stream: memory.lend(shape, dtype, nbytes)

    def made(call: Call, stream: int) -> tuple[Any, int]:
        fresh = memory.empty(shape, dtype)
        return fresh, read(fresh)
    return made


def _tensor_maker(array: np.ndarray) -> Maker:
    torch = sys.modules["torch"]
    steps = tuple(stride // array.itemsize for stride in array.strides)
    shape, dtype, device = array.shape, getattr(torch, array.dtype.name), torch.device("cpu")

    def made(call: Call, stream: int) -> tuple[Any, int]:
        fresh = torch.empty_strided(shape, steps, dtype=dtype, device=device)
        return fresh, fresh.data_ptr()
    return made
