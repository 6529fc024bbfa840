"""Memory that is used again: never while anything refers to it, within its limit, given back when the system has none."""

from __future__ import annotations

import gc
import os
import resource
import threading
from typing import Any

import numpy as np
import pytest

import gconvdsl as gconv
from gconvdsl import memory
from gconvdsl.backends.base import get

F4 = np.dtype(np.float32)
MB = 1 << 20


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> memory.Store:
    monkeypatch.delenv("GCONV_KEPT_MEMORY", raising=False)
    return memory.Store()


def lent(store: memory.Store, nbytes: int = MB) -> np.ndarray:
    array, address = store.lend((nbytes // 4,), F4, nbytes)
    assert address == array.ctypes.data and address % 256 == 0 and array.nbytes == nbytes
    return array


def test_a_block_is_used_again_once_its_array_is_gone(store: memory.Store) -> None:
    first = lent(store)
    address = first.ctypes.data
    assert lent(store).ctypes.data != address, "both are alive while the second is made"
    del first
    again = [lent(store, MB - 40) for _ in range(2)]
    assert address in [one.ctypes.data for one in again], "an array of about the size"
    assert again[0].ctypes.data != again[1].ctypes.data


@pytest.mark.parametrize("view", [
    lambda a: a[1:], lambda a: a.reshape(2, -1).T, lambda a: a.view(np.int32)[::2], lambda a: memoryview(a), lambda a: np.asarray(a[3:4])[:],
    lambda a: a.view(np.ma.MaskedArray), lambda a: np.lib.stride_tricks.as_strided(a, (4,), (8,)), lambda a: a.flat, lambda a: [a],
])
def test_a_view_keeps_the_block(store: memory.Store, view: Any) -> None:
    array = lent(store)
    array[...] = 7
    kept, address = view(array), array.ctypes.data
    del array
    gc.collect()
    others = [lent(store) for _ in range(3)]
    assert all(one.ctypes.data != address for one in others)
    del kept, others
    gc.collect()
    assert store.kept == 4 * MB


def test_what_is_kept_is_bounded(store: memory.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_KEPT_MEMORY", "4M")
    for size in (MB, 2 * MB, MB // 2):
        del [lent(store, size) for _ in range(6)][:]
        assert store.kept <= 4 * MB
    assert store.kept == 3 * MB, "the six used last"
    store.release()
    assert store.kept == 0
    monkeypatch.setenv("GCONV_KEPT_MEMORY", "0")
    del [lent(store)][:]
    assert store.kept == 0 and not memory.pays(1 << 30)


def test_memory_pressure_releases_what_is_kept(store: memory.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    del [lent(store)][:]
    block, free = memory.Block, [2 * MB]

    def scarce(nbytes: int) -> memory.Block:
        if nbytes > free[0] - store.kept:
            raise OSError("Cannot allocate memory")
        return block(nbytes)

    monkeypatch.setattr(memory, "Block", scarce)
    assert lent(store, 2 * MB).nbytes == 2 * MB and store.kept <= 2 * MB
    free[0] = MB
    with pytest.raises(MemoryError, match="4194304 bytes"):
        lent(store, 4 * MB)


def test_threads_never_share_a_block(store: memory.Store) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(300):
            array = lent(store, 64 << 10)
            array[...] = number * 1000 + turn
            other = lent(store, 64 << 10)
            other[...] = -1
            if (array != number * 1000 + turn).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    most = 3 * len(threads)           # while a new block is lent to it, a thread still has its former two
    assert wrong == [] and store.kept <= most * (64 << 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_write_into_its_parent(store: memory.Store) -> None:
    array = lent(store)
    array[...] = 3
    child = os.fork()
    if child == 0:
        array[...] = 4
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and (array == 3).all()


def test_results_are_fresh_and_workspaces_are_not_results() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-3, 4, (1, 64, 64, 32)).astype("f4"), rng.integers(-3, 4, (32, 1, 1, 1)).astype("f4")
    kernel = gconv.Kernel(gconv.kernel(lambda x, w: gconv.conv(x, w)).spec)
    results = []
    for turn in range(6):
        results.append(kernel(x * turn, w, target="cpu"))
        results[-1].flags.writeable = turn % 2 == 0
        if turn == 3:
            del results[0]
    assert len({one.ctypes.data for one in results}) == 5
    for turn, one in enumerate(results, 1):
        np.testing.assert_array_equal(one, x * turn * w[:, 0, 0, 0])


def test_a_workspace_that_somebody_looked_at_is_not_used_again() -> None:
    backend = get("cpu")
    first, second = backend.allocate(100_000), backend.allocate(100_000)
    addresses = first.address, second.address
    seen = first.array
    seen[...] = 5
    del first, second
    made = [backend.allocate(100_000) for _ in range(2)]
    assert addresses[0] not in [one.address for one in made] and addresses[1] in [one.address for one in made]
    assert (seen == 5).all()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="counts faults as Linux does")
def test_repeated_calls_touch_no_new_pages() -> None:
    x, w = np.ones((8, 64, 64, 32), "f4"), np.ones((32, 1, 1, 1), "f4")        # results of 4 MB: 1024 pages
    kernel = gconv.Kernel(gconv.kernel(lambda x, w: gconv.conv(x, w)).spec)
    for _ in range(3):
        kernel(x, w, target="cpu")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        kernel(x, w, target="cpu")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1024, "not even those of one result"
