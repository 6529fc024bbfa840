"""The bulk tensor copy engine: maps and their limits, boxes on the simulator, maps on the way to the driver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuda_harness import PROBLEM, Fake
from gconvdsl.backends import base
from gconvdsl.errors import LaunchError
from gconvdsl.plan import Launch, Plan
from gconvdsl.problem import ConvProblem
from gconvdsl.tensor_map import TensorMap, image_map
from sim_harness import Array, run
from test_sim import ORDERS

# 12 images of 5 x 9 pixels with 24 channels; a box has 16 channels, 8 x 3 pixels of one image.
DIMS = (24, 9, 5, 12)
MAP = TensorMap("x", "fp16", DIMS, (48, 432, 2160), (16, 8, 3, 1), swizzle=32)


def box_of(images: Array, corner: tuple[int, ...], box: tuple[int, ...], steps: tuple[int, ...] = ()) -> Array:
    """The box at a corner (innermost axis first), zeros outside the images."""
    padded = np.pad(images, 32)
    steps = steps or (1,) * len(box)
    return padded[tuple(slice(32 + at, 32 + at + size, step) for at, size, step in list(zip(corner, box, steps))[::-1])]


# --- maps

def test_what_a_box_takes() -> None:
    assert MAP.fault() == "" and MAP.box_bytes == 16 * 8 * 3 * 2
    assert replace(MAP, steps=(1, 2, 2, 1)).box_bytes == 16 * 4 * 2 * 2


@pytest.mark.parametrize(("change", "word"), [
    ({"dims": (24, 9, 5)}, "axes"), ({"dims": (24, 0, 5, 12)}, "long"), ({"strides": (50, 432, 2160)}, "16 bytes"),
    ({"strides": (48, 432, 1 << 40)}, "2^40"), ({"box": (12, 8, 3, 1)}, "units"), ({"box": (16, 257, 3, 1)}, "256"),
    ({"steps": (1, 9, 1, 1)}, "steps"), ({"swizzle": 48}, "swizzle"), ({"box": (24, 8, 3, 1)}, "swizzle"),
])
def test_what_the_engine_cannot_take(change: dict[str, Any], word: str) -> None:
    assert word in replace(MAP, **change).fault()


def test_maps_of_images() -> None:
    def made(problem: ConvProblem) -> TensorMap | None:
        n, g, d, h, w, c = problem.view("x", problem.sizes("x")).flat()
        return image_map("x", problem.views()["x"], (n, g, max(d, 1), max(h, 1), w, c), problem.dtype, (16, 4, 1, 1))
    flat = ConvProblem(N=3, G=4, C=32, K=32, input=(7, 5), filter=3, dtype="bf16")
    assert made(flat) == TensorMap("x", "bf16", (32, 5, 7, 3), (64, 320, 2240), (16, 4, 1, 1))
    assert made(ConvProblem(N=3, G=4, C=32, K=32, input=5, filter=3, dtype="bf16")) == TensorMap("x", "bf16", (32, 5, 1, 3), (64, 64, 320), (16, 4, 1, 1))
    assert made(flat.replace(C=36, K=36)) is None, "pixels are not whole units of 16 bytes"
    assert made(flat.replace(layout="nchw")) is None, "channels are not neighbours"


# --- on the simulator

COPY = """
#include "gconv/copy_engine.hpp"
// Wave 1 copies boxes into a ring of two, wave 0 writes them out in the order they lie in, without the swizzle.
inline void move(ConvArgs args, const hw::TensorMap& map) {
  GCONV_LDS(unsigned char, raw, 2 * 1024 + 1024, 0);
  GCONV_LDS(hw::Mbarrier, bars, 4, 0);
  unsigned char* ring = raw + (1024 - (unsigned long long)raw % 1024) % 1024;
  if (hw::thread_id() == 0) {
    for (int i = 0; i < 2; ++i) hw::mbarrier_init(bars[i], 1), hw::mbarrier_init(bars[2 + i], 1);
    hw::mbarrier_init_done();
  }
  hw::barrier();
  const int* corner = (const int*)args.w;
  for (int i = 0; i < args.N; ++i, corner += 4) {
    int slot = i % 2, turn = i / 2 % 2;
    if (hw::wave_id() == 1) {
      hw::mbarrier_wait(bars[2 + slot], turn ^ 1);  // empty
      if (hw::lane_id() == 0) {
        hw::mbarrier_expect(bars[slot], args.G);
        hw::load_box(ring + slot * 1024, map, bars[slot], corner[0], corner[1], corner[2], corner[3]);
      }
    } else {
      hw::mbarrier_wait(bars[slot], turn);  // full
      for (int at = hw::lane_id() * 2; at < args.G; at += 64)
        ((unsigned short*)args.y)[i * 512 + at / 2] = *(unsigned short*)(ring + slot * 1024 + hw::swizzled<SWIZZLE>(at));
      hw::wave_sync();
      if (hw::lane_id() == 0) hw::mbarrier_arrive(bars[2 + slot]);
    }
  }
}
GCONV_KERNEL void copy(ConvArgs args GCONV_TENSOR_MAP(0)) { move(args GCONV_TENSOR_MAP_ARGUMENT(0)); }
"""
CORNERS = [(0, 0, 0, 0), (8, 4, 1, 11), (16, -3, -2, 5), (0, 7, 4, 3), (-8, 2, -3, 1)]


def copied(source: str, one: TensorMap) -> tuple[Array, Array]:
    images = np.random.default_rng(5).standard_normal(DIMS[::-1]).astype(np.float16)
    out = np.full((len(CORNERS), 512), np.nan, np.float16)
    got = run(source.replace("SWIZZLE", str(one.swizzle)), "copy", [images, np.array(CORNERS, np.int32), out], arch="sm_90", block=64,
              n=len(CORNERS), g=one.box_bytes, maps=(one,))[2]
    expected = [box_of(images, corner, one.box, one.steps).ravel() for corner in CORNERS]
    return got[:, :one.box_bytes // 2], np.array(expected)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("one", [MAP, replace(MAP, swizzle=0), replace(MAP, box=(8, 8, 2, 2), swizzle=64, steps=(1, 2, 1, 1))])
def test_boxes_arrive(order: str, one: TensorMap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_SIM_ORDER", order)
    np.testing.assert_array_equal(*copied(COPY, one))


@pytest.mark.parametrize("wait", ["empty", "full"])
def test_a_missing_wait_is_caught_in_some_order(wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for line in COPY.splitlines() if not line.endswith(f"// {wait}")]
    assert len(lines) == len(COPY.splitlines()) - 1
    monkeypatch.setenv("GCONV_RUN_TIMEOUT", "0.2")
    caught = []
    for order in ORDERS:
        monkeypatch.setenv("GCONV_SIM_ORDER", order)
        try:
            caught.append(not np.array_equal(*copied("\n".join(lines), MAP)))
        except LaunchError:     # a phase too many: the other wave waits for ever
            caught.append(True)
    assert any(caught)


def test_who_waits_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_RUN_TIMEOUT", "0.2")
    with pytest.raises(LaunchError) as caught:
        copied(COPY.replace("mbarrier_expect(bars[slot], args.G)", "mbarrier_expect(bars[slot], args.G + 1)"), MAP)
    assert caught.value.code == "launch.timeout"


# --- on the way to the driver

def test_maps_are_encoded_once_and_follow_the_argument_block(fake: Fake) -> None:
    backend = base.get("cuda")
    module = backend.load(backend.compile("", "sm_90", "k"))
    launch = Launch("gconv_copy", (1, 1, 1), 64, maps=(MAP, replace(MAP, operand="y", dtype="bf16", swizzle=128, steps=(1, 2, 1, 1))))
    plan = Plan((launch,), PROBLEM.args())
    for x in (4096, 4096, 8192):
        with backend.activate("sm_90", 0, 5):
            backend.launch(module, plan, plan.args.pack(x, 0, 65536))
    assert fake.log("cuTensorMapEncodeTiled") == [
        "cuTensorMapEncodeTiled type 6 at 4096 dims 24 9 5 12 strides 48 432 2160 box 16 8 3 1 steps 1 1 1 1 modes 0 1 2 0",
        "cuTensorMapEncodeTiled type 9 at 65536 dims 24 9 5 12 strides 48 432 2160 box 16 8 3 1 steps 1 2 1 1 modes 0 3 2 0",
        "cuTensorMapEncodeTiled type 6 at 8192 dims 24 9 5 12 strides 48 432 2160 box 16 8 3 1 steps 1 1 1 1 modes 0 1 2 0"]
    assert fake.log("map") == ["map at 4096", "map at 65536"] * 2 + ["map at 8192", "map at 65536"]


def test_a_map_that_the_driver_refuses(fake: Fake) -> None:
    backend = base.get("cuda")
    module = backend.load(backend.compile("", "sm_90", "k"))
    plan = Plan((Launch("gconv_copy", maps=(MAP,)),), PROBLEM.args())
    with backend.activate("sm_90"), pytest.raises(LaunchError) as caught:
        backend.launch(module, plan, plan.args.pack(4097, 0, 0))
    assert caught.value.code == "launch.failed" and "gconv_copy" in str(caught.value)
