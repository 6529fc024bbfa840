from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gconvdsl as gconv
from gconvdsl.config import OPTIONS, KernelConfig, Tile, TileSpace
from gconvdsl.pipelines import EPILOGUES, PIPELINES, PRECISIONS, SCHEDULERS

M64 = Tile(block=(64, 16, 64), waves=(2, 1, 1), wave_tile=(16, 16, 16), name="m64")


def code_of(call, *args, **kwargs):
    with pytest.raises(gconv.ConfigError) as caught:
        call(*args, **kwargs)
    return caught.value.code, str(caught.value)


def test_sizes_are_tuples_or_text():
    assert Tile("64x16x64", "2x1x1", "16x16x16", "8x8x8") == M64
    assert Tile(block=[64, 16, 64], waves=[2, 1, 1], wave_tile=[16, 16, 16]) == M64
    assert (M64.m, M64.n, M64.k) == (64, 16, 64)


def test_names_take_no_part_in_equality():
    other = Tile(block=(64, 16, 64), waves=(2, 1, 1), wave_tile=(16, 16, 16), name="other")
    assert other == M64 and hash(other) == hash(M64) and KernelConfig(tile=other) == KernelConfig(tile=M64)
    assert KernelConfig(tile=other).identity() == KernelConfig(tile=M64).identity()
    assert KernelConfig(tile=other).to_json() != KernelConfig(tile=M64).to_json()


def test_waves_default_to_one_where_the_wave_tile_is_given():
    assert Tile((64, 16, 64), wave_tile=(16, 16, 16)).waves == (1, 1, 1)


@pytest.mark.parametrize("block", [(64, 64, 64), (16, 16, 16), (48, 16, 48), (128, 32, 8), (32, 160, 24)])
def test_a_bare_block_gets_waves_and_a_wave_tile_that_divide_it(block):
    tile = Tile(block)
    assert all(block[i] % (tile.waves[i] * tile.wave_tile[i]) == 0 for i in range(3)) and tile.waves[2] == 1


@pytest.mark.parametrize("block", [(64, 16), (64, 16, 0), (64, -1, 64), "64x16", "64x16x", "axbxc", 64, (64.0, 16, 64),
                                   (True, 16, 64), None])
def test_a_size_that_cannot_exist(block):
    code, text = code_of(Tile, block=block)
    assert code == "tile.value" and "block" in text and repr(block) in text


def test_unknown_and_missing_tile_fields():
    code, text = code_of(Tile, blok=(64, 16, 64))
    assert code == "tile.field" and "Did you mean block?" in text
    assert code_of(Tile.from_fields, {"waves": (1, 1, 1)})[0] == "tile.missing"


def test_the_decorator_gives_a_named_tile():
    @gconv.tile
    class m64:
        block, waves, wave_tile, vector = (64, 16, 64), (2, 1, 1), (16, 16, 16), (8, 8, 8)

    assert isinstance(m64, Tile) and m64 == M64 and m64.name == "m64"


def test_the_decorator_reports_a_misspelt_field():
    def declare():
        @gconv.tile
        class m64:
            block, wave_tiles = (64, 16, 64), (16, 16, 16)

    code, text = code_of(declare)
    assert code == "tile.field" and "wave_tile" in text


def test_choices_make_a_space_of_all_combinations():
    @gconv.tile
    class space:
        block = (gconv.choice(32, 64), 16, gconv.choice(32, 64))
        waves = gconv.choice((1, 1, 1), (2, 1, 1))
        wave_tile = (16, 16, 16)

    assert isinstance(space, TileSpace) and space.name == "space" and len(space) == 8
    assert {(t.m, t.k, t.waves[0]) for t in space} == {(m, k, w) for m in (32, 64) for k in (32, 64) for w in (1, 2)}
    assert len({t.name for t in space}) == 8


def test_equal_members_of_a_space_are_listed_once():
    assert len(TileSpace.from_fields({"block": gconv.choice("64x16x64", (64, 16, 64))})) == 1


def test_a_space_checks_every_member():
    assert code_of(TileSpace.from_fields, {"block": gconv.choice((64, 16, 64), (64, 16, 0))})[0] == "tile.value"
    assert code_of(gconv.choice)[0] == "tile.value"


@pytest.mark.parametrize("text, names", [
    ("compv4", ("compv4",)), ("compv4 -> compv3 -> mem -> basic_v1", ("compv4", "compv3", "mem", "basic_v1")),
    ("compv4->mem", ("compv4", "mem")), (None, ()), (("mem", "compv3"), ("mem", "compv3")), (["mem"], ("mem",)),
])
def test_pipeline_chains(text, names):
    config = KernelConfig(pipeline=text)
    assert config.pipeline == names and config.demanded == (len(names) == 1)


@pytest.mark.parametrize("value", ["compv7", "compv4 -> ", "->", "", "mem -> mem", 3, [3]])
def test_pipelines_that_do_not_exist(value):
    code, text = code_of(KernelConfig, pipeline=value)
    assert code == "config.value" and "pipeline" in text


