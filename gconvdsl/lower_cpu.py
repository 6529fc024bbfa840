"""From a declaration to C++ for target ``cpu``: a short source that instantiates the kernels of backends/include/gconv/cpu.

The source holds what the compiler must know (filter, stride, dilation, C/G, K/G, dtypes, vector width, register block, prologue,
epilogue), so one binary serves every N, padding, spatial size and layout with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable

from .config import KernelConfig
from .errors import error
from .expr import Expr
from .plan import Launch, Lowered, Plan, three
from .problem import ConvProblem
from .spec import KernelSpec

__all__ = ["ALGORITHMS", "Algorithm", "ISAS", "Isa", "fitting_algorithms", "lower_cpu", "most_vectors"]


@dataclass(frozen=True)
class Isa:
    """An instruction set of target cpu: floats in a vector, vector registers, and the compiler's flags for it."""

    name: str
    lanes: int
    registers: int
    flags: tuple[str, ...]


ISAS: dict[str, Isa] = {
    isa.name: isa for isa in (
        Isa("avx512", 16, 32, ("-march=x86-64-v4", "-mprefer-vector-width=512")),
        Isa("avx2", 8, 16, ("-march=x86-64-v3",)),
        Isa("sse2", 4, 16, ("-march=x86-64",)),
        Isa("neon", 4, 32, ("-march=armv8-a",)),
        Isa("generic", 4, 16, ()),
    )
}
"""Best first. The compiler is told an arch by name: what ``-march=native`` finds is wrong on some virtual machines."""


@dataclass(frozen=True)
class Algorithm:
    """A way to compute: ``applies(target, source, groups, lanes)`` with the channels of a group along the lanes (``target``) and
    those summed over (``source``); ``merged``: several groups share a vector."""

    name: str
    meaning: str
    merged: bool
    applies: Callable[[int, int, int, int], bool]


_MERGED_SOURCE = 32       # summed channels of a group up to which whole packed vectors of them pay
ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("depthwise", "one channel per group; the lanes of a vector are groups", True,
              lambda target, source, groups, lanes: target == source == 1 and groups > 1),
    Algorithm("merged_groups", "few channels per group; several groups share a vector", True,
              lambda target, source, groups, lanes: 2 * target <= lanes and groups > 1 and source <= _MERGED_SOURCE),
    Algorithm("direct", "the lanes of a vector are channels of one group", False, lambda target, source, groups, lanes: True),
)
"""In order of preference: the first that applies is used."""

_SLIDING_TAPS = 4         # taps of a filter row up to which its weights stay in registers while points pass by
_SHORT_FILTER = 4         # taps of a filter row up to which its weights fit beside ten points
_RANGE_BYTES = 256
_DEPTHWISE_RANGE_BYTES = 1024
_ITEM_RANGES = 24         # kItemRanges in block.hpp
_TASKS = 128              # tasks of a large problem: enough to keep many threads evenly busy
_TASK_FLOPS = 200_000     # below this a task is not worth waking a thread for
_CHUNK_POINTS = 256       # output points of a bwd_weight chunk, at least
_DEPTHWISE_CHUNK_POINTS = 196
_SMALL_SUMS = 1 << 18     # bytes of partial sums that are no burden
_CHUNK_BYTES = 1 << 22    # partial sums of all chunks, at most, where several chunks are wanted


