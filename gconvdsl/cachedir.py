"""The private directory that holds compiled kernels, decisions and what was learnt about compilers.

It is GCONV_CACHE_DIR or the user's cache directory, made with mode 0700. One that belongs to another user, or that others can
write, is not used; one that turns out to be read-only or full is still read. A temporary directory then takes the writes.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import warnings
from pathlib import Path

from . import env

__all__ = ["fall_back", "is_temporary", "roots", "warn_once"]

_roots: dict[str, list[Path]] = {}
_temporary: list[Path] = []
_warned: set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """A RuntimeWarning, once per process and topic."""
    if topic not in _warned:
        from .frames import stacklevel

        _warned.add(topic)
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel())


def roots() -> list[Path]:
    """The directories to read, in order; the last one is to be written."""
    wanted = _wanted()
    if wanted not in _roots:
        reason = _unusable(Path(wanted))
        _roots[wanted] = [] if reason else [Path(wanted)]
        if reason:
            fall_back(reason)
    return list(_roots[wanted])


def fall_back(reason: str) -> Path:
    """Write to the temporary directory of this process from now on; ``reason`` is a sentence for the one warning."""
    wanted = _wanted()
    path = _temporary_directory()
    known = _roots.setdefault(wanted, [])
    if path not in known:
        known.append(path)
        warn_once(f"cache {wanted}", f"{reason} Compiled kernels are kept only until this process ends. "
                                     "Set GCONV_CACHE_DIR to a private directory that can be written.")
    return path


def is_temporary(path: Path) -> bool:
    """Whether this is the temporary directory of this process."""
    return path in _temporary


def _wanted() -> str:
    chosen = env.get("GCONV_CACHE_DIR")
    if chosen is None:
        import platformdirs
        chosen = platformdirs.user_cache_dir("gconvdsl", appauthor=False)
    return str(chosen)


def _unusable(path: Path) -> str:
    """Make the directory; a sentence if it may not be used, else nothing."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.stat(path)
    except OSError as err:
        return f"The cache directory {path} cannot be used ({err.strerror})."
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"The cache directory {path} belongs to another user or can be written by others."
    return ""


def _temporary_directory() -> Path:
    import tempfile
    if not _temporary:
        path = Path(tempfile.mkdtemp(prefix="gconvdsl-"))
        _temporary.append(path)
        owner = os.getpid()     # a forked child must not delete its parent's directory
        atexit.register(lambda: shutil.rmtree(path, ignore_errors=True) if os.getpid() == owner else None)
    return _temporary[0]
