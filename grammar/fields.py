"""The fields of each block: what a value must be, in words, and the Python value it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..config import FAMILIES, OPTIONS
from ..dtypes import DTYPES, dtype_of
from ..errors import GconvError, error
from ..layouts import LAYOUTS
from ..pipelines import PIPELINES
from ..problem import DIRECTIONS
from .diagnostics import did_you_mean
from .expressions import Node, evaluate, shown
from .text import Source

__all__ = ["CONV", "KERNEL", "ELSEWHERE", "PROBLEM", "SWEEP", "TILE", "VOCABULARY", "Kind", "expected_of", "option_field",
           "value_of", "wrong"]


@dataclass(frozen=True)
class Kind:
    """What a field takes. ``form``: count, size, pad, bool, word, chain, tile or expr; ``words``: the words of form word."""

    form: str
    expected: str
    words: tuple[str, ...] = ()
    what: str = ""


_COUNT = Kind("count", "a whole number such as 64")
_SIZE3 = Kind("size", "a size such as 64x16x64")
_STEP = Kind("size", "a whole number or a size such as 2x1")
_PAD = Kind("pad", "a whole number, a size such as 1x1, or low:high pairs such as 0:1x2:2")


def _word(what: str, words: Iterable[str], example: str) -> Kind:
    return Kind("word", f"a {what} such as {example}", tuple(words), what)


_DTYPE = _word("dtype", DTYPES, "bf16")

PROBLEM: dict[str, Kind] = {
    "N": _COUNT, "G": _COUNT, "C": _COUNT, "K": _COUNT, "input": Kind("size", "a size such as 28x28"),
    "filter": Kind("size", "a size such as 3x3"), "stride": _STEP, "pad": _PAD, "dilation": _STEP, "dtype": _DTYPE,
    "direction": _word("direction", DIRECTIONS, "bwd_data"), "layout": _word("layout", LAYOUTS, "nhwgc"), "out_dtype": _DTYPE,
}
TILE: dict[str, Kind] = {"block": _SIZE3, "waves": Kind("size", "a size such as 2x1x1"),
                         "wave_tile": Kind("size", "a size such as 16x16x16"), "vector": Kind("size", "a size such as 8x8x8")}
CONV: dict[str, Kind] = {"stride": _STEP, "pad": _PAD, "dilation": _STEP, "groups": _COUNT, "direction": PROBLEM["direction"]}


def option_field(option: str) -> str:
    """The field of a configuration's option: its name, but ``store`` for its ``epilogue``, which here is the expression."""
    return "store" if option == "epilogue" else option


def _option_kind(name: str) -> Kind:
    kind = OPTIONS[name].kind
    if kind == "bool":
        return Kind("bool", "true or false")
    return _COUNT if kind == "count" else _word(option_field(name), kind, kind[0])


SWEEP: dict[str, Kind] = {
    "tile": Kind("tile", "the name of a tile, a size such as 64x16x64, or tiles by family such as { cdna: m64 }"),
    "pipeline": Kind("chain", "a pipeline such as compv3, or a chain such as compv4 -> basic_v1", tuple(PIPELINES), "pipeline"),
    **{option_field(name): _option_kind(name) for name in OPTIONS},
}
KERNEL: dict[str, Kind] = {
    **SWEEP, "prologue": Kind("expr", "an expression of x such as relu(x * scale)"),
    "epilogue": Kind("expr", "an expression of acc such as relu(acc + bias)"),
}
ELSEWHERE: dict[tuple[str, str], str] = {
    **{("kernel", name): f"Write {name} inside conv {{ ... }}." for name in CONV},
    ("kernel", "direction"): "Write kernel NAME for DIRECTION.",
    ("problem", "groups"): "In a problem it is called G.", ("conv", "G"): "In conv it is called groups.",
}
"""(block, field) -> what to write instead, for fields that belong into another block."""
VOCABULARY = frozenset([*DTYPES, *DIRECTIONS, *LAYOUTS, *PIPELINES, *FAMILIES, "true", "false",
                        *(word for kind in SWEEP.values() if kind.form == "word" for word in kind.words)])
"""The words that `let` may give a name to."""


def expected_of(field: str) -> str | None:
    """What the value of a field of this name must be, in words; None for names that no block has."""
    kind = PROBLEM.get(field) or TILE.get(field) or KERNEL.get(field) or CONV.get(field)
    return kind.expected if kind else None


def value_of(field: str, kind: Kind, node: Node, source: Source, lets: Mapping[str, Any]) -> Any:
    """The Python value of a field of form count, size, pad, bool or word; ``syntax.value`` when it is of another form."""
    value = lets.get(node.value, node.value) if node.kind == "name" else node.value
    if kind.form in ("bool", "word"):
        if node.kind != "name" or not isinstance(value, str):
            raise wrong(field, kind, node, value)
        return _word_value(field, kind, node, value)
    if node.kind in ("name", "size") and isinstance(value, tuple):
        if kind.form == "count" or (kind.form == "size" and any(isinstance(entry, tuple) for entry in value)):
            raise wrong(field, kind, node, value)
        return value
    if node.kind == "member" or (node.kind == "name" and not isinstance(value, (int, float))):
        raise wrong(field, kind, node, value,
                    did_you_mean(node.text, lets, "Names declared with let") if value == node.value else "")
    return evaluate(node, source, lets)


def _word_value(field: str, kind: Kind, node: Node, value: str) -> Any:
    if kind.form == "bool" and value in ("true", "false"):
        return value == "true"
    if kind.form == "bool":
        raise wrong(field, kind, node, value)
    if value not in kind.words and not (kind is _DTYPE and dtype_of(value)):
        raise error("syntax.unknown", what=f"The {kind.what}", name=value, hint=did_you_mean(value, kind.words))
    return value


def wrong(field: str, kind: Kind, node: Node, value: Any, hint: str = "") -> GconvError:
    """The error for a value of another form than the field takes."""
    text = shown(value) if node.kind in ("name", "size", "number") else node.text
    return error("syntax.value", field=field, value=text, expected=kind.expected, hint=hint)
