"""Running a kernel on arrays: the one path behind kernel calls, `Runner` and the command line.

bind arrays -> choose a kernel -> launch; a launch that fails goes back to the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Mapping, Sequence

import numpy as np

from . import choose
from .arrays import (
    Bound, bind_inputs, bind_out, check_declared, compact, copy_out, infer_problem, kernel_problem, kernel_takes, to_caller,
)
from .build import ANY_STRIDES
from .config import KernelConfig
from .errors import GconvError, LaunchError, error
from .operands import BoundOperands, bind_operands
from .problem import ConvProblem
from .spec import ConvParams, KernelSpec

if TYPE_CHECKING:
    from .backends.base import Backend
    from .plan import Plan, TensorView

__all__ = ["Result", "Runner", "bare_spec", "execute", "plan_call"]


@dataclass(frozen=True)
class Result:
    """What a run gave. ``time_ms`` is the time of the kernel's launches; ``error`` is empty when ``success``."""

    output: Any
    time_ms: float
    tflops: float
    config: KernelConfig
    target: str
    fallbacks: tuple[choose.Fallback, ...] = ()
    success: bool = True
    error: str = ""
    decision: choose.Decision | None = None


@lru_cache(maxsize=None)
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
            out_dtype: Any = None, stream: Any = None, poison: bool = False) -> Result:
    """Run ``spec`` on two arrays (in the order of the direction) and operands by name. Raises the errors of every step.

    ``config`` None is that of the declaration; ``problem`` None is inferred from the arrays; ``poison`` fills the workspace with
    NaN first, so that a kernel that reads what it did not write cannot be right.
    """
    spec, problem = plan_call(spec, problem, arrays, out_dtype)
    config = spec.config if config is None else config
    backend, arch = choose.resolve_target(target, arch)
    inputs = bind_inputs(problem, arrays[0], arrays[1])
    extra = bind_operands(spec, problem, operands or {})
    result = bind_out(problem, out, inputs[0], [*inputs, *extra.likes.values()])
    decision = choose.decide(spec, kernel_problem(problem, inputs[0]), config, backend, arch)
    if not backend.can_launch:
        raise error("launch.device", target=backend.name, reason="this version compiles for it but does not launch on it",
                    hint="Use kernel.compile(...), or the targets cpu and sim.")
    decision, time_ms = _launch_some(decision, backend, inputs, extra, result, stream, poison)
    tflops = problem.flops / time_ms / 1e9 if time_ms > 0 else 0.0
    output = to_caller(result) if out is None else out
    return Result(output, time_ms, tflops, decision.config, decision.target_text, decision.fallbacks, decision=decision)


def _launch_some(decision: choose.Decision, backend: Backend, inputs: Sequence[Bound], extra: BoundOperands, result: Bound,
                 stream: Any, poison: bool) -> tuple[choose.Decision, float]:
    """Launch, falling back as long as the choice has another candidate."""
    if result.array.size == 0:
        return decision, 0.0
    while True:
        try:
            return decision, _launch(decision, backend, inputs, extra, result, stream, poison)
        except LaunchError as failure:
            decision = choose.reject(decision, backend, failure)


def _launch(decision: choose.Decision, backend: Backend, inputs: Sequence[Bound], extra: BoundOperands, result: Bound,
            stream: Any, poison: bool) -> float:
    """One launch, in milliseconds. Arrays whose strides the kernel cannot take are copied; the result likewise."""
    problem, plan = decision.problem, decision.lowered.plan
    names = (*problem.operands, problem.result)
    bound = {name: _fitted(array, problem, name, plan, backend) for name, array in zip(names, (*inputs, result))}
    extra = extra.matching(bound[problem.result], dict(plan.alignment).get(problem.result, 1))
    run = _launch_on_host if backend.host_memory else _launch_on_device
    time_ms = run(decision, backend, bound, extra, _workspace(backend, decision, poison), stream)
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


def _fitted(bound: Bound, problem: ConvProblem, tensor: str, plan: Plan, backend: Backend) -> Bound:
    """The array as the kernel takes it: itself, or a contiguous copy."""
    if backend.name in ANY_STRIDES:
        return bound
    planned: TensorView = getattr(plan.args, tensor + "v")
    if bound.view == planned and not backend.host_memory:
        return bound
    limits = dict(plan.alignment).get(tensor, 1), plan.offset_bits
    contiguous = bound.view == planned and bound.address % limits[0] == 0
    if backend.host_memory and (contiguous or kernel_takes(bound, planned, _view_sizes(problem, tensor), *limits)):
        return bound
    return compact(bound, problem, tensor)


@lru_cache(maxsize=256)
def _view_sizes(problem: ConvProblem, tensor: str) -> tuple[int, ...]:
    """The sizes along the strides of a `TensorView`."""
    return problem.view(tensor, problem.sizes(tensor)).flat()


def _launch_on_host(decision: choose.Decision, backend: Backend, bound: Mapping[str, Bound], extra: BoundOperands, scratch: Any,
                    stream: Any) -> float:
    plan = decision.lowered.plan
    args = plan.args.with_views(xv=bound["x"].view, wv=bound["w"].view, yv=bound["y"].view).pack(
        bound["x"].address, bound["w"].address, bound["y"].address, scratch.address if scratch else 0, extra.addresses(),
        extra.scalars)
    return _timed(decision, backend, args, stream)


def _launch_on_device(decision: choose.Decision, backend: Backend, bound: Mapping[str, Bound], extra: BoundOperands, scratch: Any,
                      stream: Any) -> float:
    """The same through buffers of the target: arrays are contiguous here, so their bytes travel as they are."""
    plan, result = decision.lowered.plan, decision.problem.result
    buffers = {name: _uploaded(backend, array, name != result) for name, array in bound.items()}
    others = {i: _uploaded(backend, vector) for i, vector in extra.vectors.items()}
    others.update({i: _uploaded(backend, like) for i, like in extra.likes.items()})
    args = plan.args.pack(buffers["x"].address, buffers["w"].address, buffers["y"].address, scratch.address if scratch else 0,
                          {i: buffer.address for i, buffer in others.items()}, extra.scalars)
    time_ms = _timed(decision, backend, args, stream)
    backend.download(buffers[result], _flat(bound[result].array))
    return time_ms


def _uploaded(backend: Backend, source: Bound | np.ndarray, filled: bool = True) -> Any:
    array = source if isinstance(source, np.ndarray) else _flat(source.array)
    buffer = backend.allocate(max(array.nbytes, 1))
    if filled:
        backend.upload(buffer, array)
    return buffer


def _flat(array: np.ndarray) -> np.ndarray:
    """The elements in the order they have in memory, as one axis; a view, since the array is dense."""
    order = np.argsort([-stride for stride in array.strides], kind="stable")
    return array.transpose(order).reshape(-1)


def _timed(decision: choose.Decision, backend: Backend, args: bytes, stream: Any) -> float:
    built = decision.built
    if built is None or built.module is None:
        raise error("launch.device", target=decision.target, hint="Run gconv doctor.",
                    reason="the kernel was compiled but not loaded")
    start = backend.record(stream)
    backend.launch(built.module, decision.lowered.plan, args, stream)
    end = backend.record(stream)
    backend.synchronize(stream)
    return backend.elapsed_ms(start, end)
