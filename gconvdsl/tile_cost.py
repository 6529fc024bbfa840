"""What a tile costs: LDS and registers. Rules and lowering ask the same two functions."""

from __future__ import annotations

import math

from .archs import Arch, Instruction
from .config import Tile
from .dtypes import DTYPES
from .pipelines import PIPELINES, Pipeline
from .window import Window

__all__ = ["LDS_PAD_BYTES", "fragment_budget", "lds_bytes", "prefetch_depth", "register_limit", "registers_per_lane"]

LDS_PAD_BYTES = 16
_SHUFFLE_PAD = 8
_ADDRESS_REGISTERS, _ROW_REGISTERS, _VECTOR_BYTES = 16, 4, 16
_MOST_FRAGMENTS = 128               # registers of a lane
_OFFSET_BYTES = 8
_FMA_DEPTH = 4


def _pipeline(pipeline: str | Pipeline | None) -> Pipeline | None:
    return PIPELINES[pipeline] if isinstance(pipeline, str) else pipeline


def lds_bytes(tile: Tile, dtype: str, pipeline: str | Pipeline | None = None, merge: int = 1, *,
              double_smem_buffer: bool | None = None, epilogue: str | None = None, window: Window | None = None) -> int:
    """Bytes of LDS that one block uses, as conv.hpp lays them out; an upper bound where the epilogue is not chosen yet.

    A holds block.m and B block.n rows of block.k elements and 16 bytes of padding, which spread the rows over the banks; each
    LDS buffer and each merged group has both; a ``window`` takes the place of A's rows. The cshuffle buffer (at most fp32, one
    instruction's rows of every wave, 8 elements of padding a row) takes the same place after the main loop, so the larger of the
    two counts. A table of one 8-byte offset for each row of the block follows.
    """
    row = _pipeline(pipeline)
    merge = _tiles_side_by_side(merge, window)
    buffers = 2 if double_smem_buffer else row.lds_buffers if row else 1
    line = tile.k * DTYPES[dtype].bytes + LDS_PAD_BYTES
    rows = window.bytes(dtype, merge * window.pack) if window else tile.m * line * merge
    staging = (rows + tile.n * line * merge) * buffers
    shuffle = tile.waves[0] * tile.wave_tile[0] * (merge * tile.n + _SHUFFLE_PAD) * 4 if epilogue != "default" else 0
    return -(-max(staging, shuffle) // 16) * 16 + tile.m * _OFFSET_BYTES


def registers_per_lane(tile: Tile, dtype: str, arch: Arch, pipeline: str | Pipeline | None = None,
                       instruction: Instruction | None = None,
                       merge: int = 1, window: Window | None = None) -> int:
    """An estimate of the 32-bit registers of one lane, rounded up.

    Accumulators (exact), A and B fragments, the elements staged between global memory and LDS (none with direct loads), 4 for the
    place of each vector that a lane moves (1 in a window), 16 for the rest. Merged groups each have accumulators and elements.
    """
    row = _pipeline(pipeline)
    words = DTYPES[dtype].bytes / 4
    lanes = math.prod(tile.waves) * arch.wave // (row.needs_num_wave_groups or 1 if row else 1)
    stages = prefetch_depth(tile, dtype, row, arch, 1) if row and row.deepens else row.staging if row else 1
    merge = _tiles_side_by_side(merge, window)
    elements = (window.pixels * window.chunk if window else tile.m * tile.k) + tile.n * tile.k
    staged = elements * words / lanes * stages * merge
    places = elements * DTYPES[dtype].bytes / _VECTOR_BYTES / lanes * merge * (1 if window else _ROW_REGISTERS)
    fragments = _fragments(tile, words, arch, instruction) * (row.fragment_sets if row else 1)
    return math.ceil(tile.m * tile.n / lanes * merge + fragments + staged + places) + _ADDRESS_REGISTERS


def fragment_budget(tile: Tile, dtype: str, arch: Arch, pipeline: Pipeline, instruction: Instruction, merge: int = 1,
                    window: Window | None = None) -> int:
    """Registers in which a pipeline may hold the fragments of a whole step: what the rest leaves, at most 128."""
    need = registers_per_lane(tile, dtype, arch, pipeline, instruction, merge, window)
    left = register_limit(arch, math.prod(tile.waves) * arch.wave) - need
    return min(_MOST_FRAGMENTS, max(0, math.floor(left + _fragments(tile, DTYPES[dtype].bytes / 4, arch, instruction))))


def _tiles_side_by_side(merge: int, window: Window | None) -> int:
    """Tiles that a block computes: packed groups share one."""
    return merge // window.pack if window else merge


def prefetch_depth(tile: Tile, dtype: str, pipeline: Pipeline, arch: Arch, block_per_cu: int) -> int:
    """K-steps in flight: that of the pipeline, or for mem as many as bring 32 KiB a compute unit on their way, 2 to 8.

    Limited by the registers that the staged tiles take: at most a quarter of a lane's, an eighth where operands are held twice.
    """
    if not pipeline.deepens:
        return pipeline.prefetch
    step = (tile.m + tile.n) * tile.k * DTYPES[dtype].bytes
    wanted = -(-32768 // block_per_cu // step)
    registers = step / 4 / (math.prod(tile.waves) * arch.wave)
    return max(2, min(8, wanted, int(arch.registers / 4 / arch.operand_copies / registers)))


def _fragments(tile: Tile, words: float, arch: Arch, instruction: Instruction | None) -> float:
    """Registers of the operands of one step.

    A matrix instruction spreads them over the lanes. With fma a lane holds whole rows of the 16 x 16 tile (64 / wave of A, 4 of
    B), and compilers keep about four k in flight.
    """
    m, n = tile.m / tile.waves[0], tile.n / tile.waves[1]
    if instruction is not None and instruction.name == "fma":
        return _FMA_DEPTH * (m / 16 * 64 / arch.wave + n / 16 * 4)
    return (m + n) * (instruction.k if instruction else 1) * words * arch.operand_copies / arch.wave


def register_limit(arch: Arch, threads: int) -> int:
    """32-bit registers that one lane of a block of this many threads can have."""
    return min(arch.registers, arch.register_file // threads)
