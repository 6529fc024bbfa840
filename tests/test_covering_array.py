"""The covering array of pipelines, options and problems, run on the simulator and on the emulator.

All of it: ``python3 -m pytest -m nightly tests/test_covering_array.py``; docs/reliability.md has the recorded runs.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from tests.covering import FACTORS, Row, case_of, covering_array, is_legal, meetings
from tests.pipeline_cases import AMD_ARCHS, legal, verified
from tests.strategies import gemm_parts

SAMPLED = 24        # every so many rows run in CI


@cache
def rows(arch: str) -> list[Row]:
    return covering_array(arch)


def faults(arch: str, target: str, chosen: list[Row]) -> list[str]:
    found = []
    for row in chosen:
        outcome = verified(*case_of(row, arch), target)
        if not outcome.ok:
            found.append(f"{dict(row)}: {outcome.reason}{outcome.error}")
    return found


def test_every_two_values_that_may_meet_do() -> None:
    """Of those that none of the rows has, no legal row can be found that does."""
    arch = "gfx942"
    covered = set().union(*map(meetings, rows(arch)))
    assert all(is_legal(row, arch) for row in rows(arch)) and 60 <= len(rows(arch)) <= 200
    factors = {"pipeline": legal(arch), **FACTORS}
    values = {(name, value) for name, among in factors.items() for value in among}
    assert {part for row in rows(arch) for part in row} == values
    never = {("explicit_gemm", True): [("pad", "asymmetric"), ("stride", 2)], ("split_image", True): [("split_k", 2)],
             ("direction", "bwd_weight"): [("split_image", True)]}
    assert all(frozenset((one, other)) not in covered for one, others in never.items() for other in others)
    for direction, name in itertools.product(("forward", "bwd_data"), legal(arch)):
        assert frozenset((("pipeline", name), ("direction", direction), ("split_image", True))) in covered


def test_the_rows_reach_main_loops() -> None:
    """At least half of the rows have 5 K-steps or more."""
    depths = [max(-(-k // 32) for _, _, k in gemm_parts(case_of(row, "gfx942")[0])) for row in rows("gfx942")]
    assert sum(depth >= 5 for depth in depths) >= len(depths) / 2


def test_some_rows_verify() -> None:
    assert not faults("gfx942", "sim:gfx942", rows("gfx942")[::SAMPLED])


@pytest.mark.nightly
@pytest.mark.parametrize("arch", AMD_ARCHS)
@pytest.mark.parametrize("target", ["sim", "emu"])
def test_all_rows_verify(target: str, arch: str) -> None:
    if target == "emu":
        from gconvdsl.backends.base import get

        if arch not in get("emu").archs():
            pytest.skip(f"target emu does not execute {arch}")
    assert not faults(arch, f"{target}:{arch}", rows(arch))
