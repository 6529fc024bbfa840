"""Compilers: finding and identifying them, running them in a clean environment within a time limit, telling what went wrong."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any, Callable

import pytest

from gconvdsl.backends import base, compilers, toolchain
from gconvdsl.errors import CompileError

@pytest.fixture
def bin_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH besides /usr/bin's shell tools, which are linked into it; and no compiler is known yet."""
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("sh", "cat", "sleep", "env", "touch"):
        (path / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("GCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compilers, "_known", {})
    return path


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_cxx(path: Path, version: str = "g++ (GCC) 12.2.0", build: str = ': > "$out"') -> Path:
    """A C++ compiler that notes each start in ``starts`` beside it."""
    return script(path, f"""echo started >> {path.parent}/starts
case "$1" in --version) echo '{version}'; exit;; -dumpmachine) echo x86_64-linux-gnu; exit;; esac
while [ $# -gt 0 ]; do case "$1" in -o) out="$2";; esac; shift; done
{build}""")


def starts(directory: Path) -> int:
    path = directory / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def compiled(source: str = "int f();", flags: tuple[str, ...] = ("-O2",), **changed: Any) -> base.Artifact:
    named = {"target": "sim", "arch": "gfx942", "kernel": "scale", "source_name": "kernel.cpp", "output_name": "kernel.so"}
    return toolchain.compile_cached(toolchain.require("cxx", "sim"), source, flags, **{**named, **changed})


# --- finding and identifying

def test_a_warm_hit_starts_no_process(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cxx(bin_directory / "g++")
    assert not compiled().cached and starts(bin_directory) == 3     # version, machine, compilation
    monkeypatch.setattr(compilers, "_known", {})        # as in a new process
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    assert compiled().cached and starts(bin_directory) == 3


def test_a_changed_compiler_is_asked_again_and_compiles_again(bin_directory: Path) -> None:
    fake_cxx(bin_directory / "g++")
    assert not compiled().cached and compiled().cached
    fake_cxx(bin_directory / "g++", version="g++ (GCC) 12.2.10")
    tool = toolchain.require("cxx", "sim")
    assert tool.release == (12, 2, 10) and not compiled().cached


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"files": 3, "tool": {}}', b"\xff\xfe"])
def test_damaged_notes_about_a_compiler_are_replaced(bin_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     content: bytes) -> None:
    fake_cxx(bin_directory / "g++")
    first = toolchain.require("cxx", "sim")
    [note] = (tmp_path / "cache" / "compilers").iterdir()
    note.write_bytes(content)
    monkeypatch.setattr(compilers, "_known", {})
    assert toolchain.require("cxx", "sim") == first and note.read_bytes() != content


@pytest.mark.parametrize("change", [{"source": "int g();"}, {"flags": ("-O3",)}, {"arch": "gfx950"}, {"target": "cpu"},
                                    {"extra": {"features": "avx2"}}, {"output_name": "other.so"}])
def test_whatever_decides_the_result_belongs_to_the_key(bin_directory: Path, change: dict[str, Any]) -> None:
    fake_cxx(bin_directory / "g++")
    first = compiled()
    assert not compiled(**change).cached and compiled().path == first.path and compiled().cached


def test_another_compiler_of_the_same_version_is_another(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cxx(bin_directory / "g++")
    fake_cxx(bin_directory / "mine")
    compiled()
    monkeypatch.setenv("GCONV_CXX", "mine")
    assert not compiled().cached


def test_a_compiler_cache_in_front_of_the_compiler_is_passed_over(bin_directory: Path) -> None:
    script(bin_directory / "ccache", "echo g++ 1.0")
    (bin_directory / "g++").symlink_to(bin_directory / "ccache")
    fake_cxx(bin_directory / "c++")
    assert toolchain.require("cxx", "sim").command == str(bin_directory / "c++")


def test_one_that_does_not_start_is_passed_over(bin_directory: Path) -> None:
    script(bin_directory / "g++", "exit 127")
    (bin_directory / "clang++").write_text("not a program")
    (bin_directory / "clang++").chmod(0o755)
    fake_cxx(bin_directory / "c++")
    assert toolchain.require("cxx", "sim").command == str(bin_directory / "c++")


@pytest.mark.parametrize(("kind", "word"), [("cxx", "g++"), ("clang", "clang-22"), ("hipcc", "hipcc"), ("nvcc", "nvcc")])
def test_a_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, kind: str, word: str) -> None:
    monkeypatch.setattr(compilers, "candidates", lambda kind: iter(()))
    with pytest.raises(CompileError) as caught:
        toolchain.require(kind, "hip")
    assert caught.value.code == "compile.missing" and word in caught.value.fix and f"GCONV_{kind.upper()}" in caught.value.fix


def test_a_variable_that_names_no_compiler_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_CXX", "/nowhere/g++")
    with pytest.raises(CompileError) as caught:
        toolchain.require("cxx", "cpu")
    assert caught.value.code == "compile.missing" and "/nowhere/g++" in caught.value.fix and "apt-get" not in caught.value.fix


def test_the_users_choice_is_the_only_candidate(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cxx(bin_directory / "g++")
    monkeypatch.setenv("GCONV_CXX", str(bin_directory / "absent"))
    assert toolchain.find("cxx") is None
    monkeypatch.setenv("GCONV_CXX", str(bin_directory / "g++"))
    assert toolchain.require("cxx", "sim").command == str(bin_directory / "g++")


def test_hipcc_that_forwards_to_nvcc_is_recognised_by_asking(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(bin_directory / "hipcc", "echo 'HIP version: 5.2'; echo 'nvcc: NVIDIA (R) Cuda compiler driver'")
    monkeypatch.setenv("GCONV_HIPCC", str(path))
    assert toolchain.find("hipcc") is None
    assert "nvcc" in compilers.identify("hipcc", str(path)).unusable


def test_a_new_clang_behind_hipcc_is_noticed(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = "echo '\tgfx908'"
    clang = script(bin_directory / "clang++-17", cpus)
    path = script(bin_directory / "hipcc", f"echo 'clang version 17.0'; echo 'InstalledDir: {bin_directory}'")
    monkeypatch.setenv("GCONV_HIPCC", str(path))
    assert toolchain.require("hipcc", "hip").archs == ("gfx908",)
    script(clang, f"{cpus}; echo '\tgfx942'")
    assert toolchain.require("hipcc", "hip").archs == ("gfx908", "gfx942")


def test_clang_without_its_linker_is_not_usable(bin_directory: Path) -> None:
    body = "case \"$*\" in *print-prog-name*) echo ld.lld;; *--version*) echo 'clang version 22.1.8';; *) echo '\tgfx942';; esac"
    path = script(bin_directory / "clang-22", body)
    assert "ld.lld" in compilers.identify("clang", str(path)).unusable
    script(bin_directory / "ld.lld", "")
    script(path, body + " # again")
    assert compilers.identify("clang", str(path)).unusable == ""


@pytest.mark.parametrize(("version", "release"), [
    ("Debian clang version 22.1.8 (1~deb12u1)", (22, 1, 8)), ("g++ (Debian 12.2.0-14) 12.2.0\nCopyright", (12, 2, 0)),
    ("nvcc: NVIDIA\nCuda compilation tools, release 13.0, V13.0.88", (13, 0)), ("strange", ()),
])
def test_release(version: str, release: tuple[int, ...]) -> None:
    assert compilers.Tool("cxx", "c", "c", version).release == release


# --- running

def test_nothing_of_the_users_environment_changes_the_result(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harmful = ["NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX",
               "HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND", "CCC_OVERRIDE_OPTIONS", "COMPILER_PATH", "LIBRARY_PATH",
               "CXXFLAGS"]
    for name in harmful:
        monkeypatch.setenv(name, "harm")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    fake_cxx(bin_directory / "g++", build='env > "$out"')
    lines = dict(line.split("=", 1) for line in compiled().path.read_text().splitlines())
    assert not set(harmful) & set(lines) and "harm" not in lines.values()
    assert lines["LANG"] == "C" and lines["PATH"] == str(bin_directory)


def test_hipcc_is_told_its_platform() -> None:
    assert compilers.clean_environment("hipcc")["HIP_PLATFORM"] == "amd"
    assert "HIP_PLATFORM" not in compilers.clean_environment("clang")


def test_a_poisoned_include_path_does_not_reach_the_compiler(require_tool: Callable[..., Any], tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("cxx")
    (tmp_path / "stdio.h").write_text("#error poisoned")
    monkeypatch.setenv("CPATH", str(tmp_path))
    assert compiled("#include <stdio.h>\nint f() { return 1; }", ("-shared", "-fPIC")).bytes > 0


def test_a_slow_compiler_is_stopped_with_its_children(bin_directory: Path, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCONV_COMPILE_TIMEOUT", "0.4")
    late = tmp_path / "late"
    fake_cxx(bin_directory / "g++", build=f"(sleep 1; touch {late}) & wait")
    with pytest.raises(CompileError) as caught:
        compiled()
    assert caught.value.code == "compile.timeout" and "0.4" in str(caught.value) and "GCONV_COMPILE_TIMEOUT" in caught.value.fix
    time.sleep(1.2)
    assert not late.exists()


def test_a_compiler_that_vanishes(bin_directory: Path) -> None:
    tool = compilers.Tool("cxx", str(bin_directory / "gone"), "gone", "1")
    with pytest.raises(CompileError) as caught:
        toolchain.compile_cached(tool, "", [], target="sim", arch="x", kernel="k", source_name="k.cpp", output_name="k.so")
    assert caught.value.code == "compile.missing"


def test_success_without_output_is_a_failure(bin_directory: Path) -> None:
    fake_cxx(bin_directory / "g++", build="true")
    with pytest.raises(CompileError):
        compiled()


# --- what went wrong

def test_an_error_names_the_first_line_and_shows_it(require_tool: Callable[..., Any]) -> None:
    tool = require_tool("cxx")
    with pytest.raises(CompileError) as caught:
        compiled("int one;\nint two = missing_name;\nint three = other_name;\n", ("-shared",))
    err = caught.value
    assert err.code == "compile.failed" and err.values["status"] == 1 and err.values["kernel"] == "scale"
    assert err.values["command"][0] == tool.command and "kernel.cpp:2" in err.fix and "missing_name" in err.fix
    assert ">    2 | int two = missing_name;" in err.details and "other_name" in err.details


@pytest.mark.parametrize(("text", "place"), [
    ("In file included from kernel.hip:1:\n/a b/x.hpp:12:3: error: no member\n1 error generated.", "/a b/x.hpp:12: no member"),
    ("kernel.cu(7): warning #177-D: unused\nkernel.cu(9): error: identifier \"q\" is undefined\n", "kernel.cu:9: identifier"),
    ("kernel.cpp:3:10: fatal error: none.h: No such file or directory\n", "kernel.cpp:3: none.h"),
    ("ptxas error   : Entry function 'k' uses too much shared data (0x20000 bytes)\n", "ptxas error   : Entry function 'k'"),
    ("ld.lld: error: undefined symbol: memcpy\n", "ld.lld: error: undefined symbol: memcpy"),
    ("Killed\n", "no error message"),
])
def test_the_first_error_is_found(bin_directory: Path, tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "said").write_text(text)
    fake_cxx(bin_directory / "g++", build=f"cat {tmp_path}/said >&2; exit 3")
    with pytest.raises(CompileError) as caught:
        compiled()
    assert place in caught.value.fix and caught.value.values["status"] == 3 and text.strip() in caught.value.details


def test_long_output_is_trimmed(bin_directory: Path) -> None:
    loop = 'i=0; while [ $i -lt 900 ]; do echo "k.cpp:1:1: error: number $i"; i=$((i+1)); done; exit 1'
    fake_cxx(bin_directory / "g++", build=loop)
    with pytest.raises(CompileError) as caught:
        compiled()
    assert len(caught.value.details) < 8000 and "900 lines" in caught.value.details


def test_debuggers_are_told_where_the_source_lies(require_tool: Callable[..., Any]) -> None:
    require_tool("cxx")
    artifact = compiled("int f() { return 5; }\n", ("-g", "-O0", "-shared", "-fPIC"))
    assert os.fsencode(artifact.path.parent) in artifact.path.read_bytes() and b".staging" not in artifact.path.read_bytes()
    assert (artifact.path.parent / "kernel.cpp").is_file()
