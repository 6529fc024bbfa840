"""No text may lead to anything but a GconvError, and none may take long."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gconvdsl.catalogue import CATALOGUE
from gconvdsl.errors import GconvError
from gconvdsl.grammar import check_text, format_text, loads
from gconvdsl.grammar.diagnostics import MAX_ERRORS

SAMPLE = """# a sample
let B = 2
let lift = acc * 1.5e-3
problem res3 { N = B * 2  G = 4  C = 32  K = 32  input = 28x28  filter = 3x3  pad = 0:1x2:2  dtype = bf16  layout = nhwgc }
tile m64     { block = 64x16x64  waves = 2x1x1  wave_tile = 16x16x16  vector = 8x8x8 }
epilogue shift(acc, bias: per_k) = max(lift + bias, -1)
kernel fast for forward (bias: per_k, residual: like_y) {
  conv { stride = 1  pad = 0:1x2:2  groups = 4 }
  tile = { cdna: m64  rdna: 32x32x32 }   pipeline = compv4 -> basic_v1   scheduler = intrawave   double_smem_buffer = true
  epilogue = where(shift(acc, bias) > 0, cast(acc, bf16), -residual)
}
sweep all for forward, bwd_data { tile in { m64, 64x64x64 }  pipeline in *  where tile.n <= 4 * K / G and not (dtype == fp16) }
run fast on res3 for bwd_data
bench all, fast on res3 -> "res3.parquet"
"""
_PIECES = ["{", "}", "(", ")", "=", "==", ",", "->", ":", ".", "*", "-", "not", "and", "where", "in", "for", "on", "tile",
           "kernel", "run", "conv",
           "let", "acc", "x", "3", "28x28", "0:1", "1e", '"', "#", "\n", "\t", "\0", "\r", "é", "漢", "\u2028", "\ufeff",
           "\ud800", "<", "%", ";"]


def _only_gconv_errors(text: str) -> None:
    found = check_text(text)
    assert len(found) <= MAX_ERRORS
    for one in found:
        assert isinstance(one, GconvError)
        templates = "".join(CATALOGUE[one.code])
        assert {name for _, name, _, _ in string.Formatter().parse(templates) if name} <= set(one.values), one.code
        str(one)
    try:
        loads(text)
        assert not found
    except GconvError as fault:
        assert found, fault
    try:
        format_text(text)
    except GconvError:
        pass


def test_the_sample_is_valid() -> None:
    assert check_text(SAMPLE) == []


@settings(max_examples=80)
@given(st.text(max_size=80))
def test_random_text(text: str) -> None:
    _only_gconv_errors(text)


@settings(max_examples=80)
@given(st.lists(st.sampled_from(_PIECES), max_size=25))
def test_random_tokens(pieces: list[str]) -> None:
    _only_gconv_errors(" ".join(pieces))


@settings(max_examples=100)
@given(st.integers(0, len(SAMPLE)), st.integers(0, 30), st.lists(st.sampled_from(_PIECES), max_size=3))
def test_mutated_text(at: int, removed: int, inserted: list[str]) -> None:
    _only_gconv_errors(SAMPLE[:at] + " ".join(inserted) + SAMPLE[at + removed:])


@settings(max_examples=50)
@given(st.lists(st.sampled_from(SAMPLE.split()), max_size=40))
def test_shuffled_words(words: list[str]) -> None:
    _only_gconv_errors(" ".join(words))


def _large(n: int) -> list[str]:
    """Hostile texts of about n characters."""
    return [
        "(" * n, "{" * n, "problem a { N = " + "-" * n + "1 }", "let a = " + "not " * (n // 4) + "b",
        "let a = " + "+".join(["1"] * (n // 2)),
        "let a = " + "(" * 60 + "1" + "+1)" * 60, "#" * n, '"' * n, "let a = " + "9" * n, "problem " * (n // 8),
        "x = 1\n" * (n // 6),
        "problem a { C = 1; }\n" * (n // 21), "a " * (n // 2), "a#\n" * (n // 3), "1x" * (n // 2), "in " * (n // 3), "\n" * n,
        "=" * n,
        "kernel k { epilogue = " + "relu(" * 60 + "acc" + ")" * 60 + " }", "problem a { " + "N = 1 " * (n // 6) + "}",
        "problem a { " + "N = ; " * (n // 6) + "}", "sweep s { tile in { " + "64x64x64, " * (n // 10) + "} where 1 < 0 }",
        "let a = acc + acc\n" + "".join(f"let a{i + 1} = a{i or ''} + a{i or ''}\n" for i in range(min(250, n // 20))),
    ]


@pytest.mark.parametrize("text", _large(8_000))
def test_hostile_text_ends(text: str) -> None:
    _only_gconv_errors(text)


@pytest.mark.nightly
@pytest.mark.parametrize("text", _large(250_000))
def test_hostile_text_of_the_largest_size_ends(text: str) -> None:
    _only_gconv_errors(text)
