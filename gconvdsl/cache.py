"""Compiled kernels on disk: one entry is one directory, written beside its place and renamed into it once.

    CACHE_DIR/binaries/KEY/{manifest.json, kernel.so, ...}     an entry; the manifest has size and SHA-256 of each file
    CACHE_DIR/binaries/.staging-PID-UUID/                      an entry being written, or one on its way out
    CACHE_DIR/locks/KEY                                        flock: one builder per key, freed when its holder dies

A hit takes no lock. A damaged entry is a miss with one warning and is rebuilt. A cache that cannot be written (read-only, full,
another user's) never stops a run: a private temporary directory takes its place, with one warning.
"""

from __future__ import annotations

import errno
import functools
import glob
import hashlib
import json
import os
import shutil
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from . import env
from .cachedir import fall_back, is_temporary, roots, warn_once
from .errors import CompileError

__all__ = [
    "SCHEMA", "Entry", "clear", "decision_hash", "get_or_build", "info", "kernel_hash", "key", "lookup", "prune", "store",
    "verify",
]

SCHEMA = 1
STALE_SECONDS = 3600.0      # a staging directory older than this has no living owner
_PRUNE_EVERY = 16           # stores between two looks at the size of the whole cache
_STAGING = ".staging-"

_stores = 0


@dataclass(frozen=True)
class Entry:
    """A directory of the cache: its path, the facts its builder returned, and whether it was there already."""

    path: Path
    meta: dict[str, Any]
    hit: bool


def kernel_hash() -> str:
    """Digest of all device headers and lowering modules: what this version of the package makes kernels from."""
    return _source_digest("backends/include/**/*", "lower*.py", "expr.py", "ops.py", "plan.py")


def decision_hash() -> str:
    """Digest of what decides about kernels besides their identity: `kernel_hash`, the rules, and how targets compile."""
    return _source_digest("backends/**/*", "lower*.py", "expr.py", "ops.py", "plan.py", "rules*.py", "archs.py", "tile*.py",
                          "window.py", "reach.py", "pipelines.py", "choose.py", "data/*.json")


@functools.cache
def _source_digest(*patterns: str) -> str:
    package, digest = os.path.dirname(os.path.abspath(__file__)), hashlib.sha256()
    found = {name for pattern in patterns for name in glob.glob(pattern, root_dir=package, recursive=True)}
    for name in sorted(found):
        if name.endswith((".hpp", ".h", ".cpp", ".py", ".json")):
            with open(os.path.join(package, name), "rb") as file:
                data = file.read()
            digest.update(f"{name}:{len(data)}:".encode() + data)
    return digest.hexdigest()


