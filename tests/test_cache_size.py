"""The size of the cache: what goes first, what is swept, what is reported."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from cache_builder import CONTENT, KEY, OTHER, Builder, build, build_watched

from gconvdsl import cache


def test_the_least_recently_used_go_first(new_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [letter * 64 for letter in "abcd"]
    for age, key in enumerate(keys):
        build(Builder(bytes(10_000)), key)
        os.utime(new_cache / "binaries" / key / "manifest.json", (1_000_000 + age, 1_000_000 + age))
    assert cache.lookup(keys[0]) is not None        # used again: now the youngest
    monkeypatch.setenv("GCONV_CACHE_SIZE", "25000")
    cache.prune(new_cache / "binaries")
    assert sorted(path.name[0] for path in (new_cache / "binaries").iterdir()) == ["a", "d"]


def test_storing_keeps_the_cache_within_its_limit(new_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_CACHE_SIZE", "100000")
    for number in range(64):
        build(Builder(bytes(10_000)), f"{number:064x}")
    assert cache.info()["bytes"] <= 100_000 + cache._PRUNE_EVERY * 11_000


def test_an_entry_larger_than_the_limit_is_still_used(new_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_CACHE_SIZE", "1")
    monkeypatch.setattr(cache, "_stores", 0)
    assert build(Builder()) == CONTENT


def test_stale_staging_is_swept_and_living_is_not(new_cache: Path) -> None:
    build(Builder())
    stale, living = new_cache / "binaries" / ".staging-1-old", new_cache / "binaries" / ".staging-1-new"
    for path in (stale, living):
        path.mkdir()
        (path / "kernel.so").write_text("")
    old = time.time() - 2 * cache.STALE_SECONDS
    lock = new_cache / "locks" / OTHER
    lock.write_text("")
    for path in (stale, lock):
        os.utime(path, (old, old))
    cache.prune(new_cache / "binaries")
    assert not stale.exists() and not lock.exists() and living.exists() and cache.lookup(KEY)


def test_errors_of_cleaning_up_do_not_reach_the_run(new_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any, **named: Any) -> None:
        if not named.get("ignore_errors"):
            raise OSError(errno.EBUSY, "busy")
    monkeypatch.setattr(shutil, "rmtree", busy)
    monkeypatch.setattr(cache, "_stores", 0)
    monkeypatch.setenv("GCONV_CACHE_SIZE", "1")
    build(Builder(), OTHER)
    assert build_watched(Builder()) == []


def test_info_and_clear(new_cache: Path) -> None:
    build(Builder())
    build(Builder(), OTHER)
    facts = cache.info()
    manifest = (new_cache / "binaries" / KEY / "manifest.json").stat().st_size
    assert facts["path"] == str(new_cache) and facts["entries"] == 2 and facts["bytes"] == 2 * (len(CONTENT) + manifest)
    assert cache.clear() == 2 and cache.info()["entries"] == 0 and cache.lookup(KEY) is None


def test_the_manifest_holds_size_and_digest_of_each_file(new_cache: Path) -> None:
    build(Builder())
    manifest = json.loads((new_cache / "binaries" / KEY / "manifest.json").read_text())
    assert manifest["files"] == {"kernel.so": [len(CONTENT), hashlib.sha256(CONTENT).hexdigest()]}
