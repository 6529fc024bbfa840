from __future__ import annotations

import json
import math
import sys
import types

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import bench, bench_device, cli
from gconvdsl.bench_device import DeviceLimits, DeviceRow

PROBLEMS = [
    gconv.ConvProblem(N=2, G=3, C=6, K=9, input=(7, 6), filter=(3, 2), stride=(2, 1), pad=((1, 2), (0, 1)), dtype="fp32"),
    gconv.ConvProblem(N=2, G=5, C=5, K=5, input=(6, 5), filter=(3, 3), pad=1, dtype="fp32"),
    gconv.ConvProblem(N=1, G=2, C=4, K=4, input=(4, 5, 3), filter=(2, 3, 2), dilation=(1, 2, 1), pad=1, dtype="fp32"),
]


def test_the_set_of_layers_for_gpus() -> None:
    problems = {problem.name: problem for problem in bench.read_problems("gpu")}
    assert len(problems) == 31 and "g2_128c_8_small" not in problems, "the row that does not count is left out"
    assert all(problem.dtype == "bf16" for problem in problems.values())
    assert problems["wav2vec_pos_g16_768c"].Cg == 48 and problems["resnext3d_g32_256c"].ndim == 3


def test_limits() -> None:
    problem = gconv.ConvProblem(C=1, K=1, input=10, filter=1, dtype="bf16", out_dtype="bf16")
    assert (problem.flops, problem.bytes) == (20, 42)
    assert DeviceLimits("", {"bf16": 1e4}, 1e4).floor_ms(problem) == pytest.approx(4.2)
    assert DeviceLimits("", {"bf16": 1e3}, 1e4).floor_ms(problem) == pytest.approx(20.0)


def test_a_row_as_json() -> None:
    row = DeviceRow(PROBLEMS[0], "direct", {}, math.inf, 2.0, 3.0, "contiguous", 1.0, 0.5, 25)
    document = json.loads(json.dumps(row.to_dict()))
    assert not row.ok and document["error_ratio"] == "inf"
    assert (document["ratio"], document["line_ratio"], document["G"], document["pad"]) == (1.5, 2.0, 3, [[1, 2], [0, 1]])
    assert bench.summary([row])["forward grouped"]["mean"] == pytest.approx(1.5)


def test_without_a_gpu_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("torch")
    fake.cuda = types.SimpleNamespace(is_available=lambda: False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", fake)
    with pytest.raises(gconv.GconvError, match="no GPU"):
        bench_device.prepare()


def test_other_targets_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--target", "sim:gfx942"]) == 2
    assert "cpu and cuda" in capsys.readouterr().err


# --- the reference on the device, here on torch's CPU tensors

@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_the_reference_of_the_device_is_that_of_the_host(problem: gconv.ConvProblem, direction: str) -> None:
    torch = pytest.importorskip("torch")
    from gconvdsl.device_reference import error_ratio
    from gconvdsl.reference import reference

    case = problem.as_(direction)
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(case.fused_shape(name)).astype(np.float32) for name in "xwy"}
    a, b = (arrays[name] for name in case.operands)
    expected = reference(case, a, b).astype(np.float32)
    ta, tb, result = (torch.from_numpy(array).movedim(-1, 1) for array in (a, b, expected))
    assert error_ratio(case, result, ta, tb) < 0.6, "only rounded once"
    wrong = result.clone()
    wrong[-1, 0] += 1e-3
    assert error_ratio(case, wrong, ta, tb) > 1
    wrong[-1, 0] = math.nan
    assert error_ratio(case, wrong, ta, tb) == math.inf
