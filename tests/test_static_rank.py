"""Ranking candidates by static figures: the prediction by hand, and real kernels compiled for an arch that is not here."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from gconvdsl import choose, cli, static_rank
from gconvdsl.archs import arch as find_arch
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.loop_report import LoopReport
from gconvdsl.plan import Launch, Lowered, Plan
from gconvdsl.problem import ConvProblem

PROBLEM = ConvProblem(N=4, G=2, C=128, K=256, input=(16, 16), filter=(3, 3), pad=1, dtype="fp16")


def predicted(pipeline: str = "compv3", **figures: Any) -> static_rank.Ranked:
    """The prediction for a tile 128 x 128 x 32 of 4 waves: a pass of two K-steps with these figures, and nothing else."""
    none: dict[str, Any] = dict.fromkeys(LoopReport.__dataclass_fields__, 0)
    loop = LoopReport(**{**none, "steps": 2.0, "matrix": 64, **figures})
    config = KernelConfig(tile=Tile((128, 128, 32), (2, 2, 1), (32, 32, 8)), pipeline=pipeline)
    lowered = Lowered("", Plan((Launch("gconv_main", (2000, 1, 1), 256),), PROBLEM.args()), config)
    resources = {"vgpr": 100, "agpr": 20, "lds_bytes": 20000, "occupancy": 3}
    return static_rank._predicted(PROBLEM, lowered, resources, loop, 100.0, find_arch("gfx942"))


def test_the_prediction_by_hand() -> None:
    """Three blocks of 4 waves on 4 SIMDs (LDS has room for three); 64 * 9 = 576 of k are 18 K-steps; 304 compute units."""
    plain = predicted()
    assert plain.resident == 3 and plain.registers == 120 and plain.bound == "matrix"
    assert plain.step["matrix"] == 3 * 128 * 128 * 32 / 1024 and plain.step["latency"] == 300
    assert plain.cycles == 3 * (18 * 1536 + 2000)              # 2000 blocks are three rounds of 912
    assert plain.utilisation == pytest.approx(2000 * 18 * 512 / 304 / plain.cycles)
    slow = predicted(valu=1000)
    assert slow.bound == "valu" and slow.step["valu"] == 12 / 2 * 1000 * 4 / 4 and slow.cycles > plain.cycles
    assert predicted(lds_read_bytes=60000, lds_write_bytes=40000).step["lds"] == 6 * 100000 / 128
    memory = predicted(global_bytes=100000)
    assert memory.bound == "memory" and memory.step["memory"] == 6 * 100000 / 64
    assert predicted("basic_v1").step["latency"] == 600


def test_real_candidates(require_tool: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    require_tool("clang", "gfx942")
    found = static_rank.rank(PROBLEM, "gfx942", 3)
    assert 1 <= len(found) <= 3 and [one.cycles for one in found] == sorted(one.cycles for one in found)
    assert all(0 < one.utilisation <= 1 and one.registers > 0 and one.lds_bytes > 0 for one in found)
    assert cli.main(["rank", "--problem", PROBLEM.describe(), "--arch", "gfx942", "--limit", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert choose.describe_config(found[0].config) in lines[-len(found)] and lines[-len(found)].split()[-1] == "1.00"


def test_what_spills_is_left_out(require_tool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("clang", "gfx942")
    real = static_rank.loop_report

    def spilling(*args: Any) -> LoopReport:
        from dataclasses import replace

        return replace(real(*args), scratch=1)
    monkeypatch.setattr(static_rank, "loop_report", spilling)
    assert static_rank.rank(PROBLEM, "gfx942", 1) == []


def test_other_archs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rank", "--problem", PROBLEM.describe(), "--arch", "sm_90"]) == 2
    assert "error[" in capsys.readouterr().err
