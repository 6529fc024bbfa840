"""Every ``GCONV_*`` environment variable, in one typed table. Nothing else in the package reads the environment for settings.

Values are read when asked for, so a change takes effect at once. An empty variable counts as unset.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Callable

from .errors import error

__all__ = ["Setting", "VARIABLES", "Variable", "describe", "get", "random_order_seed", "snapshot"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FALSE, _TRUE = ("0", "false", "no", "off"), ("1", "true", "yes", "on")


@dataclass(frozen=True)
class Variable:
    """One variable: ``parse`` makes the value from its text (ValueError: not ``expected``); ``default`` where it is unset."""

    name: str
    parse: Callable[[str], Any]
    expected: str
    default: Any
    description: str


@dataclass(frozen=True)
class Setting:
    """What `describe` says about a variable: its value now, whether the user set it, and the message if the value is bad."""

    name: str
    value: Any
    default: Any
    is_set: bool
    expected: str
    description: str
    problem: str = ""


def _text(text: str) -> str:
    return text


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(text)
        return text
    return parse


def _flag(text: str) -> bool:
    return {**dict.fromkeys(_FALSE, False), **dict.fromkeys(_TRUE, True)}[text.lower()]


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def _seconds(text: str) -> float:
    if not 0 < float(text) < 1e9:
        raise ValueError(text)
    return float(text)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise ValueError(text)
    return int(match[1]) * _UNITS[match[2].upper()]


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _order(text: str) -> str:
    if not re.fullmatch(r"forward|reverse|random(:\d+)?", text):
        raise ValueError(text)
    return text


def _path(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


_COMMAND = "a path or a command name"
_ISAS = ("avx512", "avx2", "sse2", "neon", "generic")

VARIABLES: dict[str, Variable] = {v.name: v for v in (
    Variable("GCONV_ARCH", _text, "an arch such as gfx942, gfx1100 or sm_90", None,
             "Arch to build for when a target is named without one."),
    Variable("GCONV_CACHE_DIR", _path, "a directory", None,
             "Directory of compiled kernels and recorded decisions; default: the user's cache directory."),
    Variable("GCONV_CACHE_SIZE", _bytes, "a number of bytes such as 500M or 2G", 2 << 30,
             "Upper limit for the size of the compiled kernels kept; the least recently used go first."),
    Variable("GCONV_CLANG", _text, _COMMAND, None,
             "The clang that compiles for AMD GPUs; default: the newest clang found, 22 or later first."),
    Variable("GCONV_COMPILE_TIMEOUT", _seconds, "a positive number of seconds", 120.0,
             "Time limit for one compilation, in seconds."),
    Variable("GCONV_CXX", _text, _COMMAND, None,
             "The C++ compiler for the targets cpu and sim; default: g++, then clang++."),
    Variable("GCONV_DEBUG", _flag, "0 or 1", False,
             "Compile for debugging: symbols, and line numbers in debuggers."),
    Variable("GCONV_HIPCC", _text, _COMMAND, None,
             "The hipcc that compiles for AMD GPUs; default: the one on PATH or under ROCM_PATH."),
    Variable("GCONV_HIP_COMPILER", _choice("clang", "hipcc"), "clang or hipcc", None,
             "Compiler of target hip; default: the first of clang, hipcc that knows the arch."),
    Variable("GCONV_ISA", _choice(*_ISAS), "one of " + ", ".join(_ISAS), None,
             "Instruction set of target cpu; default: the best this machine has."),
    Variable("GCONV_KEPT_MEMORY", _bytes, "a number of bytes such as 500M or 2G", 256 << 20,
             "Memory of dead results and workspaces that target cpu keeps for the next call, at most; 0: none."),
    Variable("GCONV_MODELS", _path, "a directory", None,
             "Directory of trained models, one directory for each arch; default: those of the package."),
    Variable("GCONV_NVCC", _text, _COMMAND, None,
             "The nvcc that compiles for NVIDIA GPUs; default: on PATH, under CUDA_HOME, or from PyPI."),
    Variable("GCONV_OBJDUMP", _text, _COMMAND, None,
             "The llvm-objdump that target emu reads kernels with; default: the newest found, 22 or later first."),
    Variable("GCONV_REQUIRE", _names, "tool names separated by commas, such as clang,hipcc,nvcc", (),
             "Tests: tools that must be present; a test that would skip for a missing one fails instead."),
    Variable("GCONV_RESULTS", _path, "a file", None,
             "File of measurements and failures (SQLite); default: results.sqlite3 in the directory of the caches."),
    Variable("GCONV_RUN_TIMEOUT", _seconds, "a positive number of seconds", 120.0,
             "Time limit for one measured run, in seconds."),
    Variable("GCONV_SIM_ORDER", _order, "forward, reverse, random or random:SEED", "forward",
             "Order in which the simulator runs lanes and waves."),
    Variable("GCONV_SIM_SANITIZE", _flag, "0 or 1", False,
             "Run simulated kernels under the address and undefined-behaviour sanitizers."),
    Variable("GCONV_TARGET", _text, "TARGET or TARGET:ARCH such as cpu, sim:gfx942 or hip:gfx90a", None,
             "Target to run on; default: a GPU that is present, otherwise cpu."),
    Variable("GCONV_THREADS", _count, "a whole number of at least 1", None,
             "Threads of targets cpu and sim; default: the cores this process may use."),
)}


_NAMES = {name: os.fsencode(name) for name in VARIABLES}


def _encoded() -> Any:
    """The encoded texts behind os.environ, None where there are none. Reading them takes a tenth of the time, above all for what is
    not set, and variables are read in every call."""
    return getattr(os.environ, "_data", None) if os.name == "posix" else None


def _given(name: str) -> str | None:
    data = _encoded()
    if data is None:
        return os.environ.get(name)
    text = data.get(_NAMES[name])
    return None if text is None else os.fsdecode(text)


def snapshot() -> tuple[Any, ...]:
    """The texts of all variables now, to be compared with other snapshots; it takes less than a microsecond."""
    data = _encoded()
    return tuple(map(os.environ.get, VARIABLES)) if data is None else tuple(map(data.get, _NAMES.values()))


def get(name: str) -> Any:
    """The value of a variable now, of the type its table row gives; its default when unset. A bad value raises `EnvError`."""
    variable = VARIABLES[name]
    given = _given(name)
    text = given.strip() if given else ""
    if not text:
        return variable.default
    try:
        return variable.parse(text)
    except (ValueError, KeyError):
        raise error("env.value", name=name, value=text, expected=variable.expected,
                    hint=f"Set it to {variable.expected}, or unset it.") from None


def random_order_seed(order: str) -> int | None:
    """The seed of a GCONV_SIM_ORDER value: 0 for plain ``random``, None for the orders that are not random."""
    kind, _, seed = order.partition(":")
    return int(seed or 0) if kind == "random" else None


def _setting(variable: Variable) -> Setting:
    text = os.environ.get(variable.name, "").strip()
    value, problem = variable.default, ""
    try:
        value = get(variable.name)
    except ValueError as err:
        value, problem = text, getattr(err, "message", str(err))
    return Setting(variable.name, value, variable.default, bool(text), variable.expected, variable.description, problem)


def describe() -> list[Setting]:
    """All variables in alphabetical order, for ``gconv env``; a bad value is described, not raised."""
    return [_setting(variable) for variable in VARIABLES.values()]
