"""Leaves out every wait and barrier of real kernels in turn: the emulator must report it, unless it is shown to be redundant.

    python tests/backends/emu_mutations.py --arch gfx942 --json scores.jsonl [--only compv4] [--seconds 400]

goes through `kernels`, a line of text and one of JSON for each; run again, it goes on where it stopped. ``--score`` sums up.

Redundant are, within straight-line code: a wait behind one that is as strict with nothing issued in between; a wait before one
that is as strict, where the instructions in between did not need it; one of two barriers with no memory access in between; and on
all paths: a barrier before the first or after the last access to LDS, the only memory that waves share; a wait for stores after
the last load from global memory.
Redundant on the paths taken is a wait that finds nothing in flight, or whose operations other waits complete before their use:
compilers wait for paths that are not taken, and for copies to another LDS buffer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable

import numpy as np

from emu_harness import Prepared, prepare
from gconvdsl.backends.emu_decode import Instruction
from gconvdsl.backends.emu_state import Group
from gconvdsl.backends.emu_waits import counters_of, parse_wait
from gconvdsl.config import Tile
from gconvdsl.errors import LaunchError
from gconvdsl.pipelines import PIPELINES
from gconvdsl.problem import DIRECTIONS, ConvProblem

LOADS = ("global_load", "buffer_load", "flat_load", "scratch_load", "s_load")
ACCESSES = ("ds_", "buffer_", "global_", "flat_", "scratch_", "s_load")


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


def touches_lds(ins: Instruction) -> bool:
    return ins.name.startswith("ds_") or "lds" in ins.modifiers or "_lds_" in ins.name


def paths(code: list[Instruction], start: Instruction, forward: bool) -> list[Instruction]:
    """The instructions that paths from an instruction, or to it, pass through."""
    edges: dict[int, list[int]] = {}
    for ins in code:
        follows = [] if ins.name.startswith(("s_branch", "s_endpgm")) else [ins.number + 1]
        for after in [*follows, *([ins.target] if ins.target >= 0 else [])]:
            one, other = (ins.number, after) if forward else (after, ins.number)
            edges.setdefault(one, []).append(other)
    found: set[int] = set()
    ahead = edges.get(start.number, [])
    while ahead:
        fresh = {number for number in ahead if number < len(code)} - found
        found |= fresh
        ahead = [number for one in fresh for number in edges.get(one, [])]
    return [code[number] for number in found]


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
        if not any(map(touches_lds, paths(code, ins, forward=True))):
            return "no path leads from it to an access to LDS"
        return "" if any(map(touches_lds, paths(code, ins, forward=False))) else "no path leads from an access to LDS to it"
    wait = parse_wait(ins) or ()
    alone = {counter for counter, _ in wait} <= set(counters_of(generation, "store")) - set(counters_of(generation, "load"))
    if alone and not any(one.name.startswith(LOADS) for one in paths(code, ins, forward=True)):
        return "it waits for stores alone, and no path leads from it to a load from global memory"
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


@dataclass(frozen=True)
class Score:
    """What came of leaving out each wait and barrier of a kernel. ``redundant`` and ``open``: (instruction, reason)."""

    kernel: str
    left_out: int
    reported: int
    redundant: list[tuple[str, str]]
    open: list[str]


def score(kernel: str, prepared: Prepared) -> Score:
    """Leave out all of them."""
    prepared.run()
    chosen = candidates(prepared)
    found = survivors(prepared, chosen)
    return Score(kernel, len(chosen), len(chosen) - len(found), [(str(ins), reason) for ins, reason in found if reason],
                 [str(ins) for ins, reason in found if not reason])


# --- the kernels

def kernels(arch: str) -> dict[str, tuple[str, str, str]]:
    """Name -> (direction, pipeline, scheduler or what it is): every pipeline with every scheduler, and what is beside them."""
    direct = not arch.startswith("gfx1")        # RDNA has no loads that bypass registers
    rows = {f"{row.name} {scheduler} {direction}": (direction, row.name, scheduler) for row in PIPELINES.values()
            for scheduler in row.schedulers for direction in DIRECTIONS if direct or not row.needs_direct_to_lds}
    rows.update({f"{family} {direction}": (direction, "", family) for family, served in FAMILIES.items() for direction in served})
    return rows


FAMILIES = {"depthwise": DIRECTIONS, "direct": ("bwd_weight",), "window": ("forward", "bwd_data"), "cshuffle": DIRECTIONS,
            "splits": DIRECTIONS}
"""Not pipelines: the families beside implicit GEMM, staging by windows, the other epilogue, split reductions."""


def prepared_for(arch: str, direction: str, pipeline: str, what: str, dtype: str = "bf16") -> Prepared:
    """A kernel of `kernels` with data; blocks of four waves, five K-steps or more."""
    tile = Tile((64, 32, 32), (2, 2, 1), (16, 16, 16))
    if what == "depthwise":
        problem = ConvProblem(N=1, G=24, C=24, K=24, input=(13, 14), filter=(3, 3), pad=1, dtype=dtype, direction=direction)
        return prepare(problem, arch, ())
    if what == "direct":
        problem = ConvProblem(N=8, G=4, C=64, K=64, input=(8, 8), filter=(3, 3), pad=1, dtype=dtype, direction=direction)
        return prepare(problem, arch, ())
    if what == "window":
        problem = ConvProblem(N=1, G=2, C=160, K=160, input=(7, 9), filter=(3, 3), pad=1, dtype=dtype, direction=direction)
        return prepare(problem, arch, "basic_v1", Tile((64, 16, 144), (2, 2, 1), (16, 16, 16)), num_groups_to_merge=2)
    pipeline = pipeline or "compv3"
    wide = 256 if PIPELINES[pipeline].deepens else 64  # it unrolls its loop by as many steps as are in flight
    C, K = (64, wide) if direction == "bwd_data" else (wide, 80)
    images = 6 if direction == "bwd_weight" else 1  # its reduction is over the images: 17 K-steps
    problem = ConvProblem(N=images, G=2, C=C, K=K, input=(9, 10), filter=(3, 3), pad=1, dtype=dtype, direction=direction)
    beside: dict[str, dict[str, Any]] = {"cshuffle": {"epilogue": "cshuffle"}, "splits": {"split_k": 2}}
    options = beside.get(what, {"scheduler": what, "split_k": 1})
    return prepare(problem, arch, pipeline, tile, **{**PIPELINES[pipeline].implied_options, **options})


# --- the command

def _summed(rows: list[dict[str, Any]]) -> str:
    left_out, reported, redundant, open_ones = (sum(row[name] if isinstance(row[name], int) else len(row[name]) for row in rows)
                                                for name in ("left_out", "reported", "redundant", "open"))
    needed = reported + open_ones
    return (f"{len(rows)} kernels: {left_out} left out, {reported} reported, {redundant} redundant, {open_ones} open: "
            f"{100 * reported / max(needed, 1):.2f} % of those not shown to be redundant")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--arch", default="gfx942")
    parser.add_argument("--json", required=True, metavar="FILE", help="kernels that are in it are not run again")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of CPU time, after which no further kernel is begun")
    parser.add_argument("--score", action="store_true", help="only sum up")
    options = parser.parse_args()
    path = Path(options.json)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for name, kernel in ({} if options.score else kernels(options.arch)).items():
        title = f"{options.arch} {name}"
        if options.only not in name or any(row["kernel"] == title for row in rows):
            continue
        if time.process_time() > options.seconds:
            break
        rows.append(score(title, prepared_for(options.arch, *kernel)).__dict__)
        with path.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(_summed(rows[-1:]).replace("1 kernels", title), flush=True)
    print(_summed(rows))
    return 1 if any(row["open"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
