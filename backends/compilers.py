"""The compilers on this machine: where they are, what exactly they are, and which archs they know.

A compiler is identified by its real path and full version text. Asking costs a process, so the answer is kept, in memory and on
disk, for as long as size, time and inode of the files behind it stay the same: a warm run starts no compiler at all.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Iterator

from .. import env
from ..cachedir import roots
from ..errors import error

__all__ = ["INSTALL", "KINDS", "Tool", "clean_environment", "find", "require"]

KINDS = ("clang", "hipcc", "nvcc", "cxx", "objdump")

INSTALL = {
    "clang": "Install clang 22 with its linker (Debian: apt-get install clang-22 lld-22), or set GCONV_CLANG.",
    "hipcc": "Install ROCm's hipcc (Debian: apt-get install hipcc libamdhip64-dev rocm-device-libs), or set GCONV_HIPCC.",
    "nvcc": "Install the CUDA toolkit (or: python3 -m pip install nvidia-cuda-nvcc nvidia-cuda-runtime), or set GCONV_NVCC.",
    "cxx": "Install a C++ compiler (Debian: apt-get install g++), or set GCONV_CXX.",
    "objdump": "Install LLVM's llvm-objdump, which the emulator reads kernels with (Debian: apt-get install llvm-22), or set "
               "GCONV_OBJDUMP.",
}
"""What to do where a compiler is missing."""

_KEPT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")
_KEPT_HIPCC = ("ROCM_PATH", "HIP_PATH", "HIP_CLANG_PATH")
_WRAPPERS = ("ccache", "sccache", "distcc", "icecc")
_PROBE_SECONDS = 30.0


@dataclass(frozen=True)
class Tool:
    """A compiler: how it is started, its real path, its full version text, the archs it knows (cxx: the machine it compiles
    for), and in ``unusable`` why it cannot serve, if so."""

    kind: str
    command: str
    path: str
    version: str
    archs: tuple[str, ...] = ()
    unusable: str = ""

    @property
    def release(self) -> tuple[int, ...]:
        """The version number, such as (22, 1, 8)."""
        match = re.search(r"(?:version|release) (\d+(?:\.\d+)*)|(\d+(?:\.\d+)+)\s*$", self.version, re.MULTILINE)
        return tuple(map(int, (match[1] or match[2]).split("."))) if match else ()

    @property
    def title(self) -> str:
        """For messages and tables: ``clang-22 22.1.8``."""
        return f"{os.path.basename(self.command)} {'.'.join(map(str, self.release))}".strip()

    @property
    def identity(self) -> dict[str, Any]:
        """What goes into keys: path, version text, and the part of the environment that it reads."""
        surroundings = {k: v for k, v in clean_environment(self.kind).items() if k not in ("PATH", "HOME", "TMPDIR")}
        return {"path": self.path, "version": self.version, "environment": surroundings}


def clean_environment(kind: str) -> dict[str, str]:
    """The whole environment a compiler of this kind is started with; nothing else of the user's reaches it."""
    kept = _KEPT + (_KEPT_HIPCC if kind == "hipcc" else ())
    found = {name: os.environ[name] for name in kept if name in os.environ}
    return {**found, "LANG": "C", "LC_ALL": "C", **({"HIP_PLATFORM": "amd"} if kind == "hipcc" else {})}


def find(kind: str, arch: str = "") -> Tool | None:
    """The first usable compiler of a kind that knows ``arch``; None if there is none."""
    tools = (identify(kind, command) for command in candidates(kind))
    return next((tool for tool in tools if not tool.unusable and (not arch or arch in tool.archs)), None)


def require(kind: str, target: str, arch: str = "") -> Tool:
    """`find`, or a `CompileError` that says what to install."""
    tool = find(kind, arch)
    if tool is None:
        what = kind if find(kind) is None else f"{kind} that knows {arch}"
        named = env.get(f"GCONV_{kind.upper()}")
        hint = f"GCONV_{kind.upper()} = {named!r} names none that works: correct or unset it." if named else INSTALL[kind]
        title = {"cxx": "C++ compiler", "objdump": "llvm-objdump"}.get(what, what)
        raise error("compile.missing", tool=title, target=target, hint=hint)
    return tool


