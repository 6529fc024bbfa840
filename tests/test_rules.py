from __future__ import annotations

import math
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gconvdsl as gconv
from gconvdsl import pipelines, rules_table
from gconvdsl.archs import arch as find_arch
from gconvdsl.archs import arch_names
from gconvdsl.config import KernelConfig, Tile
from gconvdsl.problem import ConvProblem
from gconvdsl.rules import RULES, check, lds_bytes, require
from gconvdsl.tiles import default_tile

TILE = Tile((64, 16, 64), (2, 1, 1), (16, 16, 16))
PROBLEM = ConvProblem(N=8, G=6, C=96, K=96, input=(14, 14), filter=(3, 3), pad=1, dtype="bf16")
LEGAL = KernelConfig(tile=TILE, pipeline="basic_v1", scheduler="intrawave")
DIRECTIONS = ("forward", "bwd_data", "bwd_weight")
ONE_BY_ONE = {"filter": (1, 1), "pad": 0}


def tile(**changes):
    return {"tile": replace(TILE, **changes)}


# rule, problem changes, config changes, arch, the value or limit that the message must name
BREAKS = [
    ("pipeline.scheduler", {}, {"pipeline": "compv3", "scheduler": "interwave"}, "gfx942", "interwave"),
    ("pipeline.scheduler", {}, {"pipeline": "compv6", "scheduler": "interwave"}, "gfx942", "compv6"),
    ("pipeline.direct_to_lds", {}, {"pipeline": "comp_async", "double_smem_buffer": True}, "gfx908", "gfx908"),
    ("pipeline.direct_to_lds", {}, {"pipeline": "basic_async_v1"}, "gfx1201", "basic_async_v1"),
    ("pipeline.double_smem_buffer", {}, {"pipeline": "compv4", "double_smem_buffer": False}, "gfx942", "compv4"),
    ("pipeline.double_smem_buffer", {}, {"pipeline": "comp_async", "double_smem_buffer": False}, "gfx942", "comp_async"),
    ("pipeline.num_wave_groups", {}, {"pipeline": "compv5", "num_wave_groups": 1}, "gfx942", "2"),
    ("pipeline.num_wave_groups", {}, {"pipeline": "compv5", "num_wave_groups": 4}, "gfx942", "4"),
    ("pipeline.num_wave_groups", {}, {"num_wave_groups": 2}, "gfx942", "basic_v1"),
    ("pipeline.even_waves", {}, {"pipeline": "compv5", "num_wave_groups": 2, **tile(waves=(1, 1, 1))}, "gfx942", "1x1x1"),
    ("tile.block_m", {}, tile(block=(48, 16, 64)), "gfx942", "48"),
    ("tile.block_n", {}, tile(block=(64, 24, 64)), "gfx942", "24"),
    ("tile.block_k", {}, tile(block=(64, 16, 24)), "gfx942", "24"),
    ("tile.waves_k", {}, tile(waves=(2, 1, 2)), "gfx942", "2"),
    ("tile.wave_tile", {}, tile(wave_tile=(16, 8, 16)), "gfx942", "16x8x16"),
    ("tile.wave_tile", {}, tile(wave_tile=(16, 16, 8)), "gfx942", "16x16x8"),
    ("tile.wave_tile", {}, {}, "gfx1250", "16x16x32"),
    ("tile.wave_tile", {}, {}, "sm_90", "16x8x16"),
    ("tile.threads", {}, tile(block=(512, 16, 16), waves=(32, 1, 1)), "gfx942", "2048"),
    ("tile.vector", {}, tile(vector=(8, 3, 8)), "gfx942", "8x3x8"),
    ("tile.vector", {}, tile(vector=(32, 8, 8)), "gfx942", "32"),
    ("tile.lds", {}, tile(block=(64, 16, 512)), "gfx942", str(80 * (512 * 2 + 16) + 512)),
    ("tile.lds", {}, {"num_groups_to_merge": 6}, "gfx942", str(80 * (64 * 2 + 16) * 6 + 512)),
    ("tile.registers", {}, tile(block=(256, 256, 16), waves=(1, 1, 1)), "gfx942", "512"),
    ("option.pad_m", {}, {"pad_m": False}, "gfx942", "1568"),
    ("option.pad_n", {"K": 90}, {"pad_n": False}, "gfx942", "15"),
    ("option.pad_k", {}, {"pad_k": False}, "gfx942", "144"),
    ("option.explicit_gemm", {}, {"explicit_gemm": True}, "gfx942", "3x3"),
    ("option.explicit_gemm", {**ONE_BY_ONE, "stride": 2}, {"explicit_gemm": True}, "gfx942", "2x2"),
    ("option.explicit_gemm", {**ONE_BY_ONE, "pad": ((0, 1), 0)}, {"explicit_gemm": True}, "gfx942", "(0, 1)"),
    ("option.explicit_gemm", {**ONE_BY_ONE, "layout": "ngchw"}, {"explicit_gemm": True}, "gfx942", "ngchw"),
    ("option.split_image", {"direction": "bwd_weight"}, {"split_image": True}, "gfx942", "bwd_weight"),
    ("option.split_image", {}, {"split_image": True, "split_k": 2}, "gfx942", "split_k = 2"),
    ("option.two_stage", {}, {"two_stage": True}, "gfx942", "forward"),
    ("option.two_stage", {"direction": "bwd_data"}, {"two_stage": True}, "cpu", "bwd_data"),
    ("option.split_k", {}, {"split_k": 4}, "gfx942", "3"),  # 16 channels x 9 taps = 144: three steps of 64
    ("option.num_groups_to_merge", {}, {"num_groups_to_merge": 4}, "gfx942", "6"),
    ("option.cpu_block", {}, {"cpu_points": 25}, "cpu", "25 is more than 24"),
    ("option.cpu_block", {}, {"cpu_vectors": 5}, "cpu", "5 is more than 4"),
    ("option.strict_nonfinite", {}, {"strict_nonfinite": True}, "gfx942", "gfx942"),
    ("option.precision", {"dtype": "fp32"}, {"precision": "tf32", "tile": None}, "gfx942", "tf32"),
    ("option.precision", {}, {"precision": "tf32", "tile": None}, "sm_90", "bf16"),
    ("limit.index", {"N": 1, "C": 6, "K": 6, "input": (1 << 16, 1 << 16)}, {"tile": None}, "gfx942", str(1 << 32)),
    ("limit.index", {"N": 1 << 31}, {"tile": None}, "gfx942", str(1 << 31)),
    ("limit.index", {"N": 1 << 31}, {"tile": None}, "cpu", str(1 << 31)),
    ("limit.index", {"N": 1 << 23, "direction": "bwd_weight"}, {}, "gfx942", str((1 << 23) * 14 * 14)),
    ("limit.index", {"stride": (1 << 15, 1 << 15)}, {}, "gfx942", str(1 << 30)),
    ("limit.index", {"stride": (1 << 15, 1 << 15), "direction": "bwd_data"}, {}, "cpu", str(1 << 30)),
    ("limit.index", {"filter": (1, 1), "pad": 0, "dilation": 1 << 31}, {}, "gfx942", str(1 << 31)),
    ("limit.index", {"pad": 1 << 31, "stride": 1 << 14}, {"tile": None}, "gfx942", "points of an output image"),
    ("limit.index", {"pad": ((0, 1 << 30), (1, 1)), "stride": (1 << 29, 1)}, {}, "gfx942", str((1 << 30) + 14)),
    ("limit.grid", {"stride": 256, "direction": "bwd_data"}, {"tile": None}, "gfx942", "65536"),
    ("limit.grid", {"N": 1 << 24}, {}, "gfx942", str((1 << 24) * 196 // 64 * 6)),  # 196 outputs an image, 64 a block, 6 groups
    ("limit.grid", {"N": 1 << 15}, {"split_image": True}, "gfx942", "65536"),
    ("limit.grid", {"N": 1 << 13, "direction": "bwd_weight"}, {"split_k": 1 << 16, **tile(block=(64, 16, 16))}, "gfx942",
     "65536"),
    ("tile.lds", {}, {"tile": Tile((128, 128, 16), (4, 4, 1), (32, 32, 8))}, "gfx942", str(128 * 136 * 4 + 1024)),
]


@pytest.mark.parametrize("rule, problem, config, arch, named", BREAKS)
def test_each_rule_can_be_broken_alone(rule, problem, config, arch, named):
    assert check(PROBLEM, LEGAL, "gfx942") == []
    found = check(PROBLEM.replace(**problem), LEGAL.resolved(**config), arch)
    assert [one.rule for one in found] == [rule]
    assert named in found[0].message and found[0].fix.endswith(".") and found[0].field and str(found[0]).startswith(rule)


def test_every_rule_is_broken_by_a_test():
    assert {rule for rule, *_ in BREAKS} == set(RULES)


def test_every_rule_is_explained():
    for rule in RULES.values():
        assert rule.sentence.endswith(".") and rule.reason.endswith(".") and rule.id.count(".") == 1


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("pipeline", ["basic_v1", "mem", "compv3", "compv4", "compv5", "compv6", "comp_async", "basic_async_v1"])
def test_the_principle(pipeline, direction):
    """Every pipeline in every direction on every arch, save direct loads where the hardware has none."""
    without = {"gfx908", "gfx1100", "gfx1200", "gfx1201", "gfx1250"} if "async" in pipeline else set()
    wanted = pipeline, "intrawave", direction
    rows = [row for row in rules_table.matrix() if (row.pipeline, row.scheduler, row.direction) == wanted]
    assert len(rows) == 11 * 3
    assert {row.arch for row in rows if row.reasons} == without
    assert all(row.reasons in ((), ("pipeline.direct_to_lds",)) for row in rows)


def test_interwave_is_for_basic_v1_and_mem():
    legal = {row.pipeline for row in rules_table.matrix("gfx942") if row.scheduler == "interwave" and not row.reasons}
    assert legal == {"basic_v1", "mem"}


def test_what_is_not_chosen_yet_breaks_nothing():
    assert check(PROBLEM, KernelConfig(), "gfx942") == [] and check(PROBLEM, KernelConfig(), "cpu") == []


def test_a_chain_is_judged_by_its_first():
    config = LEGAL.resolved(pipeline="basic_v1 -> compv4", double_smem_buffer=False)
    assert check(PROBLEM, config, "gfx942") == []
    assert [one.rule for one in check(PROBLEM, config.resolved(pipeline="compv4 -> basic_v1"), "gfx942")] == [
        "pipeline.double_smem_buffer"]


def test_the_cpu_ignores_tile_pipeline_and_scheduler():
    odd = KernelConfig(tile=Tile((7, 7, 7), (3, 3, 3), (2, 2, 2), (3, 3, 3)), pipeline="comp_async", scheduler="interwave",
                       double_smem_buffer=False)
    assert check(PROBLEM, odd, "cpu") == []


def test_the_tile_of_the_archs_family_counts():
    config = LEGAL.resolved(tile={"cdna": TILE, "nvidia": Tile((64, 16, 64), (2, 1, 1), (16, 8, 16))})
    assert all(check(PROBLEM, config, name) == [] for name in ("gfx942", "sm_90", "gfx1201"))


@pytest.mark.parametrize("arch, dtype, wave_tile", [
    ("gfx908", "bf16", (16, 16, 8)), ("gfx908", "bf16", (32, 32, 4)), ("gfx942", "fp32", (32, 32, 2)),
    ("gfx950", "fp16", (32, 32, 16)),
    ("gfx1100", "fp16", (16, 16, 16)), ("gfx1201", "fp32", (16, 16, 1)), ("gfx1250", "fp32", (16, 16, 4)),
    ("sm_80", "bf16", (16, 8, 16)),
])
def test_native_wave_tiles_are_legal(arch, dtype, wave_tile):
    m, n, k = wave_tile
    config = LEGAL.resolved(tile=Tile((2 * m, 2 * n, 4 * k), (1, 2, 1), wave_tile))
    assert check(PROBLEM.replace(dtype=dtype), config, arch) == []


def test_tf32_has_its_own_instruction():
    config = KernelConfig(tile=Tile((32, 16, 16), (1, 1, 1), (16, 8, 8)), precision="tf32")
    fp32 = PROBLEM.replace(dtype="fp32")
    assert check(fp32, config, "sm_90") == []
    assert [one.rule for one in check(fp32, config.resolved(precision=None), "sm_90")] == ["tile.wave_tile"]


def test_lds_of_a_known_tile():
    # A: 64 rows, B: 16 rows of 64 two-byte elements and 16 bytes of padding; a table of 64 offsets.
    assert lds_bytes(TILE, "bf16", "basic_v1") == 80 * 144 + 512
    assert lds_bytes(TILE, "bf16", "compv4") == 2 * 80 * 144 + 512 == lds_bytes(TILE, "bf16", "basic_v1", double_smem_buffer=True)
    assert lds_bytes(TILE, "fp32", "basic_v1", 2) == 80 * (64 * 4 + 16) * 2 + 512
    # The cshuffle buffer: 4 waves x 32 rows of 128 + 8 fp32, more than the tiles of a short K-step.
    big = Tile((128, 128, 16), (4, 4, 1), (32, 32, 8))
    shuffled = 128 * (128 + 8) * 4 + 1024
    assert lds_bytes(big, "bf16", "basic_v1", epilogue="cshuffle") == shuffled == lds_bytes(big, "bf16", "basic_v1")
    assert lds_bytes(big, "bf16", "basic_v1", epilogue="default") == 256 * (16 * 2 + 16) + 1024


def test_phases_of_a_strided_bwd_data_count_for_padding():
    # 14 inputs, stride 2: 7 of each residue; N = 8: 8 * 7 * 7 = 392 = 8 * 49 rows a phase.
    problem = PROBLEM.replace(direction="bwd_data", stride=2)
    small = LEGAL.resolved(tile=Tile((16, 16, 16), (1, 1, 1), (16, 16, 16)), pad_m=False)
    assert [one.rule for one in check(problem, small, "gfx942")] == ["option.pad_m"]
    assert check(problem.replace(N=16), small, "gfx942") == []


def test_require_raises_with_every_reason():
    require(PROBLEM, LEGAL, "gfx942")
    with pytest.raises(gconv.RuleError) as caught:
        require(PROBLEM, LEGAL.resolved(two_stage=True, num_groups_to_merge=5), "gfx942")
    found = caught.value
    assert [one.rule for one in found.violations] == ["option.two_stage", "option.num_groups_to_merge"]
    assert "two_stage" in str(found) and "does not divide G = 6" in str(found)
    assert pickle.loads(pickle.dumps(found)).violations == found.violations


def test_an_unknown_arch_is_an_error():
    with pytest.raises(gconv.CompileError):
        check(PROBLEM, LEGAL, "gfx000")


# --- property: no violation means that every field is within limits, computed here a second time

SIDE = st.sampled_from([8, 16, 32, 48, 64, 128, 256])
WAVES = st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 1, 1, 2]))
WAVE_TILES = st.sampled_from([(16, 16, 16), (32, 32, 8), (16, 16, 32), (16, 8, 16), (16, 16, 4), (16, 16, 1), (32, 32, 16),
                              (4, 64, 16)])
