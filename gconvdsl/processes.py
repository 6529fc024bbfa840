"""Functions called in processes of their own: one that crashes, or never ends, costs one call and not the program.

Unlike those of multiprocessing, such a process does not import the user's main script again, so that it can be used from any
script, notebook or prompt. It ends when its parent does, also when that is killed.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import Executor, Future
from multiprocessing.connection import Connection, Pipe
from typing import Any, Callable, TypeVar

__all__ = ["IMPORTS", "Lost", "Pool", "Process", "serve"]

IMPORTS: list[str] = []
"""Modules that every such process imports first, for what they register."""

_SECONDS_TO_END = 5.0
_START = "import sys; sys.path[:] = sys.argv[3:]; from gconvdsl.processes import serve; serve(int(sys.argv[1]), sys.argv[2])"
_T = TypeVar("_T")


class Lost(Exception):
    """A call without an answer: ``timeout`` says that the time limit was exceeded, else the process died; ``str`` says how."""

    def __init__(self, how: str, timeout: bool = False) -> None:
        super().__init__(how)
        self.timeout = timeout


class Process:
    """One process that calls functions one after the other; replaced when it dies or exceeds its time. A context manager.

    Functions must be importable by their names, arguments and results picklable. Not thread-safe.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._pipe: Any = None
        self._killed = False

    def __enter__(self) -> Process:
        return self

    def __exit__(self, failure: Any, *_: Any) -> None:
        self.stop(0 if failure else _SECONDS_TO_END)

    def call(self, function: Callable[..., _T], *args: Any, limit: float | None = None, **named: Any) -> _T:
        """``function(*args, **named)`` there, at most ``limit`` seconds. Its exception is raised here, its warnings are shown
        here. Raises `Lost` when the process dies or takes too long; the next call gets a new one."""
        self.start()
        try:
            self._pipe.send((function, args, named))
            if not self._pipe.poll(limit):
                raise Lost(f"no answer within {limit:g} s", timeout=True)
            outcome, shown = self._pipe.recv()
        except (EOFError, ConnectionError):
            how = self._death()
            self.stop()
            raise Lost(how) from None
        except BaseException:
            self.stop()                   # too late, or interrupted: its answer would be taken for that of the next call
            raise
        for category, text in shown:
            warnings.warn(text, category, stacklevel=2)
        if isinstance(outcome, _Raised):
            raise outcome.exception
        return outcome  # type: ignore[no-any-return]

    def start(self) -> bool:
        """Start the process unless it runs; whether it was started now."""
        if self.process is not None:
            return False
        self._pipe, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-c", _START, str(theirs.fileno()), ",".join(IMPORTS), *map(str, sys.path)]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        if self._killed:
            self.process.kill()
        return True

    def kill(self) -> None:
        """End it at once, whatever it does, from any thread; it is not started again. The thread that calls gets `Lost`."""
        self._killed, running = True, self.process
        if running is not None:
            running.kill()

    def stop(self, patience: float = 0) -> None:
        """Close the pipe, at which an idle process ends and removes its temporary files; after ``patience`` seconds kill it."""
        if self.process is None:
            return
        self._pipe.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _death(self) -> str:
        assert self.process is not None
        try:
            code = self.process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return "the process that ran it closed its connection"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the process that ran it ended with {how}"


class _Raised:
    """An exception on its way back."""

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception


def serve(descriptor: int, imports: str) -> None:
    """The process: answers until the pipe closes. Ctrl-C is the parent's business."""
    import importlib

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    for name in filter(None, imports.split(",")):
        importlib.import_module(name)
    pipe = Connection(descriptor)
    while True:
        try:
            function, args, named = pipe.recv()
        except (EOFError, OSError):               # the parent has gone
            return
        except Exception as failure:              # a function that cannot be imported here
            pipe.send((_Raised(failure), []))
            continue
        answer = _answer(function, args, named)
        try:
            pipe.send(answer)
        except OSError:
            return


def _end_with(parent: int) -> None:
    """A hanging kernel must not outlive a parent that was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _answer(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, list[tuple[Any, str]]]:
    """The value (or the exception) and the warnings on the way to it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value: Any = function(*args, **named)
        except Exception as failure:
            value = _Raised(failure)
    return value, [(one.category, str(one.message)) for one in caught]


class Pool(Executor):
    """Several processes behind the interface of `concurrent.futures`: ``limit`` seconds for each call, else `Lost`."""

    def __init__(self, workers: int, limit: float | None = None) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._limit, self._workers = limit, workers
        self._processes: list[Process] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, function: Callable[..., _T], /, *args: Any, **named: Any) -> Future[_T]:
        """The future of ``function(*args, **named)``."""
        if self._closed:
            raise RuntimeError("the pool is closed")
        future: Future[_T] = Future()
        self._calls.put((future, function, args, named))
        if len(self._threads) < self._workers:
            self._processes.append(Process())
            self._threads.append(threading.Thread(target=self._work, args=(self._processes[-1],), daemon=True))
            self._threads[-1].start()
        return future

    def _work(self, process: Process) -> None:
        while (call := self._calls.get()) is not None:
            future, function, args, named = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(process.call(function, *args, limit=self._limit, **named))
            except BaseException as failure:
                future.set_exception(failure)
        process.stop(_SECONDS_TO_END)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; what runs is awaited, or killed with ``cancel_futures``."""
        self._closed = True
        while cancel_futures and not self._calls.empty():
            self._calls.get()[0].cancel()
        for _ in self._threads:
            self._calls.put(None)
        for one in self._processes if cancel_futures else ():
            one.kill()
        for thread in self._threads if wait else ():
            thread.join()
