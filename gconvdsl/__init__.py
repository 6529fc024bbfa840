"""gconvdsl: declare a grouped convolution, get a verified, cached, fast kernel for an AMD GPU, an NVIDIA GPU or the CPU.

Names load on first use: importing this package starts no compiler, opens no device and imports nothing but NumPy.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from ._version import __version__

_HOME = {
    "problem": ("ConvProblem", "problem"),
    "problem_text": ("parse_problem",),
    "config": ("KernelConfig", "Tile", "TileSpace", "choice", "tile"),
    "trace": (
        "LikeY", "PerC", "PerK", "Scalar", "abs", "cast", "clamp", "conv", "conv_bwd_data", "conv_bwd_weight", "erf", "exp", "gelu",
        "leaky_relu", "log", "maximum", "minimum", "neg", "relu", "rsqrt", "sigmoid", "silu", "sqrt", "tanh", "where",
    ),
    "kernel": ("Kernel", "kernel"),
    "spec": ("KernelSpec",),
    "grammar": ("dumps", "load", "loads"),
    "runner": ("Result", "Runner"),
    "choose": ("detect_arch",),
    "rules": ("check",),
    "reference": ("reference",),
    "verify": ("compare", "verify"),
    "errors": (
        "ArrayError", "CompileError", "ConfigError", "EnvError", "GconvError", "GconvSyntaxError", "LaunchError", "NoKernelError",
        "ProblemError", "RuleError", "StoreError", "TraceError", "UsageError", "VerifyError",
    ),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_WHERE, "__version__"])


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Keeps public names that are also module names (problem, kernel, verify) from being replaced by the modules."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _WHERE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
