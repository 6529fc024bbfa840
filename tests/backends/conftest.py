"""Fixtures of the backends' tests."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from cuda_harness import HIP_SOURCE, SOURCE, Fake
from gconvdsl import choose
from gconvdsl.backends import base, cuda, cuda_driver, gpu_launch, hip, hip_driver, toolchain
from gconvdsl.backends.base import Artifact


def built(tool: Any, source: str) -> Fake:
    """A stand-in library of this source, with a fresh log."""
    flags = ["-std=c++17", "-shared", "-fPIC", "-O1"]
    found = toolchain.compile_cached(tool, source, flags, target="test", arch="any", kernel="fake", source_name="fake.cpp",
                                     output_name="fake.so")
    made = Fake(str(found.path))
    made.lib.fake_reset()
    return made


@contextmanager
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str, cls: Any, tool: str) -> Iterator[None]:
    """A target of class ``cls`` with kernels that need no compiler. Settings and caches are fresh."""
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path))      # failures of launches are remembered there
    tmp_path.chmod(0o700)
    kernel = tmp_path / "kernel.cubin"
    kernel.write_bytes(b"\177ELF and more")
    gpu_launch._loaded.clear()
    monkeypatch.setattr(cls, "compile", lambda *_: Artifact(kernel, 13, {"tool": tool, "resources": {}}))
    monkeypatch.setattr(cls, "identity", lambda *_: {})
    monkeypatch.setitem(base._loaded, target, cls())
    monkeypatch.setattr(choose, "_detected", {})
    choose.forget()
    yield
    choose.forget()
    gc.collect()


@pytest.fixture
def fake(require_tool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Fake]:
    """The stand-in in place of the NVIDIA driver."""
    made = built(require_tool("cxx"), SOURCE)
    cuda_driver.open_driver.cache_clear()
    monkeypatch.setattr(cuda, "_LIBRARIES", (str(tmp_path / "absent.so"), made.path))
    with alone(monkeypatch, tmp_path, "cuda", cuda.CudaBackend, "nvcc 13.0"):
        yield made
    cuda_driver.open_driver.cache_clear()


@pytest.fixture
def fake_hip(require_tool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Fake]:
    """The stand-in in place of the HIP runtime, and a kernel driver that lists two GPUs."""
    made = built(require_tool("cxx"), HIP_SOURCE)
    made.lib.fake_properties(0)
    listed = {"1": "gfx_target_version 110000\nlocation_id 49408\n",
              "2": "gfx_target_version 90402\nlocation_id 1536\ndomain 1\n"}
    for node, text in listed.items():
        (tmp_path / "kfd" / node).mkdir(parents=True)
        (tmp_path / "kfd" / node / "properties").write_text(text)
    monkeypatch.setattr(hip, "_KFD", tmp_path / "kfd")
    monkeypatch.setattr(hip, "_LIBRARIES", (str(tmp_path / "absent.so"), made.path))
    monkeypatch.setattr(hip_driver, "_MAPS", tmp_path / "maps")
    for name in ("ROCM_PATH", "HIP_PATH"):
        monkeypatch.delenv(name, raising=False)
    with alone(monkeypatch, tmp_path, "hip", hip.HipBackend, "clang 22"):
        yield made
