"""Every pipeline, scheduler and direction, verified on the simulator; `tests/pipeline_cases.py` has the problems.

In CI each combination meets one family of problems on one arch of each vendor line, in turn; nightly all meet all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gconvdsl import choose
from gconvdsl.backends.base import get
from gconvdsl.problem import ConvProblem
from gconvdsl.runner import bare_spec
from tests.pipeline_cases import AMD_ARCHS, DIRECTIONS, FAMILIES, config_for, legal, problems_of, verified
from tests.strategies import gemm_parts

Case = tuple[str, str, str, str, str]       # arch, pipeline, scheduler, direction, family


def all_cases(arch: str) -> list[Case]:
    return [(arch, pipeline, scheduler, direction, family) for pipeline, scheduler in legal(arch) for direction in DIRECTIONS
            for family in FAMILIES if problems_of(arch, family, direction) and (family != "window" or "async" not in pipeline)]


def ci_cases() -> list[Case]:
    """One family for each combination, the other one on the second arch; windows for compv3 and mem."""
    chosen = []
    for turn, arch in enumerate(("gfx942", "gfx1201")):
        for number, (pipeline, scheduler) in enumerate(legal(arch)):
            families = [("odd", "even")[(number + index + turn) % 2] for index in range(3)]
            chosen += [(arch, pipeline, scheduler, direction, family) for direction, family in zip(DIRECTIONS, families)]
    windows = ("compv3", "compv6")
    return chosen + [("gfx942", name, "intrawave", direction, "window") for name in windows for direction in DIRECTIONS[:2]]


def names(case: Case) -> str:
    return "-".join(case)


CI = ci_cases()
NIGHTLY = [case for arch in (*AMD_ARCHS, "sm_80", "sm_90") for case in all_cases(arch) if case not in CI]


@pytest.fixture(scope="module")
def compiled(private_cache: str) -> None:
    """All kernels of the CI cases, compiled on two threads: g++ is most of their time."""
    backend = get("sim")

    def build(case: Case) -> None:
        arch, pipeline, scheduler, direction, family = case
        problem, config = problems_of(arch, family, direction)[0], config_for(arch, pipeline, scheduler, family, split_k=1)
        choose.decide(bare_spec(direction), problem, config, backend, arch)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(build, CI))


def run_case(case: Case) -> None:
    arch, pipeline, scheduler, direction, family = case
    for problem in problems_of(arch, family, direction):
        config = config_for(arch, pipeline, scheduler, family, split_k=1)
        outcome = verified(problem, config, f"sim:{arch}")
        assert outcome.ok, f"{problem.describe()}\n{outcome.reason}{outcome.error}"
        assert outcome.config.pipeline == (pipeline,) and outcome.config.scheduler == scheduler


@pytest.mark.parametrize("case", CI, ids=names)
def test_pipelines_verify(compiled: None, case: Case) -> None:
    run_case(case)


@pytest.mark.nightly
@pytest.mark.parametrize("case", NIGHTLY, ids=names)
def test_pipelines_verify_everywhere(case: Case) -> None:
    run_case(case)


def steps(problem: ConvProblem, k: int) -> list[int]:
    return [-(-depth // k) for _, _, depth in gemm_parts(problem)]


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201", "gfx1250"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_problems_reach_the_main_loops(arch: str, direction: str) -> None:
    """At least 5 K-steps of 32 and several blocks; the odd ones have tails in m, n and k, and strides and dilation."""
    for family in ("odd", "even"):
        problem = problems_of(arch, family, direction)[0]
        assert max(steps(problem, 32)) >= 5 and problem.G > 1
        assert all(-(-m // 32) * -(-n // 32) > 1 for m, n, _ in gemm_parts(problem))
    odd = problems_of(arch, "odd", direction)[0]
    assert odd.ndim == 3 and odd.Cg % 2 and odd.Kg % 2 and max(odd.stride) == 2 and max(odd.dilation) == 2
    assert all(size % 32 for part in gemm_parts(odd) for size in part)


def test_short_reductions_are_of_every_length_up_to_the_deepest_prefetch() -> None:
    lengths = {max(steps(problem, 32)) for problem in problems_of("gfx942", "odd", "bwd_weight")}
    assert {1, 2, 3, 4} <= lengths and max(lengths) >= 5


def test_the_legal_combinations() -> None:
    """Counted by hand: 8 pipelines and interwave for two of them, without the async ones where there are no direct loads."""
    assert {arch: len(legal(arch)) for arch in AMD_ARCHS} == {
        "gfx908": 8, "gfx90a": 10, "gfx942": 10, "gfx950": 10, "gfx1100": 8, "gfx1200": 8, "gfx1201": 8, "gfx1250": 8}
    assert len({case[:4] for case in CI}) == 10 * 3 + 8 * 3
    families = {(case[1], case[2], case[3], case[4]) for case in CI}
    assert all((pipeline, scheduler, direction, family) in families for pipeline, scheduler in legal("gfx1201")
               for direction in DIRECTIONS for family in ("odd", "even"))
