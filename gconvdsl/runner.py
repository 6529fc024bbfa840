"""Running a kernel on arrays: the one path behind kernel calls, `Runner` and the command line.

find the place -> bind arrays -> choose a kernel -> launch; a launch that fails goes back to the choice. A call like an earlier one
skips all of that but the launch (`prepared`, `ready`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Hashable, Mapping, Sequence

import numpy as np

from . import choose, prepared
from .arrays import (
    Bound, argument_names, bind_inputs, bind_out, check_declared, copy_out, infer_problem, kernel_problem, to_caller,
)
from .config import KernelConfig
from .devicearrays import adopt, stream_handle
from .errors import GconvError, LaunchError, error
from .fitting import fitted, uploads
from .operands import BoundOperands, bind_operands
from .placement import Placement, place
from .problem import ConvProblem
from .ready import Call, Outcome, make_ready
from .shown import Shown
from .spec import ConvParams, KernelSpec

if TYPE_CHECKING:
    from .backends.base import Backend

__all__ = ["Result", "Runner", "bare_spec", "execute", "perform", "plan_call"]


@dataclass(frozen=True)
class Result(Shown):
    """What a run gave. ``time_ms`` is the time of the kernel's launches (0: not taken); ``error`` is empty when ``success``."""

    output: Any
    time_ms: float
    tflops: float
    config: KernelConfig
    target: str
    fallbacks: tuple[choose.Fallback, ...] = ()
    success: bool = True
    error: str = ""
    decision: choose.Decision | None = None

    def __repr__(self) -> str:
        if not self.success:
            return f"<Result on {self.target}: failed: {self.error.splitlines()[0] if self.error else ''}>"
        shape = getattr(self.output, "shape", None)
        return f"<Result on {self.target}: {tuple(shape) if shape is not None else None}, {self.time_ms:.4f} ms, {self.tflops:.4f} TFLOP/s>"

    def _facts(self) -> list[tuple[str, str]]:
        if not self.success:
            return [("result", "failed"), ("target", self.target), ("error", self.error)]
        return [("result", str(tuple(getattr(self.output, "shape", ())))), ("target", self.target), ("time", f"{self.time_ms:.4f} ms"),
                ("rate", f"{self.tflops:.4f} TFLOP/s"), ("configuration", choose.describe_config(self.config)),
                *(("fallback", str(one)) for one in self.fallbacks)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "decision": None}          # a loaded kernel belongs to its process


@cache
def bare_spec(direction: str) -> KernelSpec:
    """The convolution alone, everything taken from the problem."""
    return KernelSpec(direction, ConvParams(direction))


class Runner:
    """Runs bare convolutions given as problems.

    ``config``: a `KernelConfig` (default: everything chosen); ``target``: such as "cpu" or "sim:gfx942" (default: GCONV_TARGET, a
    GPU that is here, or cpu). Thread-safe.
    """

    def __init__(self, config: KernelConfig | None = None, target: str | None = None, arch: str | None = None) -> None:
        self.config, self.target, self.arch = config or KernelConfig(), target, arch

    def run(self, a: Any, b: Any, problem: ConvProblem, out: Any = None) -> Result:
        """The convolution of (X, W) forward, (dY, W) bwd_data, (X, dY) bwd_weight, by ``problem.direction``.

        Errors of this package do not propagate: they give a `Result` with ``success`` False and their text.
        """
        try:
            if not isinstance(problem, ConvProblem):
                raise error("kernel.bind", kernel="run", reason=f"problem is a {type(problem).__name__}",
                            hint="Pass a gconv.ConvProblem.")
            spec = bare_spec(problem.direction)
            return execute(spec, self.config, problem, (a, b), out=out, target=self.target, arch=self.arch)
        except GconvError as failure:
            return Result(None, 0.0, 0.0, self.config, self.target or "", success=False, error=str(failure))


def plan_call(spec: KernelSpec, problem: ConvProblem | None, arrays: Sequence[Any],
              out_dtype: Any = None) -> tuple[KernelSpec, ConvProblem]:
    """The declaration and problem of one call: the problem given, or inferred from the arrays.

    In another direction than that of its convolution a kernel is the gradient of the bare convolution.
    """
    if problem is None:
        problem = infer_problem(spec.conv, arrays[0], arrays[1])
    elif spec.conv.fields():
        check_declared(spec.conv, problem, spec.name)
    if out_dtype is not None:
        problem = problem.replace(out_dtype=out_dtype)
    return (spec if problem.direction == spec.direction else spec.bare(problem.direction)), problem


