"""The rules of options and limits, the second half of `rules`."""

from __future__ import annotations

import math

from .config import size_text
from .plan import GRID_THREADS, GRID_X, GRID_YZ
from .problem import ConvProblem
from .rules import Case, Violation, _bad, _rule, gemms

__all__ = ["INDEX_LIMIT"]

INDEX_LIMIT = 2 ** 30


def _unpadded(case: Case, axis: int) -> Violation | None:
    name = "mnk"[axis]
    if case.tile is None or getattr(case.config, f"pad_{name}") is not False:
        return None
    block = case.tile.block[axis]
    left = next((gemm[axis] for gemm in gemms(case.problem) if gemm[axis] % block), None)
    if left is None:
        return None
    return _bad(f"pad_{name}", False, f"a multiple of {block}",
                f"pad_{name} is false, but block.{name} = {block} does not divide the "
                f"GEMM's {name} = {left}", f"Leave out pad_{name}, or use a block.{name} that divides {left}.")


_UNPADDED = "pad = false says that no block reaches over the edge of the matrix along this side."


@_rule("option.pad_m", "With pad_m = false, block.m divides the GEMM's m.", _UNPADDED)
def _pad_m(case: Case) -> Violation | None:
    return _unpadded(case, 0)


@_rule("option.pad_n", "With pad_n = false, block.n divides the GEMM's n.", _UNPADDED)
def _pad_n(case: Case) -> Violation | None:
    return _unpadded(case, 1)


@_rule("option.pad_k", "With pad_k = false, block.k divides the GEMM's k.", _UNPADDED)
def _pad_k(case: Case) -> Violation | None:
    return _unpadded(case, 2)


@_rule("option.explicit_gemm",
       "explicit_gemm is for a 1x1 filter with stride 1 and no padding, on images without gaps (N = 1 or channels last).",
       "Only then the tensors themselves are the matrices: pixels lie at equal distances through all images.")
def _explicit_gemm(case: Case) -> Violation | None:
    problem = case.problem
    plain = problem.taps == 1 and set(problem.stride) == {1} and not any(map(sum, problem.pad))
    if not case.config.explicit_gemm or (plain and _pixels_are_even(problem)):
        return None
    if plain:
        return _bad("explicit_gemm", True, "a channels-last layout",
                    f"explicit_gemm needs pixels at equal distances through all images, which layout {problem.layout} has not",
                    "Use a channels-last layout, or leave explicit_gemm out.")
    return _bad("explicit_gemm", True, "filter 1, stride 1, pad 0",
                f"explicit_gemm is for 1x1 filters with stride 1 and pad 0, not for "
                f"filter {size_text(problem.filter)} with stride {size_text(problem.stride)} and pad {problem.pad}",
                "Leave explicit_gemm out.")


def _pixels_are_even(problem: ConvProblem) -> bool:
    views, pixels = problem.views(), math.prod(problem.input)
    return problem.N <= 1 or all(views[t].n == pixels * views[t].s[2] for t in "xy")


@_rule("option.split_image", "split_image is for forward and bwd_data without split_k.",
       "It cuts the result's image; bwd_weight has none and cuts its reduction by split_k.")
def _split_image(case: Case) -> Violation | None:
    direction, pieces = case.problem.direction, case.config.split_k or 1
    if not case.config.split_image or (direction != "bwd_weight" and pieces == 1):
        return None
    what = direction if direction == "bwd_weight" else f"split_k = {pieces}"
    return _bad("split_image", True, "forward and bwd_data without split_k", f"split_image does not exist for {what}",
                "Leave split_image out.")


@_rule("option.two_stage", "two_stage is for bwd_weight.", "The other directions reduce in registers and need no second stage.")
def _two_stage(case: Case) -> Violation | None:
    if not case.config.two_stage or case.problem.direction == "bwd_weight":
        return None
    return _bad("two_stage", True, "bwd_weight", f"two_stage is for bwd_weight, not for {case.problem.direction}",
                "Leave two_stage out.")


@_rule("option.split_k", "split_k is at most the number of K-steps of the reduction.",
       "A piece without a K-step would have nothing to add.")
