"""Environment variables: types, defaults, bad values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gconvdsl import EnvError, env

GOOD = [
    ("GCONV_THREADS", "3", 3), ("GCONV_CACHE_SIZE", "1000", 1000), ("GCONV_CACHE_SIZE", "3K", 3072),
    ("GCONV_CACHE_SIZE", "2 GiB", 2147483648), ("GCONV_COMPILE_TIMEOUT", "2.5", 2.5), ("GCONV_DEBUG", "1", True),
    ("GCONV_DEBUG", "off", False), ("GCONV_SIM_SANITIZE", "YES", True), ("GCONV_SIM_ORDER", "random:17", "random:17"),
    ("GCONV_REQUIRE", "clang, nvcc,", ("clang", "nvcc")), ("GCONV_ISA", "avx2", "avx2"),
    ("GCONV_HIP_COMPILER", "hipcc", "hipcc"), ("GCONV_TARGET", "sim:gfx942", "sim:gfx942"),
]
BAD = [
    ("GCONV_THREADS", "0"), ("GCONV_THREADS", "many"), ("GCONV_THREADS", "-1"), ("GCONV_THREADS", "1.5"),
    ("GCONV_CACHE_SIZE", "big"), ("GCONV_CACHE_SIZE", "-1"), ("GCONV_COMPILE_TIMEOUT", "0"), ("GCONV_COMPILE_TIMEOUT", "nan"),
    ("GCONV_COMPILE_TIMEOUT", "inf"), ("GCONV_DEBUG", "maybe"), ("GCONV_SIM_ORDER", "sideways"),
    ("GCONV_SIM_ORDER", "random:x"), ("GCONV_ISA", "mmx"),
]


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_a_good_value_has_its_type(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    monkeypatch.setenv(name, text)
    assert env.get(name) == value
    assert type(env.get(name)) is type(value)


@pytest.mark.parametrize(("name", "text"), BAD)
def test_a_bad_value_names_variable_value_and_what_is_allowed(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(EnvError) as caught:
        env.get(name)
    assert caught.value.code == "env.value"
    assert name in str(caught.value) and repr(text) in str(caught.value) and env.VARIABLES[name].expected in str(caught.value)


@pytest.mark.parametrize("name", env.VARIABLES)
def test_empty_is_unset(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "")
    assert env.get(name) == env.VARIABLES[name].default


def test_values_are_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_THREADS", "2")
    assert env.get("GCONV_THREADS") == 2
    monkeypatch.setenv("GCONV_THREADS", "5")
    assert env.get("GCONV_THREADS") == 5


def test_the_cache_directory_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GCONV_CACHE_DIR", "here")
    assert env.get("GCONV_CACHE_DIR") == str(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GCONV_CACHE_DIR", "~/there")
    assert env.get("GCONV_CACHE_DIR") == str(tmp_path / "there")


def test_describe_reports_a_bad_value_without_raising(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_THREADS", "many")
    monkeypatch.setenv("GCONV_DEBUG", "1")
    rows = {row.name: row for row in env.describe()}
    assert list(rows) == sorted(rows) == sorted(env.VARIABLES)
    assert "many" in rows["GCONV_THREADS"].problem and rows["GCONV_THREADS"].is_set
    assert rows["GCONV_DEBUG"].value is True and not rows["GCONV_DEBUG"].problem
    assert not rows["GCONV_NVCC"].is_set


def test_every_variable_the_package_names_is_in_the_table() -> None:
    package = Path(env.__file__).resolve().parent
    folders = [package, (package / "backends").resolve(), (package / "grammar").resolve()]
    used = {name for folder in folders for file in folder.glob("*.py")
            for name in re.findall(r"[\"'](GCONV_[A-Z_]+)[\"']", file.read_text())}
    assert used - set(env.VARIABLES) == set()
    assert "GCONV_CACHE_DIR" in used
