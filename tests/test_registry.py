from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import KernelConfig, Tile
from gconvdsl.registry import Registry
from gconvdsl.seed_config import registry_of, values_of

TILE = Tile((64, 64, 64), (2, 2, 1), (32, 32, 16))
PROBLEM = gconv.ConvProblem(N=2, G=2, C=64, K=64, input=(8, 8), filter=(3, 3), pad=1, dtype="bf16")
DOCUMENT: dict[str, Any] = {
    "variant": "2d_fwd", "ndim_spatial": 2, "arch": "gfx950", "dtype": "bf16", "layout": "nhwgc",
    "tile_config": {"tile_m": {"values": [64, 128]}, "tile_n": [64], "tile_k": 64, "warp_m": {"min": 2, "max": 2, "step": 1}, "warp_n": 2,
                    "warp_k": 1, "warp_tile_m": [32], "warp_tile_n": 32, "warp_tile_k": 16},
    "trait_config": {"pipeline": {"values": ["compv3", "compv4", "mem"]}, "scheduler": {"values": ["intrawave", "interwave"]},
                     "double_smem_buffer": {"values": [False, True]}, "epilogue": ["cshuffle"]},
}


@gconv.kernel(tile=TILE, pipeline="compv3")
def biased(x, w, bias: gconv.PerK):
    return gconv.relu(gconv.conv(x, w, pad=1) + bias)


def small() -> Registry:
    registry = Registry("mine")
    registry.add(biased, archs=("gfx942", "gfx950"), dtypes=("bf16",))
    registry.add(KernelConfig(tile=TILE, pipeline="comp_async"), "async", directions=("forward",), ndims=(2,))
    registry.add(KernelConfig(), "any")
    return registry


def test_the_first_that_serves_is_selected_and_each_refusal_has_a_reason() -> None:
    registry = small()
    assert registry.select(PROBLEM, arch="gfx942").entry is registry["biased"]
    found = registry.select(PROBLEM, arch="gfx1100")
    assert found.entry is registry["any"] and [entry.name for entry, _ in found.passed] == ["biased", "async"]
    assert "arch gfx1100 is none of gfx942, gfx950" in str(found) and "comp_async" in found.passed[1][1]
    found = registry.select(PROBLEM.replace(pad=0), arch="gfx942")
    assert found.entry is registry["async"] and "fixes pad" in found.passed[0][1]
    found = registry.select(PROBLEM.replace(dtype="fp16").as_("bwd_data"), arch="gfx942")
    assert [reason for _, reason in found.passed] == ["direction bwd_data is none of forward", "direction bwd_data is none of forward"]
    assert registry.select(PROBLEM.replace(dtype="fp16"), arch="gfx942").passed[0][1] == "dtype fp16 is none of bf16"


def test_nothing_serves() -> None:
    found = Registry().select(PROBLEM, arch="gfx942")
    assert not found and found.entry is None and "no kernel" in str(found)
    result = Registry().run(np.zeros(1), np.zeros(1), PROBLEM, target="cpu")
    assert not result.success and "no kernel" in result.error


def test_an_order_of_preference() -> None:
    registry = small()
    assert registry.select(PROBLEM, arch="gfx942", ranked=lambda problem, entries: ["any"]).entry is registry["any"]
    seen = []
    registry.select(PROBLEM, arch="gfx942", ranked=lambda problem, entries: seen.extend(entries) or [])
    assert seen == list(registry)


def test_a_selected_kernel_runs() -> None:
    registry = Registry()
    registry.add(KernelConfig(), "any")
    problem = PROBLEM.replace(dtype="fp32", out_dtype="fp32")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(problem.shape(name)).astype(np.float32) for name in "xw")
    result = registry.run(x, w, problem, target="cpu")
    assert result.success and gconv.compare(problem, result.output, x, w).ok


