"""Executing a kernel: programs of prepared instructions, groups of waves that run together, barriers.

Waves at the same instruction run as one group. A branch they disagree on splits the group; groups that meet again at a branch
target with the same operations in flight become one. Of several groups the one furthest behind runs first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import numpy as np

from . import emu_effects
from .emu_decode import EXEC, SCC, SGPR, TTMP, Fault, Instruction
from .emu_effects import Effects
from .emu_elf import ACC, Descriptor
from .emu_lds import Lds, lds_instruction
from .emu_matrix import matrix
from .emu_memory import SCRATCH, AddressSpace, scalar_load, vector_memory
from .emu_scalar import CONDITIONS, scalar
from .emu_state import Batch, Group
from .emu_vector import vector
from .emu_waits import Pending, parse_wait, register_name

__all__ = ["BATCH_ROWS", "Grid", "Program", "Stopped", "TimeOut", "execute"]

BATCH_ROWS = 256
"""Waves that run together: enough to hide the cost of a NumPy call, few enough for the cache."""

_NOTHING = (
    "s_nop",
    "s_delay_alu",
    "s_clause",
    "s_setprio",
    "s_sleep",
    "s_sendmsg",
    "s_code_end",
    "s_icache_inv",
    "s_dcache_inv",
    "s_dcache_wb",
    "s_inst_prefetch",
    "s_set_inst_prefetch_distance",
    "s_wait_alu",
    "s_waitcnt_depctr",
    "s_sethalt",
    "s_ttracedata",
    "v_nop",
    "s_wait_event",
    "buffer_gl0_inv",
    "buffer_gl1_inv",
    "buffer_inv",
    "buffer_wbl2",
    "buffer_wbinvl1",
    "global_inv",
    "global_wb",
    "global_wbinv",
    "s_setreg_imm32_b32",
    "s_prefetch_inst",
    "s_incperflevel",
    "s_decperflevel",
    "s_sched_barrier",
)
_CHECK_CLOCK = 256

Run = Callable[[Group], None]
Observer = Callable[[Instruction, Group], None]


class TimeOut(Exception):
    """The kernel ran longer than it may."""


class Stopped(Exception):
    """A fault, with the place: instruction, block, wave, lane (None where it concerns no single lane)."""

    def __init__(
        self, reason: str, ins: Instruction | None, block: tuple[int, int, int] | None, wave: int | None, lane: int | None
    ) -> None:
        super().__init__(reason)
        self.reason, self.ins, self.block, self.wave, self.lane = reason, ins, block, wave, lane


@dataclass(frozen=True)
class Grid:
    """How many blocks along x, y, z, threads of a block, and the launch's further bytes of LDS."""

    blocks: tuple[int, int, int]
    threads: int
    shared: int = 0


@dataclass
class Step:
    """One prepared instruction: how it changes the control flow ("run", "jump", "branch", "wait", "signal", "barrier", "end"),
    what it does, and what it reads and writes."""

    ins: Instruction
    flow: str
    run: Any
    effects: Effects
    reads: frozenset[int]
    touched: frozenset[int]
    writes: frozenset[int]
    leader: bool = False


