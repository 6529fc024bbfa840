from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gconvdsl as gconv
from gconvdsl.archs import arch_names
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.problem import ConvProblem
from gconvdsl.rules import check
from gconvdsl.tiles import candidates, default_tile

GPUS = [name for name in arch_names() if name != "cpu"]
RESNEXT = ConvProblem(N=64, G=32, C=256, K=256, input=(28, 28), filter=(3, 3), pad=1, dtype="bf16")
DENSE = ConvProblem(N=64, C=256, K=256, input=(56, 56), filter=(3, 3), pad=1, dtype="fp16")
SIZES = st.integers(1, 40)
PROBLEMS = st.builds(
    lambda n, g, cg, kg, size, taps, **rest: ConvProblem(N=n, G=g, C=g * cg, K=g * kg, input=size, filter=taps, **rest),
    n=st.integers(0, 40), g=st.sampled_from([1, 2, 32, 1000]), cg=st.sampled_from([1, 3, 17, 64, 512]),
    kg=st.sampled_from([1, 5, 48, 256]),
    size=st.lists(SIZES, min_size=2, max_size=3), taps=st.sampled_from([1, 3]), stride=st.sampled_from([1, 2]), pad=st.just(1),
    dtype=st.sampled_from(["fp32", "fp16", "bf16"]), direction=st.sampled_from(["forward", "bwd_data", "bwd_weight"]))


@settings(max_examples=60, deadline=None)
@given(PROBLEMS, st.sampled_from(GPUS))
def test_every_chosen_tile_is_legal(problem, name):
    tile = default_tile(problem, name)
    assert check(problem, KernelConfig(tile=tile, pipeline="basic_v1"), name) == []
    assert default_tile(problem, name) == tile
    found = candidates(problem, name, 5)
    assert 1 <= len(found) <= 5 and len(set(found)) == len(found) and all(not check(problem, config, name) for config in found)
    assert found[0].tile == tile


def padded(size, block):
    return math.ceil(size / block) * block


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_narrow_groups_get_narrow_tiles(name, direction):
    """8 channels a group: the side of the channels is one instruction of 16, the other side is long."""
    tile, gemm = default_tile(RESNEXT, name, direction), RESNEXT.as_(direction).gemm
    narrow = tile.m if direction == "bwd_weight" else tile.n
    assert narrow == 16 and max(tile.m, tile.n) >= 64
    assert padded(gemm.m, tile.m) < 2 * max(gemm.m, 16) and padded(gemm.n, tile.n) < 2 * max(gemm.n, 16)


@pytest.mark.parametrize("name", GPUS)
def test_wide_problems_get_large_tiles_and_small_ones_small(name):
    large, small = default_tile(DENSE, name), default_tile(DENSE.replace(N=1, C=16, K=16, input=(7, 7)), name)
    assert large.m * large.n >= 64 * 64 and math.prod(large.waves) == 4
    assert small.m * small.n <= 32 * 32


def test_vectors_are_sixteen_bytes():
    assert default_tile(DENSE, "gfx942").vector == (8, 8, 8)
    assert default_tile(DENSE.replace(dtype="fp32"), "gfx942").vector == (4, 4, 4)


def test_the_direction_argument_replaces_the_problems():
    given = default_tile(RESNEXT, "gfx942", "bwd_weight")
    assert given == default_tile(RESNEXT.as_("bwd_weight"), "gfx942") != default_tile(RESNEXT, "gfx942")


@pytest.mark.parametrize("asked", [
    KernelConfig(num_groups_to_merge=16), KernelConfig(pipeline="compv4", double_smem_buffer=True),
    KernelConfig(pipeline="compv5"),
    KernelConfig(pad_n=False), KernelConfig(epilogue="default"),
])
def test_a_tile_suits_the_other_options(asked):
    problem = DENSE.replace(G=16)
    tile = default_tile(problem, "gfx942", config=asked)
    assert check(problem, asked.resolved(tile=tile), "gfx942") == []


def test_tf32_gets_its_own_instruction():
    fp32 = DENSE.replace(dtype="fp32")
    assert default_tile(fp32, "sm_90", config=KernelConfig(precision="tf32")).wave_tile == (16, 8, 8)
    assert default_tile(fp32, "sm_90").wave_tile == (16, 16, 16)


def test_no_tile_is_an_honest_error():
    asked = KernelConfig(num_groups_to_merge=1000)
    with pytest.raises(gconv.NoKernelError) as caught:
        default_tile(RESNEXT.replace(G=1000, C=1000, K=1000), "gfx942", config=asked)
    assert caught.value.code == "kernel.none" and "gfx942" in str(caught.value)


def test_the_cpu_has_one_candidate_and_a_tile_nobody_reads():
    assert candidates(RESNEXT, "cpu") == [KernelConfig()] and isinstance(default_tile(RESNEXT, "cpu"), Tile)


def test_unknown_archs_are_errors():
    with pytest.raises(gconv.CompileError):
        default_tile(RESNEXT, "gfx000")
    assert default_tile(RESNEXT, "gfx90a:xnack-") == default_tile(RESNEXT, "gfx90a")
