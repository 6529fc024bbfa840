"""Every wait and barrier of real kernels is left out in turn: the emulator must report it, unless it is shown to be redundant.

Redundant are, within straight-line code: a wait behind one that is as strict with nothing issued in between; a wait before one
that is as strict, where the instructions in between did not need it; one of two barriers with no memory access in between.
Redundant on the paths taken is a wait that finds nothing in flight, or whose operations other waits complete before their use:
compilers wait for paths that are not taken, and for copies to another LDS buffer.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable

import numpy as np
import pytest

from emu_harness import Prepared, prepare
from gconvdsl.backends.emu_decode import Instruction
from gconvdsl.backends.emu_state import Group
from gconvdsl.backends.emu_waits import counters_of, parse_wait
from gconvdsl.config import Tile
from gconvdsl.errors import LaunchError
from gconvdsl.problem import ConvProblem

ACCESSES = ("ds_", "buffer_", "global_", "flat_", "scratch_", "s_load")


@pytest.fixture(autouse=True)
def tools(require_tool: Callable[..., Any]) -> None:
    require_tool("clang", "gfx942")
    require_tool("objdump")


def is_barrier(ins: Instruction) -> bool:
    return ins.name.startswith("s_barrier")


def candidates(prepared: Prepared) -> list[Instruction]:
    """Waits that wait for something and barriers that the kernel reaches."""
    return [ins for ins in prepared.reached() if is_barrier(ins) or (ins.name.startswith("s_wait") and parse_wait(ins))]


def counters(ins: Instruction, generation: int) -> tuple[str, ...]:
    """The counters that an instruction increments."""
    if not ins.name.startswith(ACCESSES) or ins.name.endswith("_inv"):
        return ()
    kind = (
        "lds"
        if ins.name.startswith("ds_")
        else "scalar"
        if ins.name.startswith("s_load")
        else "store"
        if "_store" in ins.name
        else "load"
    )
    return counters_of(generation, kind)


def straight(instructions: Iterable[Instruction], leaders: set[int], backward: bool) -> Iterable[Instruction]:
    """Up to the next branch or branch target."""
    for ins in instructions:
        if not backward and ins.number in leaders or ins.name.startswith(("s_cbranch", "s_branch", "s_endpgm")):
            return
        yield ins
        if backward and ins.number in leaders:
            return


def as_strict(ins: Instruction, wait: tuple[tuple[str, int], ...]) -> bool:
    given = dict(parse_wait(ins) or ()) if ins.name.startswith("s_wait") else {}
    return all(given.get(counter, 64) <= left for counter, left in wait)


def why_redundant(code: list[Instruction], ins: Instruction, generation: int) -> str:
    """The reason, or nothing."""
    leaders = {one.target for one in code if one.target >= 0}
    before = straight(reversed(code[: ins.number]), leaders, True) if ins.number not in leaders else ()
    after = straight(code[ins.number + 1 :], leaders, False)
    if is_barrier(ins):
        for side in (before, after):
            for one in side:
                if is_barrier(one) and one.name == ins.name:
                    return f"another barrier, {one}, with no access in between"
                if one.name.startswith(ACCESSES) and not one.name.endswith("_inv"):
                    break
        return ""
    wait = parse_wait(ins) or ()
    for one in before:
        if as_strict(one, wait):
            return f"nothing issued since {one}"
        if set(counters(one, generation)) & {counter for counter, _ in wait}:
            break
    for one in after:
        if as_strict(one, wait):
            return f"{one} follows"
        if is_barrier(one):
            break
    return ""


class Completions:
    """Which operations (by the number of their instruction) each wait of a run completes."""

    def __init__(self) -> None:
        self.of: dict[int, set[int]] = {}

    def __call__(self, ins: Instruction, group: Group) -> None:
        for counter, left in (parse_wait(ins) or ()) if ins.name.startswith("s_wait") else ():
            queue = group.pending.queues.get(counter, [])
            done = queue[: len(queue) - left] if len(queue) > left else []
            self.of.setdefault(ins.number, set()).update(event.ins.number for event in done)


def survivors(prepared: Prepared, chosen: list[Instruction]) -> list[tuple[Instruction, str]]:
    """The instructions that may be left out unnoticed, with the reason. A wrong result without a report is an error."""
    full = Completions()
    expected = prepared.run(observe=full)
    generation = next(iter(prepared.module.code.kernels.values())).generation
    found = []
    for ins in chosen:
        without = Completions()
        try:
            result = prepared.run(frozenset([ins.number]), without)
        except LaunchError:
            continue
        assert np.array_equal(result, expected), f"a wrong result without {ins}, and no report"
        reason = why_redundant(list(prepared.module.instructions), ins, generation)
        found.append((ins, reason if reason or is_barrier(ins) else why_unneeded(ins, full, without, prepared)))
    return found


def why_unneeded(ins: Instruction, full: Completions, without: Completions, prepared: Prepared) -> str:
    """Of a wait: on the paths taken nothing was in flight, or other waits complete the same operations before their use."""
    waited_for = full.of.get(ins.number, set())
    if not waited_for:
        return "nothing was in flight"
    others = {number for number, done in without.of.items() if done & waited_for and number != ins.number}
    if waited_for <= set().union(*(without.of[number] for number in others)):
        return "in time come also " + ", ".join(f"{prepared.module.instructions[number].pc:#x}" for number in sorted(others))
    return ""


def convolution(arch: str, direction: str, dtype: str, pipeline: str) -> Prepared:
    """Blocks of four waves, five K-steps or more."""
    wide = 256 if pipeline == "mem" else 64  # mem unrolls its loop by as many steps as are in flight
    C, K = (64, wide) if direction == "bwd_data" else (wide, 80)
    problem = ConvProblem(N=1, G=2, C=C, K=K, input=(9, 10), filter=(3, 3), pad=1, dtype=dtype, direction=direction)
    options: dict[str, Any] = {
        "compv4": {"double_smem_buffer": True},
        "comp_async": {"double_smem_buffer": True},
        "compv5": {"num_wave_groups": 2},
    }.get(pipeline, {})
    prepared = prepare(problem, arch, pipeline, Tile((64, 32, 32), (2, 2, 1), (16, 16, 16)), **options)
    prepared.run()
    return prepared


@pytest.mark.parametrize("arch, direction, pipeline", [("gfx942", "forward", "basic_v1"), ("gfx1201", "bwd_data", "basic_v1")])
def test_some_waits_and_barriers(arch: str, direction: str, pipeline: str) -> None:
    prepared = convolution(arch, direction, "fp16", pipeline)
    chosen = candidates(prepared)[::7]
    assert len(chosen) >= 5
    assert not [str(ins) for ins, reason in survivors(prepared, chosen) if not reason]


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_all_waits_and_barriers(arch: str) -> None:
    """At least 95 % of those not shown to be redundant; each survivor is listed with its reason."""
    needed = unexplained = 0
    for pipeline in ("basic_v1", "mem", "compv4", "compv5", "comp_async"):
        for direction in ("forward", "bwd_data", "bwd_weight"):
            if pipeline == "comp_async" and arch.startswith("gfx1"):
                continue  # RDNA has no loads that bypass registers
            prepared = convolution(arch, direction, "bf16", pipeline)
            chosen = candidates(prepared)
            found = survivors(prepared, chosen)
            open_ones = [ins for ins, reason in found if not reason]
            print(
                f"{arch} {direction} {pipeline}: {len(chosen)} left out, {len(chosen) - len(found)} reported, "
                f"{len(found) - len(open_ones)} redundant, {len(open_ones)} open",
                *(f"  {ins}: {reason or 'OPEN'}" for ins, reason in found),
                sep="\n",
                flush=True,
            )
            needed += len(chosen) - len(found) + len(open_ones)
            unexplained += len(open_ones)
    assert unexplained <= 0.05 * needed
