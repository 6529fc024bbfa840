"""Every option does what it says: seen in the plan or in the code, and the result still verifies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from gconvdsl import choose, reach
from gconvdsl.backends.base import get
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.isa import Op, kernel_blocks
from gconvdsl.lower import lower
from gconvdsl.plan import Lowered
from gconvdsl.problem import ConvProblem
from gconvdsl.reference import reference
from gconvdsl.runner import bare_spec, execute
from gconvdsl.verify import make_inputs
from tests.conftest import tool
from tests.pipeline_cases import DIRECTIONS, verified

SMALL = Tile((32, 32, 32), (2, 1, 1), (16, 16, 16))
ODD = ConvProblem(N=2, G=4, C=20, K=12, input=(9, 8), filter=(3, 3), stride=(2, 1), pad=((0, 1), 1), dtype="fp16")
POINTWISE = ConvProblem(N=3, G=2, C=48, K=80, input=(7, 9), filter=1, dtype="fp16")
LARGE = ConvProblem(N=2, C=64, K=64, input=(4096, 4096), filter=(3, 3), pad=1, dtype="fp16")       # 2 GiB an image


def made(problem: ConvProblem, tile: Tile = SMALL, pipeline: str = "compv3", **options: Any) -> Lowered:
    return lower(bare_spec(problem.direction), problem, KernelConfig(tile=tile, pipeline=pipeline, **options), "gfx942")


def right(problem: ConvProblem, pipeline: str = "compv3", **options: Any) -> bool:
    outcome = verified(problem, KernelConfig(tile=SMALL, pipeline=pipeline, **options), "sim:gfx942")
    assert outcome.ok, outcome
    return outcome.ok


def code(lowered: Lowered) -> list[Op]:
    tool("clang", "gfx942")
    text = get("hip").assembly(lowered.source, "gfx942", "options")
    return [op for block in kernel_blocks(text, "gconv_main") for op in block.ops]


# --- cutting the work

@pytest.mark.parametrize("direction", DIRECTIONS)
def test_merged_groups_share_a_block(direction: str) -> None:
    """Five channels a group in, three out: any number of channels, in all directions."""
    problem = ODD.as_(direction)
    alone, merged = (made(problem, num_groups_to_merge=count).plan.launches[0].grid for count in (1, 4))
    assert merged[0] * 4 == alone[0] and merged[1:] == alone[1:]
    assert right(problem, num_groups_to_merge=4)


@pytest.mark.parametrize("direction", DIRECTIONS[:2])
def test_split_image_cuts_small_images_when_asked(direction: str) -> None:
    problem = ODD.as_(direction)
    whole, cut = made(problem), made(problem, split_image=True)
    assert whole.plan.launches[0].grid[2] == 1 and not whole.config.split_image
    assert cut.plan.launches[0].grid[2] == 2 * problem.N and cut.config.split_image
    assert right(problem, split_image=True)


@pytest.mark.parametrize("direction", DIRECTIONS[:2])
def test_split_image_comes_by_itself_past_two_gigabytes(direction: str) -> None:
    problem = LARGE.as_(direction)
    cut, refused = made(problem), made(problem, split_image=False)
    assert cut.config.split_image and cut.plan.offset_bits == 32 and cut.plan.launches[0].grid[2] > problem.N
    assert not refused.config.split_image and refused.plan.offset_bits == 64 and refused.plan.launches[0].grid[2] == 1
    small = made(problem.replace(input=(64, 64)))
    assert not small.config.split_image and small.plan.offset_bits == 32


@pytest.mark.parametrize("direction", DIRECTIONS[:2])
@pytest.mark.parametrize("limit", [500, 900])
def test_pieces_of_any_size_make_the_whole(monkeypatch: pytest.MonkeyPatch, direction: str, limit: int) -> None:
    """With the 2 GB brought down to a few rows, so that it is a matter of a small image."""
    monkeypatch.setattr(reach, "_LIMIT", limit)
    monkeypatch.setattr(reach, "_weights_fit", lambda problem: True)
    problem = ODD.replace(G=1, C=5, K=6, input=(23, 8), direction=direction)
    choose.forget()
    assert made(problem).plan.launches[0].grid[2] > 2 * problem.N
    assert right(problem)
    choose.forget()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_split_k_adds_up_pieces_in_a_second_kernel(direction: str) -> None:
    problem = ODD.replace(C=80, K=80, direction=direction)
    plan = made(problem, split_k=2).plan
    elements = int(np.prod(problem.shape(problem.result)))
    assert [launch.kernel for launch in plan.launches] == ["gconv_main", "gconv_reduce"]
    assert plan.workspace == 2 * 4 * elements
    assert plan.launches[0].grid[1] == 2 * made(problem, split_k=1).plan.launches[0].grid[1]
    assert right(problem, split_k=2)


def test_a_long_reduction_is_split_by_itself() -> None:
    long = ODD.replace(N=64, input=(64, 64), direction="bwd_weight")
    assert made(long).plan.args.splits > 1 and made(ODD.as_("bwd_weight")).plan.args.splits == 1
    assert made(long.as_("forward")).plan.args.splits == 1


def test_two_stage_keeps_sums_in_fp32_and_converts_in_a_second_kernel() -> None:
    problem = ODD.as_("bwd_weight")
    one, two = made(problem), made(problem, two_stage=True)
    assert len(one.plan.launches) == 1 and one.plan.workspace == 0
    assert len(two.plan.launches) == 2 and two.plan.workspace == 4 * np.prod(problem.shape("w"))
    assert right(problem, two_stage=True)


# --- explicit GEMM

@pytest.mark.parametrize("direction", DIRECTIONS)
def test_explicit_gemm_divides_no_index(direction: str) -> None:
    """Rows and k are divided by sizes known at run time, lane by lane, through high multiplications; explicit GEMM has none."""
    problem = POINTWISE.as_(direction)
    implicit, explicit = (code(made(problem, explicit_gemm=asked)) for asked in (False, True))
    assert any(op.name.startswith("v_mul_hi") for op in implicit) and not any(op.name.startswith("v_mul_hi") for op in explicit)
    assert len(explicit) < len(implicit)
    assert right(problem, explicit_gemm=True) and right(problem, explicit_gemm=True, num_groups_to_merge=2)


def test_explicit_gemm_copies_what_is_not_dense() -> None:
    """A window of a larger picture has gaps between its rows, so that pixel numbers would not do."""
    x, w = make_inputs(POINTWISE, "integers", 1)
    picture = np.zeros((3, 11, 12, *x.shape[3:]), x.dtype)
    picture[:, 2:9, 1:10] = x
    config = KernelConfig(tile=SMALL, pipeline="basic_v1", explicit_gemm=True)
    y = execute(bare_spec("forward"), config, POINTWISE, (picture[:, 2:9, 1:10], w), target="sim:gfx942").output
    np.testing.assert_array_equal(np.asarray(y, float), reference(POINTWISE, x, w).astype(np.float16).astype(float))


# --- memory accesses

def loads(lowered: Lowered) -> Counter[int]:
    return Counter(op.bytes for op in code(lowered) if op.kind == "global" and op.is_load)


def test_vector_widths_are_upper_limits() -> None:
    problem = ODD.replace(C=64, K=64)
    for width in (1, 2, 4, 8):
        tile = Tile(SMALL.block, SMALL.waves, SMALL.wave_tile, (width, width, width))
        assert max(loads(made(problem, tile))) == 2 * width
    assert max(loads(made(problem.replace(C=24, K=24)))) == 4          # 6 channels a group


def test_the_epilogue_says_how_results_are_stored() -> None:
    problem = ODD.replace(C=64, K=128)
    stores = {epilogue: Counter(op.bytes for op in code(made(problem, epilogue=epilogue)) if "store" in op.name)
              for epilogue in ("default", "cshuffle")}
    assert set(stores["default"]) == {2} and set(stores["cshuffle"]) == {16}
    assert right(problem, epilogue="default") and right(problem, epilogue="cshuffle")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_pad_false_drops_the_checks_at_the_edge(direction: str) -> None:
    problem = ConvProblem(N=4, G=2, C=64, K=128, input=(8, 8), filter=(2, 2), stride=2, dtype="fp16", direction=direction)
    sure = {"pad_m": False, "pad_n": False, "pad_k": False}
    assert len(code(made(problem, **sure))) < len(code(made(problem)))
    assert right(problem, **sure)


# --- occupancy

def test_block_per_cu_limits_registers() -> None:
    """512 registers for the waves of a SIMD: three blocks of 4 waves on 4 SIMDs leave 168 each."""
    tool("clang", "gfx942")
    problem, tile = LARGE.replace(C=128, K=128, input=(64, 64)), Tile((256, 128, 16), (2, 2, 1), (32, 32, 8))
    one, three = (get("hip").resources(made(problem, tile, block_per_cu=blocks).source, "gfx942", "options")["gconv_main"]["vgpr"]
                  for blocks in (1, 3))
    assert three <= 168 < one


def test_block_per_cu_shares_the_loads_in_flight() -> None:
    """mem keeps 32 KiB a compute unit on their way: 4 KiB a step of this tile."""
    source = {blocks: made(ODD, pipeline="mem", block_per_cu=blocks).source for blocks in (1, 2)}
    assert "kPrefetch = 8;" in source[1] and "kPrefetch = 4;" in source[2]
