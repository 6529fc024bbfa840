"""Learned selection: features, the evaluator of text models, training and judging, the commands, models that cannot be used."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import KernelConfig, Tile, cli, features, learn, model
from gconvdsl.compat import GroupedConvProblem
from gconvdsl.features import NAMES, matrix
from gconvdsl.forest import Forest
from gconvdsl.heuristics import GroupedConvFeatureEngine, Predictor, config_of_name, name_of_config
from gconvdsl.learn import Pool, Score
from gconvdsl.measurement import Case, Measurement, Times
from gconvdsl.model import Model
from gconvdsl.pipelines import PIPELINES, Pipeline
from gconvdsl.results_table import write_table

PROBLEM = gconv.ConvProblem(N=2, G=4, C=64, K=32, input=(14, 12), filter=(3, 5), stride=(2, 1), pad=((1, 0), (2, 2)), dilation=(1, 2), dtype="bf16")
TILES = [Tile((m, n, 32), (1, 1, 1), (16, 16, 16)) for m in (16, 32, 64) for n in (16, 32)]

# A tree of three leaves: feature 1 <= 0.5 -> (feature 0 <= 2 -> 10, else 20), else 30; NaN goes right. And a tree that is one leaf.
TEXT = f"""tree
version=v4
max_feature_idx={len(NAMES) - 1}
feature_names={' '.join(NAMES)}

Tree=0
num_leaves=3
num_cat=0
split_feature=1 0
threshold=0.5 2.0
decision_type=0 0
left_child=1 -1
right_child=-3 -2
leaf_value=10 20 30
shrinkage=1

Tree=1
num_leaves=1
leaf_value=0.5

end of trees