class Program:
    """The instructions of a code object, prepared one by one when they are first reached. ``removed``: numbers of instructions
    that are skipped, for tests that plant faults."""

    def __init__(self, instructions: Sequence[Instruction], kernel: Descriptor, removed: frozenset[int] = frozenset()) -> None:
        self.instructions, self.kernel, self.removed = instructions, kernel, removed
        self.entry = next(ins.number for ins in instructions if ins.pc == kernel.entry)
        self.leaders = {ins.target for ins in instructions if ins.target >= 0}
        self.steps: list[Step | None] = [None] * len(instructions)

    def without(self, removed: frozenset[int]) -> Program:
        """The same without these instructions; what is prepared stays prepared."""
        made = Program(self.instructions, self.kernel, removed)
        made.steps = [None if number in removed else step for number, step in enumerate(self.steps)]
        return made

    def step(self, at: int) -> Step:
        """The prepared instruction. Raises `Fault` for one that is not known or uses registers the kernel does not have."""
        step = self.steps[at]
        if step is None:
            step = self.steps[at] = self._prepare(self.instructions[at])
        return step

    def _prepare(self, ins: Instruction) -> Step:
        nothing = Effects(frozenset(), frozenset(), "scalar")
        if ins.name in _NOTHING or ins.number in self.removed:
            flow, run, found = "run", None, nothing
        else:
            found = emu_effects.effects(ins, self.kernel.wave)
            self._check_registers(found)
            flow, run = _meaning(ins, self.kernel)
        return Step(ins, flow, run, found, found.reads, found.touched, found.writes, ins.number in self.leaders)

    def _check_registers(self, found: Effects) -> None:
        kernel = self.kernel
        for register in found.touched:
            if ACC <= register < SGPR and kernel.agprs:
                limit, have = ACC + kernel.agprs, kernel.agprs
            elif register < SGPR:
                limit, have = kernel.vgprs, kernel.vgprs
            else:
                limit, have = SGPR + kernel.sgprs if register < SGPR + 100 else SGPR + 1000, kernel.sgprs
            if register >= limit:
                raise Fault(f"it uses {register_name(register)}, but the kernel descriptor gives it {have} such registers")


def _meaning(ins: Instruction, kernel: Descriptor) -> tuple[str, Any]:
    """The control flow and function of an instruction."""
    name = ins.name
    if name in CONDITIONS:
        return "branch", CONDITIONS[name]
    simple = {
        "s_branch": "jump",
        "s_endpgm": "end",
        "s_barrier": "both",
        "s_barrier_signal": "signal",
        "s_barrier_wait": "barrier",
    }.get(name)
    if simple:
        return simple, None
    waits = parse_wait(ins) if name.startswith("s_wait") else None
    if waits is not None:
        return "wait", waits
    return "run", _function(ins, kernel)


def _function(ins: Instruction, kernel: Descriptor) -> Run:
    name = ins.name
    if name == "dual":
        return _dual(ins, kernel)
    if name.startswith("s_load"):
        return scalar_load(ins)
    if name.startswith("s_"):
        return scalar(ins)
    if name.startswith(("global_", "flat_", "buffer_", "scratch_")):
        return vector_memory(ins, kernel)
    if name.startswith("ds_"):
        return lds_instruction(ins)
    if name.startswith(("v_mfma", "v_wmma")):
        return matrix(ins, kernel)
    return vector(ins)


def _dual(ins: Instruction, kernel: Descriptor) -> Run:
    """Two instructions in one: both read before either writes."""
    first, second = ins.parts
    one, two = _function(first, kernel), _function(second, kernel)
    written, read = first.operands[0].index, emu_effects.effects(second, kernel.wave).reads
    if written not in read:
        return lambda group: (one(group), two(group))[0]

    def run(group: Group) -> None:
        old = np.array(group.read_vector(written))
        one(group)
        new = np.array(group.read_vector(written))
        group.vector[written][group.select] = old
        two(group)
        group.vector[written][group.select] = new

    return run


# --- launching


