"""What a ``.gconv`` file declares, as frozen objects. `Module` is what `load` and `loads` return."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..config import KernelConfig, Tile
from ..errors import error
from ..expr import Expr
from ..problem import ConvProblem
from ..source import Loc
from ..spec import KernelSpec, Operand
from .conditions import Condition

__all__ = ["Bench", "Clause", "Epilogue", "Let", "Module", "Run", "Statement", "Sweep"]

Choices = Callable[[str], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True)
class Let:
    """``let name = value``: a number, a word, a size as a tuple, or an Expr of acc or x."""

    name: str
    value: int | float | str | tuple[Any, ...] | Expr


@dataclass(frozen=True)
class Epilogue:
    """``epilogue name(acc, bias: per_k) = expr``: a reusable expression of acc and its operands."""

    name: str
    operands: tuple[Operand, ...]
    expr: Expr


@dataclass(frozen=True)
class Clause:
    """``field in { values }``; ``values`` is None for ``field in *``. ``field`` is a field of `KernelConfig`."""

    field: str
    values: tuple[Any, ...] | None
    loc: Loc | None = dataclasses.field(default=None, compare=False, repr=False)

    def members(self, choices: Choices) -> list[dict[str, Any]]:
        """The partial configurations of this clause; ``choices(field)`` gives those of ``*`` with the options they imply."""
        if self.values is None:
            return [dict(one) for one in choices(self.field)]
        return [{self.field: value} for value in self.values]


@dataclass(frozen=True)
class Sweep:
    """``sweep name for directions { clauses }``: the configurations of all combinations for which every condition holds."""

    name: str
    directions: tuple[str, ...]
    clauses: tuple[Clause, ...]
    where: tuple[Condition, ...] = ()
    loc: Loc | None = field(default=None, compare=False, repr=False)

    def expand(self, problem: ConvProblem, choices: Choices) -> list[KernelConfig]:
        """The configurations for one problem, in order, without repeats.

        ``choices(field)`` gives the legal partial configurations for ``field in *``, such as
        ``{"pipeline": "compv4", "double_smem_buffer": True}``; a combination that contradicts itself is left out. What the
        rules refuse is not removed here. ``syntax.empty_sweep`` names the clause that leaves nothing.
        """
        combined: list[dict[str, Any]] = [{}]
        for clause in self.clauses:
            combined = [{**a, **b} for a, b in itertools.product(combined, clause.members(choices)) if _agree(a, b)]
            if not combined:
                raise self._empty(f"{clause.field} in ...", clause.loc)
        configs = list(dict.fromkeys(KernelConfig(**one) for one in combined))
        for condition in self.where:
            configs = [config for config in configs if condition.holds(problem, config)]
            if not configs:
                raise self._empty(f"where {condition}", condition.loc)
        return configs

    def check(self) -> None:
        """``syntax.empty_sweep`` when no problem gives it a member: a condition on the tile alone that no listed tile meets."""
        tiles = next((clause.values for clause in self.clauses if clause.field == "tile"), (None,))
        if tiles is None:
            return
        for condition in self.where:
            if all(name.startswith("tile.") for name in condition.reads()) and not any(condition.meets(tile) for tile in tiles):
                raise self._empty(f"where {condition}", condition.loc)

    def _empty(self, clause: str, loc: Loc | None) -> Exception:
        return error("syntax.empty_sweep", name=self.name, clause=clause, hint="Admit more values.", loc=loc or self.loc)


def _agree(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a[name] == b[name] for name in a.keys() & b.keys())


@dataclass(frozen=True)
class Run:
    """``run kernel on problems for directions``; without ``for``, ``directions`` is empty."""

    kernel: str
    problems: tuple[str, ...]
    directions: tuple[str, ...] = ()
    loc: Loc | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Bench:
    """``bench items on problems for directions -> "file"``; items are kernels and sweeps, ``file`` is None when left out."""

    items: tuple[str, ...]
    problems: tuple[str, ...]
    directions: tuple[str, ...] = ()
    file: str | None = None
    loc: Loc | None = field(default=None, compare=False, repr=False)


Statement = ConvProblem | Tile | KernelSpec | Epilogue | Let | Sweep | Run | Bench
_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Module:
    """The statements of a file in order, those of included files in the place of the include. Nothing has been run.

    Two modules are equal when their statements and the names of these are; ``file`` takes no part.
    """

    statements: tuple[Statement, ...]
    file: str = "<string>"

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Module) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __iter__(self) -> Iterator[Statement]:
        return iter(self.statements)

    def _key(self) -> tuple[Any, ...]:
        return tuple((type(one), getattr(one, "name", None), one) for one in self.statements)

    def _named(self, kind: type[_T]) -> dict[str, _T]:
        return {str(getattr(one, "name", None)): one for one in self.statements if isinstance(one, kind)}

    problems = property(lambda self: self._named(ConvProblem), doc="Name -> `ConvProblem`.")
    tiles = property(lambda self: self._named(Tile), doc="Name -> `Tile`.")
    kernels = property(lambda self: self._named(KernelSpec), doc="Name -> `KernelSpec`.")
    epilogues = property(lambda self: self._named(Epilogue), doc="Name -> `Epilogue`.")
    lets = property(lambda self: {name: let.value for name, let in self._named(Let).items()}, doc="Name -> value.")
    sweeps = property(lambda self: self._named(Sweep), doc="Name -> `Sweep`.")
    runs = property(lambda self: [one for one in self.statements if isinstance(one, Run)], doc="The `Run` statements in order.")
    benches = property(lambda self: [one for one in self.statements if isinstance(one, Bench)],
                       doc="The `Bench` statements in order.")

    def jobs(self, run: Run) -> list[tuple[KernelSpec, ConvProblem]]:
        """What a run statement stands for: each problem in each direction; in a direction not its own, a kernel runs bare.

        Without ``for``, a problem that states a backward direction is run in it, any other in the directions of the kernel.
        """
        kernel: KernelSpec = self.kernels[run.kernel]
        found = []
        for problem in (self.problems[name] for name in run.problems):
            own = (problem.direction,) if problem.direction != "forward" else kernel.directions
            found += [(kernel if direction in kernel.directions else kernel.bare(direction), problem.as_(direction))
                      for direction in run.directions or own]
        return found
