"""The package as a whole: public names, package data, the catalogue of errors, settings, and headers that stand alone."""

from __future__ import annotations

import ast
import configparser
import importlib
import os
import re
import string
import subprocess
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import gconvdsl
from gconvdsl import env
from gconvdsl.backends.compilers import INSTALL
from gconvdsl.catalogue import CATALOGUE

ROOT = Path(gconvdsl.__file__).parent
INCLUDE = ROOT / "backends" / "include"
GENERATED = re.compile(r"_\w+_api\.py")
SOURCES = sorted(path for folder in (ROOT, ROOT / "grammar", ROOT / "backends") for path in folder.glob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the last part of its function's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node


def constants(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


# --- names

def test_the_public_names_are_sorted_and_load() -> None:
    assert gconvdsl.__all__ == sorted(set(gconvdsl.__all__))
    for name in gconvdsl.__all__:
        assert not isinstance(getattr(gconvdsl, name), type(gconvdsl)), f"{name} is a module"
    assert dir(gconvdsl) == gconvdsl.__all__


def test_type_checkers_see_the_same_names_in_the_same_modules() -> None:
    block = next(node for node in TREES[ROOT / "__init__.py"].body if isinstance(node, ast.If))
    seen = {name.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert set(seen) == set(gconvdsl.__all__) - {"__version__"}
    for name, module in seen.items():
        assert getattr(importlib.import_module(f"gconvdsl.{module}"), name) is getattr(gconvdsl, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="conv4"):
        print(gconvdsl.conv4)


def test_a_module_does_not_replace_a_public_name() -> None:
    import gconvdsl.kernel
    import gconvdsl.problem
    import gconvdsl.verify
    assert callable(gconvdsl.kernel) and callable(gconvdsl.problem) and callable(gconvdsl.verify)


@pytest.mark.parametrize("path", [p for p in SOURCES if not GENERATED.fullmatch(p.name) and p.stat().st_size], ids=module_name)
def test_every_module_says_what_it_offers(path: Path) -> None:
    module = importlib.import_module(module_name(path))
    assert module.__doc__ and len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name), name


# --- what is installed

@pytest.fixture(scope="module")
def setup() -> configparser.ConfigParser:
    path = ROOT.parent / "setup.cfg"
    if not path.is_file():
        pytest.skip("the package is installed; setup.cfg is in the source tree")
    parser = configparser.ConfigParser()
    parser.read(path, encoding="utf-8")
    return parser


def data_files() -> Iterator[str]:
    """Every file under the package that is not Python, relative to it, through the two links."""
    for folder, _, names in os.walk(ROOT, followlinks=True):
        for name in names:
            if not name.endswith((".py", ".pyc")):
                yield (Path(folder) / name).relative_to(ROOT).as_posix()


def same_depth(path: str, pattern: str) -> bool:
    return path.count("/") == pattern.count("/") and fnmatch(path, pattern)


def test_every_data_file_is_installed(setup: configparser.ConfigParser) -> None:
    patterns = [f"{package.replace('.', '/')}/{pattern}".partition("/")[2]
                for package, listed in setup["options.package_data"].items() for pattern in listed.split()]
    found = list(data_files())
    assert {"py.typed", "data/archs.json", "grammar/gconv.lark", "backends/include/gconv/args.hpp"} <= set(found)
    assert [path for path in found if not any(same_depth(path, pattern) for pattern in patterns)] == []


def test_every_package_is_installed(setup: configparser.ConfigParser) -> None:
    found = {module_name(path) for path in (*ROOT.rglob("__init__.py"), *SOURCES) if path.name == "__init__.py"}
    assert set(setup["options"]["packages"].split()) == found


def test_the_console_script_exists(setup: configparser.ConfigParser) -> None:
    module, name = setup["options.entry_points"]["console_scripts"].partition("=")[2].strip().split(":")
    assert callable(getattr(importlib.import_module(module), name))


# --- one table each: errors, settings

def test_every_error_raised_is_in_the_catalogue() -> None:
    first_words = {code.partition(".")[0] for code in CATALOGUE}
    unknown = []
    for path, tree in TREES.items():
        for name, call in calls(tree):
            code = getattr(call.args[0], "value", None) if call.args else None
            if name in ("error", "fail", "fault") and isinstance(code, str) and code.partition(".")[0] in first_words:
                unknown += [] if code in CATALOGUE else [f"{path.name}:{call.lineno} {code}"]
    assert unknown == []


def test_every_error_of_the_catalogue_is_raised() -> None:
    used = set().union(*(constants(tree) for path, tree in TREES.items() if path.name != "catalogue.py"))
    assert sorted(set(CATALOGUE) - used) == []


def fields(code: str) -> set[str]:
    """The names that an entry's two templates print."""
    texts = (CATALOGUE[code].message, CATALOGUE[code].fix)
    return {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}


def test_errors_are_raised_with_every_value_that_they_print() -> None:
    incomplete = []
    for path, tree in TREES.items():
        for name, call in calls(tree):
            code = getattr(call.args[0], "value", None) if call.args else None
            given = {keyword.arg for keyword in call.keywords}
            if name == "error" and code in CATALOGUE and None not in given and fields(code) - given:      # None: a ** argument
                incomplete.append(f"{path.name}:{call.lineno} {code} lacks {sorted(fields(code) - given)}")
    assert incomplete == []


def test_settings_are_read_through_their_table_and_every_row_is_read() -> None:
    elsewhere, read = [], {f"GCONV_{kind.upper()}" for kind in INSTALL}      # each compiler's, spelt so
    for path, tree in TREES.items():
        if path.name != "env.py":
            read |= constants(tree) & set(env.VARIABLES)
            elsewhere += [f"{path.name}:{call.lineno}" for name, call in calls(tree)
                          if (name == "getenv" or "'environ'" in ast.dump(call.func)) and "GCONV_" in ast.dump(call)]
    assert elsewhere == []
    assert sorted(set(env.VARIABLES) - read) == ["GCONV_REQUIRE"]            # the tests read it


def test_no_data_is_ever_executed() -> None:
    found = []
    for path, tree in TREES.items():
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        found += [f"{path.name}: {name}" for name in modules & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}]
        found += [f"{path.name}:{call.lineno}" for _, call in calls(tree) if getattr(call.func, "id", "") in ("eval", "exec")]
    assert found == []


# --- headers

def compile_alone(command: list[str], header: Path) -> str:
    """What the compiler says to a file that includes only this header."""
    source = f'#include "{header.relative_to(INCLUDE).as_posix()}"\n'
    done = subprocess.run([*command, "-std=c++17", "-fsyntax-only", f"-I{INCLUDE}", "-"], input=source, text=True,
                          capture_output=True, timeout=60)
    return done.stderr if done.returncode else ""


PART = "sim_program.hpp"      # the second half of sim_runtime.cpp
HOST_HEADERS = [*INCLUDE.glob("gconv/*.hpp"), *INCLUDE.glob("gconv/cpu/*.hpp"), *INCLUDE.glob("gconv/platform/sim*.hpp")]


@pytest.mark.parametrize("header", sorted(p for p in HOST_HEADERS if p.name != PART), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_header_includes_what_it_needs(header: Path, require_tool: Callable[..., Any]) -> None:
    defines = ["-DGCONV_PLATFORM_SIM", "-D__gfx942__=1", "-DGCONV_LANES=4"]
    assert compile_alone([require_tool("cxx").path, "-x", "c++", *defines], header) == ""


@pytest.mark.parametrize("header", sorted(INCLUDE.glob("gconv/*.hpp")), ids=lambda path: path.name)
def test_a_device_header_includes_what_it_needs(header: Path, require_tool: Callable[..., Any]) -> None:
    command = [require_tool("clang", "gfx1100").path, "-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib",
               "--offload-arch=gfx1100"]
    assert compile_alone([*command, "-DGCONV_PLATFORM_HIP"], header) == ""


# --- documentation

def test_the_index_names_every_page_and_every_link_leads_somewhere() -> None:
    pages = [*ROOT.parent.glob("*.md"), *ROOT.parent.glob("docs/*.md"), *ROOT.parent.glob("examples/*.md")]
    if not (ROOT.parent / "docs" / "index.md").is_file():
        pytest.skip("the package is installed; the documentation is in the source tree")
    links = {page: set(re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))) for page in pages}
    assert [f"{page.name}: {link}" for page, found in links.items() for link in found if not (page.parent / link).exists()] == []
    index = ROOT.parent / "docs" / "index.md"
    assert {page.name for page in index.parent.glob("*.md")} - links[index] == {"index.md"}


def test_only_documented_variables_are_read() -> None:
    """Beside the table of GCONV_* variables: where toolkits lie, and whether a log is wanted."""
    known = {"CI", "CUDA_HOME", "CUDA_PATH", "HIP_PATH", "ROCM_PATH", "PATH", "HOME", "TMPDIR"}
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
                read = node.slice
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv") and node.args:
                read = node.args[0]
            else:
                continue
            if isinstance(read, ast.Constant):
                assert str(read.value).startswith("GCONV_") or read.value in known, f"{path.name}:{node.lineno} reads {read.value}"
