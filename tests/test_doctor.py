"""``gconv doctor``: honest about what is here and what is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gconvdsl import cachedir
from gconvdsl.backends import base, compilers, cuda, hip, hip_driver
from gconvdsl.doctor import doctor, examine


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any compiler or GPU."""
    monkeypatch.setattr(compilers, "candidates", lambda kind: iter(()))
    monkeypatch.setattr(hip, "_KFD", tmp_path / "kfd")
    monkeypatch.setattr(hip_driver, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(cuda, "_LIBRARIES", (str(tmp_path / "libcuda.so.1"),))
    return tmp_path


def test_a_machine_with_nothing(bare: Path) -> None:
    text, facts = doctor()
    assert all(rows == [] for rows in facts["compilers"].values())
    for word in ("clang-22", "lld-22", "hipcc", "libamdhip64-dev", "nvidia-cuda-nvcc", "g++"):
        assert any(word in line for line in facts["missing"]), word
        assert word in text
    for name in ("hip", "cuda"):
        target = facts["targets"][name]
        assert not target["available"] and target["arch"] is None and target["devices"] == [] and target["reason"]
        assert set(target["builds"].values()) == {None}
    assert "device: none" in text


def test_the_facts_are_json_and_in_the_text(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_REQUIRE", "clang,nvcc")
    text, facts = doctor()
    assert json.loads(json.dumps(facts)) == facts
    for part in ("compilers", "targets", "caches", "Python packages", "missing"):
        assert f"\n{part}\n" in text
    assert facts["caches"]["compiled kernels"]["path"] == os.environ["GCONV_CACHE_DIR"] and os.environ["GCONV_CACHE_DIR"] in text


def test_compilers_are_shown_with_the_archs_they_know(monkeypatch: pytest.MonkeyPatch) -> None:
    known, refused = ("gfx90a", "gfx950", "gfx601"), "it forwards to nvcc"
    tools = {tool.command: tool for tool in (
        compilers.Tool("clang", "/usr/bin/clang-22", "/opt/clang", "clang version 22.1.8", known),
        compilers.Tool("clang", "/usr/bin/clang", "/opt/clang", "clang version 22.1.8", known),
        compilers.Tool("hipcc", "/usr/bin/hipcc", "/usr/bin/hipcc", "nvcc release 13.0", (), refused),
    )}
    monkeypatch.setattr(compilers, "candidates", lambda kind: iter([one.command for one in tools.values() if one.kind == kind]))
    monkeypatch.setattr(compilers, "identify", lambda kind, command: tools[command])
    text, facts = doctor()
    [clang], [hipcc] = facts["compilers"]["clang"], facts["compilers"]["hipcc"]
    assert clang["archs"] == ["gfx90a", "gfx950"] and clang["version"] == "22.1.8" and clang["problem"] == ""
    assert hipcc["problem"] == refused and refused in text
    builds = facts["targets"]["hip"]["builds"]
    assert builds["gfx950"] == "clang-22 22.1.8" and builds["gfx942"] is None
    assert any("gfx942" in line and "clang-22" in line for line in facts["missing"])


def test_a_device_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = base.Device(0, "AMD Instinct MI300X", "gfx942", 192 << 30, "HIP 60400000")
    found = base.Detection(True, "gfx942", "1 x AMD Instinct MI300X", (device,))
    monkeypatch.setattr(hip.HipBackend, "detect", lambda self: found)
    text, facts = doctor()
    assert facts["targets"]["hip"]["devices"][0]["name"] == "AMD Instinct MI300X" and "1 x AMD Instinct MI300X" in text
    assert facts["targets"]["hip"]["available"] and facts["targets"]["hip"]["arch"] == "gfx942"


def test_a_gpu_without_its_runtime(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "kfd" / "1").mkdir(parents=True)
    (bare / "kfd" / "1" / "properties").write_text("gfx_target_version 90402\n")
    monkeypatch.setattr(hip, "_LIBRARIES", (str(bare / "libamdhip64.so"),))
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.delenv("HIP_PATH", raising=False)
    target = examine()["targets"]["hip"]
    assert not target["available"] and "runtime" in target["reason"]


def test_bad_settings_are_reported_and_stop_nothing(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_THREADS", "many")
    monkeypatch.setenv("GCONV_SIM_ORDER", "sideways")
    text, facts = doctor()
    assert facts["settings"]["GCONV_THREADS"]["problem"] and any("sideways" in line for line in facts["missing"])
    assert "many" in text


def test_a_missing_package_is_reported(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata
    real = metadata.version

    def version(name: str) -> str:
        if name == "lark":
            raise metadata.PackageNotFoundError(name)
        return real(name)
    monkeypatch.setattr(metadata, "version", version)
    text, facts = doctor()
    assert facts["packages"]["lark"] is None and any("pip install lark" in line for line in facts["missing"])
    assert facts["packages"]["numpy"] == real("numpy")


def test_a_cache_that_cannot_be_used_is_reported(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_roots", "_temporary", "_warned"):
        monkeypatch.setattr(cachedir, name, type(getattr(cachedir, name))())
    monkeypatch.setenv("GCONV_CACHE_DIR", "/proc/no/such")
    with pytest.warns(RuntimeWarning, match="/proc/no/such"):
        text, facts = doctor()
    assert facts["caches"]["compiled kernels"]["temporary"] and "temporary" in text
