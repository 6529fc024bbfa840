"""How far a sweep is: a bar on a terminal, else a plain line now and then."""

from __future__ import annotations

import math
import sys
import time
from typing import IO, Any

from .measurement import Measurement

__all__ = ["Progress"]

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts measurements as they come: rate, failures, best so far, time left. A context manager; writes to standard error.

    ``total``: how many there will be, None if a deadline ends it; ``seconds``: that deadline.
    """

    def __init__(self, total: int | None, seconds: float | None = None, stream: IO[str] | None = None) -> None:
        self.total, self.seconds, self.stream = total, seconds, stream or sys.stderr
        self.count = self.failed = self.reused = 0
        self.best: Measurement | None = None
        self._start = self._shown = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress as Bar, TextColumn

            self._bar = Bar(TextColumn("{task.percentage:>3.0f}%"), BarColumn(20), TextColumn("{task.description}"),
                            console=Console(file=self.stream), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self.text(), total=self.total or 1.0)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, made: Measurement, reused: int = 0) -> None:
        """One measurement more; ``reused``: how many so far came from earlier runs."""
        self.count += 1
        self.reused = reused
        self.failed += made.status not in ("PASS", "SLOW", "DUPLICATE", "ILLEGAL")
        if made.passed and (self.best is None or (made.tflops or 0) > (self.best.tflops or 0)):
            self.best = made
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.fraction(now), total=1.0, description=self.text(now))
        elif now - self._shown >= _SECONDS_BETWEEN_LINES or made.status in ("WRONG", "CRASH", "TIMEOUT"):
            self._shown = now
            print(self.text(now), file=self.stream, flush=True)

    def fraction(self, now: float) -> float:
        """From 0 to 1."""
        parts = [self.count / self.total] if self.total else [0.0]
        if self.seconds:
            parts.append((now - self._start) / self.seconds)
        return min(1.0, max(parts))

    def text(self, now: float | None = None) -> str:
        """One line: ``120/4000, 8.5/s, 3 failed, best 1.25 TFLOP/s (compv4 ...), 7 min left``."""
        now = time.monotonic() if now is None else now
        elapsed, new = now - self._start, self.count - self.reused
        parts = [f"{self.count}/{self.total}" if self.total else f"{self.count} measured"]
        parts += [f"{new / elapsed:.1f}/s"] if new and elapsed > 0.1 else []
        parts += [f"{self.reused} known"] if self.reused else []
        parts += [f"{self.failed} failed"]
        if self.best is not None:
            parts.append(f"best {self.best.median_ms:.4g} ms, {self.best.tflops or 0:.3g} TFLOP/s ({self.best.case.title})")
        left = self._left(now, new)
        return ", ".join(parts + ([f"{_duration(left)} left"] if math.isfinite(left) else []))

    def _left(self, now: float, new: int) -> float:
        elapsed = now - self._start
        by_count = (self.total - self.count) * elapsed / new if self.total and new else math.inf
        return max(0.0, min(by_count, self.seconds - elapsed if self.seconds else math.inf))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
