"""The float64 reference and its error bound on a GPU, through PyTorch: for problems that take too long on the host.

The same sums as `reference.contract`, one filter position at a time. Tensors are in the order of `reference`, group first and
channel last.
"""

from __future__ import annotations

import math
from typing import Any

from .baseline_torch import import_torch
from .dtypes import DTYPES
from .problem import ConvProblem
from .reference import tap_slices

__all__ = ["contract_on_device", "error_ratio", "grouped"]

_FP32_ROUNDOFF = 2.0 ** -24


def grouped(problem: ConvProblem, name: str, tensor: Any) -> Any:
    """A logical NC<spatial> tensor ("x", "w" or "y") as float64 with axes (g, n, space, c), contiguous."""
    count = tensor.shape[0]
    rows = problem.G if name == "w" else 1
    split = tensor.reshape(rows, count // rows, problem.G // rows, -1, *tensor.shape[2:])     # (g of w), n, (g), c, space
    ordered = split.movedim(3, -1)
    ordered = ordered.squeeze(2) if name == "w" else ordered.squeeze(0).movedim(1, 0)
    return ordered.double().contiguous()


def contract_on_device(problem: ConvProblem, a: Any, b: Any) -> Any:
    """`reference.contract` for tensors of `grouped`."""
    torch = import_torch()
    sizes = {"x": (problem.N, *problem.input, problem.Cg), "w": (problem.Kg, *problem.filter, problem.Cg),
             "y": (problem.N, *problem.output, problem.Kg)}[problem.result]
    result = torch.zeros((problem.G, *sizes), dtype=torch.float64, device=a.device)
    for tap, xs, ys in tap_slices(problem):
        if problem.direction == "forward":
            result[ys] += _product(a[xs], b[tap].transpose(1, 2))
        elif problem.direction == "bwd_data":
            result[xs] += _product(a[ys], b[tap])
        else:
            result[tap] = _matmul(_rows(b[ys]).transpose(1, 2), _rows(a[xs]))
    return result


def _rows(block: Any) -> Any:
    return block.reshape(block.shape[0], -1, block.shape[-1])


def _product(block: Any, matrix: Any) -> Any:
    return _matmul(_rows(block), matrix).reshape(*block.shape[:-1], matrix.shape[-1])


def _matmul(left: Any, right: Any) -> Any:
    """Batched matrix product; products of single numbers are faster without the matrix library."""
    if left.shape[2] == right.shape[2] == 1:
        return left * right
    if left.shape[1] == right.shape[2] == 1:
        return (left.squeeze(1) * right.squeeze(2)).sum(1)[:, None, None]
    return left @ right


def error_ratio(problem: ConvProblem, result: Any, a: Any, b: Any) -> float:
    """The worst error of ``result`` over the bound of `verify` (lam = 1: zero-mean data); at most 1 is right, NaN counts as infinite.

    All are logical NC<spatial> tensors on the device.
    """
    first, second = (grouped(problem, name, tensor) for name, tensor in zip(problem.operands, (a, b)))
    value = contract_on_device(problem, first, second)
    magnitude = contract_on_device(problem, first.abs(), second.abs())
    out = DTYPES[problem.out_dtype]
    sums = (2 + math.sqrt(problem.depth)) * _FP32_ROUNDOFF * magnitude
    bound = 1.01 * (out.unit_roundoff * value.abs() + sums + out.smallest_subnormal / 2)
    ratio = (grouped(problem, problem.result, result) - value).abs() / bound
    return float(ratio.nan_to_num(nan=math.inf, posinf=math.inf).max()) if ratio.numel() else 0.0