TILES = st.builds(Tile, block=st.tuples(SIDE, SIDE, st.sampled_from([8, 16, 32, 64, 128])), waves=WAVES, wave_tile=WAVE_TILES,
                  vector=st.tuples(*[st.sampled_from([1, 2, 4, 8, 16, 3])] * 3))
CONFIGS = st.builds(
    KernelConfig, tile=TILES, pipeline=st.sampled_from(sorted(pipelines.PIPELINES)),
    scheduler=st.sampled_from([None, "intrawave", "interwave"]),
    double_smem_buffer=st.sampled_from([None, True, False]), num_groups_to_merge=st.sampled_from([None, 1, 2, 3, 4]),
    split_k=st.sampled_from([None, 1, 2, 8, 64]), num_wave_groups=st.sampled_from([None, 1, 2]),
    two_stage=st.sampled_from([None, True]),
    explicit_gemm=st.sampled_from([None, True]))
PROBLEMS = st.builds(
    ConvProblem, N=st.integers(1, 8), G=st.sampled_from([1, 2, 6]), C=st.sampled_from([6, 48, 96]), K=st.sampled_from([6, 96]),
    input=st.tuples(st.integers(3, 30), st.integers(3, 30)), filter=st.sampled_from([(1, 1), (3, 3), (3, 1)]),
    stride=st.sampled_from([1, 2]),
    pad=st.sampled_from([0, 1]), dtype=st.sampled_from(["fp32", "fp16", "bf16"]), direction=st.sampled_from(DIRECTIONS))
