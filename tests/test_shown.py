"""Short texts and tables of problems, tiles, kernels, decisions and results."""

from __future__ import annotations

import numpy as np
import pytest

import gconvdsl as gconv

PROBLEM = gconv.ConvProblem(N=2, G=2, C=8, K=8, input=(6, 5), filter=(3, 3), pad=1, name="small")
TILE = gconv.Tile((64, 16, 64), (2, 1, 1), (16, 16, 16), name="m64")


@gconv.kernel
def biased(x, w, bias: gconv.PerK):
    return gconv.relu(gconv.conv(x, w) + bias)


def objects():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(PROBLEM.shape(name)).astype(np.float32) for name in "xw")
    result = gconv.Runner(target="cpu").run(x, w, PROBLEM)
    failed = gconv.Runner(target="cpu").run(x, w[:1], PROBLEM)
    return {"problem": PROBLEM, "tile": TILE, "kernel": biased, "decision for": result.decision, "result": result, "result failed": failed}


@pytest.mark.parametrize(("what", "words"), [
    ("problem", ["small", "6x5", "0.0"]), ("tile", ["m64", "64x16x64"]), ("kernel", ["biased", "relu", "bias"]),
    ("decision for", ["cpu:", "G=2"]), ("result", ["(2, 6, 5, 2, 4)", "TFLOP/s"]), ("result failed", ["w", "shape"])])
def test_tables(what: str, words: list[str]) -> None:
    from rich.console import Console

    shown = objects()[what]
    console = Console(width=200, record=True, file=open("/dev/null", "w"))
    console.print(shown)
    text, html = console.export_text(), shown._repr_html_()
    assert what in text and "<table>" in html
    for word in words:
        assert word in text and word in html, (word, text)


def test_html_is_escaped() -> None:
    assert "&lt;b&gt;" in PROBLEM.replace(name="<b>")._repr_html_()


def test_texts_are_short() -> None:
    for shown in objects().values():
        assert len(repr(shown)) < 260 and "\n" not in repr(shown)