@dataclass(frozen=True)
class _Shape:
    """What the source text is made from."""

    problem: ConvProblem
    isa: Isa
    algorithm: Algorithm
    vectors: int
    points: int
    few_points: int
    blocks: tuple[int, ...]
    strip: int
    strict: bool

    @property
    def target(self) -> int:
        return _channels(self.problem)[0]

    @property
    def source(self) -> int:
        return _channels(self.problem)[1]

    @property
    def width(self) -> int:
        """Lanes of one item."""
        return self.isa.lanes * self.vectors

    @property
    def items(self) -> int:
        """Blocks of channels over all groups (Block::items in block.hpp)."""
        if self.algorithm.merged:
            spread_late = self.target * self.source > 1 and self.source <= self.isa.lanes and (
                self.problem.direction != "bwd_weight" or self.sliding)
            return -(-self.problem.G // (self.isa.lanes // (max(self.target, self.source) if spread_late else self.target)))
        return self.problem.G * -(-self.target // self.width)

    @property
    def item_bytes(self) -> int:
        """Packed weights, or partial sums, of one item."""
        return 4 * self.problem.taps * self.source * self.width


    @property
    def sliding(self) -> bool:
        """Whether each source point is read once for all taps of a filter row, whose weights stay in registers."""
        if self.problem.direction == "bwd_weight":
            dense = self.problem.dilation[-1] == 1 and self.problem.stride[-1] <= self.problem.filter[-1]
            return self.algorithm.merged and dense and self.problem.filter[-1] <= _SLIDING_TAPS
        return self.vectors == 1 and _row_taps(self.problem) <= _SLIDING_TAPS

    @property
    def range_items(self) -> int:
        """Items that a part of a bwd_weight takes at least, to read whole stretches of memory (item_ranges in block.hpp)."""
        used = self.isa.lanes if self.algorithm.merged else min(self.width, self.target)
        return max(1, (_DEPTHWISE_RANGE_BYTES if self.algorithm.name == "depthwise" else _RANGE_BYTES) // (4 * used))

    def ranges(self, chunks: int) -> int:
        """Parts of the items of a bwd_weight that are worked on apart."""
        return min(-(-_ITEM_RANGES // chunks), -(-self.items // self.range_items))


def _channels(problem: ConvProblem) -> tuple[int, int]:
    """(along the lanes, summed over or swept): per group."""
    return (problem.Cg, problem.Kg) if problem.direction == "bwd_data" else (problem.Kg, problem.Cg)


def _shape(problem: ConvProblem, isa: Isa, config: KernelConfig) -> _Shape:
    target, source = _channels(problem)
    algorithm = _algorithm(problem, isa, config.cpu_algorithm)
    vectors = 1 if algorithm.merged else _asked_vectors(config, isa) or _vectors(-(-target // isa.lanes), isa)
    points, few = _register_block(vectors, isa, problem.direction)
    if points == 8 and vectors == 1 and source > 1 and 1 < problem.filter[-1] <= _SHORT_FILTER:
        points, few = 10, 7                # three or four weights fit beside them, and widths are often multiples of 7
    if problem.direction == "bwd_weight" and vectors == 1 and isa.registers == 32 and not algorithm.merged:
        points, few = 24, 16               # sums beside one vector of dy; the source is broadcast from memory
    blocks, strip = _blocks(problem, isa, vectors)
    if config.cpu_points:
        points, few = config.cpu_points, min(few, config.cpu_points)
        blocks = (points, *(one for one in blocks if one < points))
    return _Shape(problem, isa, algorithm, vectors, points, few, blocks, strip, config.strict_nonfinite)


def _row_taps(problem: ConvProblem) -> int:
    """Taps of a filter row that one phase has (`Axis::max_taps` in axis.hpp)."""
    taps, stride, dilation = problem.filter[-1], problem.stride[-1], problem.dilation[-1]
    return -(-taps // (stride // math.gcd(stride, dilation if taps > 1 else stride))) if problem.direction == "bwd_data" else taps


def _blocks(problem: ConvProblem, isa: Isa, vectors: int) -> tuple[tuple[int, ...], int]:
    """Points of the register blocks of forward and bwd_data, and the target rows of a block."""
    taps = _row_taps(problem)
    if vectors > 1 or taps > _SLIDING_TAPS:
        if isa.registers == 32:
            return {1: (14, 8, 4), 2: (14, 8, 7, 4), 3: (8, 7, 4), 4: (6, 5, 4)}[vectors], 1
        return {1: (10, 8, 4), 2: (6, 4), 3: (4, 3)}[vectors], 1
    if isa.registers == 32:
        phases = problem.direction == "bwd_data" and problem.stride[-1] > 1     # two kernels: half the sizes, to compile as fast
        return ((8, 4) if phases else (8, 7, 4)), 2
    return (10, 8, 7, 4), 1


def fitting_algorithms(problem: ConvProblem, arch: str) -> list[Algorithm]:
    """Those that can compute the problem with an instruction set, the preferred one first."""
    return [one for one in ALGORITHMS if one.applies(*_channels(problem), problem.G, ISAS[arch].lanes)]


def _algorithm(problem: ConvProblem, isa: Isa, asked: str | None) -> Algorithm:
    """The one that is asked for, or the first that applies. Raises ``rule.violated`` where the one asked for does not."""
    fitting = fitting_algorithms(problem, isa.name)
    found = next((one for one in fitting if asked in (None, one.name)), None)
    if found is None:
        names = ", ".join(one.name for one in fitting)
        sizes = " x ".join(map(str, _channels(problem)))
        raise error("rule.violated", arch=isa.name, reasons=f"cpu_algorithm {asked} does not fit {sizes} channels in each of "
                    f"{problem.G} groups with {isa.lanes} lanes [option.cpu_algorithm]",
                    fixes=f"Use one of: {names}, or leave cpu_algorithm out.", violations=())
    return found


def most_vectors(arch: str) -> int:
    """Vectors of a register block, at most."""
    return 4 if ISAS[arch].registers == 32 else 3


def _asked_vectors(config: KernelConfig, isa: Isa) -> int | None:
    """Those asked for; ``rule.violated`` for more than a register block has."""
    asked, most = config.cpu_vectors, most_vectors(isa.name)
    if asked is not None and asked > most:
        raise error("rule.violated", arch=isa.name, reasons=f"cpu_vectors = {asked} is more than {most}, with {isa.registers} vector "
                    "registers [option.cpu_block]", fixes=f"Use at most {most}, or leave cpu_vectors out.", violations=())
    return asked


def _vectors(needed: int, isa: Isa) -> int:
    """Vectors of a register block along the channels: as many as fit, in blocks of equal size."""
    return min(range(1, most_vectors(isa.name) + 1), key=lambda v: (-(-needed // v) * v, -v))


def _register_block(vectors: int, isa: Isa, direction: str) -> tuple[int, int]:
    """Points of a large and a small register block: points * vectors sums, the vectors of weights and one value must fit."""
    if isa.registers == 32:
        return {1: (14, 8), 2: (12, 8), 3: (8, 6), 4: (6, 4)}[vectors]
    if vectors == 1 and direction == "bwd_weight":
        return 12, 8
    return {1: (8, 6), 2: (6, 4), 3: (4, 3)}[vectors]


def lower_cpu(spec: KernelSpec, problem: ConvProblem, config: KernelConfig, arch: str) -> Lowered:
    """The source and plan for a problem; ``arch`` is a name in `ISAS`. The configuration's tile, pipeline and scheduler are not
    used."""
    shape = _shape(problem, ISAS[arch], config)
    return Lowered(_source(spec, shape), _plan(shape), config, _notes(shape, config))


# --- the plan

def _plan(shape: _Shape) -> Plan:
    return _reduction(shape) if shape.problem.direction == "bwd_weight" else _convolution(shape)


def _convolution(shape: _Shape) -> Plan:
    tasks = max(1, min(_TASKS, shape.problem.flops // _TASK_FLOPS))
    launches = Launch("gconv_pack_weights", tasks=tasks), Launch("gconv_convolve", tasks=tasks)
    return Plan(launches, shape.problem.args(tasks), shape.items * shape.item_bytes)


def _reduction(shape: _Shape) -> Plan:
    chunks = _chunks(shape)
    ranges = shape.ranges(chunks)
    launches = Launch("gconv_accumulate", tasks=chunks * ranges), Launch("gconv_reduce", tasks=min(_ITEM_RANGES, shape.items))
    return Plan(launches, shape.problem.args(chunks), chunks * shape.items * shape.item_bytes)


def _chunks(shape: _Shape) -> int:
    """Parts of the sum over output points. They depend on the problem only, so that the result is the same for any threads."""
    points = shape.problem.N * math.prod(shape.problem.output)
    least, most = _CHUNK_POINTS, _CHUNK_BYTES
    if shape.algorithm.name == "depthwise":       # partial sums are soon more than the tensors that they come from
        least, most = _DEPTHWISE_CHUNK_POINTS, min(most, max(_SMALL_SUMS, shape.problem.bytes // 8))
    return max(1, min(_ITEM_RANGES, points // least, most // (shape.items * shape.item_bytes)))


def _notes(shape: _Shape, config: KernelConfig) -> tuple[str, ...]:
    ignored = [name for name in ("tile", "pipeline", "scheduler") if getattr(config, name)]
    notes = [f"algorithm {shape.algorithm.name}: {shape.algorithm.meaning}",
             f"register block of {shape.points} or {shape.few_points} points by {shape.vectors} vectors of "
             f"{shape.isa.lanes} floats"]
    if shape.problem.direction == "bwd_weight":
        notes.append(f"fp32 partial sums of {_chunks(shape)} chunks, added in a fixed order")
    else:
        notes.append("weights are packed into the workspace as fp32")
    if not shape.strict:
        notes.append("padding along the last axis is multiplied as zeros: a NaN or Inf in "
                     f"{_second(shape.problem)} shows there too")
    passed = [one.name for one in ALGORITHMS[:ALGORITHMS.index(shape.algorithm)]]
    if passed:
        notes.append(f"{' and '.join(passed)} do{'' if len(passed) > 1 else 'es'} not fit {shape.target} x {shape.source} "
                     f"channels in each of {shape.problem.G} groups")
    if ignored:
        notes.append(f"target cpu ignores {', '.join(ignored)}")
    return tuple(notes)


def _second(problem: ConvProblem) -> str:
    """The operand that meets the padding of the other one, as a user calls it."""
    return "dy" if problem.direction == "bwd_weight" else "w"


# --- the source

_HEADERS = {"forward": "convolve", "bwd_data": "convolve", "bwd_weight": "weight_gradient"}
_KERNELS = {"convolve": ("pack_weights", "convolve"), "weight_gradient": ("accumulate", "reduce")}


def _source(spec: KernelSpec, shape: _Shape) -> str:
    header = _HEADERS[shape.problem.direction]
    functors = _functors(spec, shape.problem)
    lines = [f"#define GCONV_LANES {shape.isa.lanes}", f'#include "gconv/cpu/{header}.hpp"',
             *(['#include "gconv/math.hpp"'] if any("gconv::math::" in line for line in functors) else []),
             "", "namespace {", "", "struct Conv {", *("  " + line for line in (*_constants(spec, shape), *functors)), "};", "",
             "}  // namespace", ""]
    for kernel in _KERNELS[header]:
        lines.append(f'extern "C" void gconv_{kernel}(const gconv::ConvArgs* args, long long task) {{ '
                     f"gconv::cpu::{kernel}<Conv>(*args, task); }}")
    return "\n".join(lines) + "\n"


def _constants(spec: KernelSpec, shape: _Shape) -> list[str]:
    p = shape.problem
    filters, strides = three(p.filter, 1), three(p.stride, 1)
    # A single tap has no dilation; calling its stride one makes the source points that are needed dense.
    dilations = [d if taps > 1 else stride for taps, stride, d in zip(filters, strides, three(p.dilation, 1))]
    axes = (("filter", filters), ("stride", strides), ("dilation", dilations))
    counts = {"Cg": p.Cg, "Kg": p.Kg, "vectors": shape.vectors, "points": shape.points, "few_points": shape.few_points,
              "range_items": shape.range_items}
    storage = {t: _storage(p.out_dtype if t == p.result else p.dtype) for t in "xwy"}
    roles = {"forward": "xw-y", "bwd_data": "yw-x", "bwd_weight": "x-yw"}[p.direction]
    names = zip(("Source", "Weight", "Gradient", "Result"), roles)
    return [f"static constexpr auto direction = gconv::cpu::Direction::{p.direction};",
            *(f"static constexpr int {name}[3] = {{{', '.join(map(str, values))}}};" for name, values in axes),
            "static constexpr int " + ", ".join(f"{name} = {value}" for name, value in counts.items()) + ";",
            f"static constexpr int blocks[] = {{{', '.join(map(str, shape.blocks))}}}, strip = {shape.strip};",
            f"static constexpr bool merged = {_bool(shape.algorithm.merged)}, sliding = {_bool(shape.sliding)}, "
            f"in_place = {_bool(_in_place(spec, shape))}, strict = {_bool(shape.strict)};",
            *(f"using {name} = gconv::cpu::{storage[tensor]};" for name, tensor in names if tensor != "-")]


def _in_place(spec: KernelSpec, shape: _Shape) -> bool:
    """Whether the source may be read where it lies, if its layout is fit for it, and not packed: a vector of it is what the
    multiplications take, and no prologue is computed over and over."""
    problem = shape.problem
    plain = problem.direction != spec.direction or spec.prologue == Expr("x")
    return shape.algorithm.name == "depthwise" and plain


def _bool(value: bool) -> str:
    return str(value).lower()


def _storage(dtype: str) -> str:
    return dtype.capitalize()


def _functors(spec: KernelSpec, problem: ConvProblem) -> list[str]:
    """``prologue`` (on source values) and ``epilogue`` (on finished sums, ``at``: element offset in the result)."""
    bare = problem.direction != spec.direction
    prologue, epilogue = (Expr("x"), Expr("acc")) if bare else (spec.prologue, spec.epilogue)
    return [*_functor("prologue", "x", "", prologue, spec), *_functor("epilogue", "acc", ", long long at", epilogue, spec)]


def _functor(name: str, leaf: str, more: str, expr: Expr, spec: KernelSpec) -> list[str]:
    given = expr != Expr(leaf)
    lines = [f"static constexpr bool has_{name} = {_bool(given)};"]
    if not given:
        return lines
    order = [one.name for one in spec.operands]
    names = {operand: f"operand{order.index(operand)}" for operand in expr.operands}
    reads = [f"  const float {names[operand]} = {_read(spec.kind(operand), order.index(operand))};" for operand in expr.operands]
    body = expr.cpp_body({leaf: leaf, **names}, "return").splitlines()
    unused = [f"  (void)args, (void)channel{', (void)at' if more else ''};"]
    return [*lines, f"static inline float {name}(const gconv::ConvArgs& args, float {leaf}, long long channel{more}) {{",
            *unused, *reads, *("  " + line for line in body), "}"]


def _read(kind: str, index: int) -> str:
    if kind == "scalar":
        return f"args.scalar[{index}]"
    if kind == "like_y":
        return f"Result::read(static_cast<const Result::type*>(args.operand[{index}]) + at)"
    return f"static_cast<const float*>(args.operand[{index}])[channel]"