def execute(spec: KernelSpec, config: KernelConfig | None, problem: ConvProblem | None, arrays: Sequence[Any],
            operands: Mapping[str, Any] | None = None, out: Any = None, target: str | None = None, *, arch: str | None = None,
            out_dtype: Any = None, stream: Any = None, poison: bool = False, timed: bool = True) -> Result:
    """Run ``spec`` on two arrays (in the order of the direction) and operands by name. Raises the errors of every step.

    ``config`` None is that of the declaration; ``problem`` None is inferred from the arrays; ``stream`` None is the current one
    of the arrays' library; ``poison`` fills the workspace with NaN first, so that a kernel that reads what it did not write
    cannot be right. ``timed=False`` leaves arrays of a GPU to be finished in the order of the stream, without waiting.
    """
    call = Call(spec, config, problem, arrays, operands or {}, out, target, arch, out_dtype, stream_handle(stream), timed)
    output, time_ms, decision = _whole_way(call, None, True) if poison else perform(call)
    tflops = decision.problem.flops / time_ms / 1e9 if time_ms > 0 else 0.0
    return Result(output, time_ms, tflops, decision.config, decision.target_text, decision.fallbacks, decision=decision)


def perform(call: Call) -> Outcome:
    """Run a call: as an earlier one like it, where that is possible."""
    key = prepared.signature(call)
    if key is None:                     # perhaps an array in GPU memory of another library
        out, call = call.out, _adopted(call)
        key = prepared.signature(call)
        if out is not None:
            return _performed(call, key)._replace(output=out)
    return _performed(call, key)


def _performed(call: Call, key: Hashable) -> Outcome:
    ready = None if key is None else prepared.find(key)
    outcome = None if ready is None else ready.run(call)
    return _whole_way(call, key) if outcome is None else outcome


def _whole_way(call: Call, key: Hashable, poison: bool = False) -> Outcome:
    """Run a call, and make the next one like it ready if it has a key."""
    before, taken = choose.generation(), _adopted(call)
    arrays, names = taken.arrays, argument_names(call.problem.direction if call.problem is not None else call.spec.direction)
    spec, problem = plan_call(call.spec, call.problem, arrays, call.out_dtype)
    where = place(arrays[0], call.target, call.arch, call.stream)
    _check_places(where, spec, dict(zip(names, arrays)), taken.operands, taken.out)
    with where.entered():
        inputs = bind_inputs(problem, *map(where.taken, arrays))
        extra = bind_operands(spec, problem, {name: where.taken(value) for name, value in taken.operands.items()})
        result = bind_out(problem, where.taken(taken.out), inputs[0], [*inputs, *extra.likes.values()])
        config = spec.config if call.config is None else call.config
        decision = choose.decide(spec, kernel_problem(problem, inputs[0]), config, where.backend, where.arch)
        decision, time_ms = _launch_some(decision, where.backend, inputs, extra, result, poison, call.timed)
        if key is not None:
            bound = dict(zip((*problem.operands, problem.result), (*inputs, result)))
            prepared.keep(key, make_ready(call, before, where, decision, bound, extra))
        output = to_caller(result) if call.out is None else call.out
    return Outcome(output, time_ms, decision)


def _adopted(call: Call) -> Call:
    """With a `DeviceArray` for everything in GPU memory."""
    names = argument_names(call.problem.direction if call.problem is not None else call.spec.direction)
    arrays = [adopt(array, name, call.stream) for name, array in zip(names, call.arrays)]
    operands = {name: _adopted_operand(call.spec, name, value, call.stream) for name, value in call.operands.items()}
    return call._replace(arrays=arrays, operands=operands, out=adopt(call.out, "out", call.stream))


def _adopted_operand(spec: KernelSpec, name: str, value: Any, stream: int | None) -> Any:
    """Scalars are numbers, also where they come as arrays without axes."""
    scalar = any(operand.name == name and operand.kind == "scalar" for operand in spec.operands)
    return value if scalar else adopt(value, name, stream)


def _check_places(where: Placement, spec: KernelSpec, arrays: Mapping[str, Any], operands: Mapping[str, Any], out: Any) -> None:
    """Raises ``array.device`` unless everything lies in one place. What is missing, or no array, is for `bind` to say."""
    vectors = {operand.name: operands.get(operand.name) for operand in spec.operands if operand.kind != "scalar"}
    for name, array in {**arrays, **vectors, "out": out}.items():
        if array is not None:
            where.check(name, array)


