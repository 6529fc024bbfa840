"""One configuration and no other: checked, lowered, built, and launched many times on buffers of its target.

The way of a call (runner.py) chooses and falls back; measuring must not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping

import numpy as np

from .build import Built, build, lower
from .config import KernelConfig
from .dtypes import DTYPES
from .errors import error
from .operands import BoundOperands, bind_operands
from .problem import ConvProblem
from .spec import KernelSpec

if TYPE_CHECKING:
    from .backends.base import Backend
    from .plan import Lowered

__all__ = ["Exact", "Launcher", "build_exactly", "kernel_hash", "lower_exactly"]


@dataclass(frozen=True)
class Exact:
    """A built kernel for one problem and configuration. ``hash``: of its binary and how it is launched."""

    spec: KernelSpec
    problem: ConvProblem
    lowered: Lowered
    built: Built
    hash: str


def lower_exactly(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, backend: Backend, arch: str) -> Lowered:
    """The source and plan. Raises `RuleError` where the rules refuse the configuration."""
    from .rules import check

    where = "cpu" if backend.name == "cpu" else arch
    violations = check(problem, config, where)
    if violations:
        raise error("rule.violated", arch=where, reasons="; ".join(f"{v.message} [{v.rule}]" for v in violations),
                    fixes=" ".join(dict.fromkeys(v.fix for v in violations)), violations=tuple(violations))
    return lower(spec, problem, config, backend.name, arch)


def build_exactly(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, backend: Backend, arch: str, *,
                  load: bool = True) -> Exact:
    """The kernel, compiled or from the cache. Raises `RuleError`, `CompileError`, `LaunchError`."""
    lowered = lower_exactly(spec, problem, config, backend, arch)
    built = build(lowered, backend, arch, spec.name, load and backend.can_launch)
    return Exact(spec, problem, lowered, built, kernel_hash(lowered, built))


def kernel_hash(lowered: Lowered, built: Built) -> str:
    """Digest of the binary and of its launches: equal ones do exactly the same for this problem."""
    digest = hashlib.sha256()
    path = built.artifact.path
    digest.update(path.read_bytes() if path.is_file() else lowered.source.encode())
    plan = lowered.plan
    digest.update(repr((plan.launches, plan.workspace, plan.args.splits)).encode())
    return digest.hexdigest()


class Launcher:
    """A kernel on contiguous buffers of its target, ``copies`` times: each launch takes the next set of buffers in turn.

    ``arrays``: the two inputs in the layout of the problem; ``operands``: values by name. Use it inside `Backend.activate`.
    """

    def __init__(self, exact: Exact, backend: Backend, arrays: tuple[Any, Any], operands: Mapping[str, Any],
                 copies: int = 1) -> None:
        self.exact, self.backend = exact, backend
        self.problem, self.plan = exact.problem, exact.lowered.plan
        self._extra = bind_operands(exact.spec, self.problem, operands)
        self._scratch = backend.allocate(self.plan.workspace) if self.plan.workspace else None
        self._others = {i: self._filled(array) for i, array in _arrays(self._extra).items()}
        self._sets = [self._buffers(arrays) for _ in range(copies)]
        self._args = [self._pack(one) for one in self._sets]
        self._next = 0

    def poison(self) -> None:
        """Fill results and workspace with NaN: what is not written, or read before it is written, cannot be right."""
        for one in self._sets:
            self._fill(one[self.problem.result])
        if self._scratch is not None:
            self._fill(self._scratch)

    def launch(self) -> None:
        """One launch on the next set of buffers; it may return before it is done."""
        module = self.exact.built.module
        if module is None:
            raise error("launch.device", target=self.backend.name, reason="the kernel was compiled but not loaded",
                        hint="Run gconv doctor.")
        self.backend.launch(module, self.plan, self._args[self._next])
        self._next = (self._next + 1) % len(self._args)

    def timed(self, count: int) -> float:
        """Milliseconds a launch, of ``count`` launches in a row."""
        start = self.backend.record()
        for _ in range(count):
            self.launch()
        end = self.backend.record()
        self.backend.synchronize()
        return self.backend.elapsed_ms(start, end) / count

    def load(self, arrays: tuple[Any, Any]) -> None:
        """Other inputs, into the first set of buffers."""
        for name, array in zip(self.problem.operands, arrays):
            self.backend.upload(self._sets[0][name], np.ascontiguousarray(array))
        self._next = 0

    def result(self) -> Any:
        """The result in the first set of buffers, in the problem's layout."""
        array = np.empty(self.problem.array_shape(self.problem.result), DTYPES[self.problem.out_dtype].numpy)
        self.backend.download(self._sets[0][self.problem.result], array)
        return array

    def _buffers(self, arrays: tuple[Any, Any]) -> dict[str, Any]:
        result = self.problem.result
        size = int(np.prod(self.problem.array_shape(result))) * DTYPES[self.problem.out_dtype].bytes
        return {**{name: self._filled(array) for name, array in zip(self.problem.operands, arrays)},
                result: self.backend.allocate(max(size, 1))}

    def _filled(self, array: Any) -> Any:
        buffer = self.backend.allocate(max(array.nbytes, 1))
        self.backend.upload(buffer, np.ascontiguousarray(array))
        return buffer

    def _fill(self, buffer: Any) -> None:
        self.backend.upload(buffer, np.full(buffer.nbytes, 0xFF, np.uint8))

    def _pack(self, buffers: Mapping[str, Any]) -> bytes:
        return self.plan.args.pack(buffers["x"].address, buffers["w"].address, buffers["y"].address,
                                   self._scratch.address if self._scratch is not None else 0,
                                   {i: buffer.address for i, buffer in self._others.items()}, self._extra.scalars)


def _arrays(extra: BoundOperands) -> dict[int, Any]:
    return {**extra.vectors, **{i: like.array for i, like in extra.likes.items()}}