NATIVE = {  # (family, dtype) -> shapes whose k must divide wave_tile's; gfx950's deeper ones are multiples of these
    ("cdna", "fp16"): [(16, 16, 16), (32, 32, 8)], ("cdna", "bf16"): [(16, 16, 16), (32, 32, 8)],
    ("cdna", "fp32"): [(16, 16, 4), (32, 32, 2)],
    ("rdna", "fp16"): [(16, 16, 16)], ("rdna", "bf16"): [(16, 16, 16)], ("rdna", "fp32"): [(16, 16, 1)],
    ("gfx1250", "fp16"): [(16, 16, 32)], ("gfx1250", "bf16"): [(16, 16, 32)], ("gfx1250", "fp32"): [(16, 16, 4)],
    ("nvidia", "fp16"): [(16, 8, 16)], ("nvidia", "bf16"): [(16, 8, 16)], ("nvidia", "fp32"): [(16, 16, 1)],
}
GPUS = [name for name in arch_names() if name not in ("cpu", "gfx908")]


def within_limits(problem, config, name):
    """The rules once more, as one expression each."""
    arch, t, size = find_arch(name), config.tile, 4 if problem.dtype == "fp32" else 2
    pipeline = config.pipeline[0]
    depths = {"forward": problem.Cg * problem.taps, "bwd_weight": problem.N * math.prod(problem.output)}
    waves, depth = math.prod(t.waves), depths.get(problem.direction, problem.depth)
    buffers = 2 if config.double_smem_buffer or pipeline in ("compv4", "comp_async") else 1
    merge = config.num_groups_to_merge or 1
    lds = max((t.block[0] + t.block[1]) * (t.block[2] * size + 16) * buffers * merge,
              t.waves[0] * t.wave_tile[0] * (merge * t.block[1] * 4 + 16)) + t.block[0] * 8
    return [
        any(t.wave_tile[:2] == (m, n) and t.wave_tile[2] % k == 0 for m, n, k in NATIVE[arch.family, problem.dtype]),
        all(t.block[i] % (t.waves[i] * t.wave_tile[i]) == 0 for i in range(3)), t.waves[2] == 1, waves * arch.wave <= 1024,
        set(t.vector) <= {1, 2, 4, 8, 16}, lds <= arch.lds,
        t.block[0] * t.block[1] // (waves * arch.wave) * (config.num_groups_to_merge or 1) <= arch.registers,
        config.scheduler != "interwave" or pipeline in ("basic_v1", "mem"),
        pipeline not in ("compv4", "comp_async") or config.double_smem_buffer is not False,
        config.num_wave_groups in (None, 2 if pipeline == "compv5" else 1), pipeline != "compv5" or waves % 2 == 0,
        "async" not in pipeline or name in ("gfx90a", "gfx942", "gfx950", "sm_80", "sm_90"),
        problem.G % (config.num_groups_to_merge or 1) == 0, (config.split_k or 1) <= max(1, math.ceil(depth / t.block[2])),
        not config.two_stage or problem.direction == "bwd_weight",
        not config.explicit_gemm or (problem.taps == 1 and problem.stride == (1, 1) and problem.pad == ((0, 0), (0, 0))),
    ]


