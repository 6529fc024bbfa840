"""Side-by-side measurement on a GPU through PyTorch: this package, cuDNN (or MIOpen) by way of torch, and a copy of the same bytes.

Each timed call finds a cold second-level cache (a buffer larger than it is overwritten before), and is enqueued while the device
still waits in a delay kernel, so that the time between two events holds the device's work and no host time.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from .baseline_torch import TorchBaseline, import_torch, tensor_sizes
from .bench import json_number
from .config import KernelConfig
from .device_reference import error_ratio
from .errors import error
from .problem import ConvProblem
from .runner import bare_spec, execute

__all__ = ["DeviceLimits", "DeviceRow", "measure_device", "prepare"]

_FLUSH_BYTES = 1 << 28
_DELAY_CYCLES = 3_000_000        # about 1.6 ms: longer than the host needs to enqueue a call
_HOPELESS = 4.0                  # a form of the baseline that is this much slower than its best is measured no further
_MATRIX, _COPY_BYTES = 8192, 1 << 32

Contenders = Mapping[str, Callable[[], Any]]


@dataclass(frozen=True)
class DeviceLimits:
    """What the device can do: operations a second by dtype, and bytes a second of a large copy, read and written ones together."""

    device: str
    flops: Mapping[str, float]
    bandwidth: float

    @classmethod
    def measured(cls) -> DeviceLimits:
        """Of the current device: square matrix products (random data, no tf32) and a copy."""
        torch = import_torch()
        flops = {name: 2 * _MATRIX ** 3 / _seconds(_product_of(torch, name)) for name in ("fp32", "fp16", "bf16")}
        source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda").random_(0, 255)
        target = torch.empty_like(source)
        return cls(torch.cuda.get_device_name(), flops, 2 * _COPY_BYTES / _seconds(lambda: target.copy_(source)))

    def floor_ms(self, problem: ConvProblem) -> float:
        """The least time: all multiply-adds at the measured rate, or each tensor moved once."""
        return 1e3 * max(problem.flops / self.flops[problem.dtype], problem.bytes / self.bandwidth)


@dataclass(frozen=True)
class DeviceRow:
    """One measured case; times are medians in milliseconds. ``copy_ms``: a plain copy of as many bytes."""

    problem: ConvProblem
    family: str
    config: Mapping[str, Any]
    error_ratio: float
    time_ms: float
    baseline_ms: float
    baseline_form: str
    floor_ms: float
    copy_ms: float
    rounds: int

    @property
    def ok(self) -> bool:
        return self.error_ratio <= 1.0

    @property
    def ratio(self) -> float:
        """Baseline over ours: above 1 this package is faster. NaN without a baseline."""
        return self.baseline_ms / self.time_ms

    @property
    def line_ratio(self) -> float:
        """Our time over the practical line, the larger of floor and copy."""
        return self.time_ms / max(self.floor_ms, self.copy_ms)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``gconv bench --json``."""
        p = self.problem
        names = ("time_ms", "baseline_ms", "floor_ms", "copy_ms", "ratio", "line_ratio")
        times = {name: json_number(getattr(self, name)) for name in names}
        return {"name": p.name, "direction": p.direction, "dtype": p.dtype, "N": p.N, "G": p.G, "C": p.C, "K": p.K,
                "input": p.input, "filter": p.filter, "stride": p.stride, "pad": p.pad, "dilation": p.dilation, **times,
                "baseline_form": self.baseline_form, "error_ratio": round(self.error_ratio, 4) if self.ok else str(self.error_ratio),
                "family": self.family, "config": dict(self.config), "rounds": self.rounds}


def measure_device(problem: ConvProblem, target: str, limits: DeviceLimits, baseline: TorchBaseline | None = None,
                   rounds: int = 25) -> DeviceRow:
    """One problem on random data: run into an array of NaN and verified in float64, then timed in turn with the baseline."""
    torch = import_torch()
    tensors = {name: _random(torch, problem, name) for name in "xwy"}
    a, b = (tensors[name] for name in problem.operands)
    spec, config = bare_spec(problem.direction), KernelConfig()
    out = torch.full_like(tensors[problem.result], math.nan, dtype=_dtype(torch, problem.out_dtype))
    first = execute(spec, config, problem, (a, b), out=out, target=target, poison=True)
    ratio = error_ratio(problem, out, a, b)
    torch.cuda.empty_cache()
    half = torch.empty(max(problem.bytes // 2, 1), dtype=torch.uint8, device="cuda").random_(0, 255)
    other = torch.empty_like(half)
    forms = baseline.forms(problem, tensors) if baseline else {}
    calls = {"ours": lambda: execute(spec, config, problem, (a, b), target=target, timed=False), "copy": lambda: other.copy_(half),
             **_worthwhile(torch, forms)}
    times = {name: statistics.median(values) for name, values in _interleaved(torch, calls, rounds).items()}
    form = min((name for name in times if name in forms), key=lambda name: times[name], default="")
    decision = first.decision
    assert decision is not None
    return DeviceRow(problem, next(iter(decision.lowered.notes), ""), decision.config.to_dict(), ratio, times["ours"],
                     times[form] if form else math.nan, form, limits.floor_ms(problem), times["copy"], rounds)


def _random(torch: Any, problem: ConvProblem, name: str) -> Any:
    """Logical NC<spatial> with channels last in memory."""
    count, spatial, channels = tensor_sizes(problem, name)
    return torch.randn((count, *spatial, channels), device="cuda").to(_dtype(torch, problem.dtype)).movedim(-1, 1)


def _dtype(torch: Any, name: str) -> Any:
    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[name]


def _worthwhile(torch: Any, forms: Contenders) -> Contenders:
    """Those within reach of the fastest, judged after cuDNN's own search."""
    for call in forms.values():
        call()
    times = {name: min(_interleaved(torch, {name: call}, 2)[name]) for name, call in forms.items()}
    return {name: forms[name] for name in forms if times[name] <= _HOPELESS * min(times.values())}


def _interleaved(torch: Any, calls: Contenders, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, one for each round."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            torch.cuda._sleep(_DELAY_CYCLES)
            start.record()
            call()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    return times


def _product_of(torch: Any, dtype: str) -> Callable[[], Any]:
    left, right = (torch.randn(_MATRIX, _MATRIX, device="cuda").to(_dtype(torch, dtype)) for _ in range(2))
    return lambda: left @ right


def _seconds(call: Callable[[], Any]) -> float:
    torch = import_torch()
    return statistics.median(_interleaved(torch, {"": call}, 7)[""]) / 1e3


def prepare() -> str:
    """Settings of torch for an honest baseline: cuDNN's search, true fp32. Returns the versions that the figures depend on."""
    torch = import_torch()
    if not torch.cuda.is_available():
        raise error("launch.device", target="cuda", reason="PyTorch finds no GPU",
                    hint="Measure target cpu, or install a build with CUDA.")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
