"""What the text means: the same objects as the Python front end builds."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from gconvdsl.config import KernelConfig, Tile
from gconvdsl.errors import GconvError
from gconvdsl.expr import Expr, apply, const, operand
from gconvdsl.grammar import check_file, format_text, load, loads
from gconvdsl.grammar.fields import KERNEL as KERNEL_FIELDS
from gconvdsl.grammar.fields import PROBLEM as PROBLEM_FIELDS
from gconvdsl.grammar.fields import TILE as TILE_FIELDS
from gconvdsl.problem import ConvProblem
from gconvdsl.spec import ConvParams, KernelSpec, Operand

ACC, X = Expr("acc"), Expr("x")
P = "problem p { C = 4  K = 8  input = 9x9  filter = 3x3 }\n"
PROBLEM = ConvProblem(C=4, K=8, input=(9, 9), filter=(3, 3))


def _epilogue(text: str, operands: str = "") -> Expr:
    return loads(f"kernel k {operands} {{ epilogue = {text} }}").kernels["k"].epilogue


def test_problem() -> None:
    text = """problem res3 { N = 64  G = 32  C = 256  K = 256  input = 28x28  filter = 3x3  stride = 2x1
                             pad = 0:1x2:2  dilation = 2
                             dtype = bf16  layout = ngchw  out_dtype = fp32  direction = bwd_weight }"""
    assert loads(text).problems == {"res3": ConvProblem(
        N=64, G=32, C=256, K=256, input=(28, 28), filter=(3, 3), stride=(2, 1), pad=((0, 1), (2, 2)), dilation=2, dtype="bf16",
        layout="ngchw",
        out_dtype="fp32", direction="bwd_weight")}


def test_one_axis_and_three_axes() -> None:
    read = loads("problem a { C = 1  K = 1  input = 100  filter = 3  pad = 0:2 }\n"
                 "problem b { C = 1  K = 1  input = 5x6x7  filter = 3x2x1  pad = 1 }").problems
    assert read["a"] == ConvProblem(C=1, K=1, input=(100,), filter=(3,), pad=((0, 2),))
    assert read["b"] == ConvProblem(C=1, K=1, input=(5, 6, 7), filter=(3, 2, 1), pad=1)


def test_kernel() -> None:
    text = """
    tile m64 { block = 64x16x64  waves = 2x1x1  wave_tile = 16x16x16  vector = 8x8x8 }
    kernel fast for forward (scale: per_c, bias: per_k, residual: like_y) {
      conv { stride = 1  pad = 1  groups = 32 }
      tile = m64   pipeline = compv4 -> compv3 -> basic_v1   scheduler = intrawave   double_smem_buffer = true   store = cshuffle
      split_k = 2 * 4   deterministic = false
      prologue = x * scale
      epilogue = relu(acc + bias + residual)
    }"""
    tile = Tile((64, 16, 64), (2, 1, 1), (16, 16, 16), (8, 8, 8))
    assert loads(text).kernels["fast"] == KernelSpec(
        "fast", ConvParams("forward", stride=1, pad=1, groups=32),
        (Operand("scale", "per_c"), Operand("bias", "per_k"), Operand("residual", "like_y")),
        apply("mul", X, operand("scale")), apply("relu", apply("add", apply("add", ACC, operand("bias")), operand("residual"))),
        KernelConfig(tile=tile, pipeline="compv4 -> compv3 -> basic_v1", scheduler="intrawave", double_smem_buffer=True,
                     epilogue="cshuffle",
                     split_k=8, deterministic=False))


def test_bare_kernel_and_tiles_by_family() -> None:
    spec = loads("kernel k for bwd_weight, forward { tile = { rdna: 32x32x32  cdna: 64x64x32 } }").kernels["k"]
    assert spec.directions == ("bwd_weight", "forward") and spec.direction == "bwd_weight" and spec.is_bare
    assert spec.config == KernelConfig(tile={"cdna": Tile((64, 64, 32)), "rdna": Tile((32, 32, 32))})


@pytest.mark.parametrize(("text", "expected"), [
    ("acc - 1 - 2", apply("sub", apply("sub", ACC, const(1)), const(2))),
    ("acc - (1 - 2)", apply("sub", ACC, apply("sub", const(1), const(2)))),
    ("1 + acc * 2", apply("add", const(1), apply("mul", ACC, const(2)))),
    ("(1 + acc) * 2", apply("mul", apply("add", const(1), ACC), const(2))),
    ("-acc * -2", apply("mul", apply("neg", ACC), const(-2))),
    ("acc / 1.5e-3", apply("div", ACC, const(0.0015))),
    ("max(acc, .5)", apply("maximum", ACC, const(0.5))),
    ("leaky_relu(acc)", apply("leaky_relu", ACC)),
    ("cast(acc, bf16)", apply("cast", ACC, value="bf16")),
    ("where(acc >= 0, acc, -1)", Expr("where", (apply("ge", ACC, const(0)), ACC, const(-1)))),
])
def test_expressions(text: str, expected: Expr) -> None:
    assert _epilogue(text) == expected


def test_keywords_are_names() -> None:
    text = "tile run { block = 64x16x64 }\nproblem tile { C = 1  K = 1  input = 3x3  filter = 1x1 }\n" \
           "kernel for for forward { pipeline = compv4 tile = run }\nrun for on tile for forward\nlet let = 3\nlet on = let + 1"
    read = loads(text)
    assert read.kernels["for"].config.tile == Tile((64, 16, 64))
    assert read.runs[0].problems == ("tile",) and read.lets == {"let": 3, "on": 4}


def test_spaces_lines_and_comments_mean_nothing() -> None:
    spread = "\ufeff# begin\r\nproblem\tp # name\n{ C # the field\n =\n 4 K=8 input=9x9\r\n\n filter=3x3 } # end"
    assert loads(spread).problems == {"p": PROBLEM} and loads(P).problems == {"p": PROBLEM}
    assert loads("").statements == () and loads("# nothing").statements == ()


def test_let() -> None:
    text = """let B = 2 * (3 + 1)
    let half = B / 16
    let even = B / 4
    let size = 3x3
    let kind = bf16
    let lifted = acc * half + 1
    problem p { N = B  C = even * 2  K = max(B, 3)  input = 9x9  filter = size  dtype = kind }
    kernel k { epilogue = relu(lifted) - half }"""
    read = loads(text)
    assert read.lets == {"B": 8, "half": 0.5, "even": 2, "size": (3, 3), "kind": "bf16",
                         "lifted": apply("add", apply("mul", ACC, const(0.5)), const(1))}
    assert read.problems["p"] == ConvProblem(N=8, C=4, K=8, input=(9, 9), filter=(3, 3), dtype="bf16")
    assert read.kernels["k"].epilogue == apply("sub", apply("relu", read.lets["lifted"]), const(0.5))


def test_epilogue_declarations() -> None:
    declared = "epilogue act(acc, bias: per_k) = relu(acc + bias)\n"
    by_name = loads(declared + "kernel k { epilogue = act }").kernels["k"]
    assert by_name.operands == (Operand("bias", "per_k"),)
    assert by_name.epilogue == apply("relu", apply("add", ACC, operand("bias")))
    called = loads(declared + "kernel k (b: per_k, r: like_y) { epilogue = act(acc * 2, b) + r }").kernels["k"]
    inner = apply("relu", apply("add", apply("mul", ACC, const(2)), operand("b")))
    assert called.epilogue == apply("add", inner, operand("r"))


def test_sweep_expands_in_order() -> None:
    sweep = loads("""tile m64 { block = 64x16x64 }
    sweep s for forward, bwd_data {
      tile in { m64, 64x64x64 }   pipeline in *   scheduler in { intrawave, interwave }
      where tile.n <= 4 * K / G and not dtype == fp16
    }""").sweeps["s"]
    choices = {"pipeline": [{"pipeline": ("mem",)},
                            {"pipeline": ("compv4",), "scheduler": "intrawave", "double_smem_buffer": True}]}

    def expand(**fields: object) -> list[tuple[object, ...]]:
        found = sweep.expand(PROBLEM.replace(**fields), choices.__getitem__)
        return [(one.tile.n, *one.pipeline, one.scheduler, one.double_smem_buffer) for one in found]

    small = [(16, "mem", "intrawave", None), (16, "mem", "interwave", None), (16, "compv4", "intrawave", True)]
    assert expand(K=4) == small                                   # 4 K / G = 16
    assert expand(K=16) == small + [(64, *rest) for _, *rest in small]
    with pytest.raises(GconvError) as caught:
        expand(dtype="fp16")
    assert caught.value.code == "syntax.empty_sweep" and "where tile.n <= 4 * K / G and not dtype == fp16" in caught.value.message


@pytest.mark.parametrize(("condition", "holds"), [
    ("C == 4 and K == 8", True), ("C / 3 * 3 == 4", True), ("K % 3 == 2", True), ("filter == 3x3", True), ("filter == 3", True),
    ("filter == 3x1", False), ("stride == 1", True), ("pad == 0:0", True), ("pad != 0:1", True), ("1 / (N - 1) > 0", False),
    ("gemm.n == 8 and gemm.k == 36 and gemm.m == 49", True), ("direction == forward or N > 5", True), ("not (N == 1)", False),
    ("dtype == out_dtype", True), ("-K < 0.5 - 8", True), ("N == 2 or N == 1 and C == 5", False), ("input == output", False),
])
def test_conditions(condition: str, holds: bool) -> None:
    sweep = loads(f"sweep s {{ tile in * where {condition} }}").sweeps["s"]
    assert sweep.where[0].holds(PROBLEM, KernelConfig(tile=Tile((64, 16, 64)))) is holds


def test_run_and_bench() -> None:
    read = loads(P + P.replace("problem p", "problem q").replace("filter", "direction = bwd_weight  filter") + """
    kernel k (bias: per_k) { epilogue = acc + bias }
    sweep all { pipeline in * }
    run k on p, q
    run k on p for forward, bwd_data, bwd_weight
    bench k, all on p for bwd_data -> "out.parquet"
    bench k on p""")
    first, second = read.runs
    spec = read.kernels["k"]
    assert read.jobs(first) == [(spec, PROBLEM), (spec.bare("bwd_weight"), PROBLEM.as_("bwd_weight"))]
    assert read.jobs(second) == [(spec if d == "forward" else spec.bare(d), PROBLEM.as_(d)) for d in ("forward", "bwd_data",
                                                                                                      "bwd_weight")]
    bench, plain = read.benches
    assert (bench.items, bench.problems, bench.directions, bench.file) == (("k", "all"), ("p",), ("bwd_data",), "out.parquet")
    assert plain.file is None and read.statements[-1] == plain


def test_include_is_relative_and_read_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "common.gconv").write_text("let B = 4\n")
    (tmp_path / "sub" / "problems.gconv").write_text('include "../common.gconv"\n' + P.replace("{", "{ N = B"))
    main = tmp_path / "main.gconv"
    main.write_text('include "common.gconv"\ninclude "sub/problems.gconv"\nlet C = B + 1\n')
    read = load(main)
    assert read.lets == {"B": 4, "C": 5} and read.problems["p"].N == 4
    assert [type(one).__name__ for one in read] == ["Let", "ConvProblem", "Let"]


def test_circular_include(tmp_path: Path) -> None:
    (tmp_path / "a.gconv").write_text('include "b.gconv"\n')
    (tmp_path / "b.gconv").write_text('\n  include "a.gconv"\n')
    (fault,) = check_file(tmp_path / "a.gconv")
    assert fault.code == "syntax.cycle" and "a.gconv -> b.gconv -> a.gconv" in fault.message
    assert (Path(fault.loc.file).name, fault.loc.line, fault.loc.column) == ("b.gconv", 2, 11)


def test_a_long_chain_of_includes_ends(tmp_path: Path) -> None:
    for i in range(80):
        (tmp_path / f"f{i}.gconv").write_text(f'include "f{i + 1}.gconv"\n')
    assert [one.code for one in check_file(tmp_path / "f0.gconv")] == ["syntax.deep"]


def test_lark_is_imported_on_first_use() -> None:
    code = "import sys, gconvdsl.grammar as g; assert 'lark' not in sys.modules; g.loads(''); assert 'lark' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


ROOT = Path(__file__).parents[2]


def test_the_example_holds_every_grouped_convolution_of_resnext50() -> None:
    layers = {(128, 56, 1), (256, 56, 2), (256, 28, 1), (512, 28, 2), (512, 14, 1), (1024, 14, 2), (1024, 7, 1)}
    read = load(ROOT / "examples" / "resnext50.gconv")
    expected = {ConvProblem(N=1, G=32, C=c, K=c, input=(size, size), filter=(3, 3), stride=stride, pad=1) for c, size,
                stride in layers}
    assert set(read.problems.values()) == expected
    jobs = [(problem.as_("forward"), problem.direction) for run in read.runs for _, problem in read.jobs(run)]
    assert set(jobs) == {(problem, direction) for problem in expected for direction in ("forward", "bwd_data", "bwd_weight")}


def test_the_example_is_in_canonical_style() -> None:
    text = (ROOT / "examples" / "resnext50.gconv").read_text()
    assert format_text(text) == text


def test_the_documented_file_is_valid() -> None:
    text = (ROOT / "docs" / "language.md").read_text().split("```")[1].strip("\n")
    assert format_text(text + "\n") == text + "\n"
    assert list(loads(text).sweeps) == ["all"]


def test_every_field_of_the_objects_can_be_written() -> None:
    assert set(PROBLEM_FIELDS) == {one.name for one in dataclasses.fields(ConvProblem)} - {"name"}
    assert set(TILE_FIELDS) == {one.name for one in dataclasses.fields(Tile)} - {"name"}
    names = {one.name for one in dataclasses.fields(KernelConfig)} - {"epilogue"} | {"store"}
    assert set(KERNEL_FIELDS) == names | {"prologue", "epilogue"}
