"""What a sweep says while it runs."""

from __future__ import annotations

import io
import time

import pytest

import gconvdsl as gconv
from gconvdsl import progress as module
from gconvdsl.measurement import Case, Measurement, Times
from gconvdsl.progress import Progress

CASE = Case(gconv.ConvProblem(C=64, K=64, input=(8, 8), filter=(3, 3), name="res"), gconv.KernelConfig(), "cpu", "avx2")
PASSED, CRASHED = Measurement(CASE, "PASS", times=Times.of([2.0])), Measurement(CASE, "CRASH", "SIGSEGV")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_the_line_has_rate_failures_best_and_time_left(clock: list[float]) -> None:
    with Progress(10, stream=io.StringIO()) as progress:
        clock[0] += 2
        progress.update(PASSED)
        progress.update(CRASHED)
        text = progress.text()
    assert text.startswith("2/10, 1.0/s, 1 failed, best 2 ms, ") and "(res forward)" in text and text.endswith("8 s left")


def test_what_was_known_does_not_count_for_the_rate(clock: list[float]) -> None:
    with Progress(None, 60.0, io.StringIO()) as progress:
        clock[0] += 10
        for reused in (1, 2, 3):
            progress.update(PASSED, reused)
        progress.update(Measurement(CASE, "PASS", times=Times.of([1.0])), 3)
        assert progress.text() .startswith("4 measured, 0.1/s, 3 known, 0 failed, best 1 ms")
        assert progress.text().endswith("50 s left") and progress.fraction(clock[0]) == pytest.approx(1 / 6)


def test_plain_lines_come_now_and_then_and_for_faults(clock: list[float]) -> None:
    out = io.StringIO()
    with Progress(1000, stream=out) as progress:
        for _ in range(50):
            clock[0] += 1
            progress.update(PASSED)
        assert len(out.getvalue().splitlines()) == 5
        progress.update(CRASHED)
        assert len(out.getvalue().splitlines()) == 6 and "\x1b" not in out.getvalue()


def test_a_bar_on_a_terminal() -> None:
    out = Terminal()
    with Progress(2, stream=out) as progress:
        progress.update(PASSED)
        time.sleep(0.2)
        progress.update(CRASHED)
    assert "\x1b" in out.getvalue() and "%" in out.getvalue()


@pytest.mark.parametrize("seconds, text", [(5, "5 s"), (89, "89 s"), (120, "2 min"), (7200, "2.0 h")])
def test_durations(seconds: float, text: str) -> None:
    assert module._duration(seconds) == text
