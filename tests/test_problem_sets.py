"""Problems in tables: nothing is lost on the way there and back, and every fault names file, line and column."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import gconvdsl as gconv
from gconvdsl.errors import GconvError
from gconvdsl.problem_columns import COLUMNS, from_columns, to_columns
from gconvdsl.problem_sets import read_problems, set_names

SIZES = {"networks": 588, "miopen_forward": 299, "ck_validation_bwd_data": 10, "ck_validation_bwd_weight": 10, "cpu": 23}
ASYMMETRIC = gconv.ConvProblem(N=3, G=2, C=4, K=6, input=(9, 7), filter=(3, 1), stride=(2, 1), pad=((0, 2), (1, 0)),
                               dilation=(2, 1), dtype="fp16", out_dtype="fp32", direction="bwd_weight", layout="ngchw",
                               name="odd")
ALL = (ASYMMETRIC, gconv.ConvProblem(C=4, K=6, input=20, filter=5, pad=((2, 3),)),
       gconv.ConvProblem(C=4, K=6, input=(1, 5, 6), filter=(1, 3, 3), stride=(1, 2, 3), pad=((0, 0), (1, 1), (0, 1))))


@pytest.mark.parametrize("name", sorted(set_names()))
def test_the_sets_hold_distinct_problems_that_go_through_a_table(name: str) -> None:
    problems = read_problems(name)
    assert len(problems) == SIZES.get(name, len(problems)) >= 10
    assert len(set(problems)) == len(problems) or name.startswith(("miopen", "forward_training_miopen", "networks"))
    for problem in problems:
        row = {key: str(value) for key, value in to_columns(problem).items()}
        again = from_columns(row, name, 1)
        assert again == problem and again.name == problem.name


@pytest.mark.parametrize("problem", ALL, ids=lambda one: f"{one.ndim}d")
def test_any_problem_goes_through_a_table(problem: gconv.ConvProblem) -> None:
    row = {key: str(value) for key, value in to_columns(problem).items()}
    assert tuple(row) == COLUMNS and from_columns(row, "a", 1) == problem


def test_the_grids_of_the_seed_system() -> None:
    grid = set(read_problems("bwd_data_grid"))
    assert gconv.ConvProblem(N=8, C=512, K=256, input=(7, 7), filter=(3, 3), pad=1, direction="bwd_data") in grid
    assert gconv.ConvProblem(N=8, G=512, C=512, K=512, input=(14, 14), filter=(3, 3), pad=1, direction="bwd_data") in grid
    assert gconv.ConvProblem(N=1, C=128, K=256, input=(112, 112), filter=(7, 7), stride=2, pad=3, direction="bwd_data") in grid
    assert not any(p.G == 1 and p.C == p.K == 1024 for p in grid)
    dilated = gconv.ConvProblem(N=4, C=128, K=128, input=(28, 28), filter=(3, 3), pad=2, dilation=2, direction="bwd_weight")
    assert dilated in set(read_problems("bwd_weight_grid"))
    assert {p.direction for p in read_problems("bwd_data_test_validation")} == {"bwd_data"}
    both = {*read_problems("miopen_forward"), *read_problems("forward_grid")}
    assert set(read_problems("forward_training")) == both and len(both) > 1000


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_defaults_and_columns_of_the_users_own(tmp_path: Path) -> None:
    path = written(tmp_path, "N,C,K,H,W,Y,X,_note\n2,8,16,5,6,1,3,mine\n")
    assert read_problems(path) == [gconv.ConvProblem(N=2, C=8, K=16, input=(5, 6), filter=(1, 3))]
    path = written(tmp_path, "N,C,K,Di,Hi,Wi,Z,Y,X,counted\n2,8,16,4,5,6,1,1,3,1\n2,8,16,4,5,6,1,1,3,0\n")
    assert read_problems(path) == [gconv.ConvProblem(N=2, C=8, K=16, input=(4, 5, 6), filter=(1, 1, 3))]


GOOD = "N,C,K,G,H,W,Y,X,direction,dtype\n"
FAULTS = {
    "a missing column": ("N,C,H,W,Y,X\n1,1,1,1,1,1\n", "table.column", "'K'"),
    "an extra column": ("N,C,K,H,W,Y,X,dilaton_h\n1,1,1,3,3,1,1,2\n", "table.column", "'dilaton_h'"),
    "no number": (GOOD + "1,8,8,1,5,5,3,3,forward,fp32\n1,x,8,1,5,5,3,3,forward,fp32\n", "table.value", "line 3: C = 'x'"),
    "a fraction": (GOOD + "1,8.5,8,1,5,5,3,3,forward,fp32\n", "table.value", "line 2: C = '8.5'"),
    "an empty cell": (GOOD + "1,,8,1,5,5,3,3,forward,fp32\n", "table.value", "line 2: C = ''"),
    "a short row": (GOOD + "1,8\n", "table.value", "line 2: K = ''"),
    "a long row": (GOOD + "1,8,8,1,5,5,3,3,forward,fp32,7\n", "table.value", "'7'"),
    "no such direction": (GOOD + "1,8,8,1,5,5,3,3,backwards,fp32\n", "table.value", "direction = 'backwards'"),
    "no such dtype": (GOOD + "1,8,8,1,5,5,3,3,forward,fp8\n", "table.value", "dtype = 'fp8'"),
    "groups": (GOOD + "1,9,8,2,5,5,3,3,forward,fp32\n", "table.value", "C = 9"),
    "an impossible filter": (GOOD + "1,8,8,1,2,5,3,3,forward,fp32\n", "table.value", "filter"),
    "an empty file": ("", "table.column", "'N'"),
    "no text": ("\x00\x01\x02,\n", "table.column", "mine.csv"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_file_line_and_column(tmp_path: Path, fault: str) -> None:
    text, code, shown = FAULTS[fault]
    path = written(tmp_path, text)
    with pytest.raises(GconvError) as caught:
        read_problems(path)
    assert caught.value.code in (code, "table.file") and path in str(caught.value) and (shown in str(caught.value))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(GconvError, match="The sets are: .*networks"):
        read_problems("netwroks")
    (tmp_path / "latin.csv").write_bytes(GOOD.encode() + b"1,8,8,1,5,5,3,3,forward,\xff\n")
    with pytest.raises(GconvError, match="UTF-8"):
        read_problems(str(tmp_path / "latin.csv"))


def test_the_files_say_where_their_problems_come_from() -> None:
    folder = Path(gconv.__file__).parent / "data"
    for name in ("networks", "miopen_forward", "ck_validation_bwd_data"):
        with open(folder / f"problems_{name}.csv", encoding="utf-8", newline="") as file:
            assert all(row["source"] for row in csv.DictReader(file))
