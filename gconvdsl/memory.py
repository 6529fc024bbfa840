"""Host memory that is used again: workspaces and large results of calls on ``cpu`` without page faults.

The C library gives large blocks back to the system when they are freed, at times that depend on what else is alive, and every page
of a fresh block costs a fault: half a millisecond for 2 MB where a layer runs as long. Here a block outlives its array and serves
the next one of about its size. Blocks that nobody uses are bounded by GCONV_KEPT_MEMORY, those of the sizes asked for least
recently going first, and all of them are released when the system has no memory left.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import threading
import weakref
from collections import OrderedDict
from typing import Any, Sequence

import numpy as np

from . import env

__all__ = ["Block", "Store", "empty", "give", "lend", "pays", "take"]

_LEAST = 4096
"""Bytes from which results are worth a block of their own, or at least a cache line of their own."""
_CACHE_LINE, _ALIGNMENT = 64, 256
_HUGE = 4 << 20
"""Bytes from which the system is asked for large pages, as NumPy does."""


class Block:
    """Memory of its own pages: ``memory`` (a buffer) is used from byte ``start``, whose ``address`` is a multiple of 256. The buffer
    is not an array, so that further views of an array over it keep that array alive and not the buffer alone."""

    __slots__ = ("memory", "start", "address", "nbytes")
    _numbers = itertools.count()

    def __init__(self, nbytes: int) -> None:
        # Blocks begin at different places of a page: at the same one, a load looks as if it depended on the store of a result.
        self.nbytes, self.start = nbytes, _ALIGNMENT * (5 * next(self._numbers) % (mmap.PAGESIZE // _ALIGNMENT))
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        self.memory = mmap.mmap(-1, nbytes + mmap.PAGESIZE, **private)         # a forked child must not write into its parent's
        self.address = int(np.frombuffer(self.memory, np.uint8).__array_interface__["data"][0]) + self.start
        if nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self.memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:                       # a kernel without them
                pass


class _Loan(weakref.ref):  # type: ignore[type-arg]
    """The end of an array gives its block back."""

    __slots__ = ("block",)
    block: Block


class Store:
    """Blocks by size. Thread-safe; arrays may die at any point of any thread, also inside of a method here (garbage collection)."""

    def __init__(self) -> None:
        self._idle: OrderedDict[int, list[Block]] = OrderedDict()      # size -> blocks, the size used last at the end
        self._loans: dict[int, _Loan] = {}
        self._renew()
        self.kept = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def take(self, nbytes: int) -> Block:
        """A block of at least so many bytes, to be given back."""
        return self._taken(_rounded(nbytes))

    def lend(self, shape: Sequence[int], dtype: np.dtype[Any], nbytes: int) -> tuple[np.ndarray[Any, Any], int]:
        """An uninitialised array of ``nbytes`` bytes in C order, and its address, a multiple of 256."""
        block = self._taken(_rounded(nbytes))
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, block.memory, block.start)
        loan = _Loan(array, self._returned)
        loan.block = block
        self._loans[id(loan)] = loan
        return array, block.address

    def _taken(self, size: int) -> Block:
        with self._lock:
            blocks = self._idle.get(size)
            if blocks:
                self.kept -= size
                return blocks.pop()
        try:
            return Block(size)
        except (OSError, MemoryError):
            self.release()
        try:
            return Block(size)
        except OSError as failure:
            raise MemoryError(f"{size} bytes: {failure}") from None

    def _returned(self, loan: _Loan) -> None:
        self._loans.pop(id(loan), None)
        self.give(loan.block)

    def give(self, block: Block) -> None:
        """Take a block back that nobody refers to."""
        limit = env.get("GCONV_KEPT_MEMORY")
        if block.nbytes > limit:
            return
        with self._lock:
            self._idle.setdefault(block.nbytes, []).append(block)
            self._idle.move_to_end(block.nbytes)
            self.kept += block.nbytes
            while self.kept > limit:
                size, blocks = next(iter(self._idle.items()))
                if blocks:
                    blocks.pop()
                    self.kept -= size
                else:
                    del self._idle[size]

    def release(self) -> None:
        """Give all blocks that nobody uses back to the system."""
        with self._lock:
            self._idle.clear()
            self.kept = 0


def _rounded(nbytes: int) -> int:
    """Up to whole pages, and to three binary digits: arrays of about the same size share blocks, an eighth of one is lost at most."""
    step = max(mmap.PAGESIZE, 1 << max(nbytes - 1, 0).bit_length() >> 4)
    return max(-(-nbytes // step), 1) * step


_store = Store()
take, give, lend = _store.take, _store.give, _store.lend


def pays(nbytes: int) -> bool:
    """Whether an array of this size should be lent a block."""
    return nbytes >= _LEAST and bool(env.get("GCONV_KEPT_MEMORY"))


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised array in C order, on a block where that pays."""
    nbytes = math.prod(shape) * dtype.itemsize
    if pays(nbytes):
        return lend(shape, dtype, nbytes)[0]
    return np.empty(shape, dtype) if nbytes < _LEAST else _aligned(shape, dtype, nbytes)


def _aligned(shape: Sequence[int], dtype: np.dtype[Any], nbytes: int) -> np.ndarray[Any, Any]:
    """An array that begins with a cache line: NumPy's own begin anywhere, and then every vector takes two lines."""
    bytes_ = np.empty(nbytes + _CACHE_LINE, np.uint8)
    start = -int(bytes_.__array_interface__["data"][0]) % _CACHE_LINE
    return bytes_[start:start + nbytes].view(dtype).reshape(shape)
