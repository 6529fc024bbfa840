"""What keeps the names of pipelines honest: counted on the compiler's assembly and on the plan, no device needed.

Expected numbers are derived from the meaning of each pipeline and the sizes of the tile, not from the headers.
"""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gconvdsl.archs import arch as find_arch
from gconvdsl.backends.base import get
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.errors import CompileError
from gconvdsl.isa import kernel_blocks, main_loop
from gconvdsl.loop_report import LoopReport, loop_report
from gconvdsl.lower import lower
from gconvdsl.pipelines import PIPELINES, Pipeline
from gconvdsl.plan import Lowered
from gconvdsl.problem import ConvProblem
from gconvdsl.rules import check
from gconvdsl.runner import bare_spec
from tests.conftest import tool
from tests.pipeline_cases import DIRECTIONS, legal

COMPILED = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
DIRECT = ("gfx90a", "gfx942", "gfx950")
PROBLEM = ConvProblem(N=64, C=128, K=128, input=(28, 28), filter=(3, 3), pad=1, dtype="fp16")
ANCHOR = Tile((128, 128, 64), (2, 2, 1), (32, 32, 8))       # the tile that the figures of CK's own instance are known for
TILE = Tile((64, 64, 32), (2, 2, 1), (16, 16, 16))
A_AND_B = (64 + 64) * 32 * 2                                # bytes of one K-step of TILE


@cache
def lowered(arch: str, pipeline: str, scheduler: str = "", direction: str = "forward", tile: Tile = TILE,
            **options: Any) -> Lowered:
    """The default scheduler is the pipeline's usual one; the instruction is the arch's deepest."""
    deepest = find_arch(arch).instruction("fp16", (*tile.wave_tile[:2], 32))
    tile = Tile(tile.block, tile.waves, (deepest.m, deepest.n, deepest.k))
    implied = PIPELINES[pipeline].implied_options
    chosen = {"scheduler": scheduler} if scheduler else {}
    config = KernelConfig(tile=tile, pipeline=pipeline, **{**implied, **chosen, **options})
    assert not check(PROBLEM.as_(direction), config, arch)
    return lower(bare_spec(direction), PROBLEM.as_(direction), config, arch)


@cache
def report(arch: str, pipeline: str, scheduler: str = "", direction: str = "forward", tile: Tile = TILE,
           **options: Any) -> LoopReport:
    tool("clang", arch)
    made = lowered(arch, pipeline, scheduler, direction, tile, **options)
    return loop_report(get("hip"), made, PROBLEM.as_(direction), arch, pipeline)


@cache
def resources(arch: str, pipeline: str, tile: Tile = TILE, **options: Any) -> dict[str, int]:
    tool("clang", arch)
    return get("hip").resources(lowered(arch, pipeline, tile=tile, **options).source, arch, pipeline)["gconv_main"]


# --- LDS

BUFFERS = {"basic_v1": 1, "mem": 1, "compv3": 1, "compv4": 2, "compv5": 2, "compv6": 1, "comp_async": 2, "basic_async_v1": 1}


@pytest.mark.parametrize("pipeline", BUFFERS)
def test_lds_holds_as_many_tiles_as_the_pipeline_has_buffers(pipeline: str) -> None:
    """Rows are padded by 16 bytes, but not where hardware fills LDS; a table of 4 bytes a row follows."""
    padding = 0 if "async" in pipeline else (64 + 64) * 16
    assert resources("gfx942", pipeline)["lds_bytes"] == BUFFERS[pipeline] * (A_AND_B + padding) + 64 * 4


@pytest.mark.parametrize("pipeline", [name for name, buffers in BUFFERS.items() if buffers == 1])
def test_double_smem_buffer_doubles_lds_and_saves_a_barrier(pipeline: str) -> None:
    one, two = (resources("gfx942", pipeline, double_smem_buffer=double)["lds_bytes"] - 64 * 4 for double in (False, True))
    assert two == 2 * one
    single, double = (report("gfx942", pipeline, double_smem_buffer=both) for both in (False, True))
    assert double.barriers / double.steps == single.barriers / single.steps - 1


