"""What all tests share: a private cache for the whole run, tools that may be missing, and hypothesis profiles."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from gconvdsl import cachedir, env
from gconvdsl.backends import toolchain

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, max_examples=40, suppress_health_check=_SLOW)
settings.register_profile("nightly", deadline=None, print_blob=True, max_examples=200, suppress_health_check=_SLOW)

_KEPT = ("GCONV_REQUIRE", "GCONV_CLANG", "GCONV_HIPCC", "GCONV_NVCC", "GCONV_CXX", "GCONV_OBJDUMP")


def pytest_configure(config: pytest.Config) -> None:
    """The nightly profile with ``-m nightly``, else the one that gives the same examples every time."""
    settings.load_profile("nightly" if config.option.markexpr == "nightly" else "ci")


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A new cache directory that all tests of this run share, so that a kernel is built once; no setting of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in set(env.VARIABLES) - set(_KEPT):
            patch.delenv(name, raising=False)
        path = str(tmp_path_factory.mktemp("cache"))
        os.chmod(path, 0o700)
        patch.setenv("GCONV_CACHE_DIR", path)
        yield path


@pytest.fixture
def new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache directory of one test, in a process that has not warned about any."""
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    for name in ("_roots", "_temporary", "_warned"):
        monkeypatch.setattr(cachedir, name, type(getattr(cachedir, name))())
    monkeypatch.setenv("GCONV_CACHE_DIR", str(path))
    yield path
    for temporary in cachedir._temporary:
        shutil.rmtree(temporary, ignore_errors=True)


def tool(kind: str, arch: str = "") -> toolchain.Tool:
    """A compiler of this kind (clang, hipcc, nvcc, cxx) that knows ``arch``. Without one the test skips, or fails where
    GCONV_REQUIRE names the kind."""
    found = toolchain.find(kind, arch)
    if found is None:
        message = f"{kind}{f' for {arch}' if arch else ''} is missing. {toolchain.INSTALL[kind]}"
        if kind in env.get("GCONV_REQUIRE"):
            pytest.fail(f"GCONV_REQUIRE names it, but {message}")
        pytest.skip(message)
    return found


@pytest.fixture
def require_tool() -> Callable[..., toolchain.Tool]:
    """`tool` as a fixture: ``require_tool("clang", "gfx950")``."""
    return tool