def execute(
    program: Program,
    grid: Grid,
    kernargs: bytes,
    memory: AddressSpace,
    deadline: float = float("inf"),
    observe: Observer | None = None,
) -> int:
    """Run the whole grid; the number of wave instructions executed. Raises `Stopped`, and `TimeOut` at ``deadline``
    (perf_counter).

    ``observe`` is called with every instruction that does something and the group that executes it: after it, of waits before.
    """
    kernel = program.kernel
    arguments = memory.allocate(max(len(kernargs), kernel.kernargs))
    arguments.array[: len(kernargs)] = np.frombuffer(kernargs, np.uint8)
    waves = -(-grid.threads // kernel.wave)
    per_batch = max(1, BATCH_ROWS // waves)
    x, y, z = grid.blocks
    total, count = x * y * z, 0
    for start in range(0, total, per_batch):
        numbers = np.arange(start, min(start + per_batch, total))
        blocks = np.stack([numbers % x, numbers // x % y, numbers // (x * y)], axis=1)
        batch = Batch(kernel, blocks, waves, memory, Lds(len(blocks), waves, kernel.lds + grid.shared))
        _initialise(batch, grid, arguments.address)
        with np.errstate(all="ignore"):
            count += _Machine(program, batch, deadline, observe).run()
    return count


def _initialise(batch: Batch, grid: Grid, arguments: int) -> None:
    """Registers as the hardware leaves them for a kernel's first instruction."""
    kernel = batch.kernel
    if kernel.preload:
        raise Stopped("the emulator does not know preloaded kernel arguments", None, None, None, None)
    wave = np.tile(np.arange(batch.waves), len(batch.blocks))
    thread = wave[:, None] * kernel.wave + np.arange(kernel.wave)
    batch.set_vector(0, thread.astype(np.uint32))
    active = (np.minimum(grid.threads - wave * kernel.wave, kernel.wave)).astype(np.uint64)
    bits = np.where(active == 64, np.uint64(0xFFFFFFFFFFFFFFFF), (np.uint64(1) << (active & np.uint64(63))) - np.uint64(1))
    batch.set_scalar(EXEC, bits.astype(np.uint32))
    batch.set_scalar(EXEC + 1, (bits >> np.uint64(32)).astype(np.uint32))
    batch.set_scalar(SCC, 0)
    _user_registers(batch, arguments)
    register = kernel.user_sgprs
    block = np.repeat(batch.blocks.astype(np.uint32), batch.waves, axis=0)
    if kernel.generation >= 12:
        batch.set_scalar(TTMP + 9, block[:, 0])
        batch.set_scalar(TTMP + 7, block[:, 1] | block[:, 2] << np.uint32(16))
        batch.set_scalar(TTMP + 6, 0)
        return
    for axis in range(3):
        if kernel.block_axes[axis]:
            batch.set_scalar(register, block[:, axis])
            register += 1
    if kernel.scratch_offset and kernel.generation == 9:
        batch.set_scalar(register, 0)


def _user_registers(batch: Batch, arguments: int) -> None:
    register = 0
    for name, count in batch.kernel.inputs:
        if name == "kernarg_segment_ptr":
            batch.set_scalar(register, arguments & 0xFFFFFFFF)
            batch.set_scalar(register + 1, arguments >> 32)
        elif name == "private_segment_buffer":
            for i, word in enumerate((SCRATCH & 0xFFFFFFFF, SCRATCH >> 32, 0xFFFFFFFF, 0x20000)):
                batch.set_scalar(register + i, word)
        elif name in ("flat_scratch_init", "private_segment_size"):
            for i in range(count):
                batch.set_scalar(register + i, 0)
        register += count


class _Machine:
    """Runs one batch to its end."""

    def __init__(self, program: Program, batch: Batch, deadline: float, observe: Observer | None = None) -> None:
        self.program, self.batch, self.deadline, self.observe = program, batch, deadline, observe
        self.ready = [Group(batch, np.arange(batch.rows), program.entry, Pending())]
        self.waiting: list[Group] = []
        self.alive = np.ones(batch.rows, bool)
        self.count = self.turns = 0
        self.group, self.ins = self.ready[0], program.instructions[program.entry]

    def run(self) -> int:
        """Execute until every wave has ended; the number of wave instructions."""
        try:
            while self.ready or self.waiting:
                if not self.ready:
                    self._release()
                group = self._next()
                self._advance(group)
        except Fault as fault:
            raise self._stopped(fault) from None
        return self.count

    def _stopped(self, fault: Fault) -> Stopped:
        group = self.group
        row = group.rows[fault.row if fault.row is not None else 0]
        block, wave = self.batch.place(row)
        return Stopped(fault.reason, self.ins, block, wave, fault.lane)

    def _next(self) -> Group:
        """The group furthest behind, joined by those it can go on with."""
        group = min(self.ready, key=lambda one: one.at)
        self.ready.remove(group)
        if self.ready:
            signature = group.pending.signature()
            for other in [one for one in self.ready if one.at == group.at and one.pending.signature() == signature]:
                self.ready.remove(other)
                group.pending.merge(other.pending)
                group = Group(self.batch, np.sort(np.concatenate([group.rows, other.rows])), group.at, group.pending)
        return group

    def _advance(self, group: Group) -> None:
        """Run a group until it splits, waits, ends, or comes to a place where it may meet another."""
        self.group = group
        steps, program, pending, dirty = self.program.steps, self.program, group.pending, self.batch.dirty
        rows = len(group.rows)
        first = True
        while True:
            step = steps[group.at]
            if step is None:
                self.ins = program.instructions[group.at]
                step = program.step(group.at)
            if step.leader and not first and self.ready:
                self.ready.append(group)
                return
            first = False
            self.ins = step.ins
            self.count += rows
            if pending.busy and not pending.busy.keys().isdisjoint(step.touched):
                pending.check(step.ins, step.touched, step.reads)
            flow = step.flow
            if flow == "run":
                if step.run is not None:
                    self._execute(step, group, dirty)
                if self.observe is not None and step.ins.number not in program.removed:
                    self.observe(step.ins, group)
                group.at += 1
            elif flow == "wait":
                if self.observe is not None:
                    self.observe(step.ins, group)
                for counter, left in step.run:
                    pending.wait(group, counter, left)
                group.at += 1
            elif not self._control(step, group, flow):
                return
            self._clock()

    @staticmethod
    def _execute(step: Step, group: Group, dirty: set[int]) -> None:
        if dirty.isdisjoint(step.touched):
            step.run(group)
            return
        found = None if dirty.isdisjoint(step.reads) else emu_effects.find_poison(group, step.ins, step.effects)
        step.run(group)
        if step.effects.kind != "lds" and (found is not None or not dirty.isdisjoint(step.writes)):
            emu_effects.apply_poison(group, step.effects, found)

    def _clock(self) -> None:
        self.turns += 1
        if self.turns % _CHECK_CLOCK == 0 and time.perf_counter() > self.deadline:
            raise TimeOut

    def _control(self, step: Step, group: Group, flow: str) -> bool:
        """Branches, barriers and ends; whether the group goes on at once."""
        if flow == "jump":
            group.at = step.ins.target
            return True
        if flow == "branch":
            return self._branch(step, group)
        if flow == "end":
            self.alive[group.rows] = False
            return False
        if flow in ("signal", "both"):
            self._signal(group)
        group.at += 1
        if flow == "signal":
            return True
        self.waiting.append(group)
        return False

    def _branch(self, step: Step, group: Group) -> bool:
        if not group.batch.dirty.isdisjoint(step.reads):
            emu_effects.find_poison(group, step.ins, step.effects)
        taken = step.run(group)
        if taken.all():
            group.at = step.ins.target
        elif not taken.any():
            group.at += 1
        else:
            other = group.split(taken)
            other.at = step.ins.target
            group.at += 1
            self.ready += [group, other]
            return False
        return True

    def _signal(self, group: Group) -> None:
        """Arrive at the barrier: later operations come after it, and so do those still in flight."""
        twice = self.batch.lds.arrived[group.rows]
        if twice.any():
            raise Fault("it arrives at a barrier twice without waiting for it", int(np.argmax(twice)))
        self.batch.lds.arrive(group, group.pending.lds())

    def _release(self) -> None:
        """Let the blocks go on whose waves have all arrived."""
        lds, waves = self.batch.lds, self.batch.waves
        here = np.zeros(self.batch.rows, bool)
        for group in self.waiting:
            here[group.rows] = True
        free = np.repeat((lds.arrived & here | ~self.alive).reshape(-1, waves).all(axis=1), waves)
        if not (free & here).any():
            self._deadlock()
        still = []
        for group in self.waiting:
            go = free[group.rows]
            moving = group if go.all() else group.split(go) if go.any() else None
            if moving is not group:
                still.append(group)
            if moving is not None:
                self.ready.append(moving)
        self.waiting = still
        lds.release(np.flatnonzero(free & here))

    def _deadlock(self) -> None:
        group = self.waiting[0]
        self.group, self.ins = group, self.program.instructions[group.at - 1]
        raise Fault("it waits at a barrier that other waves of its block never reach")
