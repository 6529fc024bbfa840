"""examples/real_model.py: all 155 convolutions of the OCR networks on cpu, some in the simulator, and how ONNX nodes are read."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "real_model.py"
NETWORKS = ("det", "cls", "rec")

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="the networks are in the test extra below Python 3.13 only")


@pytest.fixture(scope="module", autouse=True)
def test_extra() -> None:
    """Skip without the optional packages."""
    for name in ("onnx", "onnxruntime", "PIL"):
        pytest.importorskip(name)
    if not any(each.metadata["Name"] == "rapidocr-onnxruntime" for each in importlib.metadata.distributions()):
        pytest.skip("rapidocr-onnxruntime is not installed")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("real_model", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["real_model"] = module
    spec.loader.exec_module(module)
    return module


def run(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """The script in a process of its own."""
    places = os.pathsep.join(filter(None, [path, str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=900,
                          env={**os.environ, "PYTHONPATH": places})


def fields(row: dict[str, Any]) -> dict[str, str]:
    return dict(part.split("=") for part in row["problem"].split())


# --- the whole way

def test_every_convolution_of_the_networks_is_right_on_cpu() -> None:
    done = run("--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert {key: sum(row["model"] == key for row in rows) for key in NETWORKS} == {"det": 64, "cls": 53, "rec": 38}
    assert all(row["ok"] and row["error_ratio"] <= 1 and row["difference"] < 1e-5 for row in rows)
    problems = [fields(row) for row in rows]
    assert sum(problem.get("direction") == "bwd_data" for problem in problems) == 2
    depthwise = {(problem["filter"], problem.get("stride", "1")) for problem in problems if problem.get("G", "1") == problem["C"]}
    assert depthwise >= {("3x3", "1"), ("3x3", "2"), ("3x3", "2x1"), ("3x3", "1x2"), ("5x5", "1"), ("5x5", "2"), ("5x5", "2x1")}
    assert "155 convolutions, 2 of them transposed: all right" in done.stderr

    # That the activations are those of the picture shows in what the recogniser makes of them.
    read = done.stderr.split("the recogniser reads: ")[1].strip().strip("'")
    assert difflib.SequenceMatcher(None, read, "Hello, ONNX Runtime 2048").ratio() > 0.7


@pytest.mark.parametrize("target", ["sim:gfx942", "sim:gfx1100"])
def test_layers_of_the_classifier_are_right_in_the_simulator(target: str) -> None:
    done = run("--target", target, "--model", "cls", "--limit", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 convolutions, 0 of them transposed: all right" in done.stdout
    assert sum(line.endswith("  ok") for line in done.stdout.splitlines()) == 3


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["sim:gfx942", "sim:gfx1100"])
def test_every_convolution_of_the_networks_is_right_in_the_simulator(target: str) -> None:
    done = run("--target", target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "155 convolutions, 2 of them transposed: all right" in done.stdout


def test_the_second_run_takes_its_kernels_from_the_cache() -> None:
    arguments = ("--model", "cls", "--match", "filter=5x5", "--arch", run_arch())
    first, again = run(*arguments), run(*arguments)
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    kernels = next(line for line in again.stdout.splitlines() if " kernels: " in line)
    count = kernels.split()[0]
    assert kernels == f"{count} kernels: {count} from the cache, 0 compiled"


def run_arch() -> str:
    from gconvdsl.backends import base

    return base.get("cpu").default_arch()


# --- what the script says of faults

def test_a_wrong_result_of_either_side_is_exit_code_1(example: ModuleType, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    layer = one_node(example, "Conv", (1, 4, 6, 7), (5, 4, 3, 3), pads=[1, 1, 1, 1])
    other = layer.expected.copy()
    other[0, 2, 1, 3] += 0.01
    monkeypatch.setattr(example, "load", lambda options: ([replaced(layer, expected=other), layer], ""))
    assert example.main([]) == 1
    shown = capsys.readouterr()
    assert "1 not right" in shown.out and "ORT differs" in shown.out and "(0, 2, 1, 3)" in shown.err

    real = example.conv_bias
    monkeypatch.setattr(type(real), "__call__", lambda self, x, w, out, **rest: np.copyto(out, other))
    monkeypatch.setattr(example, "load", lambda options: ([layer], ""))
    assert example.main(["--json"]) == 1
    row = json.loads(capsys.readouterr().out)
    assert row["status"] == "WRONG" and row["error_ratio"] > 1 and row["ort_error_ratio"] <= 1


def test_a_missing_extra_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ModuleNotFoundError(\"No module named 'onnxruntime'\", name='onnxruntime')")
    done = run("--model", "cls", path=str(tmp_path))
    assert done.returncode == 2 and "onnxruntime" in done.stderr and ".[test]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments, said", [
    (("--target", "tpu"), "launch.target"), (("--target", "sim", "--arch", "gfx7"), "compile.arch"),
    (("--match", "nothing"), "no layer has 'nothing'"), (("--limit", "0"), "--limit"), (("--model", "seg"), "invalid choice")])
def test_mistakes_in_the_call_are_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    done = run("--model", "cls", *arguments)
    assert done.returncode == 2 and said in done.stderr and not done.stdout


# --- how nodes are read, against ONNX Runtime

def one_node(example: ModuleType, kind: str, x: tuple[int, ...], w: tuple[int, ...], bias: int = 5, **attributes: Any) -> Any:
    """The layer of a model that holds one node with random weights and ``bias`` values (0: none)."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(3)
    constants = [numpy_helper.from_array(rng.standard_normal(w).astype(np.float32), "w")]
    if bias:
        constants.append(numpy_helper.from_array(rng.standard_normal(bias).astype(np.float32), "b"))
    node = helper.make_node(kind, ["x", "w", "b"][:2 + bool(bias)], ["y"], **attributes)
    graph = helper.make_graph([node], "one", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
    layers, output = example.layers("one", model, rng.standard_normal(x).astype(np.float32))
    assert len(layers) == 1 and np.array_equal(layers[0].expected, output)
    return layers[0]


def replaced(layer: Any, **changes: Any) -> Any:
    return type(layer)(**{**vars(layer), **changes})


NODES: dict[str, dict[str, Any]] = {
    "groups, uneven padding": dict(kind="Conv", x=(2, 4, 9, 8), w=(6, 2, 3, 2), bias=6, group=2, pads=[2, 0, 1, 1],
                                   strides=[2, 1]),
    "same, the larger half high": dict(kind="Conv", x=(1, 3, 8, 7), w=(5, 3, 4, 2), auto_pad="SAME_UPPER", strides=[3, 2]),
    "same, the larger half low": dict(kind="Conv", x=(1, 3, 8, 7), w=(5, 3, 4, 2), auto_pad="SAME_LOWER", strides=[3, 2]),
    "no padding, one axis": dict(kind="Conv", x=(2, 3, 11), w=(5, 3, 4), bias=0, auto_pad="VALID", dilations=[2]),
    "three axes": dict(kind="Conv", x=(1, 2, 4, 5, 3), w=(5, 2, 2, 3, 3), pads=[0, 1, 1, 1, 1, 1]),
    "transposed, as in the detector": dict(kind="ConvTranspose", x=(1, 4, 5, 6), w=(4, 3, 2, 2), bias=0, strides=[2, 2]),
    "transposed, groups, padding": dict(kind="ConvTranspose", x=(2, 4, 5, 6), w=(4, 3, 3, 4), bias=6, group=2, strides=[2, 3],
                                        pads=[1, 0, 0, 2]),
    "transposed, output_padding": dict(kind="ConvTranspose", x=(1, 4, 5, 6), w=(4, 5, 3, 3), strides=[2, 3], dilations=[2, 1],
                                       output_padding=[1, 2], pads=[1, 1, 1, 1]),
    "transposed, output_shape": dict(kind="ConvTranspose", x=(1, 4, 5, 6), w=(4, 5, 3, 4), strides=[2, 3], output_shape=[10, 17]),
    "transposed, same": dict(kind="ConvTranspose", x=(1, 4, 5, 6), w=(4, 5, 3, 4), strides=[2, 3], auto_pad="SAME_UPPER"),
}


@pytest.mark.parametrize("case", NODES)
def test_a_node_becomes_the_problem_that_onnx_runtime_computes(example: ModuleType, case: str) -> None:
    layer = one_node(example, **NODES[case])
    assert layer.problem.direction == ("bwd_data" if "transposed" in case else "forward")
    row = example.check(layer, example.build(layer, "cpu", None))
    assert row["ok"] and row["ort_error_ratio"] <= 1, row
