"""Fixtures of the backends' tests."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from cuda_harness import SOURCE, Fake
from gconvdsl import choose
from gconvdsl.backends import base, cuda, cuda_driver, cuda_launch, toolchain
from gconvdsl.backends.base import Artifact


@pytest.fixture
def fake(require_tool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Fake]:
    """The stand-in in place of the driver, and kernels that need no nvcc. Settings, caches and the log are fresh."""
    flags = ["-std=c++17", "-shared", "-fPIC", "-O1"]
    path = str(toolchain.compile_cached(require_tool("cxx"), SOURCE, flags, target="test", arch="any", kernel="fake",
                                        source_name="fake.cpp", output_name="fake.so").path)
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path))      # failures of launches are remembered there
    tmp_path.chmod(0o700)
    made = Fake(path)
    made.lib.fake_reset()
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(b"\177ELF and more")
    cuda_driver.open_driver.cache_clear()
    cuda_launch._loaded.clear()
    monkeypatch.setattr(cuda, "_LIBRARIES", (str(tmp_path / "absent.so"), path))
    monkeypatch.setattr(cuda.CudaBackend, "compile", lambda *_: Artifact(cubin, 13, {"tool": "nvcc 13.0", "resources": {}}))
    monkeypatch.setattr(cuda.CudaBackend, "identity", lambda *_: {})
    monkeypatch.setitem(base._loaded, "cuda", cuda.CudaBackend())
    monkeypatch.setattr(choose, "_detected", {})
    choose.forget()
    yield made
    choose.forget()
    gc.collect()
    cuda_driver.open_driver.cache_clear()