# --- where they may be

def candidates(kind: str) -> Iterator[str]:
    """Commands (full paths) that may be a compiler of this kind, the preferred first; one that the user names is the only one."""
    chosen = env.get(f"GCONV_{kind.upper()}")
    names = [chosen] if chosen else {"clang": _clangs, "hipcc": _hipccs, "nvcc": _nvccs, "cxx": _cxxs, "objdump": _objdumps}[kind]()
    for name in names:
        path = shutil.which(os.path.expanduser(name))
        if path and os.path.basename(os.path.realpath(path)) not in _WRAPPERS:
            yield path


def _clangs() -> list[str]:
    newer = [f"clang-{major}" for major in range(29, 21, -1)]
    older = [f"clang-{major}" for major in range(21, 16, -1)]
    return [*newer, "clang", "/opt/rocm/llvm/bin/clang", *older]


def _under(variables: tuple[str, ...], name: str) -> list[str]:
    return [os.path.join(os.environ[variable], "bin", name) for variable in variables if os.environ.get(variable)]


def _hipccs() -> list[str]:
    return ["hipcc", *_under(("ROCM_PATH", "HIP_PATH"), "hipcc"), "/opt/rocm/bin/hipcc"]


def _nvccs() -> list[str]:
    return ["nvcc", *_under(("CUDA_HOME", "CUDA_PATH"), "nvcc"), "/usr/local/cuda/bin/nvcc", *_pypi_nvccs()]


def _pypi_nvccs() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec else None
    return [str(path) for place in places or [] for path in sorted(Path(place).glob("*/bin/nvcc"))]


def _cxxs() -> list[str]:
    return ["g++", *(f"clang++-{major}" for major in range(29, 13, -1)), "clang++", "c++"]


def _objdumps() -> list[str]:
    return [*(f"llvm-objdump-{major}" for major in range(29, 21, -1)), "llvm-objdump", "/opt/rocm/llvm/bin/llvm-objdump"]


# --- what they are

_known: dict[str, tuple[dict[str, list[int]], Tool]] = {}


def identify(kind: str, command: str) -> Tool:
    """What a command is; asked once for each state of the files behind it."""
    memo = hashlib.sha256(json.dumps([kind, command, clean_environment(kind)], sort_keys=True).encode()).hexdigest()
    known = _known.get(memo) or _remembered(memo)
    if known is None or known[0] != _states(list(known[0])):
        tool, files = _PROBES[kind](command)
        known = _states(files), tool
        _remember(memo, known)
    _known[memo] = known
    return known[1]


def _states(files: list[str]) -> dict[str, list[int]]:
    return {file: _state(file) for file in files}


def _state(file: str) -> list[int]:
    try:
        found = os.stat(file)
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _remembered(memo: str) -> tuple[dict[str, list[int]], Tool] | None:
    for root in roots():
        with suppress(OSError, ValueError, TypeError, KeyError):     # whatever is wrong with it: ask again
            data = json.loads((root / "compilers" / f"{memo}.json").read_bytes())
            return data["files"], Tool(**{**data["tool"], "archs": tuple(data["tool"]["archs"])})
    return None


def _remember(memo: str, known: tuple[dict[str, list[int]], Tool]) -> None:
    directory = roots()[-1] / "compilers"
    staged = directory / f".{os.getpid()}-{os.urandom(8).hex()}"
    with suppress(OSError):     # it is asked again next time
        os.makedirs(directory, mode=0o700, exist_ok=True)
        staged.write_text(json.dumps({"files": known[0], "tool": asdict(known[1])}))
        os.replace(staged, directory / f"{memo}.json")


