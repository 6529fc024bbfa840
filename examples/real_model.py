"""Every convolution of three trained networks, on the activations of a real picture, compared with ONNX Runtime.

The networks are the text detector, direction classifier and recogniser inside the PyPI package rapidocr-onnxruntime (part of the
``test`` extra; its files are read, the package is not imported). The script draws a picture with a few lines of text, runs each
network once in ONNX Runtime, and keeps the input, weights, bias and output of every Conv and ConvTranspose. It then computes each
of them again with gconvdsl and holds both results to the same bound around the float64 value.

    python examples/real_model.py                                   all 155 convolutions on the default target
    python examples/real_model.py --target sim:gfx942 --model cls --limit 3
    python examples/real_model.py --match stride=2x1 --json

A transposed convolution is the gradient of a convolution with respect to its input: ConvTranspose with weights
(C_in, C_out/G, ...) is bwd_data of the convolution with K = C_in and C = C_out, whose weights (K, C/G, ...) are the same array.

Exit codes: 0 all right; 1 a result is wrong or failed; 2 a mistake in the call, or the test extra is not installed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import numpy as np

import gconvdsl as gconv

PACKAGE = "rapidocr-onnxruntime"
MODELS = {"det": "text detector", "cls": "direction classifier", "rec": "text recogniser"}
TEXT = ("grouped convolution", "depthwise 5x5, stride 2x1", "Hello, ONNX Runtime 2048", "transposed = bwd_data")
READ = 2                                                  # the line that the recogniser and the classifier see
WIDTH, HEIGHT, FONT = 320, 192, 24                        # the detector wants multiples of 32
LAYOUTS = {1: "ncw", 2: "nchw", 3: "ncdhw"}               # ONNX keeps channels first


class Stop(Exception):
    """Something the user can put right: printed without a traceback, exit code 2."""


# --- the kernels: stride, padding, dilation and groups come from the problem of each layer

@gconv.kernel
def conv(x, w):
    return gconv.conv(x, w)


@gconv.kernel
def conv_bias(x, w, bias: gconv.PerK):
    return gconv.conv(x, w) + bias


@gconv.kernel
def transposed(dy, w):
    return gconv.conv_bwd_data(dy, w)


@gconv.kernel
def transposed_bias(dy, w, bias: gconv.PerC):
    return gconv.conv_bwd_data(dy, w) + bias


@dataclass(frozen=True)
class Layer:
    """One node of a network: its problem, its arrays, and what ONNX Runtime made of them."""

    model: str
    name: str
    problem: gconv.ConvProblem
    kernel: gconv.Kernel
    inputs: tuple[np.ndarray, np.ndarray]
    operands: dict[str, np.ndarray]
    expected: np.ndarray


# --- the picture

def picture() -> Any:
    """The lines of text, black on a light ground, in the font that Pillow carries."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH, HEIGHT), (238, 236, 228))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=FONT)
    for i, line in enumerate(TEXT):
        draw.text((8, _top(i) + 8), line, fill=(20, 20, 40), font=font)
    return image


def _top(line: int) -> int:
    return line * HEIGHT // len(TEXT)


