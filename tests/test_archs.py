from __future__ import annotations

import pickle

import pytest

import gconvdsl as gconv
from gconvdsl.archs import Arch, arch, arch_names

ALL = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200", "gfx1201", "gfx1250", "sm_80", "sm_90", "cpu")


def test_the_known_archs():
    assert set(arch_names()) == set(ALL)
    assert set(arch_names("cuda")) == {"sm_80", "sm_90"} and arch_names("cpu") == ("cpu",) and len(arch_names("hip")) == 8


@pytest.mark.parametrize("name", ALL)
def test_an_arch_is_frozen_hashable_and_pickles(name):
    one = arch(name)
    assert one.name == name and hash(one) and pickle.loads(pickle.dumps(one)) == one and arch(one) is one
    with pytest.raises(AttributeError):
        one.lds = 0


@pytest.mark.parametrize("name, wave, lds_kb", [
    ("gfx908", 64, 64), ("gfx90a", 64, 64), ("gfx942", 64, 64), ("gfx950", 64, 160), ("gfx1100", 32, 64), ("gfx1200", 32, 64),
    ("gfx1201", 32, 64), ("gfx1250", 32, 320), ("sm_80", 32, 163), ("sm_90", 32, 227),
])
def test_wave_and_lds(name, wave, lds_kb):
    assert (arch(name).wave, arch(name).lds) == (wave, lds_kb * 1024)


def test_who_has_direct_loads_to_lds():
    assert {name for name in ALL if arch(name).direct_to_lds} == {"gfx90a", "gfx942", "gfx950", "sm_80", "sm_90"}
    assert arch("gfx942").direct_to_lds == 4 and arch("gfx950").direct_to_lds == 16


@pytest.mark.parametrize("name", [name for name in ALL if name != "cpu"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_every_gpu_arch_computes_every_dtype(name, dtype):
    found = arch(name).instructions_for(dtype)
    assert found
    for one in found:
        assert one.m * one.n % arch(name).wave == 0            # accumulators spread evenly over the lanes
        assert one.k == 1 or one.m * one.k % arch(name).wave == 0 or one.n * one.k % arch(name).wave == 0
        assert one.name == "fma" or one.name.startswith(("mfma_", "wmma_", "mma_"))


@pytest.mark.parametrize("name, dtype, wave_tile, instruction", [
    ("gfx942", "fp16", (16, 16, 16), "mfma_16x16x16_f16"), ("gfx942", "fp16", (16, 16, 32), "mfma_16x16x16_f16"),
    ("gfx950", "fp16", (16, 16, 16), "mfma_16x16x16_f16"), ("gfx950", "fp16", (16, 16, 64), "mfma_16x16x32_f16"),
    ("gfx950", "bf16", (32, 32, 8), "mfma_32x32x8_bf16"), ("gfx950", "bf16", (32, 32, 16), "mfma_32x32x16_bf16"),
    ("gfx908", "bf16", (16, 16, 16), "mfma_16x16x8_bf16"), ("gfx90a", "bf16", (16, 16, 16), "mfma_16x16x16_bf16"),
    ("gfx90a", "fp32", (16, 16, 8), "mfma_16x16x4_f32"), ("gfx1201", "fp32", (16, 16, 7), "fma"),
    ("gfx1250", "bf16", (16, 16, 32), "wmma_16x16x32_bf16"), ("gfx1250", "fp32", (16, 16, 4), "wmma_16x16x4_f32"),
    ("sm_90", "bf16", (16, 8, 16), "mma_m16n8k16_bf16"), ("sm_90", "tf32", (16, 8, 8), "mma_m16n8k8_tf32"),
    ("sm_80", "fp32", (16, 16, 16), "fma"),
])
def test_the_deepest_instruction_that_fits(name, dtype, wave_tile, instruction):
    assert arch(name).instruction(dtype, wave_tile).name == instruction


@pytest.mark.parametrize("name, dtype, wave_tile", [
    ("gfx1250", "fp16", (16, 16, 16)), ("gfx1100", "fp16", (32, 32, 16)), ("sm_90", "fp16", (16, 16, 16)),
    ("gfx942", "fp16", (16, 16, 8)),
    ("gfx942", "tf32", (16, 16, 8)), ("cpu", "fp32", (16, 16, 1)),
])
def test_what_no_instruction_computes(name, dtype, wave_tile):
    assert arch(name).instruction(dtype, wave_tile) is None


def test_spellings():
    assert arch("gfx90a:sramecc+:xnack-").name == "gfx90a"
    assert arch("sm_90a").name == "sm_90" and arch("sm_90").compiler == "sm_90a"


@pytest.mark.parametrize("name", ["gfx999", "", "sm_70", "GFX942", None])
def test_unknown_archs(name):
    with pytest.raises(gconv.CompileError) as caught:
        arch(name)
    assert caught.value.code == "compile.arch" and "gfx942" in str(caught.value)


def test_unknown_archs_of_a_target_list_only_its_own():
    with pytest.raises(gconv.CompileError) as caught:
        arch("sm_70", "cuda")
    assert "sm_80, sm_90" in str(caught.value) and "gfx942" not in str(caught.value)


def test_figures_are_positive():
    for name in ALL[:-1]:
        one = arch(name)
        assert isinstance(one, Arch) and min(one.max_threads, one.registers, one.register_file, one.compute_units) > 0
        assert one.register_file >= one.registers * one.wave and one.direct_to_lds in (0, 4, 16)