def key(fields: dict[str, Any]) -> str:
    """The key of an entry: SHA-256 over everything that decides its content, with the schema and `kernel_hash` added."""
    full = {**fields, "schema": SCHEMA, "kernels": kernel_hash()}
    return hashlib.sha256(json.dumps(full, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# --- reading

class _Damaged(Exception):
    """An entry that is not what its manifest says."""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True).encode()


def _regular(path: Path) -> bytes:
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise _Damaged(f"{path.name} is not a regular file")
    return path.read_bytes()


def _check(directory: Path) -> dict[str, Any]:
    """The facts stored with an entry, all its files having been checked. Raises `_Damaged`."""
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            raise _Damaged("not a directory")
        manifest = json.loads(_regular(directory / "manifest.json"))
        if manifest.pop("digest") != _digest(_canonical(manifest)) or manifest["key"] != directory.name:
            raise _Damaged("its manifest was changed")
        for name, (size, digest) in manifest["files"].items():
            data = _regular(directory / name)
            if len(data) != size or _digest(data) != digest:
                raise _Damaged(f"{name} was changed")
        meta: dict[str, Any] = manifest["meta"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise _Damaged(str(err)) from err
    return meta


def lookup(key: str) -> Entry | None:
    """The valid entry of a key, or None. A damaged one counts as absent."""
    for base in roots():
        directory = base / "binaries" / key
        if not os.path.lexists(directory):
            continue
        try:
            meta = _check(directory)
        except _Damaged as err:
            if os.path.lexists(directory):      # else another process took it away meanwhile
                warn_once(f"entry {directory}", f"The cached kernel {directory} is damaged ({err}); it is built again.")
            continue
        _touch(directory / "manifest.json")
        return Entry(directory, meta, True)
    return None


def _touch(path: Path) -> None:
    with suppress(OSError):     # a read-only cache still serves hits
        os.utime(path)


# --- writing

def get_or_build(key: str, build: Callable[[Path], dict[str, Any]]) -> Entry:
    """The entry of a key; if there is none, ``build(directory)`` writes its files and returns its facts. One builder per key at
    a time, over all processes; who waits longer than a compilation may take builds for himself."""
    found = lookup(key)
    if found is None:
        with _lock(key):
            found = lookup(key) or store(key, build)
    return found


@contextmanager
def _lock(key: str) -> Iterator[None]:
    from filelock import FileLock, Timeout
    path, limit = roots()[-1] / "locks" / key, env.get("GCONV_COMPILE_TIMEOUT")
    lock = None
    try:
        os.makedirs(path.parent, mode=0o700, exist_ok=True)
        lock = FileLock(path, fallback_to_soft=False)
        lock.acquire(timeout=limit)
    except Timeout:
        lock = None
        warn_once(f"lock {path}", f"Another process has held {path} for {limit:g} s; going on without it.")
    except (OSError, RuntimeError):
        lock = None         # no locks here: two processes may build the same entry, and one of them wins
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def store(key: str, build: Callable[[Path], dict[str, Any]]) -> Entry:
    """Build an entry and publish it, replacing a damaged one."""
    base = roots()[-1]
    try:
        return _store(base, key, build)
    except OSError as err:
        if is_temporary(base):
            raise
        reason = err.strerror or str(err)
    except CompileError as err:
        if is_temporary(base) or os.strerror(errno.ENOSPC) not in err.details:
            raise
        reason = os.strerror(errno.ENOSPC)
    return _store(fall_back(f"The cache directory {base} cannot be written ({reason})."), key, build)


def _store(base: Path, key: str, build: Callable[[Path], dict[str, Any]]) -> Entry:
    global _stores
    binaries = base / "binaries"
    os.makedirs(binaries, mode=0o700, exist_ok=True)
    staging = _staging(binaries)
    os.mkdir(staging, 0o700)
    try:
        meta = build(staging)
        files = {path.name: [path.stat().st_size, _digest(path.read_bytes())] for path in sorted(staging.iterdir())}
        manifest = {"key": key, "files": files, "meta": json.loads(json.dumps(meta))}
        (staging / "manifest.json").write_bytes(_canonical({**manifest, "digest": _digest(_canonical(manifest))}))
        _publish(staging, binaries / key)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if _stores % _PRUNE_EVERY == 0:
        prune(binaries, keep=key)
    _stores += 1
    return Entry(binaries / key, manifest["meta"], False)


def _staging(binaries: Path) -> Path:
    return binaries / f"{_STAGING}{os.getpid()}-{os.urandom(16).hex()}"


def _publish(staging: Path, directory: Path) -> None:
    while True:
        try:
            return os.rename(staging, directory)
        except OSError as err:
            if err.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        try:
            _check(directory)
            return      # another process was first: the same content
        except _Damaged:
            _discard(directory)


def _discard(path: Path) -> None:
    """Take an entry away in one step, then delete it at leisure."""
    aside = _staging(path.parent)
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    _delete(aside)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- the whole cache

def _entries(binaries: Path) -> list[Path]:
    try:
        return [path for path in binaries.iterdir() if not path.name.startswith(_STAGING)]
    except OSError:
        return []


def _usage(directory: Path) -> tuple[float, int]:
    """When an entry was last used, and its bytes; zeros where it cannot be read."""
    try:
        return (directory / "manifest.json").stat().st_mtime, sum(path.lstat().st_size for path in directory.iterdir())
    except OSError:
        return 0.0, 0


def prune(binaries: Path, keep: str = "") -> None:
    """Delete the least recently used entries above GCONV_CACHE_SIZE, and what dead builders left behind."""
    for path in [*binaries.glob(f"{_STAGING}*"), *(binaries.parent / "locks").glob("*")]:
        with suppress(OSError):     # its owner was faster
            if time.time() - path.lstat().st_mtime > STALE_SECONDS:
                _delete(path)
    used = sorted((*_usage(path), path) for path in _entries(binaries))
    excess = sum(size for _, size, _ in used) - env.get("GCONV_CACHE_SIZE")
    for _, size, path in used:
        if excess > 0 and path.name != keep:
            with suppress(OSError):
                _discard(path)
            excess -= size


def info() -> dict[str, Any]:
    """Where the cache is and how full: path, entries, bytes, limit (bytes), writable, temporary."""
    base = roots()[-1]
    sizes = [_usage(path)[1] for path in _entries(base / "binaries")]
    return {"path": str(base), "entries": len(sizes), "bytes": sum(sizes), "limit": env.get("GCONV_CACHE_SIZE"),
            "writable": os.access(base, os.W_OK), "temporary": is_temporary(base)}


def clear() -> int:
    """Delete all entries that may be deleted; how many those were."""
    gone = 0
    for path in [path for base in roots() for path in _entries(base / "binaries")]:
        with suppress(OSError):
            _discard(path)
            gone += 1
    return gone


def verify() -> list[tuple[str, str]]:
    """Check all entries and delete the damaged ones, which are returned as (path, reason)."""
    damaged = []
    for path in [path for base in roots() for path in _entries(base / "binaries")]:
        try:
            _check(path)
        except _Damaged as err:
            damaged.append((str(path), str(err)))
            with suppress(OSError):
                _discard(path)
    return damaged