parameters:
"""


# --- features

def test_features_of_the_problem() -> None:
    row = features.features(PROBLEM, KernelConfig(), "sm_90")
    assert set(row) == set(NAMES) and all(math.isfinite(value) for value in row.values())
    expected = {"n": 1, "g": 2, "c": 6, "k": 5, "cg": 4, "kg": 3, "in_h": math.log2(14), "filter_w": math.log2(5), "stride_h": 2, "dilation_w": 2,
                "pad_h": 1, "pad_w": 4, "stride_d": 1, "in_d": 0, "ndim": 2, "depthwise": 0, "element_bytes": 2, "is_forward": 1, "is_bwd_data": 0}
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["flops"] == pytest.approx(math.log2(PROBLEM.flops)) and row["gemm_k"] == pytest.approx(math.log2(16 * 15))


def test_features_tell_everything_apart_that_matters() -> None:
    changes = [{"N": 3}, {"G": 2}, {"stride": (1, 1)}, {"pad": 2}, {"dilation": (1, 1)}, {"dtype": "fp32"}, {"direction": "bwd_data"}, {"input": (14, 13)}]
    base = matrix(PROBLEM, [KernelConfig(tile=TILES[0], pipeline="mem")], "gfx942")[0]
    for change in changes:
        other = matrix(PROBLEM.replace(**change), [KernelConfig(tile=TILES[0], pipeline="mem")], "gfx942")[0]
        assert (base != other).any(), change
    configs = [KernelConfig(tile=tile, pipeline=name, scheduler=row.schedulers[0], **({"double_smem_buffer": True} if row.needs_double_smem_buffer else {}))
               for tile in TILES for name, row in PIPELINES.items()]
    configs += [KernelConfig(tile=TILES[0], pipeline="mem", scheduler="interwave"), KernelConfig(tile=TILES[0], pipeline="mem", num_groups_to_merge=2),
                KernelConfig(tile=TILES[0], pipeline="mem", split_k=4), KernelConfig(tile=TILES[0], pipeline="mem", double_smem_buffer=True)]
    rows = matrix(PROBLEM, configs, "gfx942")
    assert len({tuple(row) for row in rows}) == len(configs), "no two kernels share their features"


def test_a_tile_is_seen_in_the_gemm_of_its_direction() -> None:
    config = KernelConfig(tile=Tile((64, 16, 32), (2, 1, 1), (16, 16, 16)), pipeline="mem")
    row = features.features(PROBLEM.as_("bwd_weight"), config, "sm_90")
    m, n, k = PROBLEM.as_("bwd_weight").gemm
    assert row["efficiency_m"] == pytest.approx(m / 64) and row["efficiency_n"] == pytest.approx(n / (-(-n // 16) * 16))
    assert row["steps"] == pytest.approx(math.log2(-(-k // 32))) and row["lds_share"] == pytest.approx(2 ** row["lds"] / gconv_lds("sm_90"))


def gconv_lds(arch: str) -> int:
    from gconvdsl.archs import arch as find_arch

    return find_arch(arch).lds


def test_a_new_pipeline_is_a_new_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.setitem(PIPELINES, "toy", Pipeline("toy", "Toy", "a new one"))
    try:
        again = importlib.reload(features)
        assert "pipeline_toy" in again.NAMES and again.SCHEMA != model.SCHEMA
    finally:
        monkeypatch.undo()
        importlib.reload(features)
    assert features.SCHEMA == model.SCHEMA


# --- the evaluator

def test_trees_are_evaluated_as_the_format_says() -> None:
    rows = np.zeros((5, len(NAMES)))
    rows[:, :2] = [[2, 0.5], [2.1, 0.5], [0, 0.6], [0, np.nan], [-5, -5]]
    assert Forest.parse(TEXT).predict(rows).tolist() == [10.5, 20.5, 30.5, 30.5, 10.5]
    left = TEXT.replace("decision_type=0 0", "decision_type=2 2")
    assert Forest.parse(left).predict(rows)[3] == 10.5, "NaN goes left where the tree says so"


@pytest.mark.parametrize("broken", [
    "", "tree\nfeature_names=a", TEXT.replace("left_child=1 -1", "left_child=1"), TEXT.replace("threshold=0.5", "threshold=many"),
    TEXT.replace("decision_type=0 0", "decision_type=1 0"), TEXT.replace("left_child=1 -1", "left_child=0 -1"),
    TEXT.replace("left_child=1 -1", "left_child=7 -1"), TEXT.replace("leaf_value=10 20 30", "leaf_value=10 20"),
])
def test_text_that_is_no_model_is_refused(broken: str) -> None:
    with pytest.raises(gconv.StoreError) as caught:
        Forest.parse(broken, "here")
    assert "here" in str(caught.value)


def test_the_evaluator_agrees_with_lightgbm() -> None:
    import lightgbm

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, len(NAMES)))
    rows[rng.random(rows.shape) < 0.05] = np.nan
    target = np.nan_to_num(rows[:, 0]) * 2 + np.nan_to_num(rows[:, 3]) ** 2
    data = lightgbm.Dataset(rows, target, feature_name=list(NAMES))
    booster = lightgbm.train({"objective": "regression", "num_leaves": 15, "verbosity": -1}, data, num_boost_round=30)
    np.testing.assert_allclose(Forest.parse(booster.model_to_string()).predict(rows), booster.predict(rows), rtol=1e-12, atol=1e-12)


# --- models

def saved(directory: Path, **facts: object) -> Path:
    known = {"schema": features.SCHEMA, "arch": "sm_90", "directions": ["forward"], "dtypes": ["bf16"], **facts}
    Model(Forest.parse(TEXT), known).save(directory, TEXT)
    return directory


def test_a_model_is_saved_and_read(tmp_path: Path) -> None:
    read = Model.load(saved(tmp_path / "sm_90"))
    assert read.arch == "sm_90" and read.covers(PROBLEM) and not read.covers(PROBLEM.as_("bwd_data"))
    assert read.predict(PROBLEM, []) == [] and read.predict(PROBLEM, [KernelConfig()]) == pytest.approx([2 ** 30.5])


@pytest.mark.parametrize("damage", ["missing", "text", "json", "schema", "names"])
def test_a_model_that_cannot_be_used_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    place = saved(tmp_path / "sm_90", **({"schema": "0000"} if damage == "schema" else {}))
    if damage == "missing":
        (place / "model.txt").unlink()
    if damage in ("text", "json"):
        (place / ("model.txt" if damage == "text" else "model.json")).write_text("nonsense")
    if damage == "names":
        (place / "model.txt").write_text(TEXT.replace(f"feature_names={NAMES[0]} ", "feature_names=other "))
    monkeypatch.setenv("GCONV_MODELS", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="rules of thumb"):
        assert model.model_for("sm_90") is None
    assert model.model_for("gfx90a") is None, "an arch without a model is no mistake"


def test_the_dispatcher_asks_the_model_where_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gconvdsl import choose, model_choice
    from gconvdsl.runner import bare_spec

    problem = gconv.ConvProblem(N=1, G=2, C=32, K=32, input=(8, 8), filter=(3, 3), pad=1)
    usual, other = KernelConfig(), KernelConfig(cpu_algorithm="direct", cpu_points=4, cpu_vectors=1)
    monkeypatch.setattr(model_choice, "candidates_of", lambda problem, target, arch: [usual, other])
    monkeypatch.setattr(Model, "predict", lambda self, problem, configs: [float(config == other) for config in configs])
    saved(tmp_path / "cpu", arch="cpu", dtypes=["fp32"])
    monkeypatch.setenv("GCONV_MODELS", str(tmp_path))
    model_choice.model_choice.cache_clear()
    choose.forget()
    spec = bare_spec("forward")
    backend, arch = choose.resolve_target("cpu")
    made = choose.decide(spec, problem, usual, backend, arch, compiled=False)
    assert made.source == "model" and made.config == other
    stated = KernelConfig(cpu_points=6)
    assert choose.decide(spec, problem, stated, backend, arch, compiled=False).source == "rule", "what is asked for stays"
    turned = choose.decide(bare_spec("bwd_data"), problem.as_("bwd_data"), usual, backend, arch, compiled=False)
    assert turned.source == "rule", "the model does not cover this direction"
    choose.forget()
    model_choice.model_choice.cache_clear()


# --- training and judging

def pools(count: int = 12) -> list[Pool]:
    """Made-up times: the best tile depends on the output size, so that there is something to learn."""
    made = []
    for number in range(count):
        problem = gconv.ConvProblem(N=2 ** (number % 4), C=64, K=64, input=(8 + 4 * number,) * 2, filter=(3, 3), pad=1, dtype="bf16",
                                    name=f"net{number % 4}.{number}")
        wanted = 16 if problem.gemm.m < 1000 else 64
        configs = tuple(KernelConfig(tile=tile, pipeline="mem") for tile in TILES)
        made.append(Pool(problem, configs, tuple(1 + abs(math.log2(tile.m / wanted)) + tile.n / 64 for tile in TILES)))
    return made


def measured(pool: Pool) -> list[Measurement]:
    rows = []
    for config, time in zip(pool.configs, pool.times):
        case = Case(pool.problem, config, "cuda", "sm_90", {"device": "made up"}, package="p")
        ok = math.isfinite(time)
        rows.append(Measurement(case, "PASS" if ok else "CRASH", "", Times(3, time, time, time, time) if ok else None, 0.5 if ok else None, made=1.0))
    return rows


def test_pools_of_measurements() -> None:
    pool = pools(1)[0]
    failed = Pool(pool.problem, pool.configs, (math.inf, *pool.times[1:]))
    other = Measurement(Case(PROBLEM, KernelConfig(), "cpu", "avx512"), "PASS", "", Times(1, 1, 1, 1, 1))
    found = learn.pools_of([*measured(failed), other], "sm_90")
    assert len(found) == 1 and found[0].times == failed.times and found[0].configs == pool.configs
    assert found[0].efficiency(0) == 0.0 and found[0].efficiency(found[0].times.index(found[0].best)) == 1.0
    assert learn.pools_of([other], "sm_90") == [] and len(learn.pools_of([other], "cpu", 1)) == 1


def test_scores() -> None:
    score = Score.of([1.0, 0.5, 0.75], [True, False, False], [True, True, False])
    assert (score.problems, score.mean, score.lowest, score.top1, score.top5) == (3, 0.75, 0.5, pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert score.p10 == pytest.approx(np.percentile([1.0, 0.5, 0.75], 10))
    found = learn.evaluate(pools(3), {"best": lambda pool: sorted(range(len(pool.times)), key=lambda i: pool.times[i]),
                                      "worst": lambda pool: sorted(range(len(pool.times)), key=lambda i: -pool.times[i])})
    assert found["best"].mean == 1.0 and found["best"].top1 == 1.0 and found["worst"].mean < 0.6 and found["worst"].top1 == 0.0


def test_training_finds_what_there_is_to_find() -> None:
    trained, text = learn.train(pools(12), "sm_90", rounds=60, parameters={"min_data_in_leaf": 2})
    assert trained.facts["problems"] == 12 and trained.facts["networks"] == 4 and Forest.parse(text).names == NAMES
    score = learn.evaluate(pools(12), {"model": learn.by_model(trained), "random": learn.at_random()})
    assert score["model"].mean > 0.95 > score["random"].mean


def test_no_problem_is_judged_by_a_model_that_has_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    judged: list[set[str]] = []

    def train(part, arch, rounds):
        seen.append({learn.network_of(pool.problem) for pool in part})
        return object(), ""

    def by_model(found):
        judged.append(set())
        return lambda pool: judged[-1].add(learn.network_of(pool.problem)) or range(len(pool.times))

    monkeypatch.setattr(learn, "train", train)
    monkeypatch.setattr(learn, "by_model", by_model)
    learn.cross_validate(pools(12), "sm_90", 4, "network")
    assert len(seen) == 4 and all(not train_set & test_set for train_set, test_set in zip(seen, judged))
    with pytest.raises(gconv.UsageError, match="folds"):
        learn.cross_validate(pools(3), "sm_90", 5)


# --- the commands, as the page of the seed system names them

def test_the_whole_flow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv, data = tmp_path / "benchmark.csv", tmp_path / "data"
    data.mkdir()
    write_table(str(csv), [one for pool in pools(12) for one in measured(pool)])
    assert cli.main(["convert-csv", "--input", str(csv), "--output", str(data / "rows.parquet"), "--arch", "sm_90"]) == 0
    command = ["train", "--data_dir", str(data), "--out_dir", str(tmp_path / "sm_90"), "--op", "grouped_conv", "--dtype", "bf16", "--arch", "sm_90",
               "--targets", "tflops", "--n_splits", "3"]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert "held out by problem" in printed and "held out by network" in printed and "random" in printed and "12 problems" in printed
    facts = json.loads((tmp_path / "sm_90" / "model.json").read_text())
    assert facts["cross_validation"]["network"]["model"]["problems"] == 12
    assert cli.main(["evaluate", "--model", str(tmp_path / "sm_90"), "--data_dir", str(data), "--spread", "1.1"]) == 0
    assert "model   12 problems" in capsys.readouterr().out
    problem = pools(1)[0].problem.describe()
    assert cli.main(["predict", "--model", str(tmp_path / "sm_90"), "--problem", problem, "--pool", str(csv), "--top", "3"]) == 0
    assert capsys.readouterr().out.count("block") == 3
    predictor = Predictor(tmp_path / "sm_90", GroupedConvFeatureEngine())
    names = [name_of_config(config) for config in pools(1)[0].configs]
    ranked = predictor.rank_kernels(pools(1)[0].problem, names)
    assert sorted(name for name, _ in ranked) == sorted(names) and ranked[0][0] == predictor.select_best(pools(1)[0].problem, names)
    assert predictor.predict_tflops(GroupedConvProblem(C=8, K=8), names[0]) > 0


def test_names_of_kernels_lose_nothing() -> None:
    config = KernelConfig(tile=TILES[0], pipeline="compv4", double_smem_buffer=True, split_k=3)
    assert config_of_name(name_of_config(config)) == config
    assert len(GroupedConvFeatureEngine("gfx942").extract(PROBLEM, config)) == len(GroupedConvFeatureEngine().get_feature_names())


@pytest.mark.parametrize("arguments", [
    ["train", "--data_dir", "{here}", "--out_dir", "{here}/m", "--arch", "sm_90"], ["predict", "--arch", "gfx90a", "--problem", "C=1 K=1 input=1 filter=1"],
    ["train", "--out_dir", "m", "--arch", "cpu", "--op", "gemm"], ["predict", "--model", "{here}", "--problem", "C=1 K=1 input=1 filter=1"],
    ["convert-csv", "--input", "{here}/none.csv", "--output", "x.parquet"],
])
def test_mistakes_are_catalogued_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    monkeypatch.setenv("GCONV_MODELS", str(tmp_path / "none"))
    assert cli.main([one.replace("{here}", str(tmp_path)) for one in arguments]) == 2
    printed = capsys.readouterr().err
    assert "error[" in printed and "Traceback" not in printed
