"""The pipelines, schedulers and epilogues by name: one row each, with what a row needs and means.

A pipeline says how tiles travel from global memory to the matrix units. `rules.py` turns the rows into rules; adding a
pipeline is one row here and its device code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["EPILOGUES", "PIPELINES", "PRECISIONS", "SCHEDULERS", "Pipeline"]

SCHEDULERS: dict[str, str] = {
    "intrawave": "each wave hides latency by interleaving its own memory and matrix instructions",
    "interwave": "waves run their matrix instructions in clusters and hide latency behind each other's",
}

EPILOGUES: dict[str, str] = {
    "default": "each lane stores its own accumulators",
    "cshuffle": "accumulators pass through LDS so that lanes store neighbouring channels",
}

PRECISIONS: dict[str, str] = {"tf32": "fp32 inputs are rounded to 10 mantissa bits for the matrix instruction"}


@dataclass(frozen=True)
class Pipeline:
    """One pipeline.

    ``cpp``: the class template in ``backends/include/gconv/pipeline_NAME.hpp``. ``schedulers``: the legal ones, the usual first.
    ``prefetch``: K-steps of global loads in flight. ``lds_buffers``: copies of the A and B tiles in LDS. The three needs are
    hardware or option requirements. ``staging``: tiles that wait in registers; ``deepens``: more of both where memory is slow;
    ``fragment_sets``: operands of matrix instructions in registers at a time, as compiled.
    """

    name: str
    cpp: str
    meaning: str
    schedulers: tuple[str, ...] = ("intrawave",)
    prefetch: int = 1
    lds_buffers: int = 1
    needs_direct_to_lds: bool = False
    needs_double_smem_buffer: bool = False
    needs_num_wave_groups: int | None = None
    staging: int = 1
    deepens: bool = False
    fragment_sets: int = 1

    @property
    def implied_options(self) -> dict[str, Any]:
        """The options that this pipeline cannot do without, and the usual scheduler: what "chosen" means for it."""
        options: dict[str, Any] = {"scheduler": self.schedulers[0]}
        if self.needs_double_smem_buffer:
            options["double_smem_buffer"] = True
        if self.needs_num_wave_groups is not None:
            options["num_wave_groups"] = self.needs_num_wave_groups
        return options


_BOTH = ("intrawave", "interwave")

PIPELINES: dict[str, Pipeline] = {row.name: row for row in (
    Pipeline("basic_v1", "BasicV1",
             "the next K-step is loaded into registers while the present one is computed from LDS, two barriers a step",
             _BOTH),
    Pipeline("mem", "Mem", "2 to 8 K-steps are kept in flight in registers, for problems bound by memory", _BOTH, prefetch=2,
             staging=2, deepens=True),
    Pipeline("compv3", "CompV3", "two K-steps in flight, LDS and memory traffic interleaved between matrix instructions",
             prefetch=2),
    Pipeline("compv4", "CompV4", "two LDS buffers in turn: one is read while the other is filled from registers", prefetch=2,
             lds_buffers=2, needs_double_smem_buffer=True),
    Pipeline("compv5", "CompV5", "two groups of waves alternate between loading and computing", lds_buffers=2,
             needs_num_wave_groups=2),
    Pipeline("compv6", "CompV6", "three K-steps in flight through two sets of staging registers", prefetch=3, staging=2,
             fragment_sets=4),
    Pipeline("comp_async", "CompAsync", "two LDS buffers in turn, filled by direct global-to-LDS loads without staging registers",
             prefetch=3, lds_buffers=2, staging=0, needs_direct_to_lds=True, needs_double_smem_buffer=True),
    Pipeline("basic_async_v1", "BasicAsyncV1", "one LDS buffer filled by direct global-to-LDS loads, one K-step in flight",
             staging=0, needs_direct_to_lds=True),
)}
