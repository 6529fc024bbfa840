"""The gate on kernels with expressions: right epilogues and prologues pass; misplaced, missing and early ones are refused."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from numpy_device import Array, blas, chunks, ordered, run, sequential, split

from gconvdsl.dtypes import DTYPES
from gconvdsl.expr import Expr, operand
from gconvdsl.problem import ConvProblem
from gconvdsl.spec import ConvParams, KernelSpec, Operand
from gconvdsl.verify import make_operands, verify

BASE = ConvProblem(N=3, G=2, C=20, K=24, input=(9, 8), filter=(3, 2), stride=(2, 1), pad=((1, 2), (0, 1)), dilation=(1, 2))
ONLY_PADDING_AT_THE_EDGES = ConvProblem(N=2, G=2, C=6, K=8, input=(4, 4), filter=(3, 3), pad=4)
FUSED = KernelSpec("fused", ConvParams("forward"), (Operand("bias", "per_k"), Operand("residual", "like_y")),
                   epilogue=Expr("relu", (Expr("add", (Expr("add", (Expr("acc"), operand("bias"))), operand("residual"))),)))


def fused(p: ConvProblem, operands: dict[str, Any], total: Callable[[Array, Array], Array] = blas) -> Callable[..., None]:
    """A kernel with the epilogue in float32."""
    bias = np.asarray(operands["bias"], np.float32).reshape(p.G, 1, p.Kg)
    residual = ordered(p, "y", np.asarray(operands["residual"])).astype(np.float32).reshape(p.G, -1, p.Kg)
    return lambda a, b, out: run(p, a, b, out, total=total, finish=lambda acc: keep_nan(acc + bias + residual))


def keep_nan(acc: Array) -> Array:
    return np.where(acc < 0, np.float32(0), acc)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("problem", [BASE, ONLY_PADDING_AT_THE_EDGES], ids=["base", "padding"])
def test_right_epilogues_pass_and_wrong_ones_are_refused(problem: ConvProblem, dtype: str) -> None:
    problem = problem.replace(dtype=dtype)
    operands = make_operands(problem, FUSED)

    def check(run_: Callable[..., Any]) -> bool:
        return bool(verify(problem, run_, spec=FUSED, operands=operands))

    for total in (blas, split, sequential):
        assert check(fused(problem, operands, total))
    assert not check(fused(problem, {**operands, "bias": np.roll(operands["bias"], problem.Kg)})), "bias of the wrong group"
    assert not check(fused(problem, {**operands, "bias": np.zeros_like(operands["bias"])})), "no bias"
    assert not check(fused(problem, {**operands, "residual": operands["residual"][::-1]})), "residual of another image"
    assert not check(lambda a, b, out: run(problem, a, b, out, finish=keep_nan)), "bare convolution"
    assert not check(fused(problem, operands, lambda x, y: np.sum([keep_nan(part) for part in chunks(x, y)], axis=0))), (
        "epilogue before the reduction is complete")


@pytest.mark.parametrize("dtype", DTYPES)
def test_prologues_may_round_to_the_input_dtype_but_not_touch_the_padding(dtype: str) -> None:
    problem = BASE.replace(dtype=dtype)
    spec = KernelSpec("scaled", ConvParams("forward"), (Operand("scale", "per_c"), Operand("shift", "per_c")),
                      prologue=Expr("add", (Expr("mul", (Expr("x"), operand("scale"))), operand("shift"))))
    operands = make_operands(problem, spec)
    scale, shift = (np.asarray(operands[name]).reshape(problem.G, problem.Cg) for name in ("scale", "shift"))

    def right(a: Array, b: Array, out: Array) -> None:
        run(problem, (a.astype(np.float32) * scale + shift).astype(DTYPES[dtype].numpy), b, out)

    def unrounded(a: Array, b: Array, out: Array) -> None:
        run(problem, a.astype(np.float32) * scale + shift, b, out)

    def padding_moved(a: Array, b: Array, out: Array) -> None:
        def move(x: Array, y: Array) -> tuple[Array, Array]:
            taps = (problem.G, -1, problem.taps, problem.Cg)
            return (x.reshape(taps) * scale[:, None, None] + shift[:, None, None]).reshape(x.shape), y
        run(problem, a, b, out, change=move)

    for compute, accepted in ((right, True), (unrounded, True), (padding_moved, False)):
        assert verify(problem, compute, spec=spec, operands=operands).ok is accepted, compute.__name__
