"""The cache of compiled kernels: whatever happens to its files, the answer is right and there is at most one warning."""

from __future__ import annotations

import atexit
import errno
import multiprocessing
import os
import shutil
import signal
import time
import warnings
from pathlib import Path
from typing import Any, Callable

import pytest
from cache_builder import CONTENT, KEY, OTHER, Builder, build, build_watched

from gconvdsl import cache
from gconvdsl.errors import CompileError, error


@pytest.fixture
def place(new_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and short waits."""
    monkeypatch.setenv("GCONV_COMPILE_TIMEOUT", "5")
    return new_cache


def test_a_second_use_is_a_hit(place: Path) -> None:
    builder = Builder()
    first, second = cache.get_or_build(KEY, builder), cache.get_or_build(KEY, builder)
    assert (first.hit, second.hit, builder.calls) == (False, True, 1)
    assert first.path == second.path == place / "binaries" / KEY
    assert sorted(path.name for path in first.path.iterdir()) == ["kernel.so", "manifest.json"]
    assert cache.lookup(OTHER) is None


def test_a_hit_takes_no_lock_and_leaves_no_file_open(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder()
    build(builder)
    monkeypatch.setattr(cache, "_lock", lambda key: pytest.fail("a hit took a lock"))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        build(builder)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_made_is_private(place: Path) -> None:
    build(Builder())
    made = [path for path in place.rglob("*") if path.is_dir()]
    assert made and all(path.stat().st_mode & 0o077 == 0 for path in made)


# --- damage

def _replace_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _replace_by_symlink(file: Path) -> None:
    shutil.move(file, file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


def _change_fact(manifest: Path) -> None:
    manifest.write_text(manifest.read_text().replace("-O2", "-O0"))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "empty": lambda file: file.write_bytes(b""),
    "random bytes": lambda file: file.write_bytes(bytes(range(7, 7 + len(CONTENT)))),
    "directory in its place": _replace_by_directory,
    "missing": lambda file: file.unlink(),
    "symbolic link": _replace_by_symlink,
}


@pytest.mark.parametrize("name", ["kernel.so", "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_a_miss_with_one_warning_and_is_rebuilt(place: Path, damage: str, name: str) -> None:
    builder = Builder()
    build(builder)
    DAMAGE[damage](place / "binaries" / KEY / name)
    seen = build_watched(builder)
    assert builder.calls == 2 and len(seen) == 1 and str(place) in seen[0]
    assert [path.name for path in (place / "binaries").iterdir() if path.is_dir()] == [KEY]


def test_a_changed_fact_is_damage(place: Path) -> None:
    builder = Builder()
    build(builder)
    _change_fact(place / "binaries" / KEY / "manifest.json")
    assert len(build_watched(builder)) == 1 and builder.calls == 2


@pytest.mark.parametrize("text", ["[]", "null", "3", '{"digest": "x"}', "{}", "\udcff"])
def test_a_manifest_of_another_shape_is_damage(place: Path, text: str) -> None:
    builder = Builder()
    build(builder)
    (place / "binaries" / KEY / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert len(build_watched(builder)) == 1 and builder.calls == 2


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "empty directory"])
def test_something_else_in_the_place_of_an_entry(place: Path, tmp_path: Path, kind: str) -> None:
    entry = place / "binaries" / KEY
    entry.parent.mkdir(mode=0o700)
    target = tmp_path / "precious"
    target.mkdir()
    (target / "data").write_text("kept")
    {"file": lambda: entry.write_text("x"), "link": lambda: entry.symlink_to(target),
     "dangling link": lambda: entry.symlink_to(tmp_path / "nowhere"), "empty directory": entry.mkdir}[kind]()
    builder = Builder()
    assert len(build_watched(builder)) == 1 and builder.calls == 1
    assert (target / "data").read_text() == "kept"


def test_an_entry_moved_under_another_key_is_refused(place: Path) -> None:
    build(Builder(b"another kernel"), OTHER)
    os.rename(place / "binaries" / OTHER, place / "binaries" / KEY)
    builder = Builder()
    assert len(build_watched(builder)) == 1 and builder.calls == 1


def test_verify_reports_and_removes_damage(place: Path) -> None:
    build(Builder())
    build(Builder(), OTHER)
    (place / "binaries" / OTHER / "kernel.so").write_bytes(b"")
    [(path, reason)] = cache.verify()
    assert path.endswith(OTHER) and "kernel.so" in reason
    assert cache.verify() == [] and cache.info()["entries"] == 1


# --- a directory that cannot be used

def _fail_in(directory: Path, code: int) -> Callable[..., Any]:
    real = os.mkdir

    def mkdir(path: Any, *rest: Any, **named: Any) -> None:
        if str(path).startswith(str(directory)):
            raise OSError(code, os.strerror(code), str(path))
        real(path, *rest, **named)
    return mkdir


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_a_cache_that_cannot_be_written_is_replaced(place: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "mkdir", _fail_in(place, code))
    builder = Builder()
    seen = build_watched(builder)
    assert builder.calls == 1 and len(seen) == 1
    assert str(place) in seen[0] and "GCONV_CACHE_DIR" in seen[0] and cache.info()["temporary"]


def test_a_read_only_cache_still_serves_hits(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder()
    build(builder)
    monkeypatch.setattr(os, "mkdir", _fail_in(place, errno.EROFS))
    monkeypatch.setattr(os, "utime", lambda *_: (_ for _ in ()).throw(OSError(errno.EROFS, "read-only")))
    assert build_watched(builder) == [] and builder.calls == 1
    other = Builder()
    with pytest.warns(RuntimeWarning, match="read-only|Read-only"):
        assert build(other, OTHER) == CONTENT
    assert build_watched(builder) == [] and builder.calls == 1      # the old place is still read


def test_a_home_that_cannot_be_made(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path / "file" / "cache"))
    builder = Builder()
    assert len(build_watched(builder)) == 1 and builder.calls == 1


def test_a_full_disk_while_compiling(place: Path) -> None:
    def full() -> None:
        if builder.calls == 1:
            raise error("compile.failed", tool="g++", kernel="k", arch="x", status=1, details="error: No space left on device")
    builder = Builder(after=full)
    seen = build_watched(builder)
    assert builder.calls == 2 and len(seen) == 1 and "No space left" in seen[0]
    assert list((place / "binaries").iterdir()) == []


def test_a_failed_build_leaves_nothing_and_is_not_hidden(place: Path) -> None:
    def fail() -> None:
        raise error("compile.failed", tool="g++", kernel="k", arch="x", status=1, details="error: expected ';'")
    with pytest.raises(CompileError):
        build(Builder(after=fail))
    assert list((place / "binaries").iterdir()) == [] and cache.lookup(KEY) is None
    assert build(Builder()) == CONTENT


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_open_to_others_is_not_used(place: Path, mode: int) -> None:
    place.chmod(mode)
    builder = Builder()
    seen = build_watched(builder)
    assert len(seen) == 1 and "others" in seen[0] and list(place.iterdir()) == []


def test_a_directory_of_another_user_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    builder = Builder()
    seen = build_watched(builder)
    assert len(seen) == 1 and "another user" in seen[0] and list(place.iterdir()) == []


def test_the_temporary_directory_is_private_and_goes_with_its_process(place: Path) -> None:
    place.chmod(0o777)
    reader, writer = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        warnings.simplefilter("ignore")
        entry = cache.get_or_build(KEY, Builder())
        writer.send((str(entry.path), entry.path.parent.parent.stat().st_mode & 0o777))
        atexit._run_exitfuncs()         # multiprocessing leaves without them
        os._exit(0)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    path, mode = reader.recv()
    process.join(20)
    assert mode == 0o700 and not Path(path).exists()


# --- several processes

def _builder_process(place: Path, counter: Path, results: Any) -> None:
    def slow() -> None:
        (counter / f"{os.getpid()}").write_text("")
        time.sleep(0.2)
    results.put(build(Builder(after=slow)))


def test_eight_processes_at_once_build_once(place: Path, tmp_path: Path) -> None:
    context, counter = multiprocessing.get_context("fork"), tmp_path / "counter"
    counter.mkdir()
    results = context.Queue()
    processes = [context.Process(target=_builder_process, args=(place, counter, results)) for _ in range(8)]
    for process in processes:
        process.start()
    assert [results.get(timeout=30) for _ in processes] == [CONTENT] * 8
    for process in processes:
        process.join(20)
    assert [process.exitcode for process in processes] == [0] * 8
    assert len(list(counter.iterdir())) == 1
    assert [path.name for path in (place / "binaries").iterdir()] == [KEY]


def test_a_build_inside_a_build(place: Path) -> None:
    inner, key = Builder(b"library"), KEY[:8] + OTHER[8:]
    outer = Builder(after=lambda: build(inner, key) and None)
    assert build_watched(outer) == [] and build(inner, key) == b"library" and (outer.calls, inner.calls) == (1, 1)


def test_a_lost_race_is_a_success(place: Path) -> None:
    """Two builders without a lock between them: the later one uses what the earlier one published."""
    builder = Builder(after=lambda: build(Builder()) and None)
    entry = cache.store(KEY, builder)
    assert (entry.path / "kernel.so").read_bytes() == CONTENT
    assert [path.name for path in (place / "binaries").iterdir()] == [KEY]


def _hang(ready: Any) -> None:
    def wait() -> None:
        ready.set()
        time.sleep(60)
    build(Builder(after=wait))


def test_a_killed_builder_does_not_block_the_next(place: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_hang, args=(ready,))
    process.start()
    assert ready.wait(20)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(20)
    builder = Builder()
    assert build_watched(builder) == [] and builder.calls == 1
    assert len([path for path in (place / "binaries").iterdir() if path.name.startswith(".staging")]) == 1


def test_a_builder_that_hangs_is_not_waited_for_without_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_COMPILE_TIMEOUT", "0.2")
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_hang, args=(ready,))
    process.start()
    try:
        assert ready.wait(20)
        builder = Builder()
        seen = build_watched(builder)
        assert builder.calls == 1 and len(seen) == 1 and str(place / "locks") in seen[0]
    finally:
        process.kill()
        process.join(20)


def test_locks_that_the_file_system_lacks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "no locks")
    monkeypatch.setattr(fcntl, "flock", refuse)
    builder = Builder()
    assert build_watched(builder) == [] and builder.calls == 1
    assert not list((place / "locks").glob("*")) or all(path.stat().st_size == 0 for path in (place / "locks").iterdir())


def test_an_entry_taken_away_while_it_is_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder, real = Builder(), cache._check
    build(builder)

    def check(directory: Path) -> dict[str, Any]:
        monkeypatch.setattr(cache, "_check", real)
        shutil.rmtree(directory)
        return real(directory)
    monkeypatch.setattr(cache, "_check", check)
    assert build_watched(builder) == [] and builder.calls == 2


# --- keys

def test_two_versions_of_the_package_share_a_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = cache.key({"source": "s"})
    monkeypatch.setattr(cache, "kernel_hash", lambda: "of another version")
    theirs = cache.key({"source": "s"})
    assert ours != theirs
    assert build(Builder(b"ours"), ours) == b"ours" and build(Builder(b"theirs"), theirs) == b"theirs"
    assert build(Builder(b"never"), ours) == b"ours"


def test_a_key_depends_on_every_field_and_on_nothing_else() -> None:
    fields = {"source": "s", "flags": ["-O2"], "arch": "gfx942"}
    assert cache.key(fields) == cache.key(dict(reversed(fields.items())))
    changed = [{**fields, "source": "t"}, {**fields, "flags": ["-O3"]}, {**fields, "flags": ["-O", "2"]},
               {**fields, "arch": "gfx950"}, {**fields, "more": 1}]
    assert len({cache.key(one) for one in [fields, *changed]}) == 6


def test_the_kernel_hash_follows_headers_and_lowering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gconvdsl"
    header = package / "backends" / "include" / "gconv" / "cpu" / "deep.hpp"
    header.parent.mkdir(parents=True)
    header.write_text("1")
    (package / "lower.py").write_text("1")
    monkeypatch.setattr(cache, "__file__", str(package / "cache.py"))

    def now() -> str:
        cache._source_digest.cache_clear()
        return cache.kernel_hash()
    try:
        first = now()
        assert now() == first
        header.write_text("2")
        second = now()
        (package / "lower.py").write_text("2")
        third = now()
        (package / "cli.py").write_text("3")
        assert len({first, second, third}) == 3 and now() == third
    finally:
        cache._source_digest.cache_clear()