def _split_k(case: Case) -> Violation | None:
    pieces = case.config.split_k or 1
    step = case.tile.k if case.tile else 1
    limit = max(1, -(-case.problem.depth // step))
    if pieces <= limit:
        return None
    return _bad("split_k", pieces, limit, f"split_k = {pieces} is more than the {limit} K-steps of {step} in a reduction over "
                f"{case.problem.depth}", f"Use split_k of at most {limit}.")


@_rule("option.num_groups_to_merge", "num_groups_to_merge divides G.", "Every block computes the same number of whole groups.")
def _merge(case: Case) -> Violation | None:
    merge, groups = case.config.num_groups_to_merge or 1, case.problem.G
    if groups % merge == 0:
        return None
    return _bad("num_groups_to_merge", merge, f"a divisor of {groups}",
                f"num_groups_to_merge = {merge} does not divide G = {groups}",
                f"Use a divisor of {groups}.")


@_rule("option.cpu_block", "cpu_points is at most 24 and cpu_vectors at most 4, on target cpu.",
       "No register file holds the sums of a larger block.")
def _cpu_block(case: Case) -> Violation | None:
    for name, limit in (("cpu_points", 24), ("cpu_vectors", 4)):
        value = getattr(case.config, name)
        if case.arch.family == "cpu" and value is not None and value > limit:
            return _bad(name, value, limit, f"{name} = {value} is more than {limit}", f"Use at most {limit}, or leave {name} out.")
    return None


@_rule("option.strict_nonfinite", "strict_nonfinite is for the target cpu.",
       "Implicit GEMM multiplies the zeros of the padding and of filled-up channels, and zero times Inf is NaN.")
def _strict_nonfinite(case: Case) -> Violation | None:
    if not case.config.strict_nonfinite or case.arch.family == "cpu":
        return None
    return _bad("strict_nonfinite", True, False,
                f"no kernel of {case.arch.name} keeps a NaN or Inf from spreading to its neighbours",
                "Leave strict_nonfinite out, or use the target cpu.")


@_rule("option.precision", "precision = tf32 is for fp32 on an arch that has tf32 matrix instructions.",
       "fp16 and bf16 are narrower already, and other archs compute true fp32.")
def _precision(case: Case) -> Violation | None:
    precision = case.config.precision
    if precision is None or (case.problem.dtype == "fp32" and case.arch.instructions_for(precision)):
        return None
    what = case.arch.name if case.problem.dtype == "fp32" else f"dtype {case.problem.dtype}"
    return _bad("precision", precision, "fp32 on sm_80 and later", f"precision {precision} does not exist for {what}",
                "Leave precision out.")


@_rule("limit.index",
       "N, G, the points of one image, padded sizes, strides together, dilations, the extents of one group's matrices and one "
       "piece of a reduction stay below 2^30.",
       "Inside a block, device code adds two such numbers in 32 bits; addresses across blocks have 64.")
def _index(case: Case) -> Violation | None:
    problem = case.problem
    counts = {"N": problem.N, "G": problem.G, "the points of an input image": math.prod(problem.input),
              "the points of an output image": math.prod(problem.output), "C/G x filter": problem.Cg * problem.taps,
              "K/G x filter": problem.Kg * problem.taps, "the product of the strides": math.prod(problem.stride),
              "a dilation": max(problem.dilation),
              "a padded input size": max(size + low + high for size, (low, high) in zip(problem.input, problem.pad))}
    if problem.direction == "bwd_weight" and case.arch.family != "cpu":
        counts["N x output / split_k"] = -(-problem.gemm.k // (case.config.split_k or 1))
    for name, value in counts.items():
        if value >= INDEX_LIMIT:
            return _bad(name, value, INDEX_LIMIT - 1, f"{name} = {value} is more than {INDEX_LIMIT - 1}",
                        "Cut the problem into parts.")
    return None


@_rule("limit.grid",
       "The threads along the grid's x stay below 2^32 (blocks 2^31), stride phases x split_k and pieces of images below 2^16.",
       "The launch interfaces count in these widths.")
def _grid(case: Case) -> Violation | None:
    problem, tile = case.problem, case.tile
    strided = problem.direction == "bwd_data"
    splits = case.config.split_k or 1
    pieces = (math.prod(problem.stride) if strided else 1) * splits
    if pieces >= GRID_YZ and case.arch.family != "cpu":
        return _bad("split_k", pieces, GRID_YZ - 1, f"stride phases x split_k = {pieces} is more than {GRID_YZ - 1}",
                    "Use a smaller split_k." if splits > 1 else "Use the target cpu, which has no such limit.")
    if tile is None:
        return None
    rows = problem.N * math.prod(map(_ceil_div, problem.input, problem.stride)) if strided else problem.gemm.m
    blocks = _ceil_div(rows, tile.m) * _ceil_div(problem.gemm.n, tile.n) * problem.G // (case.config.num_groups_to_merge or 1)
    limit = min(GRID_X, GRID_THREADS // case.threads)
    if blocks >= limit:
        return _bad("tile.block", blocks, limit - 1,
                    f"block = {size_text(tile.block)} makes {blocks} blocks of {case.threads} threads; at most "
                    f"{limit - 1} can be launched", "Use a larger block, or cut the problem into parts.")
    if case.pieces and case.pieces.count >= GRID_YZ:
        return _bad("split_image", case.pieces.count, GRID_YZ - 1,
                    f"split_image makes {case.pieces.count} pieces of images, more than {GRID_YZ - 1}", "Leave split_image out.")
    return None


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