def _ask(kind: str, *command: str) -> str:
    """What a compiler prints; nothing if it cannot be started or does not answer in time."""
    import subprocess
    try:
        done = subprocess.run(command, env=clean_environment(kind), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=_PROBE_SECONDS, cwd="/", check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").rstrip()


def _amd_archs(kind: str, *command: str) -> tuple[str, ...]:
    text = _ask(kind, *command, "--target=amdgcn-amd-amdhsa", "-nogpulib", "--print-supported-cpus", "-x", "c", os.devnull)
    return tuple(sorted(set(re.findall(r"^\s+(gfx[0-9a-f]+)$", text, re.MULTILINE))))


def _probe_clang(command: str) -> tuple[Tool, list[str]]:
    real = os.path.realpath(command)
    version = _ask("clang", command, "--version")
    archs = _amd_archs("clang", command) if "clang" in version else ()
    linker = shutil.which(_ask("clang", command, "--target=amdgcn-amd-amdhsa", "-print-prog-name=ld.lld")) if archs else None
    unusable = "" if linker else "its linker ld.lld is missing" if archs else "it does not compile for AMD GPUs" if version \
        else "it does not start"
    return Tool("clang", command, real, version, archs, unusable), [real, *([os.path.realpath(linker)] if linker else [])]


def _probe_hipcc(command: str) -> tuple[Tool, list[str]]:
    """hipcc is a script: it forwards to clang or, so built or configured, to nvcc. Only asking tells."""
    real = os.path.realpath(command)
    version = _ask("hipcc", command, "--version")
    driven = _driven_clang(version)
    archs = _amd_archs("hipcc", driven or command) if "clang" in version else ()
    unusable = "" if archs else "it forwards to nvcc" if "nvcc" in version else "it does not compile for AMD GPUs" if version \
        else "it does not start"
    return Tool("hipcc", command, real, version, archs, unusable), [real, *([os.path.realpath(driven)] if driven else [])]


def _driven_clang(version: str) -> str:
    directory = re.search(r"^InstalledDir: (.+)$", version, re.MULTILINE)
    major = re.search(r"clang version (\d+)", version)
    names = [f"clang++-{major[1]}", "clang++"] if major else []
    return next((path for name in names if directory and os.path.exists(path := os.path.join(directory[1].strip(), name))), "")


def _probe_nvcc(command: str) -> tuple[Tool, list[str]]:
    """nvcc on PATH may be a script that starts the real one, which says where it is in a dry run."""
    real = os.path.realpath(command)
    version = _ask("nvcc", command, "--version")
    home = re.search(r"^#\$ _HERE_=(.+)$", _ask("nvcc", command, "--dryrun", "-x", "cu", "-cubin", os.devnull), re.MULTILINE)
    inner = os.path.realpath(os.path.join(home[1], "nvcc")) if home else real
    archs = tuple(re.findall(r"sm_\d+", _ask("nvcc", command, "--list-gpu-code"))) if "nvcc" in version else ()
    unusable = "" if archs else "it does not start"
    return Tool("nvcc", command, inner, version, archs, unusable), [real, inner]


def _probe_cxx(command: str) -> tuple[Tool, list[str]]:
    real = os.path.realpath(command)
    version, machine = _ask("cxx", command, "--version"), _ask("cxx", command, "-dumpmachine")
    return Tool("cxx", command, real, version, (machine,), "" if version else "it does not start"), [real]


def _probe_objdump(command: str) -> tuple[Tool, list[str]]:
    real = os.path.realpath(command)
    version = _ask("objdump", command, "--version")
    unusable = "" if "amdgcn" in version else "it does not read AMD code" if version else "it does not start"
    return Tool("objdump", command, real, version.partition("Registered Targets")[0].strip(), (), unusable), [real]


_PROBES = {"clang": _probe_clang, "hipcc": _probe_hipcc, "nvcc": _probe_nvcc, "cxx": _probe_cxx, "objdump": _probe_objdump}
