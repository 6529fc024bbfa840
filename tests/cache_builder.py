"""What the tests of the cache build: a stand-in compiler that counts its calls."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Callable

from gconvdsl import cache

KEY, OTHER = "a" * 64, "b" * 64
CONTENT = b"\x7fELF machine code"


class Builder:
    """Counts how often it had to build."""

    def __init__(self, content: bytes = CONTENT, after: Callable[[], None] = lambda: None) -> None:
        self.content, self.after, self.calls = content, after, 0

    def __call__(self, directory: Path) -> dict[str, Any]:
        self.calls += 1
        (directory / "kernel.so").write_bytes(self.content)
        self.after()
        return {"flags": ["-O2"]}


def build(builder: Builder, key: str = KEY) -> bytes:
    """What a caller gets to see."""
    entry = cache.get_or_build(key, builder)
    assert entry.meta == {"flags": ["-O2"]}
    return (entry.path / "kernel.so").read_bytes()


def build_watched(builder: Builder) -> list[str]:
    """Build twice; the answer must be right and stay so. The warnings seen."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert build(builder) == CONTENT
        assert build(builder) == CONTENT
    return [str(one.message) for one in seen]