@pytest.mark.parametrize("pipeline", ["compv4", "comp_async"])
def test_the_header_refuses_a_single_buffer(pipeline: str) -> None:
    tool("clang", "gfx942")
    source = lowered("gfx942", pipeline).source.replace("kDoubleBuffer = true", "kDoubleBuffer = false")
    with pytest.raises(CompileError, match="needs double_smem_buffer"):
        get("hip").compile(source, "gfx942", pipeline)


# --- the main loop

BARRIERS = {"basic_v1": 2, "mem": 2, "compv3": 2, "compv4": 1, "compv6": 2, "comp_async": 1, "basic_async_v1": 2}
STEPS = {"mem": 32768 // A_AND_B, "compv6": 2}      # of one pass: the sets of staging registers are named at compile time


@pytest.mark.parametrize("pipeline", BARRIERS)
def test_barriers_and_steps_of_a_pass(pipeline: str) -> None:
    found = report("gfx942", pipeline)
    assert found.steps == STEPS.get(pipeline, 1) and found.barriers == BARRIERS[pipeline] * found.steps


def test_wave_groups_take_turns() -> None:
    """compv5: one barrier a phase; a group multiplies in every other one, so a pass over both roles holds one step of a group."""
    found = report("gfx942", "compv5")
    assert found.steps == 1 and found.barriers == 1


@pytest.mark.parametrize("pipeline", BARRIERS)
def test_a_pass_loads_what_it_multiplies(pipeline: str) -> None:
    """Each of 4 waves loads a quarter of A and B in a step, writes it to LDS unless the load goes there, and reads a half."""
    found = report("gfx942", pipeline)
    assert found.global_bytes == A_AND_B / 4 * found.steps
    assert found.lds_write_bytes == (0 if "async" in pipeline else found.global_bytes)
    assert found.lds_read_bytes == A_AND_B / 2 * found.steps


@pytest.mark.parametrize("arch", COMPILED)
def test_direct_loads_where_the_pipeline_and_the_hardware_have_them(arch: str) -> None:
    for pipeline, scheduler in legal(arch):
        found = report(arch, pipeline, scheduler)
        assert (found.direct_loads == found.global_loads > 0) == ("async" in pipeline), (arch, pipeline)
    assert ("comp_async" in dict(legal(arch))) == (arch in DIRECT)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_interwave_raises_and_lowers_the_priority_once_a_step(arch: str) -> None:
    for pipeline in ("basic_v1", "mem"):
        intra, inter = report(arch, pipeline, "intrawave"), report(arch, pipeline, "interwave")
        assert intra.priorities == 0 and inter.priorities == 2 * inter.steps
        assert inter.barriers == intra.barriers + inter.steps


def staging_sets(arch: str, pipeline: str) -> float:
    """Sets of staging registers: K-steps loaded before the first tile is in LDS, which is where registers must hold them."""
    text = get("hip").assembly(lowered(arch, pipeline).source, arch, pipeline)
    ops = (op for block in kernel_blocks(text, "gconv_main") for op in block.ops)
    before = list(itertools.takewhile(lambda op: op.kind != "matrix", ops))
    return sum(op.bytes for op in before if op.kind == "global" and op.is_load) * find_arch(arch).wave / (A_AND_B / 4)


def test_loads_in_flight() -> None:
    """K-steps whose loads are issued before the first product: compv3 and compv4 two, compv6 three, mem 32 KiB."""
    tool("clang", "gfx942")
    expected = {"compv3": 2, "compv4": 2, "compv6": 3, "mem": 32768 / A_AND_B}
    assert {name: staging_sets("gfx942", name) for name in expected} == expected


# --- code

def test_no_two_pipelines_are_the_same_code() -> None:
    tool("clang", "gfx942")
    code: dict[str, tuple[str, str]] = {}
    for pipeline, scheduler in legal("gfx942"):
        text = get("hip").assembly(lowered("gfx942", pipeline, scheduler).source, "gfx942", pipeline)
        ops = "\n".join(f"{op.name} {op.operands}" for block in kernel_blocks(text, "gconv_main") for op in block.ops)
        assert ops and ops not in code, ((pipeline, scheduler), code.get(ops))
        code[ops] = (pipeline, scheduler)


def test_the_anchor() -> None:
    """CK's own instance of this tile and pipeline: 211 registers, no spills; 3.4 vector instructions a matrix instruction."""
    used, found = resources("gfx942", "compv3", tile=ANCHOR), report("gfx942", "compv3", tile=ANCHOR)
    assert used["vgpr"] <= 211 and used["vgpr_spills"] == used["scratch_bytes"] == 0
    assert found.matrix == 32 and found.valu_per_matrix <= 1.5


def spills(arch: str, pipeline: str, scheduler: str, direction: str) -> str:
    found = report(arch, pipeline, scheduler, direction)
    return f"{arch} {pipeline} {scheduler} {direction}: {found.scratch}" if found.scratch or not found.matrix else ""


SAMPLE = [(arch, pipeline, scheduler, DIRECTIONS[(i + j) % 3]) for i, arch in enumerate(COMPILED)
          for j, (pipeline, scheduler) in enumerate(legal(arch)) if (i + j) % 2 == 0]
EVERYTHING = [(arch, pipeline, scheduler, direction) for arch in COMPILED for pipeline, scheduler in legal(arch)
              for direction in DIRECTIONS]


@pytest.mark.parametrize("case", SAMPLE, ids="-".join)
def test_code_compiles_and_no_main_loop_spills(case: tuple[str, str, str, str]) -> None:
    assert not spills(*case)


@pytest.mark.nightly
@pytest.mark.parametrize("case", EVERYTHING, ids="-".join)
def test_every_legal_combination_compiles_and_no_main_loop_spills(case: tuple[str, str, str, str]) -> None:
    assert not spills(*case)


# --- adding a pipeline

TOY = """// A toy: basic_v1 without overlap. Each step is loaded, stored and multiplied before the next is begun.
#pragma once
#include "gconv/pipeline.hpp"
namespace gconv {
template <class S>
struct Toy {
  static constexpr int kLdsBuffers = 1, kScratchBytes = 0;
  template <class Mover, class Lds>
  static GCONV_DEVICE void run(const Mover& mover, const Lds& lds, int first, int end, WaveGemm<S>& gemm) {
    typename Mover::Staged staged;
    for (int step = first; step < end; ++step) {
      mover.load(step, staged);
      hw::barrier();
      mover.store(lds, 0, step, staged);
      hw::barrier();
      gemm.step(lds.a(), lds.b());
    }
  }
};
}
"""


def test_a_new_pipeline_is_one_header_and_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules, tables, choices and lowering know it from its row; it runs and verifies from its header."""
    from gconvdsl import rules_table
    from gconvdsl.backends import toolchain
    from tests.pipeline_cases import config_for, problems_of, verified

    include = tmp_path / "include"
    (include / "gconv").mkdir(parents=True)
    for entry in (toolchain.INCLUDE / "gconv").iterdir():
        (include / "gconv" / entry.name).symlink_to(entry)
    (include / "gconv" / "pipeline_toy.hpp").write_text(TOY)
    monkeypatch.setattr(toolchain, "INCLUDE", include)
    monkeypatch.setitem(PIPELINES, "toy", Pipeline("toy", "Toy", "nothing overlaps"))
    assert "toy" in rules_table.render("gfx942") and ("toy", "intrawave") in legal("gfx1201")
    for direction in DIRECTIONS:
        outcome = verified(problems_of("gfx942", "even", direction)[0], config_for("gfx942", "toy", "intrawave"), "sim:gfx942")
        assert outcome.ok and outcome.config.pipeline == ("toy",), outcome


def test_loops_are_found_in_assembly() -> None:
    """A nest of two loops: the inner one counts, whichever way its blocks are laid out."""
    text = """
kernel:
\ts_mov_b32 s0, 0
.LBB0_1:
\tv_add_u32_e32 v0, v1, v2
.LBB0_2:                                ; inner
\tv_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]
\tbuffer_load_dwordx4 v3, s[0:3], 0 offen lds
\tds_read2_b64 v[0:3], v4 offset1:1
\ts_cbranch_scc1 .LBB0_2
\ts_cbranch_vccnz .LBB0_1
\ts_endpgm
.Lfunc_end0:
"""
    (inner,) = main_loop(kernel_blocks(text, "kernel"))
    assert [op.kind for op in inner.ops] == ["matrix", "global", "lds", "branch"]
    assert inner.ops[1].direct and [op.bytes for op in inner.ops] == [0, 16, 16, 0]
    assert main_loop(kernel_blocks(text, "other")) == []
