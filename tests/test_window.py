"""Window staging and packed groups: the geometry, and the kernels on the simulator."""

from __future__ import annotations

import pytest

import gconvdsl as gconv
from gconvdsl.archs import arch
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.runner import bare_spec, execute
from gconvdsl.tiles import default_config
from gconvdsl.verify import verify
from gconvdsl.window import find_window

TILE = Tile((64, 16, 144), (2, 1, 1), (16, 16, 16))
INSTRUCTION = arch("gfx942").instruction("bf16", (16, 16, 16))


def problem(channels=16, filters=16, G=4, **changes):
    fields = dict(N=3, G=G, C=channels * G, K=filters * G, input=(9, 11), filter=3, pad=((0, 2), (1, 1)), dtype="bf16")
    return gconv.ConvProblem(**{**fields, **changes})


def window(p, merge=1, tile=TILE):
    return find_window(p, tile, INSTRUCTION, merge, 65536)


def test_the_window_holds_what_the_box_sees():
    found = window(problem(stride=(2, 1)))
    d, h, w = found.box
    assert found.pixels == found.images * d * ((h - 1) * 2 + 3) * (w + 2) and found.images * d * h * w <= 64 and found.chunk == 16


def test_boxes_cover_every_result():
    p = problem()
    found = window(p)
    assert found.blocks(p) * found.images * found.box[0] * found.box[1] * found.box[2] >= p.gemm.m


@pytest.mark.parametrize("p, merge, pack", [
    (problem(), 1, 1), (problem(4, 4, 16), 8, 4), (problem(8, 8, 8), 4, 2), (problem(1, 1, 32), 16, 16)])
def test_groups_that_are_too_narrow_are_packed(p, merge, pack):
    assert window(p, merge).pack == pack


@pytest.mark.parametrize("p, merge", [
    (problem(6), 1), (problem(filter=1), 1), (problem(direction="bwd_weight"), 1), (problem(direction="bwd_data", stride=2), 1),
    (problem(layout="nchw"), 1), (problem(4, 4, 16), 2), (problem(4, 8, 16), 4)])
def test_tiles_that_are_staged_row_by_row(p, merge):
    assert window(p, merge) is None


@pytest.mark.parametrize("direction", ["forward", "bwd_data"])
@pytest.mark.parametrize("channels, filters, G, merge", [(16, 16, 4, 2), (4, 4, 16, 8), (8, 8, 8, 4), (2, 2, 16, 8)])
def test_kernels_are_right(channels, filters, G, merge, direction):
    p = problem(channels, filters, G, direction=direction, stride=(2, 1) if direction == "forward" else 1)
    config = KernelConfig(tile=TILE, pipeline="basic_v1", num_groups_to_merge=merge)

    def run(a, b, out):
        result = execute(bare_spec(direction), config, p, (a, b), out=out, target="sim:gfx942", poison=True)
        assert "windows" in " ".join(result.decision.lowered.notes)
        return result.output

    verify(p, run).require()


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["sim:gfx1100", "sim:gfx1201", "sim:gfx950", "sim:sm_90"])
@pytest.mark.parametrize("direction", ["forward", "bwd_data"])
@pytest.mark.parametrize("channels, G", [(16, 4), (4, 16), (8, 8), (2, 16)])
def test_chosen_tiles_are_right_on_every_arch(channels, G, direction, target):
    p = problem(channels, channels, G, direction=direction)

    def run(a, b, out):
        return execute(bare_spec(direction), KernelConfig(), p, (a, b), out=out, target=target, poison=True).output

    verify(p, run).require()


def test_a_window_tile_is_chosen_for_a_grouped_layer():
    layer = gconv.ConvProblem(N=64, G=32, C=512, K=512, input=(14, 14), filter=3, pad=1, dtype="bf16")
    chosen = default_config(layer, "sm_90", KernelConfig(pipeline="basic_v1"))
    assert chosen.tile.k == 9 * 16 and chosen.num_groups_to_merge == 4
