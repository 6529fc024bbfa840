"""`Registry`: named kernels, chosen by problem, with the reason for each that does not serve it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from . import choose
from .arrays import check_declared
from .config import KernelConfig
from .dtypes import DTYPES
from .errors import GconvError, error
from .problem import DIRECTIONS, ConvProblem
from .spec import ConvParams, KernelSpec

__all__ = ["Entry", "Registry", "Selection"]

_SCHEMA = 1
Ranking = Callable[[ConvProblem, Sequence["Entry"]], Iterable[str]]


@dataclass(frozen=True)
class Entry:
    """A kernel under its name, and what it is meant for: an empty tuple admits everything.

    ``spec`` holds the declaration with its configuration and directions; ``archs`` are names such as "gfx942", "sm_90", "cpu".
    """

    name: str
    spec: KernelSpec
    dtypes: tuple[str, ...] = ()
    ndims: tuple[int, ...] = ()
    archs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, values, known in (("dtype", self.dtypes, tuple(DTYPES)), ("ndim", self.ndims, (1, 2, 3))):
            for value in values:
                if value not in known:
                    raise error("usage.option", what=f"{what} of kernel {self.name!r}:", value=value, hint=f"Known: {known}.")

    def refuses(self, problem: ConvProblem, target: str | None = None, arch: str | None = None) -> str:
        """Why it does not serve a problem on a target, in words; empty if it does. Starts no compiler."""
        backend, name = choose.resolve_target(target, arch)
        here = "cpu" if backend.name == "cpu" else name
        for value, admitted, what in ((problem.direction, self.spec.directions, "direction"), (problem.ndim, self.ndims, "ndim"),
                                      (problem.dtype, self.dtypes, "dtype"), (here, self.archs, "arch")):
            if admitted and value not in admitted:
                return f"{what} {value} is none of {', '.join(map(str, admitted))}"
        spec = self.spec if problem.direction == self.spec.direction else self.spec.bare(problem.direction)
        try:
            check_declared(spec.conv, problem, self.name)
            choose.decide(spec, problem, spec.config, backend, name, compiled=False)
        except GconvError as refusal:
            return refusal.message
        return ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; the declaration is text of the spec language."""
        from .grammar import dumps

        return {"name": self.name, "kernel": dumps(self.spec), "dtypes": list(self.dtypes), "ndims": list(self.ndims),
                "archs": list(self.archs)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], where: str = "") -> Entry:
        """The inverse of `to_dict`; ``where`` names the file in errors."""
        from .grammar import loads

        for key, kind in (("name", str), ("kernel", str), ("dtypes", list), ("ndims", list), ("archs", list)):
            if not isinstance(plain.get(key), kind):
                raise error("store.format", path=where, field=key, value=plain.get(key), expected=f"a JSON {kind.__name__}")
        kernels = list(loads(plain["kernel"], f"{where}: {plain['name']}").kernels.values())
        if len(kernels) != 1:
            raise error("store.format", path=where, field="kernel", value=f"{len(kernels)} kernels", expected="one kernel")
        lists = {key: tuple(plain[key]) for key in ("dtypes", "ndims", "archs")}
        return cls(plain["name"], kernels[0], **lists)


@dataclass(frozen=True)
class Selection:
    """What `Registry.select` found: the entry, or None, and why each earlier one was passed over."""

    problem: ConvProblem
    entry: Entry | None
    passed: tuple[tuple[Entry, str], ...] = ()

    def __bool__(self) -> bool:
        return self.entry is not None

    def summary(self) -> str:
        """One line for the choice and one for each that was passed over."""
        chosen = self.entry.name if self.entry else "no kernel of the registry"
        lines = [f"{self.problem.describe()}: {chosen}"]
        return "\n".join(lines + [f"  {entry.name}: {reason}" for entry, reason in self.passed])

    __str__ = summary


