"""Random problems, tiles, options and expressions: the whole way from a declaration to a verified result.

Written from what is promised, not from the code. A hot problem has at least 2 blocks in m and n and 5 K-steps with tails in all
three, computed from the sizes of its matrix product and the tile.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from gconvdsl.archs import arch as find_arch
from gconvdsl.problem import ConvProblem
from gconvdsl.runner import execute
from gconvdsl.verify import make_operands, verify
from tests.strategies import Family, families, has_loads, is_hot

CI_TARGETS = ("sim:gfx942", "sim:gfx1100", "cpu")
ALL_TARGETS = (*CI_TARGETS, "sim:gfx90a", "sim:gfx908", "sim:gfx950", "sim:gfx1201", "sim:gfx1250", "sim:sm_80", "sim:sm_90")
DIRECTIONS = ("forward", "bwd_data", "bwd_weight")
KINDS = [(kind, direction) for kind in ("hot", "plain", "window") for direction in DIRECTIONS
         if (kind, direction) != ("window", "bwd_weight")]


def check_family(family: Family, problem: ConvProblem, target: str) -> None:
    """Run and verify one problem of a family; what was asked for must run, not something in its place."""
    operands = make_operands(problem, family.spec)

    def run(a: Any, b: Any, out: Any) -> None:
        result = execute(family.spec, family.config, problem, (a, b), operands, out, target, poison=True)
        assert not result.fallbacks, result.fallbacks

    report = verify(problem, run, spec=family.spec, operands=operands, strict_nonfinite=family.config.strict_nonfinite)
    assert report.ok, f"{target}: {problem.describe()}\n{report}"


def hot_tiles(family: Family, problem: ConvProblem, targets: tuple[str, ...]) -> bool:
    """Whether the problem is hot for the tile of every simulated target."""
    archs = [find_arch(target.partition(":")[2]).family for target in targets if target != "cpu"]
    return all(is_hot(problem, family.config.tile_for(one)) for one in archs)  # type: ignore[arg-type]


def run_families(kind: str, direction: str, count: int, targets: tuple[str, ...]) -> None:
    """``count`` families of two problems each; counts what ran and, of hot families, that every problem is hot."""
    ran: set[tuple[Family, ConvProblem]] = set()

    @settings(max_examples=count + 2 + count // 4)      # an example is now and then drawn twice
    @given(families(direction, kind))
    def verified(family: Family) -> None:
        for problem in family.problems:
            assert kind != "hot" or hot_tiles(family, problem, targets)
            for target in targets:
                if not has_loads(family.config, target.rpartition(":")[2]):
                    continue
                check_family(family, problem, target)
            ran.add((family, problem))

    verified()
    assert len({family for family, _ in ran}) >= count


# 9 families of 2 problems are hot, 12 plain, 4 of windows: 50 problems, more than a third of them hot.
CI_COUNTS = {"hot": 3, "plain": 4, "window": 2}
NIGHTLY_COUNTS = {"hot": 12, "plain": 16, "window": 8}


@pytest.mark.parametrize(("kind", "direction"), KINDS)
def test_random_problems_verify(kind: str, direction: str) -> None:
    run_families(kind, direction, CI_COUNTS[kind], CI_TARGETS)


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "direction"), KINDS)
def test_random_problems_verify_on_every_target(kind: str, direction: str) -> None:
    run_families(kind, direction, NIGHTLY_COUNTS[kind], ALL_TARGETS)
