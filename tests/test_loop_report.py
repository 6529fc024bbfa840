"""`gconv inspect --what loop|mca` and `gconv compare`: static figures of the main loop."""

from __future__ import annotations

import pytest

from gconvdsl import cli
from gconvdsl.isa import Op
from tests.conftest import tool

PROBLEM = "N=64 C=128 K=128 input=28x28 filter=3x3 pad=1 dtype=fp16"
TILE = "tile = 128x128x32"      # 2 x 2 waves of 16 x 16 x 16 instructions


def figures(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Name -> values of each line of the table that was printed."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    return {"  ".join(parts[:1]).strip(): parts[1:] for parts in (list(filter(None, line.split("  "))) for line in lines)}


def test_compare_puts_two_configurations_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """A wave computes 64 x 64 of the block: 4 x 4 instructions, twice in 32 of k. compv4 has two LDS buffers and one barrier."""
    tool("clang", "gfx942")
    configurations = [f"pipeline = compv3 {TILE}", f"pipeline = compv4 {TILE}"]
    assert cli.main(["compare", *configurations, "--problem", PROBLEM, "--arch", "gfx942"]) == 0
    found = {name: [value.strip() for value in values] for name, values in figures(capsys).items()}
    assert found["matrix instructions"] == ["32", "32"] and found["K-steps"] == ["1", "1"]
    assert found["barriers"] == ["2", "1"] and found["VGPR spills"] == found["scratch accesses"] == ["0", "0"]
    one, two = (int(value) - 128 * 4 for value in found["LDS bytes"])       # beside the table of rows
    assert two == 2 * one == 2 * 256 * (32 * 2 + 16)
    assert found["blocks"] == [str(64 * 28 * 28 // 128)] * 2


def test_llvm_mca_bounds_the_use_of_the_matrix_units(capsys: pytest.CaptureFixture[str]) -> None:
    tool("clang", "gfx942")
    assert cli.main(["inspect", "--problem", PROBLEM, "--arch", "gfx942", "--what", "mca"]) == 0
    found = figures(capsys)
    cycles, matrix = (int(found[name][-1]) for name in ("cycles", "cycles of matrix instructions"))
    assert cycles >= matrix > 0 and 0 <= int(found["bound on matrix utilisation"][-1].strip(" %")) <= 100


def test_inspect_shows_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    tool("clang", "gfx1201")
    assert cli.main(["inspect", "--problem", PROBLEM, "--arch", "gfx1201", "--what", "loop"]) == 0
    found = figures(capsys)
    assert int(found["matrix instructions"][-1]) > 0 and int(found["global bytes"][-1]) > 0


@pytest.mark.parametrize("arguments, reason", [
    (["--what", "loop", "--arch", "sm_90"], "cuda"), (["--what", "loop", "--target", "sim"], "sim"),
    (["--what", "mca", "--arch", "gfx1201"], "gfx1201")])
def test_where_there_are_no_figures_it_says_so(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "--problem", PROBLEM, *arguments]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("name, operands, kind, size", [
    ("ds_read_b128", "v[0:3], v4", "lds", 16), ("ds_load_2addr_b64", "v[0:3], v4 offset1:1", "lds", 16),
    ("ds_write_b64", "v0, v[2:3]", "lds", 8), ("buffer_load_dword", "v1, s[0:3], 0 offen lds", "global", 4),
    ("buffer_load_u16", "v1, s[0:3]", "global", 2), ("global_store_dwordx4", "v[0:1], v[2:5], off", "global", 16),
    ("v_wmma_f32_16x16x16_f16", "v[0:7], v[8:15], v[16:23], v[0:7]", "matrix", 0), ("s_barrier_wait", "-1", "barrier", 0),
    ("s_barrier_signal", "-1", "salu", 0), ("scratch_load_b32", "v0, off", "scratch", 4), ("v_mov_b32_e32", "v0, 0", "valu", 0)])
def test_instructions_are_classified(name: str, operands: str, kind: str, size: int) -> None:
    op = Op(name, operands)
    assert (op.kind, op.bytes, op.direct) == (kind, size, operands.endswith(" lds"))
