"""Random declarations compile for every AMD arch, with clang; a few also with hipcc, and with nvcc. Nothing is run."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

import pytest
from hypothesis import Phase, given, settings

from gconvdsl import choose
from gconvdsl.archs import arch_names
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.expr import Expr, apply, operand
from gconvdsl.problem import ConvProblem
from gconvdsl.problem_text import parse_problem
from gconvdsl.spec import ConvParams, KernelSpec, Operand
from tests.strategies import Family, families, has_loads
from tests.test_random_problems import KINDS

# EF_AMDGPU_MACH of the LLVM AMDGPU usage guide
MACHINES = {"gfx908": 0x30, "gfx90a": 0x3F, "gfx942": 0x4C, "gfx950": 0x4F, "gfx1100": 0x41,
            "gfx1200": 0x48, "gfx1201": 0x4E, "gfx1250": 0x49}
_ELF_AMDGPU, _ELF_CUDA = 224, 190


def compiled(spec: KernelSpec, config: KernelConfig, problem: ConvProblem, arch: str) -> choose.Decision:
    """Compiled ahead of time; what was asked for, nothing in its place."""
    backend, name = choose.resolve_target(None, arch)
    decision = choose.decide(spec, problem, config, backend, name)
    assert not decision.fallbacks and decision.built is not None and decision.built.module is None
    return decision


def machine(decision: choose.Decision) -> tuple[int, int]:
    """(e_machine, low byte of e_flags) of the code object's ELF header."""
    assert decision.built is not None
    header = decision.built.artifact.path.read_bytes()[:64]
    assert header[:4] == b"\x7fELF"
    return struct.unpack_from("<H", header, 18)[0], header[48]


def test_every_amd_arch_is_known() -> None:
    assert set(arch_names("hip")) == set(MACHINES)


@pytest.mark.parametrize(("kind", "direction"), KINDS)
def test_random_declarations_compile_for_every_amd_arch(kind: str, direction: str, require_tool: Callable[..., object]) -> None:
    """12 declarations in all. A failure is not made smaller: each try would take seconds."""
    for arch in MACHINES:
        require_tool("clang", arch)

    @settings(max_examples=1 if kind == "window" or direction == "bwd_data" else 2, phases=[Phase.generate])
    @given(families(direction, kind, count=1))
    def compiles(family: Family) -> None:
        archs = [arch for arch in MACHINES if has_loads(family.config, arch)]
        with ThreadPoolExecutor(2) as pool:
            made = list(pool.map(lambda arch: compiled(family.spec, family.config, family.problems[0], arch), archs))
        assert [machine(one) for one in made] == [(_ELF_AMDGPU, MACHINES[arch]) for arch in archs]

    compiles()


BIASED = KernelSpec("biased", ConvParams(), (Operand("bias", "per_k"), Operand("residual", "like_y")), Expr("x"),
                    apply("gelu", apply("add", apply("add", Expr("acc"), operand("bias")), operand("residual"))))
DECLARED = {
    "forward": (BIASED, KernelConfig(), "N=8 G=4 C=64 K=96 input=14x14 filter=3x3 pad=1 dtype=fp16"),
    "bwd_data": (KernelSpec("dx", ConvParams("bwd_data")), KernelConfig(),
                 "N=2 G=3 C=15 K=51 input=9x7 filter=3x2 stride=2x1 direction=bwd_data"),
    "bwd_weight": (KernelSpec("dw", ConvParams("bwd_weight")), KernelConfig(split_k=3, tile=Tile((32, 32, 32))),
                   "N=4 G=2 C=16 K=32 input=14x14 filter=3x3 stride=2 pad=0:1 dtype=fp16 direction=bwd_weight"),
}


@pytest.mark.parametrize("arch", ["gfx90a", "gfx908"])
@pytest.mark.parametrize("name", DECLARED)
def test_hipcc_compiles_the_same_source(name: str, arch: str, require_tool: Callable[..., object],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("hipcc", arch)
    monkeypatch.setenv("GCONV_HIP_COMPILER", "hipcc")
    choose.forget()
    spec, config, text = DECLARED[name]
    decision = compiled(spec, config, parse_problem(text), arch)
    assert machine(decision) == (_ELF_AMDGPU, MACHINES[arch])
    assert decision.built is not None and "hipcc" in str(decision.built.artifact.meta)
    choose.forget()


@pytest.mark.parametrize("name", DECLARED)
def test_nvcc_compiles_the_same_source(name: str, require_tool: Callable[..., object]) -> None:
    require_tool("nvcc", "sm_90")
    spec, config, text = DECLARED[name]
    if config.tile:
        config = config.resolved(tile=Tile((32, 32, 32), (2, 1, 1), (16, 8, 16)))
    decision = compiled(spec, config, parse_problem(text), "sm_90")
    assert decision.built is not None and decision.built.artifact.path.read_bytes()[18] == _ELF_CUDA
