"""gconvdsl: declare a grouped convolution, get a verified, cached, fast kernel for an AMD GPU, an NVIDIA GPU or the CPU.

Names load on first use: importing this package starts no compiler, opens no device and imports nothing but NumPy.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .choose import FallbackWarning, detect_arch
    from .config import KernelConfig, Tile, TileSpace, choice, tile
    from .errors import (
        ArrayError, CompileError, ConfigError, EnvError, GconvError, GconvSyntaxError, LaunchError, NoKernelError, ProblemError,
        RuleError, StoreError, TableError, TraceError, UsageError, VerifyError,
    )
    from .expr import Expr
    from .grammar import dumps, load, loads
    from .kernel import Kernel, kernel
    from .problem import ConvProblem, problem
    from .problem_text import parse_problem
    from .reference import reference
    from .registry import Registry
    from .rules import Violation, check
    from .runner import Result, Runner
    from .spec import ConvParams, KernelSpec, Operand
    from .trace import (
        LikeY, PerC, PerK, Scalar, abs, cast, clamp, conv, conv_bwd_data, conv_bwd_weight, erf, exp, gelu, leaky_relu, log,
        maximum, minimum, neg, relu, rsqrt, sigmoid, silu, sqrt, tanh, where,
    )
    from .verify import Report, compare, verify

__all__ = [
    "ArrayError", "CompileError", "ConfigError", "ConvParams", "ConvProblem", "EnvError", "Expr", "FallbackWarning",
    "GconvError", "GconvSyntaxError", "Kernel", "KernelConfig", "KernelSpec", "LaunchError", "LikeY", "NoKernelError",
    "Operand", "PerC", "PerK", "ProblemError", "Registry", "Report", "Result", "RuleError", "Runner", "Scalar", "StoreError",
    "TableError", "Tile", "TileSpace", "TraceError", "UsageError", "VerifyError", "Violation", "__version__", "abs", "cast",
    "check", "choice",
    "clamp", "compare", "conv", "conv_bwd_data", "conv_bwd_weight", "detect_arch", "dumps", "erf", "exp", "gelu", "kernel",
    "leaky_relu", "load", "loads", "log", "maximum", "minimum", "neg", "parse_problem", "problem", "reference", "relu",
    "rsqrt", "sigmoid", "silu", "sqrt", "tanh", "tile", "verify", "where",
]

_ELSEWHERE = {
    "choose": ("FallbackWarning", "detect_arch"),
    "config": ("KernelConfig", "Tile", "TileSpace", "choice", "tile"),
    "expr": ("Expr",),
    "grammar": ("dumps", "load", "loads"),
    "kernel": ("Kernel", "kernel"),
    "problem": ("ConvProblem", "problem"),
    "problem_text": ("parse_problem",),
    "reference": ("reference",),
    "registry": ("Registry",),
    "rules": ("Violation", "check"),
    "runner": ("Result", "Runner"),
    "spec": ("ConvParams", "KernelSpec", "Operand"),
    "verify": ("Report", "compare", "verify"),
}
_WHERE = {name: module for module, names in _ELSEWHERE.items() for name in names}


def _home(name: str) -> str:
    """The module of a public name; errors and traced functions, the two long lists, need no table."""
    return _WHERE.get(name) or ("errors" if name.endswith("Error") else "trace")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_home(name)}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Keeps public names that are also module names (problem, kernel, verify) from being replaced by the modules."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
