"""Calls made ready, by signature. The first call of a signature goes the whole way of `runner`; what it found out is kept as a
`ready.Ready`, by which the next call like it runs.

The signature holds everything that decides what runs: declaration, configuration and problem (by identity), target, every GCONV_*
variable, and the `facts` of each argument. Decisions that are dropped take everything that was made ready with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Hashable

from . import choose, env
from .facts import Unknown, facts_of, out_facts

if TYPE_CHECKING:
    from .ready import Call, Ready

__all__ = ["KEPT", "find", "keep", "signature"]

KEPT = 256
"""Signatures that are kept at most; those that were not called again while half as many new ones came go first."""

# Two halves instead of a list in order of use: a call that is found costs one look-up. Each operation is a single one on a
# dictionary, so no lock is needed, and none can be held while the process forks; threads that race lose an entry at worst.
_recent: dict[Hashable, Ready] = {}
_older: dict[Hashable, Ready] = {}


def signature(call: Call) -> Hashable:
    """The key of a call, None if it can have none. Valid as long as what it names by identity lives, which a `Ready` sees to."""
    try:
        a, b = call.arrays
        facts = [facts_of(value) for value in call.operands.values()] if call.operands else ()
        key = (id(call.spec), id(call.config), id(call.problem), call.target, call.arch, call.out_dtype, env.snapshot(),
               facts_of(a), facts_of(b), out_facts(call.out), *call.operands, *facts)
        hash(key)
    except (Unknown, TypeError, RuntimeError):   # unhashable, or a tensor without memory
        return None
    return key


def find(key: Hashable) -> Ready | None:
    """The call made ready for a key, unless decisions have been dropped since."""
    found = _recent.get(key)
    if found is None:
        found = _older.get(key)
        if found is None:
            return None
        keep(key, found)
    return found if found.generation == choose.generation() else None


def keep(key: Hashable, ready: Ready | None) -> None:
    """Remember a call made ready, if it is one."""
    global _recent, _older
    if ready is None:
        return
    if len(_recent) >= KEPT // 2:
        _recent, _older = {}, _recent
    _recent[key] = ready
