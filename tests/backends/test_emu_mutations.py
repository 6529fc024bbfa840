"""Every wait and barrier of real kernels is left out in turn (emu_mutations.py): it is reported, or shown to be redundant."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from emu_mutations import candidates, kernels, prepared_for, score, survivors


@pytest.fixture(autouse=True)
def tools(require_tool: Callable[..., Any]) -> None:
    require_tool("clang", "gfx942")
    require_tool("objdump")


@pytest.mark.parametrize("arch, direction, pipeline", [("gfx942", "forward", "basic_v1"), ("gfx1201", "bwd_data", "basic_v1")])
def test_some_waits_and_barriers(arch: str, direction: str, pipeline: str) -> None:
    prepared = prepared_for(arch, direction, pipeline, "intrawave", "fp16")
    prepared.run()
    chosen = candidates(prepared)[::7]
    assert len(chosen) >= 5
    assert not [str(ins) for ins, reason in survivors(prepared, chosen) if not reason]


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_all_waits_and_barriers(arch: str) -> None:
    """At least 95 % of those not shown to be redundant are reported; each survivor is listed with its reason."""
    found = [score(name, prepared_for(arch, *kernel)) for name, kernel in kernels(arch).items()]
    for one in found:
        print(one.kernel, one.left_out, one.reported, *one.redundant, *(f"OPEN {ins}" for ins in one.open), sep="\n  ")
    reported, unexplained = sum(one.reported for one in found), sum(len(one.open) for one in found)
    assert unexplained <= 0.05 * (reported + unexplained)
