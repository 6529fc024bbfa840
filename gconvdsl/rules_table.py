"""The rules as tables: pipeline x scheduler x direction x dtype x arch with reasons, and the text of docs/rules.md.

Everything is asked of `rules.check`, so the tables cannot say anything else than what is enforced.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from .archs import Arch, arch as find_arch, arch_names
from .config import KernelConfig, Tile, size_text
from .dtypes import DTYPES, dtype as find_dtype
from .pipelines import PIPELINES, SCHEDULERS
from .problem import DIRECTIONS, ConvProblem
from .rules import RULES, check

__all__ = ["MatrixRow", "markdown", "matrix", "render"]


@dataclass(frozen=True)
class MatrixRow:
    """One combination. ``reasons``: ids of the rules that forbid it, empty where legal."""

    pipeline: str
    scheduler: str
    direction: str
    dtype: str
    arch: str
    reasons: tuple[str, ...]


def matrix(arch: str | None = None, dtype: str | None = None) -> list[MatrixRow]:
    """Every combination, or those of one arch or dtype, judged with a small tile that suits the arch."""
    archs = [find_arch(arch)] if arch else [find_arch(name) for name in arch_names()]
    dtypes = [find_dtype(dtype).name] if dtype else list(DTYPES)
    return [_row(*each) for each in itertools.product(PIPELINES, SCHEDULERS, DIRECTIONS, dtypes, archs)]


def _row(pipeline: str, scheduler: str, direction: str, dtype: str, arch: Arch) -> MatrixRow:
    problem = ConvProblem(N=2, G=2, C=64, K=64, input=(8, 8), filter=(3, 3), pad=1, dtype=dtype, direction=direction)
    config = KernelConfig(tile=_small_tile(arch, dtype), pipeline=pipeline,
                          **{**PIPELINES[pipeline].implied_options, "scheduler": scheduler})
    broken = [one.rule for one in check(problem, config, arch)]
    return MatrixRow(pipeline, scheduler, direction, dtype, arch.name, tuple(broken))


def _small_tile(arch: Arch, dtype: str) -> Tile | None:
    """Two waves of one instruction each."""
    first = next(iter(arch.instructions_for(dtype)), None)
    return Tile((2 * first.m, first.n, 32), (2, 1, 1), (first.m, first.n, first.k)) if first else None


def render(arch: str | None = None, dtype: str | None = None) -> str:
    """The matrix and the rules as plain text: a line for each pipeline and scheduler, a column for each arch.

    Directions and dtypes share a line where they agree in every column.
    """
    return "\n".join([*_text_table(_lines(matrix(arch, dtype))), "", *_legend(), "", "Rules:", *_rule_lines()])


def markdown() -> str:
    """The text of docs/rules.md."""
    head, *lines = _lines(matrix())
    rules = [("id", "rule", "reason"), *((f"`{rule.id}`", rule.sentence, rule.reason) for rule in RULES.values())]
    pipelines = [("pipeline", "meaning"), *((f"`{row.name}`", row.meaning) for row in PIPELINES.values())]
    instructions = [("arch", "devices", "LDS", *DTYPES), *map(_hardware, map(find_arch, arch_names()))]
    return "\n".join([
        "# Rules", "",
        "Written by `gconvdsl.rules_table.markdown()`; a test keeps it in step with `rules.py`.", "",
        "The principle: every pipeline works in all three directions on every arch unless the hardware forbids it.", "",
        "## What is legal", "", *_markdown_table([head, *lines]), "", *(f"- {line}" for line in _legend()), "",
        "## The rules", "", *_markdown_table(rules), "",
        "## Pipelines", "", *_markdown_table(pipelines), "",
        "## Hardware", "",
        "Matrix instructions as m x n x k by dtype; a wave_tile is m x n of one of them and a multiple of its k.", "",
        *_markdown_table(instructions), ""])


def _legend() -> list[str]:
    """What the words and the marks of the cells mean."""
    return ["yes: legal.", "ignored: the target has one way of its own.",
            "Other cells name the rule, or the note, that forbids the combination."]


def _outcome(row: MatrixRow) -> str:
    if find_arch(row.arch).family == "cpu":
        return "ignored"
    return ", ".join(row.reasons) or "yes"


def _lines(rows: Sequence[MatrixRow]) -> list[tuple[str, ...]]:
    """A head and lines of cells; directions and dtypes with equal outcomes on all archs are merged."""
    archs = list(dict.fromkeys(row.arch for row in rows))
    outcomes: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        outcomes.setdefault((row.pipeline, row.scheduler, row.direction, row.dtype), []).append(_outcome(row))
    merged: dict[tuple[str, str, tuple[str, ...]], list[tuple[str, str]]] = {}
    for (pipeline, scheduler, direction, dtype), cells in outcomes.items():
        merged.setdefault((pipeline, scheduler, tuple(cells)), []).append((direction, dtype))
    lines = [(pipeline, scheduler, *_names(members), *cells) for (pipeline, scheduler, cells), members in merged.items()]
    return [("pipeline", "scheduler", "directions", "dtypes", *archs), *lines]


def _names(members: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Directions and dtypes of merged lines, "all" for all directions."""
    directions, dtypes = dict.fromkeys(direction for direction, _ in members), dict.fromkeys(dtype for _, dtype in members)
    if len(members) < len(directions) * len(dtypes):
        return ", ".join(f"{direction} {dtype}" for direction, dtype in members), ""
    return "all" if len(directions) == len(DIRECTIONS) else ", ".join(directions), ", ".join(dtypes)


def _text_table(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns of equal width; long reasons are numbered below the table."""
    notes: dict[str, str] = {}
    short = [tuple(_mark(cell, notes) for cell in line) for line in lines]
    widths = [max(map(len, column)) for column in zip(*short)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in short]
    return [*table, "", *(f"{mark}: {_sentences(reasons)}" for reasons, mark in notes.items())]


def _mark(cell: str, notes: dict[str, str]) -> str:
    """The cell itself, or "no (1)" for one that names rules."""
    if cell.split(", ")[0] not in RULES:
        return cell
    return notes.setdefault(cell, f"no ({len(notes) + 1})")


def _sentences(reasons: str) -> str:
    return " ".join(f"{RULES[id].sentence} {RULES[id].reason}" for id in reasons.split(", "))


def _rule_lines() -> list[str]:
    width = max(map(len, RULES))
    return [f"  {rule.id.ljust(width)}  {rule.sentence}" for rule in RULES.values()]


def _markdown_table(lines: Sequence[tuple[str, ...]]) -> list[str]:
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    return [head, "|" + "---|" * len(lines[0]), *body]


def _hardware(arch: Arch) -> tuple[str, ...]:
    shapes = (", ".join(size_text((one.m, one.n, one.k)) for one in arch.instructions_for(dtype)) for dtype in DTYPES)
    return (f"`{arch.name}`", arch.device, f"{arch.lds // 1024} KB" if arch.lds else "-", *(text or "-" for text in shapes))