def test_filters() -> None:
    registry = small()
    assert [one.name for one in registry.filter(direction="bwd_weight")] == ["any"]
    assert [one.name for one in registry.filter(arch="gfx1201", ndim=3)] == ["any"]
    assert [one.name for one in registry.filter(dtype="bf16", ndim=2)] == ["biased", "async", "any"]
    with pytest.raises(gconv.UsageError, match="colour"):
        registry.filter(colour="red")


def test_json_loses_nothing(tmp_path: Path) -> None:
    registry = small()
    assert Registry.from_json(registry.to_json()) == registry
    registry.save(tmp_path / "kernels.json")
    again = Registry.load(tmp_path / "kernels.json")
    assert again == registry and again["biased"].spec == biased.spec and again["async"].spec.config == KernelConfig(tile=TILE, pipeline="comp_async")
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.json"]


def test_names_are_unique() -> None:
    registry = small()
    with pytest.raises(gconv.UsageError, match="any"):
        registry.add(KernelConfig(), "any")
    with pytest.raises(gconv.UsageError, match="nobody"):
        registry["nobody"]
    with pytest.raises(gconv.UsageError, match="fp12"):
        registry.add(KernelConfig(), "odd", dtypes=("fp12",))


@pytest.mark.parametrize(("text", "words"), [
    ("{", "JSON text"), ("[]", "a JSON object"), ('{"schema": "1"}', "schema"), ('{"schema": 9, "kernels": []}', "newer version"),
    ('{"schema": 1}', "kernels"), ('{"schema": 1, "kernels": [{"name": "a"}]}', "kernel"),
    ('{"schema": 1, "kernels": [{"name": "a", "kernel": "kernel k for forward { pipeline = compv9 }", "dtypes": [], "ndims": [], "archs": []}]}',
     "compv9"),
    ('{"schema": 1, "kernels": [{"name": "a", "kernel": "", "dtypes": [], "ndims": [], "archs": []}]}', "one kernel"),
])
def test_bad_files_name_the_file_and_the_field(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(gconv.GconvError, match=words) as caught:
        Registry.load(path)
    assert "broken.json" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(gconv.GconvError, match="absent.json"):
        Registry.load(tmp_path / "absent.json")


# --- configuration files of the seed system

def test_every_legal_combination_once(tmp_path: Path) -> None:
    path = tmp_path / "forward_bf16.json"
    path.write_text(json.dumps(DOCUMENT))
    registry = Registry.load(path)
    configs = [entry.spec.config for entry in registry]
    # for each of two tiles: compv3 intrawave with and without the second buffer, compv4 with it, mem with two schedulers and both
    assert len(configs) == 14 and len({config.identity() for config in configs}) == 14
    assert {config.tile.block for config in configs} == {(64, 64, 64), (128, 64, 64)}
    assert all(config.double_smem_buffer for config in configs if config.pipeline == ("compv4",))
    assert {config.scheduler for config in configs if config.pipeline == ("mem",)} == {"intrawave", "interwave"}
    assert all(entry.archs == ("gfx950",) and entry.dtypes == ("bf16",) and entry.ndims == (2,) for entry in registry)
    assert registry.select(PROBLEM, arch="gfx950").entry is not None


@pytest.mark.parametrize(("change", "words"), [
    ({"variant": "sideways"}, "sideways"), ({"tile_config": []}, "tile_config"),
    ({"tile_config": {"tile_m": 64}}, "tile_config.tile_n"),
    ({"trait_config": {"pipeline": ["compv9"]}}, "compv9"),
    ({"trait_config": {"pipeline": {"value": ["compv3"]}}}, "trait_config.pipeline"),
])
def test_a_bad_configuration_names_the_field(change: dict[str, Any], words: str) -> None:
    with pytest.raises(gconv.GconvError, match=words) as caught:
        registry_of({**DOCUMENT, **change}, "forward.json")
    assert "forward.json" in str(caught.value)


def test_values() -> None:
    assert values_of("a", {"min": 2, "max": 6, "step": 2}, "") == [2, 4, 6]
    assert values_of("a", {"values": [1]}, "") == values_of("a", 1, "") == values_of("a", [1], "") == [1]
