"""An opt-in memo of results by the content of everything that they depend on: a repeated experiment is instant.

Beside compiled kernels and decisions this is the third cache. An entry is one JSON file below the cache directory; it is found
again only for equal declaration, problem, configuration, target, compiler, device, kernels of this package, and inputs.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Callable, Mapping

import numpy as np

from . import cache, cachedir, choose
from .cases import Outcome
from .config import KernelConfig
from .inputs import make_inputs, make_operands
from .problem import ConvProblem
from .spec import KernelSpec

__all__ = ["Memo", "content_digest", "remembered"]

_MOST_ENTRIES = 4096


def content_digest(value: Any) -> str:
    """sha256 of an array's dtype, shape and elements, or of a number."""
    array = np.asarray(value)
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()).hexdigest()


class Memo:
    """Entries on disk; ``hits`` and ``misses`` count what was asked of this object."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or cachedir.roots()[-1] / "results"
        self.hits = self.misses = 0

    def key(self, spec: KernelSpec, problem: ConvProblem, config: KernelConfig, target: str, inputs: Mapping[str, Any]) -> str:
        """What an entry is found by: names of problem and tiles take no part."""
        backend, arch = choose.resolve_target(target)
        digests = {name: content_digest(value) for name, value in sorted(inputs.items())}
        where = f"{backend.name}:{arch}", backend.identity(arch), cache.decision_hash()
        parts = [spec.identity(), problem.identity(), config.identity(), *where, digests]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def get(self, key: str) -> dict[str, Any] | None:
        """The entry, or None; one that cannot be read counts as none."""
        try:
            found = json.loads((self.directory / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        entry = found if isinstance(found, dict) else None
        self.hits, self.misses = self.hits + (entry is not None), self.misses + (entry is None)
        return entry

    def put(self, key: str, entry: Mapping[str, Any]) -> None:
        """Keep an entry; a directory that cannot be written keeps none. The oldest go when there are too many."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = self.directory / f".{key}.{os.getpid()}"
            temporary.write_text(json.dumps(entry), encoding="utf-8")
            temporary.replace(self.directory / f"{key}.json")
            self._trim()
        except OSError:
            return

    def clear(self) -> int:
        """Forget everything; how many entries there were."""
        entries = list(self.directory.glob("*.json"))
        for entry in entries:
            entry.unlink(missing_ok=True)
        return len(entries)

    def _trim(self) -> None:
        entries = sorted(self.directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for entry in entries[:max(0, len(entries) - _MOST_ENTRIES)]:
            entry.unlink(missing_ok=True)


def remembered(memo: Memo, check: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """`cases.check_case` that looks into the memo first: its inputs follow from the seed, so their content is known."""
    def checked(spec: KernelSpec, config: KernelConfig, problem: ConvProblem, target: str, *, seed: int = 0,
                kinds: tuple[str, ...] | None = None) -> Outcome:
        mine = spec if problem.direction == spec.direction else spec.bare(problem.direction)
        inputs = dict(zip("ab", make_inputs(problem, "normal", seed))) | make_operands(problem, mine, seed)
        key = memo.key(mine, problem, config, target, {**inputs, "kinds": hash_of(kinds)})
        found = memo.get(key)
        if found is not None:
            return Outcome(problem, **{**found, "config": KernelConfig.from_dict(found["config"])})
        outcome = check(spec, config, problem, target, seed=seed, kinds=kinds)
        if outcome.ok and not outcome.fallbacks and outcome.config is not None:
            memo.put(key, {"target": outcome.target, "ok": True, "error_ratio": outcome.error_ratio, "zeros_exact": outcome.zeros_exact,
                           "config": outcome.config.to_dict(), "compile_s": 0.0, "run_s": outcome.run_s})
        return outcome
    return checked


def hash_of(kinds: tuple[str, ...] | None) -> int:
    """A number that is the same in every process."""
    return int(hashlib.sha256(repr(kinds).encode()).hexdigest()[:12], 16)
