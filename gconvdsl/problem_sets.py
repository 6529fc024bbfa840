"""Sets of problems to measure: files that come with the package, the grids of the seed system, and the user's own files."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .errors import error
from .problem import ConvProblem
from .problem_columns import from_columns, problem_header

__all__ = ["SETS", "read_problems", "set_names"]

_DATA = Path(__file__).parent / "data"

Grid = Callable[[], Iterator[ConvProblem]]


def read_problems(text: str) -> list[ConvProblem]:
    """The problems of a set by name (`set_names`), or of a .csv or .gconv file.

    Columns of a .csv: `problem_columns.COLUMNS`; rows with 0 in a column ``counted`` are left out. Raises ``table.column`` and
    ``table.value`` naming file, line and column.
    """
    if text in SETS:
        return list(dict.fromkeys(problem for name in SETS[text] for problem in _member(name)))
    path = _file(text)
    if path.suffix == ".gconv":
        from .grammar import load

        return list(load(str(path)).problems.values())
    return _from_csv(path)


def set_names() -> list[str]:
    """Every name that `read_problems` knows."""
    return sorted({*SETS, *(path.stem.removeprefix("problems_") for path in _DATA.glob("problems_*.csv")), *_GRIDS})


def _member(name: str) -> list[ConvProblem]:
    return list(_GRIDS[name]()) if name in _GRIDS else read_problems(name)


def _file(text: str) -> Path:
    built_in = _DATA / f"problems_{text}.csv"
    return built_in if built_in.is_file() else Path(text)


def _from_csv(path: Path) -> list[ConvProblem]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            problem_header(str(path), reader.fieldnames)
            return [_row(row, str(path), reader.line_num) for row in reader if row.get("counted", "1") != "0"]
    except OSError as failure:
        hint = f"The sets are: {', '.join(set_names())}." if not path.suffix else ""
        raise error("table.file", path=str(path), reason=failure.strerror, hint=hint) from None
    except (UnicodeDecodeError, csv.Error) as failure:
        raise error("table.file", path=str(path), reason=str(failure), hint="It must be a CSV file in UTF-8.") from None


def _row(row: dict[Any, Any], path: str, line: int) -> ConvProblem:
    if None in row:
        raise error("table.value", path=path, line=line, column="the last", value=",".join(row[None]),
                    expected="the end of the row")
    return from_columns(row, path, line)


# --- grids: the ranges that the seed system was trained on, as its page of facts lists them

def _named(name: str, problems: Iterable[ConvProblem]) -> Iterator[ConvProblem]:
    """Each problem once, numbered."""
    for number, problem in enumerate(dict.fromkeys(problems)):
        yield problem.replace(name=f"{name}.{number}")


def _square(n: int, c: int, k: int, size: int, filter: int, groups: int = 1, stride: int = 1, dilation: int = 1,
            direction: str = "forward") -> ConvProblem:
    """2-D, square, padded so that stride 1 keeps the size."""
    return ConvProblem(N=n, G=groups, C=c, K=k, input=(size, size), filter=(filter, filter), stride=stride,
                       pad=dilation * (filter // 2), dilation=dilation, direction=direction)


def _bwd_data() -> Iterator[ConvProblem]:
    def every(n: Iterable[int], channels: Iterable[tuple[int, int]], sizes: Iterable[int], filters: Iterable[int] = (1, 3),
              groups: int = 1, stride: int = 1) -> Iterator[ConvProblem]:
        for size, (c, k), images, taps in itertools.product(sizes, channels, n, filters):
            yield _square(images, c, k, size, taps, groups, stride, direction="bwd_data")

    def pairs(cs: Iterable[int], ks: Iterable[int]) -> list[tuple[int, int]]:
        return list(itertools.product(cs, ks))
    small = [pair for pair in pairs((256, 512, 1024), (64, 128, 256, 512, 1024)) if pair != (1024, 1024)]
    middle = (64, 128, 256, 512)
    uneven = [(64, 256), (128, 512), (256, 64), (256, 128), (512, 256)]
    yield from every((1, 4, 8, 16, 32), small, (7, 14))
    yield from every((2, 4, 8, 16, 32), pairs(middle, middle), (28, 32, 56))
    yield from every((1, 2, 4, 8), pairs((32, 64, 128, 256), (64, 128, 256)), (112,), (3,))
    yield from every((1, 2, 4, 8), pairs((32, 64, 128), (64, 128, 256)), (112,), (7,), stride=2)
    yield from every((4, 8, 16), uneven, (14, 28, 56))
    yield from every((1, 2), [(64, 128), (128, 256), (256, 512), (512, 1024)], (7, 14, 28, 56), (1,))
    yield from every((64, 128), [(c, c) for c in (64, 128, 256)], (14, 28), (3,))
    for groups in (2, 4, 8):
        yield from every((1, 4, 8, 16), [(groups * c, groups * c) for c in (64, 128, 256)], (14, 28, 56), groups=groups)
    yield from _depthwise("bwd_data")


def _depthwise(direction: str) -> Iterator[ConvProblem]:
    for channels, size, n in itertools.product((64, 128, 256, 512), (14, 28, 56, 112), (1, 4, 8)):
        yield _square(n, channels, channels, size, 3, channels, direction=direction)


def _bwd_weight() -> Iterator[ConvProblem]:
    one = partial(_square, direction="bwd_weight")
    channels = (64, 128, 256, 512, 1024)
    uneven = ((64, 256), (128, 512), (256, 64), (256, 128), (512, 256), (256, 1024))
    for size, c, k, n, taps in itertools.product((7, 14), channels, channels, (1, 4, 8, 16, 32), (1, 3)):
        yield one(n, c, k, size, taps)
    for size, c, k, n, taps in itertools.product((28, 32, 56), (32, 64, 128, 256, 512), (64, 128, 256, 512), (2, 8, 16), (1, 3)):
        yield one(n, c, k, size, taps)
    for c, k, n in itertools.product((16, 32, 64, 128, 256), (64, 128, 256), (1, 4)):
        yield one(n, c, k, 112, 3)
    for c, n in itertools.product((16, 32, 64, 128), (1, 4, 8)):
        yield one(n, c, 64, 112, 7, stride=2)
    for (c, k), size, n, taps in itertools.product(uneven, (14, 28), (4, 8, 16), (1, 3)):
        yield one(n, c, k, size, taps)
    for n, size, c in itertools.product((64, 128), (7, 14, 28), (64, 128, 256, 512)):
        yield one(n, c, c, size, 3)
    for g, base, size, n in itertools.product((2, 4, 8), (64, 128, 256), (14, 28, 56), (1, 4, 8, 16)):
        yield one(n, g * base, g * base, size, 3, groups=g)
    yield from _depthwise("bwd_weight")
    for size, c, k, n in itertools.product((14, 28, 56), (64, 128, 256), (128, 256, 512), (4, 8, 16)):
        yield one(n, c, k, size, 3, stride=2)
    for spread, size, n in itertools.product((2, 4, 6), (14, 28, 56), (1, 4, 8, 16)):
        yield one(n, 128, 128, size, 3, dilation=spread)
    for spread, size in itertools.product((2, 4), (7, 32, 112)):
        yield one(4, 64, 64, size, 3, dilation=spread)


def _forward() -> Iterator[ConvProblem]:
    channels = (64, 128, 256, 512)
    for size, c, k, n, taps in itertools.product((8, 16), channels, channels, (1, 4, 16), (1, 3)):
        yield _square(n, c, k, size, taps)
    for size, c, k, n, taps in itertools.product((28, 32, 56), channels, (64, 128, 256), (1, 4, 16), (1, 3)):
        yield _square(n, c, k, size, taps)
    for c, k, n in itertools.product((16, 32, 64, 128), (64, 128), (1, 4)):
        yield _square(n, c, k, 112, 3)
    for g, base, size, n, taps in itertools.product((2, 4, 8), (8, 16, 32, 64), (8, 16, 28, 56), (1, 8), (1, 3)):
        yield _square(n, g * base, g * base, size, taps, g)
    yield from _depthwise("forward")
    for size, c, n in itertools.product((14, 28, 56), channels, (4, 16)):
        yield _square(n, c, 2 * c, size, 3, stride=2)
    for spread, size, c in itertools.product((2, 4, 6), (14, 28, 56), (64, 256)):
        yield _square(4, c, c, size, 3, dilation=spread)
    for depth, size, c, k, taps in itertools.product((8, 16, 32), (28, 56), (64, 128), (128, 256), (1, 3)):
        yield ConvProblem(N=2, C=c, K=k, input=(depth, size, size), filter=(taps,) * 3, pad=taps // 2)


_GRIDS: dict[str, Grid] = {
    "forward_grid": lambda: _named("forward_grid", _forward()),
    "bwd_data_grid": lambda: _named("bwd_data_grid", _bwd_data()),
    "bwd_weight_grid": lambda: _named("bwd_weight_grid", _bwd_weight()),
}
SETS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in _GRIDS},
    "forward_training": ("miopen_forward", "forward_grid"),
    "forward_training_miopen": ("miopen_forward",),
    "bwd_data_synthetic_extended": ("bwd_data_grid",),
    "bwd_weight_synthetic_extended": ("bwd_weight_grid",),
    "bwd_data_test_validation": ("ck_validation_bwd_data",),
    "bwd_weight_test_validation": ("ck_validation_bwd_weight",),
}
"""Name -> grids and files it consists of. The longer names are the seed system's."""