def _launch_some(decision: choose.Decision, backend: Backend, inputs: Sequence[Bound], extra: BoundOperands, result: Bound,
                 poison: bool, timed: bool) -> tuple[choose.Decision, float]:
    """Launch, falling back as long as the choice has another candidate."""
    if result.array.size == 0:
        return decision, 0.0
    if not backend.can_launch:
        found = backend.detect()
        reason = "this version compiles for it but does not launch on it" if found.available else found.reason
        raise error("launch.device", target=backend.name, reason=reason,
                    hint="Use kernel.compile(...), or the targets cpu and sim.")
    while True:
        try:
            return decision, _launch(decision, backend, inputs, extra, result, poison, timed)
        except LaunchError as failure:
            decision = choose.reject(decision, backend, failure)


def _launch(decision: choose.Decision, backend: Backend, inputs: Sequence[Bound], extra: BoundOperands, result: Bound,
            poison: bool, timed: bool) -> float:
    """One launch, in milliseconds. Arrays whose strides the kernel cannot take are copied; the result likewise."""
    problem, plan = decision.problem, decision.lowered.plan
    names = (*problem.operands, problem.result)
    bound = {name: fitted(array, problem, name, plan, backend) for name, array in zip(names, (*inputs, result))}
    extra = extra.matching(bound[problem.result], dict(plan.alignment).get(problem.result, 1))
    run = _launch_through_buffers if uploads(backend, result) else _launch_in_place
    time_ms = run(decision, backend, bound, extra, _workspace(backend, decision, poison), timed)
    if bound[problem.result] is not result:
        copy_out(bound[problem.result], result)
    return time_ms


def _workspace(backend: Backend, decision: choose.Decision, poison: bool) -> Any:
    """Scratch memory of the plan's size, or None."""
    size = decision.lowered.plan.workspace
    if not size:
        return None
    scratch = backend.allocate(size)
    if poison:
        backend.upload(scratch, np.full(size, 0xFF, np.uint8))
    return scratch


def _launch_in_place(decision: choose.Decision, backend: Backend, bound: Mapping[str, Bound], extra: BoundOperands, scratch: Any,
                     timed: bool) -> float:
    plan = decision.lowered.plan
    views = plan.args.with_views(xv=bound["x"].view, wv=bound["w"].view, yv=bound["y"].view)
    args = views.pack(bound["x"].address, bound["w"].address, bound["y"].address, scratch.address if scratch else 0,
                      extra.addresses(), extra.scalars)
    return _run(decision, backend, args, timed)


def _launch_through_buffers(decision: choose.Decision, backend: Backend, bound: Mapping[str, Bound], extra: BoundOperands,
                            scratch: Any, timed: bool) -> float:
    """The same through buffers of the target: arrays are contiguous here, so their bytes travel as they are."""
    plan, result = decision.lowered.plan, decision.problem.result
    buffers = {name: _uploaded(backend, array.array, name != result) for name, array in bound.items()}
    others = {i: _uploaded(backend, vector) for i, vector in extra.vectors.items()}
    others.update({i: _uploaded(backend, like.array) for i, like in extra.likes.items()})
    args = plan.args.pack(buffers["x"].address, buffers["w"].address, buffers["y"].address, scratch.address if scratch else 0,
                          {i: buffer.address for i, buffer in others.items()}, extra.scalars)
    time_ms = _run(decision, backend, args, timed)
    backend.download(buffers[result], _flat(bound[result].array))
    return time_ms


def _uploaded(backend: Backend, array: Any, filled: bool = True) -> Any:
    buffer = backend.allocate(max(array.nbytes, 1))
    if filled:
        backend.upload(buffer, _flat(array))
    return buffer


def _flat(array: Any) -> np.ndarray:
    """The elements in the order they have in memory, as one axis; a view, since the array is dense."""
    order = np.argsort([-stride for stride in array.strides], kind="stable")
    flat: np.ndarray = array.transpose(order).reshape(-1)
    return flat


def _run(decision: choose.Decision, backend: Backend, args: bytes, timed: bool) -> float:
    """Launch; the time in milliseconds if ``timed``. What is recorded into a graph does not run now, so it has no time."""
    built = decision.built
    if built is None or built.module is None:
        raise error("launch.device", target=decision.target, reason="the kernel was compiled but not loaded",
                    hint="Run gconv doctor.")
    if not timed or backend.capturing():
        backend.launch(built.module, decision.lowered.plan, args)
        return 0.0
    start = backend.record()
    backend.launch(built.module, decision.lowered.plan, args)
    end = backend.record()
    backend.synchronize()
    return backend.elapsed_ms(start, end)