def feeds() -> dict[str, np.ndarray]:
    """What each network sees, (1, 3, H, W): the whole picture, or the line `READ` 48 pixels high, prepared as in training."""
    whole = picture()
    line = whole.crop((0, _top(READ), WIDTH, _top(READ + 1)))
    line = line.resize((line.width * 48 // line.height, 48))
    imagenet = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    half = np.float32(0.5), np.float32(0.5)
    start = line.crop((0, 0, 192, 48))
    return {"det": _prepared(whole, *imagenet), "rec": _prepared(line, *half), "cls": _prepared(start, *half)}


def _prepared(image: Any, mean: Any, deviation: Any) -> np.ndarray:
    """Pixels as float32, blue first, (1, 3, H, W)."""
    pixels = np.asarray(image, np.float32)[:, :, ::-1] / 255
    return np.ascontiguousarray(((pixels - mean) / deviation).transpose(2, 0, 1)[None])


# --- the networks

def model_paths() -> dict[str, str]:
    """Where the networks lie: key of `MODELS` -> path of the .onnx file."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise _missing(f"{PACKAGE} is not installed") from None
    paths = {key: str(file.locate()) for file in files if file.suffix == ".onnx" for key in MODELS if f"_{key}_" in file.name}
    for key in MODELS:
        if not os.path.isfile(paths.get(key, "")):
            raise _missing(f"the {MODELS[key]} is not in {PACKAGE} as it is installed here")
    return paths


def _missing(what: str) -> Stop:
    return Stop(f"error: {what}. This script needs the test extra, on Python below 3.13.\n"
                "fix: python3 -m pip install -e '.[test]'")


def layers(key: str, model: Any, feed: np.ndarray) -> tuple[list[Layer], np.ndarray]:
    """Run an ONNX model (a ModelProto) once; every convolution in it, in order, and the model's own first output."""
    nodes = [node for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose")]
    values = _run(model, feed, [name for node in nodes for name in (*node.input, node.output[0]) if name])
    return [_layer(key, node, values) for node in nodes], values[model.graph.output[0].name]


def _run(model: Any, feed: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The values of these tensors and of the model's first output."""
    import onnx
    import onnxruntime

    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values[next(each.name for each in model.graph.input if each.name not in values)] = feed
    inputs = {name: values[name] for name in [each.name for each in model.graph.input]}
    wanted = [name for name in dict.fromkeys([model.graph.output[0].name, *names]) if name not in values]
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    present = [each.name for each in model.graph.output]
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in present)
    options = onnxruntime.SessionOptions()
    # Optimised graphs fold what follows a convolution into it; its own output would then not exist.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(extended.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return {**values, **dict(zip(wanted, session.run(wanted, inputs)))}


def _layer(key: str, node: Any, values: Mapping[str, np.ndarray]) -> Layer:
    import onnx

    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    x, w, *rest = [values[name] for name in node.input if name]
    y = values[node.output[0]]
    backward = node.op_type == "ConvTranspose"
    operands = {"bias": rest[0]} if rest else {}
    kernel = ((conv, conv_bias), (transposed, transposed_bias))[backward][bool(operands)]
    return Layer(key, node.name or node.output[0], layer_problem(attributes, x, w, y, backward), kernel, (x, w), operands, y)


def layer_problem(attributes: Mapping[str, Any], x: np.ndarray, w: np.ndarray, y: np.ndarray,
                  backward: bool) -> gconv.ConvProblem:
    """The problem of a Conv, or of a ConvTranspose (``backward``), whose output takes the part of the image.

    An output_padding only makes that image larger, by points at its end that a convolution with this stride steps over.
    """
    image, points = (y, x) if backward else (x, y)
    ndim = x.ndim - 2
    stride, dilation = attributes.get("strides", [1] * ndim), attributes.get("dilations", [1] * ndim)
    extra = attributes.get("output_padding", [0] * ndim)
    needed = [(outputs - 1) * step + spread * (taps - 1) + 1 - size + more for outputs, step, spread, taps, size, more
              in zip(points.shape[2:], stride, dilation, w.shape[2:], image.shape[2:], extra)]
    return gconv.ConvProblem(
        N=x.shape[0], G=attributes.get("group", 1), C=image.shape[1], K=points.shape[1], input=image.shape[2:],
        filter=w.shape[2:], stride=stride, dilation=dilation, pad=_pads(attributes, needed), dtype=x.dtype,
        direction="bwd_data" if backward else "forward", layout=LAYOUTS[ndim])


def _pads(attributes: Mapping[str, Any], needed: Sequence[int]) -> list[tuple[int, int]]:
    """(low, high) of each axis: the node's own, or the total that is ``needed`` in two halves, the larger where auto_pad says."""
    mode = attributes.get("auto_pad", b"NOTSET").decode()
    if mode == "NOTSET" and "output_shape" not in attributes:
        given = attributes.get("pads", [0] * 2 * len(needed))
        return list(zip(given[:len(needed)], given[len(needed):]))
    if mode == "VALID":
        return [(0, 0)] * len(needed)
    halves = [(total // 2, total - total // 2) for total in (max(each, 0) for each in needed)]
    return halves if mode == "SAME_UPPER" else [(high, low) for low, high in halves]


def text_of(model: Any, scores: np.ndarray) -> str:
    """What the recogniser read: the best character of each column, repetitions and blanks (index 0) left out."""
    characters = next(each.value for each in model.metadata_props if each.key == "character").split("\n")
    alphabet = ["", *characters, " "]
    best = scores[0].argmax(axis=1)
    return "".join(alphabet[index] for i, index in enumerate(best) if i == 0 or index != best[i - 1])


# --- our side

@dataclass(frozen=True)
class Built:
    """A kernel made ready: the target in full, the binary, whether it came from the cache; or why there is none."""

    target: str = ""
    path: str = ""
    cached: bool = False
    error: str = ""


def build(layer: Layer, target: str | None, arch: str | None) -> Built:
    """Compile ahead of time, or find the binary in the cache."""
    try:
        decision = layer.kernel.compile(layer.problem, target=target, arch=arch)
    except gconv.GconvError as failure:
        if failure.code in ("launch.target", "launch.device", "compile.arch", "compile.missing"):
            raise
        return Built(error=str(failure))
    artifact = decision.built.artifact
    return Built(decision.target_text, str(artifact.path), artifact.cached)


def build_all(found: Sequence[Layer], target: str | None, arch: str | None) -> list[Built]:
    """One for each layer. Layers of one shape share a problem, and many problems share a binary; only new ones are compiled."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda layer: build(layer, target, arch), found))


def check(layer: Layer, built: Built) -> dict[str, Any]:
    """Run one layer; what the table and ``--json`` show of it. Errors are given in units of the bound, so 1 is the limit."""
    row: dict[str, Any] = {"model": layer.model, "name": layer.name, "problem": layer.problem.describe(), "target": built.target,
                           "ok": False, "status": "failed"}
    if built.error:
        return {**row, "error": built.error}
    try:
        ours, seconds = _timed(layer, built.target)
    except gconv.GconvError as failure:
        if failure.code == "launch.device":
            raise
        return {**row, "error": str(failure)}
    report, theirs = (gconv.compare(layer.problem, result, *layer.inputs, layer.kernel.spec, layer.operands)
                      for result in (ours, layer.expected))
    status = "WRONG" if not report.ok else "ok" if theirs.ok else "ORT differs"
    largest = float(np.abs(layer.expected).max(initial=0.0)) or 1.0
    row.update(ok=status == "ok", status=status, ms=round(seconds * 1e3, 4), error_ratio=_number(report.error_ratio),
               ort_error_ratio=_number(theirs.error_ratio),
               difference=_number(float(np.abs(ours - layer.expected).max(initial=0.0)) / largest))
    return row if row["ok"] else {**row, "error": f"ours: {report}\nONNX Runtime: {theirs}"}


def _timed(layer: Layer, target: str) -> tuple[np.ndarray, float]:
    """The result, written over NaN, and the best time of a call in seconds; slow targets are called once."""
    out, best = np.full_like(layer.expected, np.nan), math.inf
    for _ in range(3):
        start = time.perf_counter()
        layer.kernel(*layer.inputs, **layer.operands, problem=layer.problem, target=target, out=out)
        best = min(best, time.perf_counter() - start)
        if best > 0.1:
            break
    return out, best


def _number(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return float(f"{value:.3g}") if math.isfinite(value) else None


# --- the command

def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(description="All convolutions of three OCR networks against ONNX Runtime, layer by layer.")
    found.add_argument("--target", default="cpu", help="TARGET[:ARCH], such as sim:gfx942 (default: cpu)")
    found.add_argument("--arch", help="an arch of the target, such as gfx1100")
    found.add_argument("--model", choices=MODELS, help="one network: " + ", ".join(f"{key}, the {MODELS[key]}" for key in MODELS))
    found.add_argument("--match", metavar="TEXT", default="", help="only layers with TEXT in their name or problem: stride=2x1")
    found.add_argument("--limit", type=_positive, metavar="N", help="only the first N layers of those")
    found.add_argument("--json", action="store_true", help="one JSON object a line for each layer; the summary on standard error")
    return found


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parser().parse_args(argv)
    try:
        return compare_all(options)
    except ImportError as failure:
        print(_missing(str(failure)), file=sys.stderr)
    except (Stop, gconv.GconvError) as failure:
        print(failure, file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2


def compare_all(options: argparse.Namespace) -> int:
    """Everything: load, build, run, print; 1 if any layer is not right."""
    notes = sys.stderr if options.json else sys.stdout
    start = time.perf_counter()
    found, read = load(options)
    loaded = time.perf_counter()
    built = build_all(found, options.target, options.arch)
    ready = time.perf_counter()
    if not options.json:
        print(line("layer", "problem", "ms", "error", "ORT", "difference", "status"))
    rows = []
    for layer, kernel in zip(found, built):
        rows.append(check(layer, kernel))
        show(rows[-1], options.json)
    end = time.perf_counter()
    print("\n" + summary(found, built, rows), file=notes)
    print(f"networks in ONNX Runtime {loaded - start:.1f} s, kernels {ready - loaded:.1f} s, "
          f"runs and verification {end - ready:.1f} s", file=notes)
    if read:
        print(f"the recogniser reads: {read!r}", file=notes)
    return 0 if all(row["ok"] for row in rows) else 1


def load(options: argparse.Namespace) -> tuple[list[Layer], str]:
    """The layers that the options select, and what the recogniser read ("" if it did not run)."""
    import onnx

    paths, pictures = model_paths(), feeds()
    found: list[Layer] = []
    read = ""
    for key in [options.model] if options.model else MODELS:
        model = onnx.load(paths[key])
        new, output = layers(key, model, pictures[key])
        found += new
        read = text_of(model, output) if key == "rec" else read
    chosen = [layer for layer in found if options.match in f"{layer.name} {layer.problem.describe()}"]
    if not chosen:
        raise Stop(f"error: no layer has {options.match!r} in its name or problem.\nfix: Leave out --match to see them all.")
    return chosen[:options.limit], read


def line(layer: str, problem: str, ms: str, error: str, ort: str, difference: str, status: str) -> str:
    """A line of the table."""
    return f"{layer:<24}  {problem:<76}  {ms:>8}  {error:>6}  {ort:>6}  {difference:>10}  {status}"


def show(row: Mapping[str, Any], as_json: bool) -> None:
    """Print one layer. Error and ORT: the worst error over the bound; difference: between the two, over the largest value."""
    if as_json:
        print(json.dumps(row), flush=True)
        return
    title = f"{row['model']} {row['name']}"
    print(line(title, row["problem"], _text(row, "ms", ".3f"), _text(row, "error_ratio", ".3f"),
               _text(row, "ort_error_ratio", ".3f"), _text(row, "difference", ".1e"), row["status"]), flush=True)
    if not row["ok"]:
        print(f"{row['status']}: {title}: {row['error']}", file=sys.stderr)


def _text(row: Mapping[str, Any], name: str, form: str) -> str:
    return "-" if row.get(name) is None else format(row[name], form)


def summary(found: Sequence[Layer], built: Sequence[Built], rows: Sequence[Mapping[str, Any]]) -> str:
    """How many layers and kernels, where the kernels came from, and the worst errors."""
    backward = sum(layer.problem.direction == "bwd_data" for layer in found)
    wrong = sum(not row["ok"] for row in rows)
    compiled = len({each.path for each in built if each.path and not each.cached})
    kernels = len({each.path for each in built if each.path})
    worst = {name: max((row.get(name) or 0.0 for row in rows), default=0.0) for name in ("error_ratio", "ort_error_ratio")}
    return "\n".join([
        f"{len(found)} convolutions, {backward} of them transposed: " + (f"{wrong} not right" if wrong else "all right"),
        f"{kernels} kernels: {kernels - compiled} from the cache, {compiled} compiled",
        f"worst error {worst['error_ratio']:.3f} of the bound; of ONNX Runtime {worst['ort_error_ratio']:.3f}"])


if __name__ == "__main__":
    sys.exit(main())
