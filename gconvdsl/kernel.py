"""`@gconv.kernel` and the callable `Kernel`.

The declaration lives here: tracing, names and defaults of arguments, Numba's habits. Everything that needs a target is handed to
`choose` and `runner`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Union, overload

from . import frames
from .arrays import argument_names, bind_inputs, kernel_problem
from .config import KernelConfig, Tile
from .errors import GconvError, NoKernelError, RuleError, error
from .problem import ConvProblem
from .shown import Shown
from .spec import KernelSpec
from .trace import trace
from .tracer import described

if TYPE_CHECKING:
    from .backends.base import Backend
    from .choose import Decision
    from .explain import Explanation
    from .ready import Call, Outcome
    from .tune import TuningResult

__all__ = ["Kernel", "Signature", "Stats", "kernel"]

Tiles = Union[Tile, Mapping[str, Tile], None]


class Signature(NamedTuple):
    """One specialisation that a kernel has used: the problem, the target as TARGET:ARCH, and the configuration that ran."""

    problem: ConvProblem
    target: str
    config: KernelConfig


class Stats(NamedTuple):
    """Counts since the kernel was declared or recompiled.

    hits, misses: calls that found their specialisation in this process, and that did not. compiles: misses for which a compiler
    ran, since no cached binary was found. fallbacks: candidates that were passed over in those misses.
    """

    hits: int = 0
    misses: int = 0
    compiles: int = 0
    fallbacks: int = 0


class Kernel(Shown):
    """A declared kernel. Call it with arrays; see `kernel` for how to declare one.

    ``py_func`` is the Python body (None for a kernel from a ``.gconv`` file), ``spec`` the `KernelSpec`. Thread-safe. Pickles by
    its module and name where it can be imported from there, else by its `KernelSpec`.
    """

    def __init__(self, spec: KernelSpec, py_func: Callable[..., Any] | None = None, *, arguments: tuple[str, str] | None = None,
                 defaults: Mapping[str, float] | None = None) -> None:
        if py_func is not None:
            functools.update_wrapper(self, py_func)
        else:
            self.__name__ = self.__qualname__ = spec.name
        self.spec, self.py_func = spec, py_func
        self._arguments = arguments or argument_names(spec.direction)
        self._defaults = dict(defaults or {})
        self._lock = threading.Lock()
        self._used: dict[int, Decision] = {}                # by identity; holding them keeps the identities apart
        self._hits, self._missed = 0, Stats()
        self._bare: dict[str, Kernel] = {}

    def __repr__(self) -> str:
        return f"<{self.spec.direction} kernel {self._signature_text()}>"

    def _facts(self) -> list[tuple[str, str]]:
        from .choose import describe_config

        return [("kernel", self.spec.name), ("signature", self._signature_text()), ("directions", ", ".join(self.spec.directions)),
                ("prologue", str(self.spec.prologue)), ("epilogue", str(self.spec.epilogue)),
                ("asks for", describe_config(self.spec.config)), ("used", f"{len(self.signatures)} specialisations")]

    def __reduce__(self) -> tuple[Any, ...] | str:
        if _importable(self):
            return self.__qualname__
        return _restored, (self.spec, self._arguments, self._defaults)

    # --- running

    def __call__(self, *args: Any, out: Any = None, out_dtype: Any = None, problem: ConvProblem | None = None,
                 target: str | None = None, **named: Any) -> Any:
        """Run on two arrays and the operands, positional or by name; returns the result, an array of the kind of the first one.

        ``out`` is written instead; ``out_dtype`` defaults to the inputs' dtype; ``problem`` (also as the last argument) is needed
        where it does not follow from the arrays; ``target`` such as "cpu" or "sim:gfx942".
        """
        return self._run(args, named, out, out_dtype, problem, target)

    def __getitem__(self, stream: Any) -> Callable[..., Any]:
        """``kernel[stream](x, w, ...)`` launches on a stream of the target."""
        return functools.partial(_run_on_stream, self, stream)

    def forward(self, x: Any, w: Any, *operands: Any, problem: ConvProblem | None = None, **named: Any) -> Any:
        """y from x and w: the kernel itself if it is declared forward, else the bare convolution."""
        return self._run_as("forward", (x, w, *operands), problem, named)

    def bwd_data(self, dy: Any, w: Any, *operands: Any, problem: ConvProblem | None = None, **named: Any) -> Any:
        """dx from dy and w; of a forward kernel the gradient of the bare convolution. Also ``bwd_data(dy, w, problem)``."""
        return self._run_as("bwd_data", (dy, w, *operands), problem, named)

    def bwd_weight(self, x: Any, dy: Any, *operands: Any, problem: ConvProblem | None = None, **named: Any) -> Any:
        """dw from x and dy; of a forward kernel the gradient of the bare convolution. Also ``bwd_weight(x, dy, problem)``."""
        return self._run_as("bwd_weight", (x, dy, *operands), problem, named)

    def _run_as(self, direction: str, args: tuple[Any, ...], problem: ConvProblem | None, named: dict[str, Any]) -> Any:
        if len(args) > 2 and isinstance(args[2], ConvProblem):
            problem, args = args[2], (*args[:2], *args[3:])
        out, out_dtype, target = (named.pop(key, None) for key in ("out", "out_dtype", "target"))
        settled = _turned(problem, direction) if isinstance(problem, ConvProblem) else problem
        if direction == self.spec.direction:
            return self._run(args, named, out, out_dtype, settled, target)
        bare = self._gradient(direction)
        return self._execute(bare, args, named, settled, out, out_dtype, target)

    def _gradient(self, direction: str) -> Kernel:
        """The bare convolution in another direction, which binds x, w by the names of that direction, and no operands."""
        found = self._bare.get(direction)
        if found is None:
            found = self._bare[direction] = Kernel(self.spec.bare(direction))
        return found

    def _run(self, args: tuple[Any, ...], named: Mapping[str, Any], out: Any, out_dtype: Any, problem: Any, target: str | None,
             stream: Any = None) -> Any:
        if problem is None and len(args) > 2 and isinstance(args[-1], ConvProblem):
            problem, args = args[-1], args[:-1]
        one, problem = self._settle(problem)
        return self._execute(one, args, named, problem, out, out_dtype, target, stream)

    def _execute(self, one: Kernel, args: tuple[Any, ...], named: Mapping[str, Any], problem: ConvProblem | None, out: Any,
                 out_dtype: Any, target: str | None, stream: Any = None) -> Any:
        """Run ``one``, this kernel or a gradient of it, and count the call here."""
        perform, call, handle = _running()
        spec, (arrays, operands) = one.spec, one._bind(args, named)
        outcome = perform(call(spec, None, problem, arrays, operands, out, target, None, out_dtype, handle(stream), False))
        self._count(outcome.decision)
        return outcome.output

    def _settle(self, problem: Any) -> tuple[Kernel, ConvProblem | None]:
        """What a problem asks of this kernel: itself, or the bare convolution in the problem's direction.

        Problems are forward unless they say otherwise, so a backward kernel takes a forward problem as its own.
        """
        if problem is None:
            return self, None
        problem = _given(problem, self)
        if problem.direction == "forward":
            problem = _turned(problem, self.spec.direction)
        return (self if problem.direction == self.spec.direction else self._gradient(problem.direction)), problem

    def _bind(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[tuple[Any, Any], dict[str, Any]]:
        """The two arrays, and the operands by name."""
        operands = [one.name for one in self.spec.operands]
        if not named and len(args) == 2 + len(operands):
            return (args[0], args[1]), dict(zip(operands, args[2:]))
        names = [*self._arguments, *operands]
        if len(args) > len(names):
            raise self._misfit("array.extra", f"argument number {len(names) + 1}")
        bound = {**self._defaults, **dict(zip(names, args))}
        for name, value in named.items():
            if name not in names:
                raise self._misfit("array.extra", f"operand {name!r}")
            if name in names[:len(args)]:
                raise error("kernel.bind", kernel=self.spec.name, reason=f"{name} is given twice",
                            hint=f"Call it as {self._signature_text()}.")
            bound[name] = value
        for name in names:
            if name not in bound:
                raise self._misfit("array.missing", name)
        return (bound[names[0]], bound[names[1]]), {name: bound[name] for name in operands}

    def _misfit(self, code: str, name: str) -> GconvError:
        return error(code, kernel=self.spec.name, name=name, signature=self._signature_text())

    def _signature_text(self) -> str:
        operands = [f"{one.name}: {one.kind}" + (f" = {self._defaults[one.name]}" if one.name in self._defaults else "")
                    for one in self.spec.operands]
        return f"{self.spec.name}({', '.join([*self._arguments, *operands])})"

    # --- what was used

    def _count(self, decision: Decision) -> None:
        if decision is None:
            return
        with self._lock:
            if id(decision) in self._used:
                self._hits += 1
                return
            self._used[id(decision)] = decision
            compiled = decision.built is not None and not decision.built.artifact.cached
            old = self._missed
            self._missed = Stats(0, old.misses + 1, old.compiles + compiled, old.fallbacks + len(decision.fallbacks))

    @property
    def stats(self) -> Stats:
        """Counts of hits, misses, compiles and fallbacks."""
        with self._lock:
            return self._missed._replace(hits=self._hits)

    @property
    def signatures(self) -> list[Signature]:
        """The specialisations used so far, in order of first use."""
        with self._lock:
            return [Signature(one.problem, one.target_text, one.config) for one in self._used.values()]

    def recompile(self) -> None:
        """Trace the body again (its globals may have changed) and choose and build every used specialisation anew."""
        from . import choose

        with self._lock:
            used, self._used, self._hits, self._missed = list(self._used.values()), {}, 0, Stats()
        old = self.spec
        if self.py_func is not None:
            self.spec, self._bare = trace(self.py_func, old.config), {}
        for spec in {old, *(one.spec for one in used)}:
            choose.forget(spec)
        for one in used:
            spec = self.spec if one.spec == old else self.spec.bare(one.problem.direction)
            self._count(choose.decide(spec, one.problem, spec.config, *choose.resolve_target(one.target_text)))

    # --- looking at it without running

    def compile(self, problem: ConvProblem, target: str | None = None, arch: str | None = None) -> Decision:
        """Choose and build ahead of time, also for an absent arch: ``kernel.compile(problem, arch="gfx950")``."""
        decision = self._decide((), {}, target, arch, _given(problem, self), compiled=True)
        self._count(decision)
        return decision

    def tune(self, problem: ConvProblem, budget: Any = "60s", target: str | None = None, arch: str | None = None,
             **options: Any) -> TuningResult:
        """Measure what the declaration leaves open for about ``budget`` (``"60s"``, ``"5min"``, seconds); from then on calls on this
        problem and device run the fastest. Resumes where an earlier call stopped. ``options`` are those of `tune.tune`.
        """
        from .tune import tune

        kernel, settled = self._settle(problem)
        assert settled is not None
        return tune(kernel.spec, settled, budget=budget, target=target, arch=arch, **options)

    def is_supported(self, problem: ConvProblem, target: str | None = None, arch: str | None = None) -> bool:
        """Whether a kernel can be had for this problem, as far as can be told without a compiler."""
        problem = _given(problem, self)
        try:
            self._decide((), {}, target, arch, problem)
        except (RuleError, NoKernelError):
            return False
        return True

    def explain(self, *args: Any, problem: ConvProblem | None = None, target: str | None = None, arch: str | None = None,
                **named: Any) -> Explanation:
        """What would run for these arguments (or one problem), why, and what was rejected for which reason."""
        from .explain import explain

        spec, found = self._problem_of(args, named, problem)
        return explain(spec, found, target=_target(target, arch))

    def inspect_source(self, *args: Any, problem: ConvProblem | None = None, target: str | None = None, arch: str | None = None,
                       **named: Any) -> str:
        """The generated HIP C++ (or, for cpu, C++) source for these arguments or one problem."""
        return self._decide(args, named, target, arch, problem).lowered.source

    def inspect_asm(self, *args: Any, problem: ConvProblem | None = None, target: str | None = None, arch: str | None = None,
                    **named: Any) -> str:
        """The machine code as assembly text."""
        decision = self._decide(args, named, target, arch, problem)
        return _backend(decision).assembly(decision.lowered.source, decision.arch, self.spec.name)

    def resources(self, *args: Any, problem: ConvProblem | None = None, target: str | None = None, arch: str | None = None,
                  **named: Any) -> dict[str, dict[str, int]]:
        """Registers, LDS, spills and occupancy by kernel; empty where the target has none of these."""
        decision = self._decide(args, named, target, arch, problem)
        return decision.lowered.with_shared(_backend(decision).resources(decision.lowered.source, decision.arch, self.spec.name))

    def _problem_of(self, args: tuple[Any, ...], named: Mapping[str, Any], problem: Any = None) -> tuple[KernelSpec, ConvProblem]:
        """The declaration and problem for arrays, as a call would find them, or for a problem alone."""
        from . import runner

        if args and isinstance(args[-1], ConvProblem):
            problem, args = args[-1], args[:-1]
        one, settled = self._settle(problem)
        arrays = one._bind(args, named)[0] if args or named or settled is None else ()
        spec, found = runner.plan_call(one.spec, settled, arrays)
        return spec, kernel_problem(found, bind_inputs(found, *arrays)[0]) if arrays else found

    def _decide(self, args: tuple[Any, ...], named: Mapping[str, Any], target: str | None, arch: str | None, problem: Any = None,
                compiled: bool = False) -> Decision:
        from . import choose

        spec, found = self._problem_of(args, named, problem)
        return choose.decide(spec, found, spec.config, *choose.resolve_target(_target(target, arch)), compiled=compiled)


def _run_on_stream(kernel: Kernel, stream: Any, /, *args: Any, **named: Any) -> Any:
    out, out_dtype, problem, target = (named.pop(key, None) for key in ("out", "out_dtype", "problem", "target"))
    return kernel._run(args, named, out, out_dtype, problem, target, stream)


def _given(problem: Any, kernel: Kernel) -> ConvProblem:
    """The problem, where nothing else will do."""
    if not isinstance(problem, ConvProblem):
        raise error("kernel.bind", kernel=kernel.spec.name, reason=f"problem is {described(problem)}",
                    hint="Pass a gconv.ConvProblem.")
    return problem


@functools.cache
def _running() -> tuple[Callable[[Call], Outcome], type[Call], Callable[[Any], int | None]]:
    """What a call needs of the modules that are not imported for a declaration."""
    from .devicearrays import stream_handle
    from .ready import Call
    from .runner import perform

    return perform, Call, stream_handle


@functools.lru_cache(maxsize=256)
def _turned(problem: ConvProblem, direction: str) -> ConvProblem:
    """The problem in a direction: one object for equal problems, so that calls with it are known again (`prepared`)."""
    return problem.as_(direction)


def _target(target: str | None, arch: str | None) -> str | None:
    """A target's text; an arch alone names its vendor's target."""
    if arch is None or (target and ":" in target):
        return target
    vendor = "hip" if arch.startswith("gfx") else "cuda" if arch.startswith("sm_") else "cpu"
    return f"{target or vendor}:{arch}"


def _backend(decision: Decision) -> Backend:
    from .backends.base import get

    return get(decision.target)


def _importable(one: Kernel) -> bool:
    """Whether its module and qualified name lead to this very object."""
    found: Any = sys.modules.get(getattr(one, "__module__", ""))
    for part in one.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is one


def _restored(spec: KernelSpec, arguments: tuple[str, str], defaults: dict[str, float]) -> Kernel:
    return Kernel(spec, arguments=arguments, defaults=defaults)


# --- the decorator

@overload
def kernel(fn: Callable[..., Any], /) -> Kernel: ...


@overload
def kernel(fn: None = None, /, *, tile: Tiles = None, pipeline: str | None = None, scheduler: str | None = None,
           **options: Any) -> Callable[[Callable[..., Any]], Kernel]: ...


def kernel(fn: Any = None, /, *, tile: Tiles = None, pipeline: str | None = None, scheduler: str | None = None,
           **options: Any) -> Any:
    """Make a `Kernel` of a Python function: ``@gconv.kernel`` or ``@gconv.kernel(tile=..., pipeline="compv4 -> basic_v1")``.

    The body is traced at once, so that errors show at the declaration. Its first two parameters are the tensors, further ones are
    operands annotated `PerK`, `PerC`, `LikeY` or `Scalar` (only a Scalar may have a default). Options are those of
    `KernelConfig`; what is left out is chosen.
    """
    try:
        config = KernelConfig(tile, pipeline, scheduler=scheduler, **options)
    except GconvError as failure:
        raise failure.at(frames.of_user())
    return functools.partial(_declared, config) if fn is None else _declared(config, fn)


def _declared(config: KernelConfig, fn: Any) -> Kernel:
    if isinstance(fn, Kernel):
        raise error("trace.again", loc=frames.of_user(), name=fn.spec.name)
    spec = trace(fn, config)
    first, second, *others = inspect.signature(fn).parameters.values()
    defaults = {one.name: _default(fn, one) for one in others if one.default is not one.empty}
    return Kernel(spec, fn, arguments=(first.name, second.name), defaults=defaults)


def _default(fn: Any, parameter: inspect.Parameter) -> float:
    value = parameter.default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise error("trace.parameter", loc=frames.of_parameter(inspect.unwrap(fn).__code__, parameter.name), name=parameter.name,
                    what=f"{described(value)} by default", hint="The default of a gconv.Scalar is a number.")
    return float(value)
