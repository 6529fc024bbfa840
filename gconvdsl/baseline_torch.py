"""PyTorch as a baseline: its convolution operators, called directly, on tensors in both memory formats."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import numpy as np

from .errors import error
from .problem import ConvProblem

__all__ = ["TorchBaseline", "import_torch", "tensor_sizes"]

_MASKS = {"bwd_data": [True, False, False], "bwd_weight": [False, True, False]}


def import_torch() -> Any:
    """The module; a catalogued error where it is missing."""
    try:
        import torch
    except ImportError:
        raise error("usage.option", what="baseline", value="torch", hint="PyTorch is not installed here.") from None
    return torch


class TorchBaseline:
    """torch on the CPU with a number of threads, or, with ``threads=None``, on the device that its tensors are on."""

    name = "torch"

    def __init__(self, threads: int | None) -> None:
        self.torch = import_torch()
        if threads is not None:
            self.torch.set_num_threads(threads)

    @property
    def version(self) -> str:
        """The version of torch."""
        return str(self.torch.__version__)

    def contenders(self, problem: ConvProblem, a: Any, b: Any) -> dict[str, Callable[[], Any]]:
        """channels_last and contiguous. Asymmetric padding, which torch has not, is an error."""
        arrays = dict(zip(problem.operands, (a, b)))
        arrays.setdefault(problem.result, np.zeros(problem.shape(problem.result), a.dtype))   # its values do not matter
        return self.forms(problem, {name: self._tensor(problem, name, array) for name, array in arrays.items()})

    def forms(self, problem: ConvProblem, tensors: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
        """The same for tensors x, w and y that are logical NC<spatial>, with channels last in memory."""
        if any(low != high for low, high in problem.pad):
            raise error("usage.option", what="padding", value=problem.pad, hint="torch pads both sides alike.")
        return {"channels_last": self._call(problem, tensors, True), "contiguous": self._call(problem, tensors, False)}

    def _call(self, problem: ConvProblem, tensors: Mapping[str, Any], channels_last: bool) -> Callable[[], Any]:
        # A 1-D problem has a channels-last form in torch only as 2-D with one row.
        extra = int(channels_last and problem.ndim == 1)
        x, w, y = (_in_form(tensors[name], channels_last, extra) for name in "xwy")
        one, nil = [1] * extra, [0] * extra
        stride, dilation = one + list(problem.stride), one + list(problem.dilation)
        pad = nil + [low for low, _ in problem.pad]
        aten, outputs = self.torch.ops.aten, [0] * len(stride)
        if problem.direction == "forward":
            return lambda: aten.convolution(x, w, None, stride, pad, dilation, False, outputs, problem.G)
        mask = _MASKS[problem.direction]
        return lambda: aten.convolution_backward(y, x, w, None, stride, pad, dilation, False, outputs, problem.G, mask)

    def _tensor(self, problem: ConvProblem, name: str, array: Any) -> Any:
        """A channels-last array, split or fused, as logical NC<spatial>."""
        n, spatial, c = tensor_sizes(problem, name)
        axes = problem.axes(name)
        order = [axes.index(axis) for axis in ("gk" if name == "w" else "n")]
        order += [axes.index(axis) for axis in axes if axis in "dhwzyx"]
        order += [axes.index(axis) for axis in {"x": "gc", "w": "c", "y": "gk"}[name]]
        dense = np.ascontiguousarray(array.reshape(problem.shape(name)).transpose(order)).reshape(n, *spatial, c)
        return self._from_numpy(dense).movedim(-1, 1)

    def _from_numpy(self, array: Any) -> Any:
        if array.dtype.name == "bfloat16":
            return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(array)


def _in_form(tensor: Any, channels_last: bool, extra: int) -> Any:
    """A tensor with channels last in memory: as it is, with a first spatial axis of one if ``extra``; or contiguous."""
    if not channels_last:
        return tensor.contiguous()
    return tensor.unsqueeze(2) if extra else tensor


def tensor_sizes(problem: ConvProblem, name: str) -> tuple[int, tuple[int, ...], int]:
    """Images (of w: output channels), spatial sizes, channels."""
    return {"x": (problem.N, problem.input, problem.C), "w": (problem.K, problem.filter, problem.Cg),
            "y": (problem.N, problem.output, problem.K)}[name]
