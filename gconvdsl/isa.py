"""AMD assembly as blocks and loops: what the static figures of `loop_report` are counted from.

The text is the compiler's (clang -S). A loop is a set of blocks that reach each other; of nested ones the innermost is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Block", "Op", "kernel_blocks", "main_loop"]

_LABEL = re.compile(r"(\.LBB\w+):")
_ENDS = ("s_branch", "s_endpgm", "s_setpc_b64", "s_trap")
_WIDTHS = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4, "b128": 16, "b96": 12, "b64": 8, "b32": 4, "b16": 2, "b8": 1,
           "ushort": 2, "short": 2, "sshort": 2, "ubyte": 1, "sbyte": 1, "byte": 1, "u16": 2, "i16": 2, "u8": 1,
           "i8": 1, "f32": 4, "f64": 8}
_GLOBAL = ("buffer_", "global_", "flat_")
_KINDS = (("matrix", ("v_mfma", "v_smfmac", "v_wmma", "v_swmmac")), ("barrier", ("s_barrier",)),
          ("wait", ("s_wait", "s_nop", "s_delay", "s_sleep")), ("priority", ("s_setprio",)),
          ("branch", ("s_cbranch", "s_branch")), ("lds", ("ds_",)), ("scratch", ("scratch_",)),
          ("global", _GLOBAL), ("valu", ("v_",)), ("salu", ("s_",)))


@dataclass(frozen=True)
class Op:
    """One instruction: its name and its operands as text."""

    name: str
    operands: str = ""

    @property
    def kind(self) -> str:
        """matrix, valu, salu, lds, global (memory), scratch, wait, barrier, priority or branch.

        RDNA4 splits a barrier into a signal and a wait, of which the wait counts.
        """
        if self.name.startswith("s_barrier_signal"):
            return "salu"
        if self.name.startswith("s_barrier_wait"):
            return "barrier"
        return next((kind for kind, starts in _KINDS if self.name.startswith(starts)), "other")

    @property
    def direct(self) -> bool:
        """Whether it is a load from memory that goes to LDS without registers."""
        return self.kind == "global" and ("_lds_" in self.name or re.search(r"\blds\b", self.operands) is not None)

    @property
    def is_load(self) -> bool:
        """Whether it reads: LDS and memory instructions do one or the other."""
        return "_load" in self.name or "_read" in self.name

    @property
    def bytes(self) -> int:
        """Bytes that one lane moves from or to LDS or memory; 0 for other instructions."""
        if self.kind not in ("lds", "global", "scratch"):
            return 0
        width = next((_WIDTHS[part] for part in reversed(self.name.split("_")) if part in _WIDTHS), 0)
        doubled = re.search(r"(read|write|load|store)_?2", self.name) is not None or "_2addr" in self.name
        return 2 * width if doubled else width


@dataclass(frozen=True)
class Block:
    """Instructions without a jump among them, and the numbers of the blocks that may follow."""

    ops: tuple[Op, ...]
    successors: tuple[int, ...]


def kernel_blocks(assembly: str, kernel: str) -> list[Block]:
    """The blocks of a kernel in the order of the text; empty where the text has no such kernel."""
    labels: dict[str, int] = {}
    blocks: list[list[Op]] = []
    for line in _body(assembly, kernel):
        label = _LABEL.match(line)
        if label or not blocks or (blocks[-1] and blocks[-1][-1].kind == "branch"):
            blocks.append([])
        if label:
            labels[label[1]] = len(blocks) - 1
        elif re.match(r"\s+[a-z]\w+", line):
            name, _, operands = line.partition(";")[0].strip().partition(" ")
            blocks[-1].append(Op(name, operands.strip()))
    return [Block(tuple(ops), _successors(i, ops, labels, len(blocks))) for i, ops in enumerate(blocks)]


def _body(assembly: str, kernel: str) -> list[str]:
    lines = [line.replace("\t", " ") for line in assembly.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.startswith(f"{kernel}:")), len(lines))
    end = next((i for i in range(start, len(lines)) if lines[i].startswith((".Lfunc_end", " .section"))), len(lines))
    return [line for line in lines[start + 1:end] if line.strip() and not line.strip().startswith((";", ".p2align"))]


def _successors(index: int, ops: Sequence[Op], labels: dict[str, int], count: int) -> tuple[int, ...]:
    last = ops[-1] if ops else Op("")
    jumps = [labels[last.operands]] if last.kind == "branch" and last.operands in labels else []
    falls = [index + 1] if not last.name.startswith(_ENDS) and index + 1 < count else []
    return tuple(dict.fromkeys(jumps + falls))


def main_loop(blocks: Sequence[Block]) -> list[Block]:
    """The innermost loop with the most matrix instructions, or without any the most fused multiply-adds; else nothing."""
    found: list[int] = []
    inside: Iterable[int] = range(len(blocks))
    while True:
        loops = [loop for loop in _loops(blocks, set(inside)) if _products(blocks, loop)]
        if not loops:
            return [blocks[i] for i in sorted(found)]
        found = max(loops, key=lambda loop: _products(blocks, loop))
        entries = {i for i in found if any(i in blocks[j].successors for j in inside if j not in found)} or {min(found)}
        inside = [i for i in found if i not in entries]


def _products(blocks: Sequence[Block], loop: Iterable[int]) -> tuple[int, int]:
    ops = [op for i in loop for op in blocks[i].ops]
    count = sum(op.kind == "matrix" for op in ops), sum(op.name.startswith(("v_fma", "v_dual_fma")) for op in ops)
    return count if any(count) else ()  # type: ignore[return-value]


def _loops(blocks: Sequence[Block], inside: set[int]) -> list[list[int]]:
    """The strongly connected parts among these blocks that hold a cycle (Tarjan's algorithm, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    parts: list[list[int]] = []
    for root in sorted(inside):
        work = [(root, iter(blocks[root].successors))] if root not in number else []
        while work:
            node, following = work[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                stack.append(node)
            for other in following:
                if other not in inside:
                    continue
                if other not in number:
                    work.append((other, iter(blocks[other].successors)))
                    break
                if other in stack:
                    low[node] = min(low[node], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    cut = stack.index(node)
                    parts.append(stack[cut:])
                    del stack[cut:]
    return [part for part in parts if len(part) > 1 or part[0] in blocks[part[0]].successors]
