"""Places in a source: what is printed, and where the carets stand."""

from __future__ import annotations

import linecache
import pickle

import pytest

from gconvdsl.source import Loc, display_width


def _carets(loc: Loc) -> tuple[str, int, int]:
    """The shown line, and the terminal columns where the carets begin and end."""
    _, line, row = loc.render().split("\n")
    return line, len(row) - len(row.lstrip()), len(row)


def test_plain_line() -> None:
    assert Loc("f.gconv", 3, 5, 8, "let abc = 1").render() == "f.gconv:3:5\n    let abc = 1\n        ^^^"


@pytest.mark.parametrize(("text", "column", "end", "before", "width"), [
    ("漢字 = x", 6, 7, 7, 1),                     # each of the two wide characters takes two columns
    ("a 漢字", 3, 5, 2, 4),
    ("e\u0301 = x", 6, 7, 4, 1),                 # the accent takes none
    ("\tab", 2, 4, 4, 2),
    ("a\tb", 3, 4, 4, 1),                        # to the next multiple of four
    ("ab", 3, None, 2, 1),                       # just after the end
])
def test_carets_stand_under_the_stretch(text: str, column: int, end: int | None, before: int, width: int) -> None:
    line, start, stop = _carets(Loc("f", 1, column, end, text))
    assert (start - 4, stop - start) == (before, width)
    assert "\t" not in line


def test_long_lines_are_cut_around_the_stretch() -> None:
    line, start, stop = _carets(Loc("f", 1, 1001, 1004, "a" * 1000 + "xyz" + "b" * 1000))
    assert len(line) < 160 and line[start:stop] == "xyz"


def test_control_characters_never_reach_the_terminal() -> None:
    assert "\x1b" not in Loc("f", 1, 1, 2, "\x1b[31mred\0").render()


def test_the_line_is_looked_up_when_it_is_not_given() -> None:
    linecache.cache["<made up>"] = (9, None, ["first\n", "  second\n"], "<made up>")
    try:
        assert Loc("<made up>", 2, 3, 9).render() == "<made up>:2:3\n      second\n      ^^^^^^"
    finally:
        del linecache.cache["<made up>"]
    assert Loc("<nowhere>", 7, 2).render() == "<nowhere>:7:2"


def test_pickle_equality_and_width() -> None:
    loc = Loc("f", 1, 2, 3, "text")
    copy = pickle.loads(pickle.dumps(loc))
    assert copy == loc == Loc("f", 1, 2, 3) and copy.text == "text"
    assert display_width("a漢e\u0301") == 4
