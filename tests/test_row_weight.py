"""bwd_weight by rows on the copy engine, executed by the simulator; its shapes and what it serves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import lower_row_weight
from gconvdsl.archs import arch
from gconvdsl.config import KernelConfig
from gconvdsl.families import find_family
from gconvdsl.lower_row_weight import find_shape, lower_row_weight as lowering
from gconvdsl.runner import bare_spec, execute
from gconvdsl.verify import compare, make_inputs, verify

SM_90 = arch("sm_90")
PROBLEMS = {
    "4": dict(N=3, G=16, C=64, K=64, input=(9, 11), filter=3, pad=1, dtype="bf16"),
    "8, strided": dict(N=2, G=8, C=64, K=64, input=(9, 20), filter=3, pad=1, stride=2, dtype="fp16"),
    "16, a part of a block": dict(N=2, G=5, C=80, K=80, input=(7, 7), filter=3, pad=1, stride=(2, 1), dtype="bf16"),
    "32": dict(N=5, G=2, C=64, K=64, input=(7, 7), filter=3, pad=((1, 0), (0, 2)), dtype="bf16", out_dtype="fp32"),
    "depthwise": dict(N=2, G=40, C=40, K=40, input=(8, 17), filter=3, pad=1, dtype="bf16"),
    "5x5": dict(N=2, G=64, C=64, K=64, input=(10, 12), filter=5, pad=2, stride=2, dtype="bf16"),
    "7x7": dict(N=1, G=64, C=64, K=64, input=(16, 16), filter=7, pad=3, dtype="fp16"),
    "3-D": dict(N=2, G=16, C=64, K=64, input=(4, 6, 9), filter=3, pad=1, stride=(1, 2, 1), dtype="bf16"),
    "3-D in planes": dict(N=1, G=32, C=32, K=32, input=(3, 5, 9), filter=(2, 3, 3), pad=1, dtype="bf16"),
    "columns": dict(N=1, G=64, C=64, K=64, input=(4, 150), filter=3, pad=1, dtype="bf16"),
    "1-D": dict(N=2, G=64, C=64, K=64, input=70, filter=19, pad=9, dtype="bf16"),
    "2, no padding": dict(N=2, G=32, C=64, K=64, input=(6, 6), filter=(3, 2), dtype="bf16"),
    "far padding": dict(N=2, G=8, C=64, K=64, input=(3, 4), filter=3, pad=4, dtype="bf16"),
}


def _problem(name):
    return gconv.ConvProblem(**PROBLEMS[name], direction="bwd_weight")


def _run(problem):
    def run(a, b, out):
        result = execute(bare_spec("bwd_weight"), KernelConfig(), problem, (a, b), out=out, target="sim:sm_90", poison=True)
        assert result.decision.lowered.notes[0].startswith("by rows"), result.decision.lowered.notes
        return result.output
    return run


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_right(name):
    verify(_problem(name), _run(_problem(name))).require()


@pytest.mark.parametrize("name", ["4", "32", "7x7", "3-D", "8, strided"])
def test_nothing_spreads_from_the_border_of_x(name):
    """Taps that a pixel does not reach stay finite, whatever stands in it."""
    problem = _problem(name)
    x, dy = make_inputs(problem, seed=4)
    image = x.reshape(problem.shape("x"))
    image[0, ..., 0, 0, 0, 0], image[-1, ..., -1, 0, 0, -1], image[0, ..., 0, -1, -1, 0] = np.inf, np.nan, -np.inf
    out = np.full(problem.array_shape("w"), np.nan, np.dtype(gconv.dtypes.DTYPES[problem.out_dtype].numpy))
    report = compare(problem, _run(problem)(x, dy, out), x, dy, strict_nonfinite=True)
    assert report.ok, report


@pytest.mark.parametrize(("name", "change"), [
    ("4", dict(images=2)), ("4", dict(splits=5, ring=2, lanes=1)), ("columns", dict(halves=3)),
    ("depthwise", dict(channels=32, splits=7, lanes=32)), ("depthwise", dict(chunks=1, images=1, halves=4)),
    ("32", dict(images=8, splits=1, cluster=1)), ("32", dict(splits=2, cluster=2)), ("3-D", dict(splits=6, cluster=2)),
    ("7x7", dict(images=4, splits=3)),
])
def test_other_shapes_are_right(name, change, monkeypatch):
    problem = _problem(name)
    shape = find_shape(problem, SM_90)
    pitch = -(-((change.get("halves", shape.halves) * 8 - 1) * problem.stride[-1] + problem.filter[-1]) // 8) * 8
    changed = replace(shape, pitch=pitch, **change)
    monkeypatch.setattr(lower_row_weight, "find_shape", lambda *_: changed)
    verify(problem, _run(problem), kinds=("normal", "integers")).require()


@pytest.mark.parametrize("change", [
    dict(direction="forward"), dict(dtype="fp32"), dict(G=1), dict(layout="nchw"), dict(dilation=2), dict(stride=3), dict(K=128),
    dict(N=0), dict(G=1, C=12, K=12), dict(filter=7, pad=3)])
def test_what_it_does_not_serve(change):
    problem = _problem("4").replace(G=4)
    assert find_family(problem, KernelConfig(), "sm_90") is lowering
    assert find_family(problem.replace(**change), KernelConfig(), "sm_90") is not lowering
    assert find_family(problem, KernelConfig(pipeline="basic_v1"), "sm_90") is not lowering
    for other in ("sm_80", "gfx942"):
        assert find_family(problem, KernelConfig(), other) is not lowering


def _layer(**changes):
    return gconv.ConvProblem(**{**dict(N=64, G=32, C=128, K=128, input=56, filter=(3, 3), pad=1, dtype="bf16"), **changes},
                             direction="bwd_weight")


def test_shares_fill_the_device():
    shape = find_shape(_layer(), SM_90)
    assert 0.95 * SM_90.compute_units * shape.blocks <= 2 * shape.splits <= SM_90.compute_units * shape.blocks


def test_shares_are_whole_images_where_that_is_near():
    shape = find_shape(_layer(C=512, K=512, input=14), SM_90)
    assert shape.splits * 14 == 64 // shape.images * 14


def test_pairs_of_blocks_add_up_the_sums_of_wide_groups():
    shape = find_shape(_layer(C=1024, K=1024, input=7), SM_90)
    assert shape.cluster == 2 and shape.pieces == shape.splits // 2
    assert find_shape(_layer(N=1, C=1024, K=1024, input=7), SM_90).cluster == 1, "too small a ring for the sums"
    lowered = lowering(bare_spec("bwd_weight"), _layer(C=1024, K=1024, input=7), KernelConfig(), "sm_90")
    assert lowered.plan.workspace == shape.pieces * 1024 * 9 * 32 * 4 and "GCONV_CLUSTER(2)" in lowered.source


@pytest.mark.parametrize("name", ["4", "32", "7x7"])
def test_sums_stay_in_registers(name, require_tool):
    require_tool("nvcc")
    from gconvdsl.backends.base import parse_target
    from gconvdsl.build import lower

    backend, name_of_arch = parse_target("cuda:sm_90")
    lowered = lower(bare_spec("bwd_weight"), _problem(name), KernelConfig(), "cuda", name_of_arch)
    assert backend.resources(lowered.source, name_of_arch, "rows")["gconv_main"]["spill_bytes"] == 0