def test_did_you_mean_for_names():
    assert "Did you mean compv4?" in code_of(KernelConfig, pipeline="compv44")[1]
    assert "Did you mean intrawave?" in code_of(KernelConfig, scheduler="intrawav")[1]
    code, text = code_of(KernelConfig, double_smem_bufer=True)
    assert code == "config.field" and "Did you mean double_smem_buffer?" in text


@pytest.mark.parametrize("name, value", [
    ("double_smem_buffer", 1), ("double_smem_buffer", "true"), ("split_k", 0), ("split_k", -1), ("split_k", True),
    ("split_k", 2.0),
    ("num_groups_to_merge", "2"), ("scheduler", "both"), ("epilogue", "shuffle2"), ("precision", "fp16"), ("deterministic", None),
    ("strict_nonfinite", 1), ("pad_m", 0), ("block_per_cu", 0),
])
def test_values_that_cannot_exist(name, value):
    code, text = code_of(KernelConfig, **{name: value})
    assert code == "config.value" and name in text and repr(value) in text and "fix:" in text


def test_every_option_is_a_field_and_is_described():
    assert set(KernelConfig.__dataclass_fields__) == {"tile", "pipeline", *OPTIONS}
    assert all(option.meaning for option in OPTIONS.values())


def test_tiles_by_family():
    nv = Tile((64, 16, 64), wave_tile=(16, 8, 16))
    config = KernelConfig(tile={"nvidia": nv, "cdna": M64})
    assert config.tile_for("nvidia") == nv and config.tile_for("cdna") == M64 and config.tile_for("rdna") is None
    assert config == KernelConfig(tile={"cdna": M64, "nvidia": nv}) and hash(config)
    assert KernelConfig(tile=M64).tile_for("rdna") == M64 and KernelConfig().tile_for("rdna") is None
    assert "Did you mean cdna?" in code_of(KernelConfig, tile={"cdn": M64})[1]


@pytest.mark.parametrize("value", [(64, 16, 64), "m64", {}, {"cdna": "m64"}, 3])
def test_a_tile_must_be_a_tile(value):
    assert code_of(KernelConfig, tile=value)[0] == "config.value"


def test_a_space_is_not_one_tile():
    assert "sweep" in code_of(KernelConfig, tile=TileSpace((M64,), "s"))[1]


def sizes(low=1, high=512):
    return st.tuples(*[st.integers(low, high)] * 3)


TILES = st.builds(Tile, block=sizes(), waves=st.none() | sizes(), wave_tile=st.none() | sizes(), vector=sizes(1, 16),
                  name=st.none() | st.sampled_from(["m64", "a_b"]))
MAYBE = st.none() | st.booleans()
COUNT = st.none() | st.integers(1, 64)
CONFIGS = st.builds(
    KernelConfig, tile=st.none() | TILES | st.dictionaries(st.sampled_from(["cdna", "rdna", "nvidia"]), TILES, min_size=1),
    pipeline=st.lists(st.sampled_from(sorted(PIPELINES)), unique=True), scheduler=st.none() | st.sampled_from(sorted(SCHEDULERS)),
    double_smem_buffer=MAYBE, num_groups_to_merge=COUNT, split_image=MAYBE, explicit_gemm=MAYBE, two_stage=MAYBE, split_k=COUNT,
    num_wave_groups=COUNT, block_per_cu=COUNT, pad_m=MAYBE, pad_n=MAYBE, pad_k=MAYBE,
    epilogue=st.none() | st.sampled_from(sorted(EPILOGUES)),
    precision=st.none() | st.sampled_from(sorted(PRECISIONS)), deterministic=st.booleans(), strict_nonfinite=st.booleans())


def names(config):
    tile = config.tile
    return tile.name if isinstance(tile, Tile) else [t.name for _, t in tile or ()]


@settings(max_examples=60, deadline=None)
@given(CONFIGS)
def test_json_pickle_and_copy_are_lossless(config):
    for other in (KernelConfig.from_json(config.to_json()), pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert other == config and hash(other) == hash(config) and names(other) == names(config)
        assert other.identity() == config.identity()


@settings(max_examples=60, deadline=None)
@given(CONFIGS, CONFIGS)
def test_identities_tell_configurations_apart(a, b):
    assert (a.identity() == b.identity()) == (a == b)


def test_reading_json_refuses_what_is_not_a_configuration():
    assert code_of(KernelConfig.from_json, "[]")[0] == "config.value"
    assert code_of(KernelConfig.from_json, '{"no_such": 1}')[0] == "config.field"
    assert code_of(KernelConfig.from_json, '{"tile": {"block": [1]}}')[0] == "tile.value"


def test_resolved_is_a_changed_copy():
    config = KernelConfig(pipeline="compv4 -> mem", double_smem_buffer=True)
    settled = config.resolved(tile=M64, pipeline="mem", double_smem_buffer=None)
    assert settled == KernelConfig(tile=M64, pipeline="mem") and config.pipeline == ("compv4", "mem")
    with pytest.raises(AttributeError):
        settled.split_k = 2