@dataclass
class Registry:
    """Kernels by name, in the order in which they were added, which is the order of preference."""

    name: str = "kernels"
    _entries: dict[str, Entry] = field(default_factory=dict)

    def add(self, kernel: Any, name: str | None = None, *, directions: Sequence[str] = (), dtypes: Sequence[str] = (),
            ndims: Sequence[int] = (), archs: Sequence[str] = ()) -> Entry:
        """Add a `Kernel`, a `KernelSpec`, or a `KernelConfig`, which stands for the bare convolution in ``directions`` (default: all).

        A taken name is an error: nothing is replaced silently.
        """
        spec = getattr(kernel, "spec", kernel)
        if isinstance(spec, KernelConfig):
            chosen = tuple(directions) or DIRECTIONS
            spec = KernelSpec(name or f"kernel{len(self)}", ConvParams(chosen[0]), config=spec, directions=chosen)
        if not isinstance(spec, KernelSpec):
            raise error("usage.option", what="kernel", value=type(kernel).__name__, hint="Pass a Kernel, KernelSpec or KernelConfig.")
        return self.include(Entry(name or spec.name, spec, tuple(dtypes), tuple(ndims), tuple(archs)))

    def include(self, entry: Entry) -> Entry:
        """Add an entry as it is."""
        if entry.name in self._entries:
            raise error("usage.option", what="a second kernel called", value=entry.name, hint="Names in a registry are unique.")
        self._entries[entry.name] = entry
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise error("usage.option", what="kernel", value=name, hint=f"The registry holds: {', '.join(self._entries) or 'nothing'}.")
        return self._entries[name]

    def filter(self, **wanted: Any) -> Registry:
        """The entries meant for a ``direction``, ``dtype``, ``ndim`` and ``arch``, as far as these are given, as a registry."""
        fields = {"direction": lambda one: one.spec.directions, "dtype": lambda one: one.dtypes, "ndim": lambda one: one.ndims,
                  "arch": lambda one: one.archs}
        for name in wanted:
            if name not in fields:
                raise error("usage.option", what="filter", value=name, hint=f"Known: {', '.join(fields)}.")
        kept = {entry.name: entry for entry in self
                if all(not fields[key](entry) or value in fields[key](entry) for key, value in wanted.items())}
        return Registry(self.name, kept)

    def select(self, problem: ConvProblem, *, target: str | None = None, arch: str | None = None,
               ranked: Ranking | None = None) -> Selection:
        """The first entry that serves the problem on the target (default: as for calls).

        ``ranked(problem, entries)`` gives names in another order of preference; entries that it leaves out come last.
        """
        order = list(self)
        if ranked is not None:
            names = list(ranked(problem, order))
            order = sorted(order, key=lambda entry: names.index(entry.name) if entry.name in names else len(names))
        passed: list[tuple[Entry, str]] = []
        for entry in order:
            reason = entry.refuses(problem, target, arch)
            if not reason:
                return Selection(problem, entry, tuple(passed))
            passed.append((entry, reason))
        return Selection(problem, None, tuple(passed))

    def run(self, a: Any, b: Any, problem: ConvProblem, **options: Any) -> Any:
        """Run the selected kernel's bare convolution, as `Runner.run`; a failed `Result` when none serves the problem."""
        from .runner import Result, Runner

        target = options.pop("target", None)
        found = self.select(problem, target=target)
        if found.entry is None:
            return Result(None, 0.0, 0.0, KernelConfig(), target or "", success=False, error=found.summary())
        return Runner(found.entry.spec.config, target).run(a, b, problem, **options)

    # --- JSON

    def to_json(self) -> str:
        """The whole registry; `from_json` gives back an equal one."""
        document = {"schema": _SCHEMA, "registry": self.name, "kernels": [entry.to_dict() for entry in self]}
        return json.dumps(document, indent=1)

    @classmethod
    def from_json(cls, text: str, where: str = "registry") -> Registry:
        """The inverse of `to_json`. Raises ``store.format`` or ``store.newer`` naming ``where`` and the field."""
        document = parse_object(text, where)
        if not isinstance(document.get("schema"), int):
            raise error("store.format", path=where, field="schema", value=document.get("schema"), expected="a number")
        if document["schema"] > _SCHEMA:
            raise error("store.newer", path=where, found=document["schema"], known=_SCHEMA)
        kernels = document.get("kernels")
        if not isinstance(kernels, list) or not all(isinstance(one, dict) for one in kernels):
            raise error("store.format", path=where, field="kernels", value=type(kernels).__name__, expected="a list of objects")
        registry = cls(str(document.get("registry", "kernels")))
        for one in kernels:
            registry.include(Entry.from_dict(one, where))
        return registry

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file, whole or not at all."""
        temporary = Path(f"{path}.part")
        temporary.write_text(self.to_json() + "\n", encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Registry:
        """A registry from a file: its own format, or a configuration file of CK Tile's benchmark tool (`seed_config`)."""
        text = read_text(path)
        document = parse_object(text, str(path))
        if "schema" in document:
            return cls.from_json(text, str(path))
        from .seed_config import registry_of

        return registry_of(document, str(path))


def read_text(path: str | Path) -> str:
    """A file's text; ``syntax.file`` where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "it is not UTF-8 text"
        raise error("syntax.file", path=str(path), reason=reason) from None


def parse_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object; ``store.format`` with line and column for anything else."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as fault:
        raise error("store.format", path=f"{where}:{fault.lineno}:{fault.colno}", field="JSON text", value=fault.msg,
                    expected="well formed") from None
    if not isinstance(document, dict):
        raise error("store.format", path=where, field="document", value=type(document).__name__, expected="a JSON object")
    return document