FIELDS = st.sets(st.sampled_from(["block", "waves", "wave_tile", "vector", "pipeline", "scheduler", "double_smem_buffer",
                                  "num_groups_to_merge",
                                  "split_k", "num_wave_groups", "two_stage", "explicit_gemm"]), max_size=3)


def blended(problem, name, odd, fields):
    """The usual configuration, with a few fields taken from an arbitrary one."""
    usual = default_tile(problem, name)
    tile = replace(usual, **{f: getattr(odd.tile, f) for f in fields & {"block", "waves", "wave_tile", "vector"}})
    options = {f: getattr(odd, f) for f in fields - {"block", "waves", "wave_tile", "vector"}}
    return KernelConfig(**{"tile": tile, "pipeline": "basic_v1", **options})


def test_no_violation_exactly_where_every_field_is_within_limits():
    seen = Counter()

    @settings(max_examples=300, deadline=None)
    @given(PROBLEMS, CONFIGS, st.sampled_from(GPUS), FIELDS)
    def compare(problem, odd, name, fields):
        config = blended(problem, name, odd, fields)
        found = check(problem, config, name)
        assert check(problem, KernelConfig.from_json(config.to_json()), name) == found
        broken = {one.rule for one in found}
        seen["legal" if not broken else "broken"] += 1
        if broken != {"tile.registers"}:  # the estimate is more than the accumulators that are counted here
            assert all(within_limits(problem, config, name)) == (not broken)

    compare()
    assert min(seen["legal"], seen["broken"]) > 40


