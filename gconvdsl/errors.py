"""Every error of the package, in one hierarchy and one catalogue.

GconvError                    the base: ``except gconv.GconvError`` catches all of them
  ProblemError (ValueError)   a convolution problem that cannot exist
  ConfigError (ValueError)    a tile or kernel configuration that cannot exist
  RuleError (ConfigError)     a configuration the rules refuse for this problem and arch
  TraceError (TypeError)      something a kernel body may not do
  GconvSyntaxError (ValueError) a fault in ``.gconv`` text; ``others`` holds further ones
  ArrayError (TypeError)      arrays of the wrong kind, dtype, rank or shape
  CompileError                a compiler failed, timed out, or is missing
  LaunchError                 a kernel could not be loaded or launched
  NoKernelError               no supported kernel exists; says what was tried
  VerifyError                 a result failed verification
  StoreError                  a cache or record that cannot be used where it must be
  TableError (ValueError)     a table of problems, configurations or results with a fault
  EnvError (ValueError)       a ``GCONV_*`` variable with a value it cannot take
  UsageError (ValueError)     a command or call used wrongly

An error is raised by code from the catalogue: ``raise error("problem.groups", C=6, G=4)``. Its text is one sentence in the
user's words with the value and the limit, then the fix. A location (file, line, columns) is added where one is known, and
printed with the user's line and a caret. All errors pickle.
"""

from __future__ import annotations

from typing import Any

from .catalogue import CATALOGUE

__all__ = [
    "ArrayError", "CompileError", "ConfigError", "EnvError", "GconvError", "GconvSyntaxError", "LaunchError", "NoKernelError",
    "ProblemError", "RuleError", "StoreError", "TableError", "TraceError", "UsageError", "VerifyError", "error",
]


class _Blank(dict[str, Any]):
    """A mapping that leaves unknown template fields as they are, so a forgotten value never hides the message."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


class GconvError(Exception):
    """The base of all errors.

    Attributes: ``code`` (stable, from the catalogue), ``values`` (what the message names), ``loc`` (a `source.Loc` or None),
    ``details`` (longer text shown under the message, such as a compiler's output).
    """

    def __init__(self, code: str, values: dict[str, Any] | None = None, loc: Any = None, details: str = "") -> None:
        self.code, self.values, self.loc, self.details = code, dict(values or {}), loc, details
        super().__init__(code)

    @property
    def message(self) -> str:
        """The sentence alone, without location and fix."""
        return CATALOGUE[self.code].message.format_map(_Blank(self.values))

    @property
    def fix(self) -> str:
        """What the user can do about it; may be empty."""
        return CATALOGUE[self.code].fix.format_map(_Blank(self.values))

    def __str__(self) -> str:
        parts = [f"error[{self.code}]: {self.message}"]
        if self.loc is not None:
            parts.append(self.loc.render())
        if self.fix:
            parts.append(f"fix: {self.fix}")
        if self.details:
            parts.append(self.details)
        return "\n".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.values, self.loc, self.details)

    def at(self, loc: Any) -> GconvError:
        """The same error with a location, unless it already has one."""
        if self.loc is None:
            self.loc = loc
        return self


class ProblemError(GconvError, ValueError):
    """A convolution problem that cannot exist."""


class ConfigError(GconvError, ValueError):
    """A tile or kernel configuration that cannot exist."""


class RuleError(ConfigError):
    """A configuration that the rules refuse; ``violations`` lists each `rules.Violation`."""

    @property
    def violations(self) -> tuple[Any, ...]:
        return tuple(self.values.get("violations", ()))


class TraceError(GconvError, TypeError):
    """Something a kernel body may not do."""


class GconvSyntaxError(GconvError, ValueError):
    """A fault in ``.gconv`` text; ``others`` holds the further faults found in the same pass."""

    @property
    def others(self) -> tuple[GconvError, ...]:
        return tuple(self.values.get("others", ()))

    def __str__(self) -> str:
        return "\n\n".join([super().__str__(), *map(str, self.others)])


class ArrayError(GconvError, TypeError):
    """An array of the wrong kind, dtype, rank or shape."""


class CompileError(GconvError):
    """A compiler failed, took too long, or is missing; ``details`` holds its output, ``values`` the command and version."""


class LaunchError(GconvError):
    """A kernel could not be loaded or launched."""


class NoKernelError(GconvError):
    """No supported kernel exists for a problem; ``details`` lists what was tried and why it was refused."""


class VerifyError(GconvError):
    """A result failed verification."""


class StoreError(GconvError):
    """A cache or record that cannot be used where it must be."""


class TableError(GconvError, ValueError):
    """A file of problems, configurations or results that cannot be read or written; names file, line and column."""


class EnvError(GconvError, ValueError):
    """A ``GCONV_*`` variable with a value it cannot take."""


class UsageError(GconvError, ValueError):
    """A command or call used wrongly."""


_CLASSES: dict[str, type[GconvError]] = {
    "problem": ProblemError, "config": ConfigError, "tile": ConfigError, "rule": RuleError, "trace": TraceError,
    "syntax": GconvSyntaxError, "array": ArrayError, "compile": CompileError, "launch": LaunchError, "kernel": NoKernelError,
    "verify": VerifyError, "store": StoreError, "table": TableError, "env": EnvError, "usage": UsageError,
}


def error(code: str, /, *, loc: Any = None, details: str = "", **values: Any) -> GconvError:
    """The error with this catalogue code, ready to raise; its class follows from the code's first word."""
    return _CLASSES[code.partition(".")[0]](code, values, loc, details)
