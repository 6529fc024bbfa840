"""What is said about each kind of fault: code, place, expectation, hint."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gconvdsl.errors import GconvError, GconvSyntaxError, ProblemError
from gconvdsl.grammar import check_file, check_text, load, loads

P = "problem p { C = 4  K = 4  input = 9x9  filter = 3x3 }\n"


def _one(text: str) -> GconvError:
    found = check_text(text, "f.gconv")
    assert len(found) == 1, [str(one) for one in found]
    return found[0]


# text with the marked stretch between « and », code, words that the message or the fix must hold
CASES = [
    ("problem a { «inptu» = 3x3  C = 1  K = 1  filter = 1x1 }", "syntax.unknown", "Did you mean input?"),
    ("problem a { C = 1  K = 1  input = 5x5  filter = «3 »x 3 }", "syntax.expected", "without spaces"),
    ("problem a { C = 1  K = 1  input = «}»", "syntax.expected", "a size such as 28x28"),
    ("problem a { C = «K» = 4  input = 5x5  filter = 3x3 }", "syntax.expected", "a whole number such as 64"),
    ("problem a { C = 1  K = 1  input = 5x5  filter = «bf16» }", "syntax.value", "a size such as 3x3"),
    ("problem a { C = «2x2»  K = 1  input = 5x5  filter = 3x3 }", "syntax.value", "a whole number such as 64"),
    ("problem a { C = 1  K = 1  input = 5x5  filter = «3x1:2» }", "syntax.value", "a size such as 3x3"),
    ("problem a { C = 1  K = 1  input = 5x5  filter = 3x3  dtype = «bf17» }", "syntax.unknown", "Did you mean bf16?"),
    ("problem a { C = 1  K = 1  input = 5x5  filter = 3x3  layout = «nhwgk» }", "syntax.unknown", "Did you mean nhwgc?"),
    ("problem a { C = 1  K = 1  input = 5x5  filter = 3x3  direction = «backward» }", "syntax.unknown", "bwd_data"),
    ("problem a { C = 1  K = 1  input = 5x5  filter = 3x3  layout = «nwgc» }", "problem.layout", "2-D"),
    ("problem a { G = 3  C = «4»  K = 3  input = 5x5  filter = 3x3 }", "problem.groups", "C = 4"),
    ("problem «a» { C = 4 }", "problem.missing", "K"),
    ("problem a { C = 1  K = 1  input = 5x5  filter = 3x3  «C» = 2 }", "syntax.duplicate", "in line 1"),
    ("problem a { C = 1 «;» K = 1  input = 5x5  filter = 3x3 }", "syntax.character", "leave it out"),
    ("problem a { C = 1 «,» K = 1  input = 5x5  filter = 3x3 }", "syntax.expected", "leave the comma out"),
    ("problem a { «C»: 1  K = 1  input = 5x5  filter = 3x3 }", "syntax.expected", "Write C = value"),
    ("«probelm» a { C = 1 }", "syntax.expected", "Did you mean problem?"),
    ("«N» = 3", "syntax.expected", "let N = value"),
    ("tile t { block = 8x8x8  waves = «2x1» }", "tile.value", "three positive whole numbers"),
    ("tile «t» { waves = 1x1x1 }", "tile.missing", "block"),
    ("kernel k { pipeline = compv4 -> «compv33» }", "syntax.unknown", "Did you mean compv3?"),
    ("kernel k { pipeline = mem -> «mem» }", "syntax.duplicate", "mem"),
    ("kernel k { scheduler = «intrawav» }", "syntax.unknown", "Did you mean intrawave?"),
    ("kernel k { double_smem_buffer = «yes» }", "syntax.value", "true or false"),
    ("kernel k { split_k = «0» }", "config.value", "at least 1"),
    ("kernel k { tile = «m64» }", "syntax.unknown", "No tile is declared above"),
    ("tile m64 { block = 64x16x64 }\nkernel k { tile = «m46» }", "syntax.unknown", "Did you mean m64?"),
    ("kernel k { tile = { «cdnaa»: 64x64x64 } }", "syntax.unknown", "Did you mean cdna?"),
    ("kernel k { tile = «64x64» }", "syntax.value", "a size such as 64x16x64"),
    ("kernel k for «foward» { }", "syntax.unknown", "Did you mean forward?"),
    ("kernel k (bias: «perk») { epilogue = acc + bias }", "syntax.unknown", "Did you mean per_k?"),
    ("kernel k («bias») { epilogue = acc + bias }", "syntax.missing", "bias: per_k"),
    ("kernel k (bias: per_k) { epilogue = acc + «bais» }", "syntax.unknown", "Did you mean bias?"),
    ("kernel k { epilogue = «rleu(acc)» }", "syntax.unknown", "Did you mean relu?"),
    ("kernel k { epilogue = «relu(acc, 2)» }", "trace.args", "1 argument"),
    ("kernel k { epilogue = «cast(acc, fp17)» }", "syntax.unknown", "Did you mean fp16?"),
    ("kernel k { epilogue = «acc < 3» }", "syntax.expected", "where(condition, a, b)"),
    ("kernel k { epilogue = «where(acc, 1, 2)» }", "trace.condition", "comparison"),
    ("kernel k { prologue = relu(«acc») }", "syntax.unknown", "acc"),
    ("kernel k (b: per_c) { epilogue = «acc + b» }", "trace.operand_place", "epilogue of a forward kernel"),
    ("kernel k { conv { «strid» = 1 } }", "syntax.unknown", "Did you mean stride?"),
    ("kernel k { «pad» = 1 }", "syntax.unknown", "inside conv"),
    ("kernel k { conv { } «conv» { } }", "syntax.duplicate", "conv"),
    ("kernel k { «tile» in { 8x8x8 } }", "syntax.expected", "sweep"),
    ("sweep s { tile in { «m1» } }", "syntax.unknown", "tile"),
    ("sweep s { «tile in { }» }", "syntax.empty_sweep", "tile in { }"),
    ("sweep s { tile in { 64x64x64 }  where «tile.n > 64» }", "syntax.empty_sweep", "where tile.n > 64"),
    ("sweep s { pipeline in *  where «1 > 2» }", "syntax.empty_sweep", "where 1 > 2"),
    ("sweep «s» { }", "syntax.missing", "at least one clause"),
    ("sweep s { «pipline» in * }", "syntax.unknown", "Did you mean pipeline?"),
    ("sweep s { «pipeline» = mem }", "syntax.expected", "pipeline in { ... }"),
    ("sweep s { tile in *  where 1 < N «<» 3 }", "syntax.expected", "not chained"),
    ("sweep s { tile in *  where «N + 1» }", "syntax.expected", "a condition"),
    ("sweep s { tile in *  where «dtype» < 3 }", "syntax.value", "== or !="),
    ("sweep s { tile in *  where dtype == «bf1» }", "syntax.unknown", "Did you mean bf16?"),
    ("sweep s { tile in *  where «tile.o» < 3 }", "syntax.unknown", "tile."),
    (P + "run «k» on p", "syntax.unknown", "No kernel is declared"),
    (P + "kernel k { }\nrun k on «q»", "syntax.unknown", "p"),
    (P + "kernel k for bwd_data { }\nrun k on p «for bwd_weight»", "syntax.value", "bwd_data"),
    (P + "kernel k { }\nrun k on p, «p»", "syntax.duplicate", "p"),
    (P + "kernel k { }\nsweep «k» { tile in * }", "syntax.duplicate", "in line 2"),
    (P + 'kernel k { }\nbench k on p -> «""»', "syntax.value", "a file name"),
    (P + 'kernel k { }\nbench k on p -> «"»abc', "syntax.character", "ends on the same line"),
    ("let a = «b» + 1", "syntax.unknown", "Declare it above"),
    ("let a = «1 / 0»", "syntax.value", "finite"),
    ("let a = " + "«" + "9" * 41 + "»", "syntax.value", "40 digits"),
    ("let a = «b»", "syntax.unknown", "let b"),
    ("epilogue e(«bias»: per_k) = bias", "syntax.expected", '"acc" as the first parameter'),
    ("epilogue e(acc, b: per_k) = acc + b\nkernel k { epilogue = «e(acc)» }", "trace.args", "2 arguments (acc, b)"),
    ("epilogue e(acc, b: per_k) = acc + b\nkernel k (c: like_y) { epilogue = e(acc, «c») }", "syntax.value",
     "per_k, not like_y"),
    ('include «"nosuch.gconv"»', "syntax.include", "there is no such file"),
    ("let a = " + "(" * 64 + "«(»1" + ")" * 65, "syntax.deep", "65"),
    ("let a = " + "«1»" + " + 1" * 250, "syntax.terms", "limit of 200"),
    ("kernel k { epilogue = " + "«acc»" + " + acc" * 250 + " }", "syntax.terms", "limit of 200"),
]


@pytest.mark.parametrize(("marked", "code", "words"), CASES, ids=lambda value: value[:40] if isinstance(value, str) else None)
def test_one_fault(marked: str, code: str, words: str) -> None:
    before, _, rest = marked.partition("«")
    stretch, _, after = rest.partition("»")
    fault = _one(before + stretch + after)
    assert fault.code == code
    assert words in fault.message + " " + fault.fix
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    if "without spaces" in words:                # the fault is the x after the number
        column += len(stretch)
    assert (fault.loc.line, fault.loc.column) == (line, column), str(fault)
    assert "^" in str(fault)
    assert str(pickle.loads(pickle.dumps(fault))) == str(fault)


def test_no_terminal_name_is_shown() -> None:
    from gconvdsl.grammar.parser import _lark

    terminals = {terminal.name for terminal in _lark().terminals}
    for marked, *_ in CASES:
        for fault in check_text(marked.replace("«", "").replace("»", "")):
            assert not terminals & set(fault.message.replace('"', " ").replace(",", " ").split()), fault.message


def test_the_end_of_the_text_has_a_line() -> None:
    fault = _one("problem a {\n  C = 1\n\n\n")
    assert (fault.code, fault.loc.line) == ("syntax.end", 2)
    assert "The { in line 1 is not closed." in str(fault)


def test_an_unclosed_brace_spoils_one_statement() -> None:
    fault = _one("problem a { C = 1\n" + P + "kernel k { }\nrun k on p\nrun k on a\n")
    assert (fault.code, fault.loc.line) == ("syntax.expected", 2)
    assert "line 1 is not closed" in fault.fix


def test_several_faults_in_one_pass_and_no_consequences() -> None:
    text = """\
