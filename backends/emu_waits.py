"""Operations in flight: which counters they hold, which registers they will write, and what a wait completes.

The hardware returns results out of the program's sight; only the counters tell. Until an operation's counter has been waited
for, its destination registers must not be touched, and what it does to LDS is not ordered by a barrier.

Counter rules: LLVM, "User Guide for AMDGPU Backend", memory models of gfx90a to gfx12; scalar loads complete in any order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .emu_decode import Fault, Instruction

if TYPE_CHECKING:
    from .emu_state import Array, Group

__all__ = ["Event", "LdsAccess", "Pending", "counters_of", "parse_wait"]

_COUNTERS = {
    9: {"load": ("vm",), "store": ("vm",), "lds": ("lgkm",), "scalar": ("lgkm",), "flat": ("vm", "lgkm")},
    11: {"load": ("vm",), "store": ("vs",), "lds": ("lgkm",), "scalar": ("lgkm",), "flat": ("vm", "lgkm")},
    12: {"load": ("load",), "store": ("store",), "lds": ("ds",), "scalar": ("km",), "flat": ("load", "ds"), "async": ("async",)},
}
_UNORDERED = ("scalar", "flat")
_IGNORED = ("exp", "sample", "bvh", "x", "tensor")  # nothing here uses them; x is for address translation only


def counters_of(generation: int, kind: str) -> tuple[str, ...]:
    """The counters an operation of this kind increments."""
    return _COUNTERS[generation][kind]


def parse_wait(ins: Instruction) -> tuple[tuple[str, int], ...] | None:
    """(counter, number left in flight) of a wait instruction; None if it is not one."""
    if ins.name == "s_waitcnt":
        return tuple((name, int(number)) for name, number in re.findall(r"(\w+?)cnt\((\d+)\)", ins.text))
    if ins.name == "s_wait_idle":
        return tuple((name, 0) for name in ("load", "store", "ds", "km", "async"))
    if ins.name == "s_waitcnt_vscnt":
        return (("vs", ins.operands[1].index),)
    match = re.fullmatch(r"s_wait_(\w+?)cnt(_dscnt)?", ins.name)
    if not match:
        return None
    number = ins.operands[0].index
    if match[2]:  # s_wait_loadcnt_dscnt: two counts in one number
        return ((match[1], number >> 8 & 63), ("ds", number & 63))
    return () if match[1] in _IGNORED else ((match[1], number),)


@dataclass(frozen=True)
class LdsAccess:
    """Where an operation in flight touches LDS: ``index`` (rows, lanes, ...) numbers units of ``unit`` half words, ``mask``
    (rows, lanes) says which lanes (None: all). ``write`` or read; ``copied`` by a load that bypasses registers, so that nobody
    may touch it before."""

    unit: int
    index: Array
    rows: Array
    mask: Array | None
    write: bool
    copied: bool = False

    def of(self, rows: Any) -> Array:
        """The units that some of the rows touch."""
        return self.index[rows] if self.mask is None else self.index[rows][self.mask[rows]]

    def only(self, rows: Array) -> LdsAccess:
        """The part of some of the rows."""
        return LdsAccess(
            self.unit, self.index[rows], self.rows[rows], None if self.mask is None else self.mask[rows], self.write, self.copied
        )

    def within(self, group: Group) -> LdsAccess:
        """The part of a group's rows."""
        return self if group.all else self.only(np.isin(self.rows, group.rows))


@dataclass
class Event:
    """One operation in flight: its instruction, kind, destination registers, and LDS accesses."""

    ins: Instruction
    kind: str
    registers: frozenset[int] = frozenset()
    lds: list[LdsAccess] = field(default_factory=list)


class Pending:
    """What the waves of a group have in flight: per counter the events, oldest first; and the registers that wait for one."""

    def __init__(self) -> None:
        self.queues: dict[str, list[Event]] = {}
        self.busy: dict[int, Event] = {}

    def copy(self) -> Pending:
        """The same for waves that go another way."""
        other = Pending()
        other.queues = {name: list(events) for name, events in self.queues.items()}
        other.busy = dict(self.busy)
        return other

    def add(self, event: Event, generation: int) -> None:
        """An operation has been issued."""
        for counter in counters_of(generation, event.kind):
            self.queues.setdefault(counter, []).append(event)
        self.busy.update(dict.fromkeys(event.registers, event))

    def check(self, ins: Instruction, touched: frozenset[int], reads: frozenset[int]) -> None:
        """Fault if an instruction touches a register that is still waiting for its value."""
        for register in touched:
            event = self.busy.get(register)
            if event is None or (register not in reads and _same_order(event, ins)):
                continue
            verb = "reads" if register in reads else "overwrites"
            raise Fault(f"it {verb} {register_name(register)}, which {event.ins} has not delivered: a wait is missing")

    def wait(self, group: Group, counter: str, left: int) -> None:
        """Complete what a wait guarantees: of operations that complete in order the oldest, of the others all when none is
        left."""
        queue = self.queues.get(counter)
        if not queue:
            return
        ordered = [event for event in queue if event.kind not in _UNORDERED]
        done = ordered[: max(0, len(ordered) - left)]
        if left == 0:
            done = list(queue)
        for event in done:
            queue.remove(event)
            self._complete(group, event)

    def _complete(self, group: Group, event: Event) -> None:
        if any(event is other for queue in self.queues.values() for other in queue):
            return  # flat operations hold two counters
        for register in event.registers:
            if self.busy.get(register) is event:
                del self.busy[register]
        group.batch.lds.complete(group, event.lds)

    def lds(self) -> list[LdsAccess]:
        """Every LDS access in flight."""
        return [access for queue in self.queues.values() for event in queue for access in event.lds]

    def signature(self) -> tuple[tuple[str, int], ...]:
        """Equal for groups that may go on as one."""
        return tuple((name, event.ins.number) for name, events in sorted(self.queues.items()) for event in events)

    def merge(self, other: Pending) -> None:
        """Take over the LDS accesses of a group with the same signature."""
        merged: dict[int, Event] = {}
        for name, events in self.queues.items():
            for i, (mine, theirs) in enumerate(zip(events, other.queues.get(name, ()), strict=True)):
                if mine is not theirs:
                    both = Event(
                        mine.ins,
                        mine.kind,
                        mine.registers,
                        mine.lds + [a for a in theirs.lds if not any(a is b for b in mine.lds)],
                    )
                    events[i] = merged.setdefault(id(mine), both)
        self.busy = {register: merged.get(id(event), event) for register, event in self.busy.items()}


def _same_order(event: Event, ins: Instruction) -> bool:
    """Whether the instruction's result arrives after the event's in any case: two loads of a kind that completes in order."""
    return (
        event.kind == "load"
        and "load" in ins.name
        and ins.name.startswith(("global", "buffer"))
        or event.kind == "lds"
        and ins.name.startswith("ds_")
    )


def register_name(register: int) -> str:
    """As it is spelt in assembly."""
    from .emu_decode import EXEC, M0, SCC, SGPR, VCC
    from .emu_elf import ACC

    if register < SGPR:
        return f"v{register}" if register < ACC else f"a{register - ACC}"
    special = {VCC: "vcc_lo", VCC + 1: "vcc_hi", EXEC: "exec_lo", EXEC + 1: "exec_hi", M0: "m0", SCC: "scc"}
    return special.get(register - SGPR, f"s{register - SGPR}")
