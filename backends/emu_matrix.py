"""Matrix instructions, by the published lane layouts.

An operand's element e of a lane holds row lane % M and k = e % c + c (lane // M) + c G (e // c), with G lanes a row and c
elements that lie together. Sources: AMD Matrix Instruction Calculator (CDNA1 to CDNA3, RDNA3, RDNA4); gfx950 continues CDNA's
rule; gfx1250 as AMD's Composable Kernel has it. tests/backends/test_emu_matrix.py pins them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Callable

import numpy as np

from .emu_decode import Fault, Instruction, Operand
from .emu_elf import Descriptor
from .emu_state import Array, Group, to_bits, to_lanes

__all__ = ["Layout", "layout_of", "matrix", "matrix_poison"]

u16, u32, f32 = np.uint16, np.uint32, np.float32

_MFMA = re.compile(r"v_mfma_f32_(16|32)x(16|32)x(\d+)_?(f16|bf16|f32)(?:_1k)?")
_WMMA = re.compile(r"v_wmma_f32_16x16x(\d+)_(f16|bf16|f32)")
_IGNORED = ("matrix_a_reuse", "matrix_b_reuse")


@dataclass(frozen=True)
class Layout:
    """One instruction: sizes, input type, and where elements lie. ``a`` and ``b`` (M, K) and (N, K): place in (lane *
    elements); ``row`` and ``column`` (lane, register) of the result; ``replicated``: both half waves hold the same operands
    (RDNA3)."""

    m: int
    n: int
    k: int
    dtype: str
    elements: int
    a: Array
    b: Array
    row: Array
    column: Array
    replicated: bool = False

    @property
    def words(self) -> int:
        """Registers of an input operand."""
        return self.elements if self.dtype == "f32" else self.elements // 2


def layout_of(name: str, arch: str) -> Layout | None:
    """The layout of a matrix instruction on an arch; None if the emulator does not know it."""
    match = _MFMA.fullmatch(name)
    if match:
        return _mfma(int(match[1]), int(match[3]), match[4])
    match = _WMMA.fullmatch(name)
    return _wmma(int(match[1]), match[2], arch) if match else None


@cache
def _mfma(size: int, depth: int, dtype: str) -> Layout | None:
    lanes_per_row = 64 // size
    elements = depth // lanes_per_row
    if elements < 1 or (dtype != "f32" and elements < 2):
        return None  # several small matrices in one instruction
    lane, e = np.indices((64, size * size // 64))
    row = 4 * (lane // 16) + e if size == 16 else 8 * (e // 4) + 4 * (lane // 32) + e % 4
    place = _places(size, depth, elements, elements)
    return Layout(size, size, depth, dtype, elements, place, place, row, lane % size)


@cache
def _wmma(depth: int, dtype: str, arch: str) -> Layout:
    lane, e = np.indices((32, 8))
    if arch.startswith("gfx11"):
        place = _places(16, depth, depth, depth)
        return Layout(16, 16, depth, dtype, depth, place, place, 2 * e + lane // 16, lane % 16, replicated=True)
    together = 4 if arch.startswith("gfx120") else 2 if dtype == "f32" else 8
    place = _places(16, depth, depth // 2, together)
    return Layout(16, 16, depth, dtype, depth // 2, place, place, 8 * (lane // 16) + e, lane % 16)


def _places(rows: int, depth: int, elements: int, together: int) -> Array:
    """(rows, depth): lane * elements + element of each entry, for ``together`` elements of neighbouring k in a lane."""
    row, k = np.indices((rows, depth))
    half = k // together
    lanes = max(depth // elements, 1)
    lane = row + rows * (half % lanes)
    element = k % together + together * (half // lanes)
    return lane * elements + element


def matrix(ins: Instruction, kernel: Descriptor) -> Callable[[Group], None]:
    """D = A B + C for every row; the execution mask is ignored. Products are exact, sums are float32 in no particular order."""
    layout = layout_of(ins.name, kernel.arch)
    if layout is None or set(ins.modifiers) - set(_IGNORED):
        raise Fault("the emulator does not know this instruction")
    target, a, b, c = ins.operands[:4]
    registers = layout.row.shape[1]
    back = (layout.row * layout.n + layout.column).reshape(-1)

    def run(group: Group) -> None:
        left = _elements(group, a, layout)[:, layout.a]
        right = _elements(group, b, layout)[:, layout.b]
        product = np.matmul(left, right.transpose(0, 2, 1)).reshape(len(left), -1)
        product = product[:, back].reshape(len(left), group.lanes, registers)
        plus: Any
        if c.kind == "v":
            plus = group.vector[c.index : c.index + registers][:, group.select].view(f32)
        else:
            plus = u32(c.index & 0xFFFFFFFF).view(f32)
        total = product.transpose(2, 0, 1) + plus  # complete before the first write: C and D may overlap
        group.vector[target.index : target.index + registers][:, group.select] = total.view(u32)

    return run


def _elements(group: Group, operand: Operand, layout: Layout) -> Array:
    """(rows, lanes * elements) float32."""
    words = group.vector[operand.index : operand.index + layout.words][:, group.select]
    words = np.ascontiguousarray(words.transpose(1, 2, 0))
    if layout.replicated and not (words[:, :16] == words[:, 16:]).all():
        row, lane = map(int, np.argwhere((words[:, :16] != words[:, 16:]).any(axis=2))[0])
        raise Fault("its operand differs between the half waves, which RDNA3 does not allow", row, lane + 16)
    if layout.dtype == "f32":
        return words.view(f32).reshape(len(words), -1)
    if layout.dtype == "f16":
        return words.view(np.float16).reshape(len(words), -1).astype(f32)
    return (words.view(u16).reshape(len(words), -1).astype(u32) << u32(16)).view(f32)


def matrix_poison(ins: Instruction, kernel: Descriptor, group: Group) -> list[Array]:
    """For each result register the lanes that depend on an undefined value: all of its row of A, column of B, or C."""
    layout = layout_of(ins.name, kernel.arch)
    assert layout is not None
    _, a, b, c = ins.operands[:4]
    rows, columns = (_undefined(group, operand, layout) for operand in (a, b))
    result = []
    for i in range(layout.row.shape[1]):
        bad = rows[:, layout.row[:, i]] | columns[:, layout.column[:, i]]
        if c.kind == "v":
            bad = bad | to_lanes(group.vector_poison(c.index + i), group.lanes)
        result.append(to_bits(bad))
    return result


def _undefined(group: Group, operand: Operand, layout: Layout) -> Array:
    """(rows, M): an element of this row of A (column of B) is undefined."""
    bits = np.bitwise_or.reduce([group.vector_poison(operand.index + i) for i in range(layout.words)])
    return to_lanes(bits, group.lanes).reshape(len(bits), -1, layout.m).any(axis=1)
