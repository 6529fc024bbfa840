"""``gconv doctor``: what is on this machine, what of it can be used, and what to install for the rest."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict
from typing import Any

from . import archs, cache, env, records
from ._version import __version__
from .backends import base, compilers
from .errors import GconvError

__all__ = ["doctor", "examine"]

_REQUIRED = ("numpy", "lark", "cffi", "ml_dtypes", "filelock", "platformdirs", "rich")
_OPTIONAL = ("torch", "pyarrow", "lightgbm", "prompt_toolkit")
_BUILT_BY = {"hip": ("clang", "hipcc"), "cuda": ("nvcc",), "cpu": ("cxx",), "sim": ("cxx",), "emu": ("clang", "hipcc")}
_TITLES = {"cxx": "C++ compiler", "objdump": "llvm-objdump"}


def doctor() -> tuple[str, dict[str, Any]]:
    """A report for people, and the same facts for programs."""
    facts = examine()
    return _text(facts), facts


def examine() -> dict[str, Any]:
    """The facts: version, python, compilers, targets, caches, packages, settings, missing. All of it is JSON; nothing raises."""
    facts: dict[str, Any] = {
        "version": __version__,
        "python": {"version": platform.python_version(), "path": sys.executable},
        "compilers": {kind: _compilers(kind) for kind in compilers.KINDS},
        "targets": {name: _target(name) for name in base.TARGETS},
        "caches": {"compiled kernels": _guarded(cache.info), "recorded decisions": _guarded(records.info)},
        "packages": {name: _version(name) for name in (*_REQUIRED, *_OPTIONAL)},
        "settings": {row.name: {"value": _plain(row.value), "problem": row.problem} for row in env.describe() if row.is_set},
    }
    return {**facts, "missing": _missing(facts)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _guarded(action: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = action()
        return found
    except GconvError as err:
        return {"problem": err.message}


def _compilers(kind: str) -> list[dict[str, Any]]:
    """Every compiler of a kind, the one in use first. Archs: of those this package has kernels for, the ones it knows."""
    rows: list[dict[str, Any]] = []
    for command in dict.fromkeys(compilers.candidates(kind)):
        tool = compilers.identify(kind, command)
        known = [name for name in archs.arch_names() if name in tool.archs]
        rows.append({"command": command, "path": tool.path, "version": ".".join(map(str, tool.release)), "archs": known,
                     "problem": tool.unusable})
    distinct: dict[str, dict[str, Any]] = {}
    for row in rows:
        distinct.setdefault(row["path"], row)
    return sorted(distinct.values(), key=lambda row: bool(row["problem"]))


def _target(name: str) -> dict[str, Any]:
    """One target: its device, whether this version launches on it, and which compiler builds for each arch."""
    backend = base.get(name)
    try:
        found, builds = backend.detect(), {arch: _builder(name, arch) for arch in backend.archs()}
    except GconvError as err:       # a setting with a bad value
        found, builds = base.Detection(False, None, err.message), {}
    return {"available": found.available, "arch": found.arch, "reason": found.reason.rstrip("."),
            "devices": [asdict(device) for device in found.devices], "launches": backend.can_launch, "builds": builds}


def _builder(target: str, arch: str) -> str | None:
    """The compiler that builds for an arch, None if there is none."""
    host = compilers.find("cxx")
    if target == "cpu":
        return host.title if host and arch in _host_archs(host.archs[0]) else None
    if target == "cuda" and host is None:
        return None         # nvcc needs it
    tools = (compilers.find(kind, "" if kind == "cxx" else arch) for kind in _BUILT_BY[target])
    return next((tool.title for tool in tools if tool), None)


def _host_archs(machine: str) -> tuple[str, ...]:
    """The archs of target cpu that a compiler for this machine (``x86_64-linux-gnu``) builds for."""
    families = {"x86_64": ("avx512", "avx2", "sse2"), "aarch64": ("neon",)}
    return (*families.get(machine.partition("-")[0], ()), "generic")


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _missing(facts: dict[str, Any]) -> list[str]:
    """A sentence for everything that is not there, with what to do about it."""
    usable = {kind for kind, rows in facts["compilers"].items() if any(not row["problem"] for row in rows)}
    lines = [
        f"No usable {_TITLES.get(kind, kind)}. {compilers.INSTALL[kind]}" for kind in compilers.KINDS if kind not in usable
    ]
    for name, target in facts["targets"].items():
        unbuilt = [arch for arch, tool in target["builds"].items() if tool is None]
        lacks_only_archs = usable & set(_BUILT_BY[name]) and (name != "cuda" or "cxx" in usable)
        if name in ("hip", "cuda") and unbuilt and lacks_only_archs:
            hint = compilers.INSTALL[_BUILT_BY[name][0]]
            lines.append(f"No compiler here builds {name} kernels for {', '.join(unbuilt)}. {hint}")
    lines += [f"The Python package {name} is missing. Run python3 -m pip install {name}." for name in _REQUIRED
              if facts["packages"][name] is None]
    lines += [row["problem"] for row in facts["settings"].values() if row["problem"]]
    return lines


# --- the report

def _text(facts: dict[str, Any]) -> str:
    sections = [
        f"gconvdsl {facts['version']}, Python {facts['python']['version']} ({facts['python']['path']})",
        _section("compilers", [line for kind, rows in facts["compilers"].items() for line in _compiler_lines(kind, rows)]),
        _section("targets", [line for name, target in facts["targets"].items() for line in _target_lines(name, target)]),
        _section("caches", [_cache_line(name, row) for name, row in facts["caches"].items()]),
        _section("Python packages", [f"{name:14} {version or 'not installed'}" for name, version in facts["packages"].items()]),
        _section("settings", [f"{name} = {row['value']}" for name, row in facts["settings"].items()]),
        _section("missing", facts["missing"]),
    ]
    return "\n\n".join(section for section in sections if section)


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def _compiler_lines(kind: str, rows: list[dict[str, Any]]) -> list[str]:
    title = {"cxx": "C++"}.get(kind, kind)
    if not rows:
        return [f"{title:6} none"]
    return [f"{title:6} {row['command']} {row['version']}" + (f": not usable, {row['problem']}" if row["problem"] else "")
            + (f"  ({' '.join(row['archs'])})" if row["archs"] else "") for row in rows]


def _target_lines(name: str, target: dict[str, Any]) -> list[str]:
    device = target["reason"] if target["available"] else f"none ({target['reason']})"
    role = "" if target["launches"] or not target["available"] else "; this version compiles for it but does not launch"
    builds = [arch for arch, tool in target["builds"].items() if tool]
    return [f"{name:6} device: {device}{role}", f"{'':6} builds for: {' '.join(builds) or 'nothing'}"]


def _cache_line(name: str, row: dict[str, Any]) -> str:
    if "problem" in row:
        return f"{name}: {row['problem']}"
    count = row.get("entries", row.get("decisions"))
    state = "".join(["" if row.get("writable", True) else ", not writable", ", temporary" if row.get("temporary") else ""])
    return f"{name}: {row['path']}, {count} in {row['bytes']} bytes{state}"