problem a { C = 4  K = 3 4  inptu = 3x3  dtype = bf17 }
kernel k (b: perk) {
  scheduler = intra   tile = nosuch
  epilogue = rleu(acc + b)
}
let n = m + 1
let twice = n * 2
run k on a
run j on a
"""
    found = check_text(text)
    assert [(one.code, one.loc.line) for one in found] == [
        ("syntax.expected", 1), ("syntax.unknown", 1), ("syntax.unknown", 1), ("syntax.unknown", 2), ("syntax.unknown", 3),
        ("syntax.unknown", 3), ("syntax.unknown", 4), ("syntax.unknown", 6), ("syntax.unknown", 9)]
    with pytest.raises(GconvSyntaxError) as caught:
        loads(text)
    assert len(caught.value.others) == len(found) - 1
    assert str(caught.value).count("error[") == len(found)


def test_at_most_20_faults() -> None:
    assert len(check_text("tile t { a = 1 }\n" * 50)) == 20


def test_a_single_fault_of_another_kind_keeps_its_class() -> None:
    with pytest.raises(ProblemError) as caught:
        loads("problem p { C = 0  K = 1  input = 3x3  filter = 1x1 }")
    assert caught.value.code == "problem.size"
    two = "problem p { C = 0  K = 1  input = 3x3  filter = 1x1 }\n" * 2
    with pytest.raises(GconvSyntaxError, match="faults were found"):
        loads(two)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    large, binary, deep = tmp_path / "large.gconv", tmp_path / "binary.gconv", tmp_path / "ok.gconv"
    large.write_text("#" * (256 * 1024 + 1))
    binary.write_bytes(b"let a = 1\nlet b\xff = 2\n")
    deep.write_text("#" * (256 * 1024))
    expected = {tmp_path: "syntax.file", tmp_path / "nosuch.gconv": "syntax.file", large: "syntax.large",
                binary: "syntax.encoding",
                Path("/dev/null"): "syntax.file", Path("a\0b"): "syntax.file"}
    for path, code in expected.items():
        with pytest.raises(GconvSyntaxError) as caught:
            load(path)
        assert caught.value.code == code
        assert [one.code for one in check_file(path)] == [code]
    assert check_file(deep) == []
    (fault,) = check_file(binary)
    assert (fault.loc.line, fault.loc.column) == (2, 6)
    assert "0xff at offset 15" in fault.message