# --- tables

def test_the_matrix_has_every_combination_once():
    rows = rules_table.matrix()
    assert len(rows) == len(set(rows)) == 8 * 2 * 3 * 3 * 11
    assert len(rules_table.matrix("gfx942", "bf16")) == 8 * 2 * 3


def test_the_text_names_every_pipeline_arch_and_rule():
    text = rules_table.render()
    assert all(name in text for name in [*pipelines.PIPELINES, *arch_names(), *RULES])
    one = rules_table.render("gfx90a", "fp16")
    assert "gfx90a" in one and "gfx942  " not in one and "fp16" in one.splitlines()[1] and "bf16" not in one.splitlines()[1]


def test_the_text_merges_only_what_agrees():
    lines = rules_table.render().splitlines()
    interwave = [line for line in lines if line.startswith("compv3") and "interwave" in line]
    assert len(interwave) == 1 and interwave[0].count("no (") == 10 and interwave[0].endswith("ignored")


def test_unknown_names_are_errors():
    with pytest.raises(gconv.CompileError):
        rules_table.render("gfx000")
    with pytest.raises(gconv.ProblemError):
        rules_table.render(dtype="fp4")


def test_the_page_is_in_step_with_the_rules():
    page = Path(__file__).parents[1] / "docs" / "rules.md"
    assert page.read_text(encoding="utf-8") == rules_table.markdown()
