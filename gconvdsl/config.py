"""Tiles and kernel configurations: what a user may ask of a kernel.

Only values that cannot exist are errors here; what is legal for a problem and an arch is for `rules.check` to say.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from .errors import error
from .pipelines import EPILOGUES, PIPELINES, PRECISIONS, SCHEDULERS
from .shown import Shown

__all__ = ["CPU_ALGORITHMS", "CPU_OPTIONS", "FAMILIES", "OPTIONS", "Choice", "KernelConfig", "Option", "Size", "Tile", "TileSpace",
           "choice", "size_text", "tile", "without_cpu_options"]

Size = tuple[int, int, int]

FAMILIES = ("cdna", "rdna", "gfx1250", "nvidia", "cpu")
_AXES = {"block": "m x n x k", "waves": "m x n x k", "wave_tile": "m x n x k", "vector": "a x b x c"}


def _did_you_mean(name: object, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(str(name), names, 1)
    return f"Did you mean {close[0]}?" if close else f"Use one of: {', '.join(names)}."


def _reject_unknown(given: Iterable[str], known: Iterable[str], code: str) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            raise error(code, field=name, hint=_did_you_mean(name, names))


def size_text(size: Iterable[int]) -> str:
    """(64, 16, 64) as "64x16x64"."""
    return "x".join(map(str, size))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _size(name: str, value: Any) -> Size:
    """Three positive ints from a tuple, a list or text such as "64x16x64"."""
    parts: Any = value
    if isinstance(value, str):
        parts = [int(part) if re.fullmatch(r"\d{1,9}", part) else 0 for part in value.strip().split("x")]
    if not isinstance(parts, (tuple, list)) or len(parts) != 3 or not all(_is_count(part) for part in parts):
        raise error("tile.value", field=name, value=value, expected=f"three positive whole numbers ({_AXES[name]})",
                    hint=f"Write {name} = (16, 16, 16) or \"16x16x16\".")
    return parts[0], parts[1], parts[2]


@dataclass(frozen=True)
class Tile(Shown):
    """How the implicit GEMM is cut up. Each size is a tuple of three or text such as "64x16x64".

    block: m, n, k of the GEMM that one block of threads computes in one K-step. waves: waves of the block along m, n, k.
    wave_tile: m, n of one matrix instruction and a multiple of its k. vector: upper limits of the elements that one memory
    instruction moves for operand a, operand b and the result c. Where wave_tile is left out, it and waves follow from
    the block. The name takes no part in equality.
    """

    block: Size
    waves: Size = None  # type: ignore[assignment]  # a Size after construction, as the wave_tile
    wave_tile: Size = None  # type: ignore[assignment]
    vector: Size = (8, 8, 8)
    name: str | None = field(default=None, compare=False)

    if TYPE_CHECKING:
        def __init__(self, block: Size | str, waves: Size | str | None = None, wave_tile: Size | str | None = None,
                     vector: Size | str = (8, 8, 8), name: str | None = None) -> None: ...

    def __new__(cls, *args: Any, **given: Any) -> Tile:
        _reject_unknown(given, _names(cls), "tile.field")
        # Unpickling and copying come here without arguments and fill in the fields themselves.
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.name is not None and not isinstance(self.name, str):
            raise error("tile.value", field="name", value=self.name, expected="text", hint="Leave it out, or give a word.")
        block = _size("block", self.block)
        wave_tile = _usual_wave_tile(block) if self.wave_tile is None else _size("wave_tile", self.wave_tile)
        usual = _usual_waves(block, wave_tile) if self.wave_tile is None else (1, 1, 1)
        waves = usual if self.waves is None else _size("waves", self.waves)
        for name, value in (("block", block), ("waves", waves), ("wave_tile", wave_tile),
                            ("vector", _size("vector", self.vector))):
            object.__setattr__(self, name, value)

    def _facts(self) -> list[tuple[str, str]]:
        return [("tile", self.name or ""), *((name, "x".join(map(str, getattr(self, name))))
                                             for name in ("block", "waves", "wave_tile", "vector"))]

    @property
    def m(self) -> int:
        """Rows of the block."""
        return self.block[0]

    @property
    def n(self) -> int:
        """Columns of the block."""
        return self.block[1]

    @property
    def k(self) -> int:
        """Depth of one K-step of the block."""
        return self.block[2]

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> Tile:
        """A tile from a mapping, with catalogued errors for unknown and missing fields."""
        _reject_unknown(given, _names(cls), "tile.field")
        if "block" not in given:
            raise error("tile.missing", field="block", example="block = (64, 16, 64)")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values; `from_fields` reads them back."""
        return {f.name: list(value) if isinstance(value := getattr(self, f.name), tuple) else value for f in fields(self)}

    def describe(self) -> str:
        """The tile in ``.gconv`` syntax, without its name."""
        return "  ".join(f"{name} = {size_text(getattr(self, name))}" for name in _AXES)


def _names(cls: Any) -> list[str]:
    return [f.name for f in fields(cls)]


def _usual_wave_tile(block: Size) -> Size:
    """16 x 16 with the deepest k that most instructions divide: 32 (half types of gfx950 and gfx1250), 16, else the block's k."""
    k = next((k for k in (32, 16) if block[2] % k == 0), block[2])
    return 16, 16, k


def _usual_waves(block: Size, wave_tile: Size) -> Size:
    """At most two waves along m and along n, as many as divide the block."""
    m, n = (2 if block[i] % (2 * wave_tile[i]) == 0 else 1 for i in (0, 1))
    return m, n, 1


@dataclass(frozen=True)
class Choice:
    """Alternatives for one field of a tile, or for one number inside a field."""

    values: tuple[Any, ...]


def choice(*values: Any) -> Choice:
    """Alternatives for a tile's field, as in ``block = (gconv.choice(32, 64), 16, 64)``: the tile becomes a `TileSpace`."""
    if not values:
        raise error("tile.value", field="choice", value=(), expected="at least one alternative",
                    hint="Write gconv.choice(32, 64).")
    return Choice(values)


def _expand(value: Any) -> list[Any]:
    """Every plain value that a field with choices inside stands for."""
    if isinstance(value, Choice):
        return [one for alternative in value.values for one in _expand(alternative)]
    if isinstance(value, (tuple, list)):
        return [tuple(combination) for combination in itertools.product(*map(_expand, value))]
    return [value]


@dataclass(frozen=True)
class TileSpace:
    """The tiles that a declaration with choices stands for; iterates over them, each named ``NAME_0``, ``NAME_1``, ..."""

    tiles: tuple[Tile, ...]
    name: str | None = field(default=None, compare=False)

    @classmethod
    def from_fields(cls, given: Mapping[str, Any], name: str | None = None) -> TileSpace:
        """All combinations of the choices in ``given``, in order, without repeats."""
        combinations = itertools.product(*(_expand(value) for value in given.values()))
        unique = dict.fromkeys(Tile.from_fields(dict(zip(given, values))) for values in combinations)
        named = (replace(one, name=f"{name}_{i}" if name else None) for i, one in enumerate(unique))
        return cls(tuple(named), name)

    def __iter__(self) -> Iterator[Tile]:
        return iter(self.tiles)

    def __len__(self) -> int:
        return len(self.tiles)


def _holds_choice(value: Any) -> bool:
    return isinstance(value, Choice) or (isinstance(value, (tuple, list)) and any(map(_holds_choice, value)))


def tile(cls: type) -> Tile | TileSpace:
    """Class decorator: the class body's fields become a `Tile`, or a `TileSpace` where a field holds a `choice`.

    The class name is the tile's name. Names with a leading underscore are ignored.
    """
    if not isinstance(cls, type):
        raise error("tile.value", field="tile", value=cls, expected="a class",
                    hint="Write @gconv.tile above a class, or call gconv.Tile(...).")
    given = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    name = given.pop("name", cls.__name__)
    if any(map(_holds_choice, given.values())):
        return TileSpace.from_fields(given, name)
    return Tile.from_fields({**given, "name": name})


@dataclass(frozen=True)
class Option:
    """One option of a kernel configuration: ``kind`` is "bool", "count" (a whole number of at least 1) or a tuple of names."""

    kind: str | tuple[str, ...]
    meaning: str

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.kind == "bool":
            return "true or false"
        return "a whole number of at least 1" if self.kind == "count" else f"one of: {', '.join(self.kind)}"

    def admits(self, value: Any) -> bool:
        """Whether ``value`` is of this option's kind."""
        if self.kind == "bool":
            return isinstance(value, bool)
        return _is_count(value) if self.kind == "count" else isinstance(value, str) and value in self.kind


CPU_ALGORITHMS = ("direct", "merged_groups", "depthwise")
"""The names of `lower_cpu.ALGORITHMS`."""

CPU_OPTIONS = ("cpu_algorithm", "cpu_points", "cpu_vectors")
"""What target cpu alone heeds, as the tile and the pipeline are for the others alone."""

OPTIONS: dict[str, Option] = {
    "scheduler": Option(tuple(SCHEDULERS), "how waves hide latency"),
    "double_smem_buffer": Option("bool", "two LDS buffers used in turn"),
    "num_groups_to_merge": Option("count", "convolution groups that one block computes together"),
    "split_image": Option("bool", "cut the spatial result into pieces that stay below 2 GB"),
    "explicit_gemm": Option("bool", "run a 1x1 convolution of stride 1 without padding as a plain batched GEMM"),
    "two_stage": Option("bool", "bwd_weight into an fp32 workspace, then one conversion"),
    "split_k": Option("count", "pieces into which the reduction is cut"),
    "num_wave_groups": Option("count", "groups of waves that alternate between loading and computing"),
    "block_per_cu": Option("count", "blocks that are meant to share one compute unit"),
    "pad_m": Option("bool", "admit a GEMM m that the block does not divide"),
    "pad_n": Option("bool", "admit a GEMM n that the block does not divide"),
    "pad_k": Option("bool", "admit a GEMM k that the block does not divide"),
    "epilogue": Option(tuple(EPILOGUES), "how results reach memory"),
    "precision": Option(tuple(PRECISIONS), "reduced precision that is admitted"),
    "deterministic": Option("bool", "the same bits on every run; false admits atomics"),
    "cpu_algorithm": Option(CPU_ALGORITHMS, "target cpu: the algorithm; other targets ignore it"),
    "cpu_points": Option("count", "target cpu: points of a register block; other targets ignore it"),
    "cpu_vectors": Option("count", "target cpu: vectors of channels in a register block; other targets ignore it"),
    "strict_nonfinite": Option("bool", "admit only kernels that keep a NaN or Inf in its own channel"),
}

FamilyTiles = tuple[tuple[str, Tile], ...]


@dataclass(frozen=True)
class KernelConfig:
    """Everything that may be asked of a kernel. None means "chosen"; the options' meanings are in `OPTIONS`.

    tile: a `Tile`, or {family: Tile} with the families cdna, rdna, gfx1250, nvidia, cpu (kept as sorted pairs). pipeline: one
    name is a demand; "a -> b" a fallback chain; kept as a tuple of names, empty when free.
    """

    tile: Tile | FamilyTiles | None = None
    pipeline: tuple[str, ...] = ()
    scheduler: str | None = None
    double_smem_buffer: bool | None = None
    num_groups_to_merge: int | None = None
    split_image: bool | None = None
    explicit_gemm: bool | None = None
    two_stage: bool | None = None
    split_k: int | None = None
    num_wave_groups: int | None = None
    block_per_cu: int | None = None
    pad_m: bool | None = None
    pad_n: bool | None = None
    pad_k: bool | None = None
    epilogue: str | None = None
    precision: str | None = None
    cpu_algorithm: str | None = None
    cpu_points: int | None = None
    cpu_vectors: int | None = None
    deterministic: bool = True
    strict_nonfinite: bool = False

    if TYPE_CHECKING:
        def __init__(self, tile: Tile | Mapping[str, Tile] | FamilyTiles | None = None,
                     pipeline: str | Iterable[str] | None = None,
                     **options: Any) -> None: ...

    def __new__(cls, *args: Any, **given: Any) -> KernelConfig:
        _reject_unknown(given, _names(cls), "config.field")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", _tiles(self.tile))
        object.__setattr__(self, "pipeline", _chain(self.pipeline))
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            optional = value is None and name not in ("deterministic", "strict_nonfinite")
            if not optional and not option.admits(value):
                raise error("config.value", field=name, value=value, expected=option.expected,
                            hint=_option_hint(name, option, value))

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> KernelConfig:
        """A configuration from a mapping, with a catalogued error for an unknown field."""
        return cls(**given)

    @property
    def demanded(self) -> bool:
        """Whether one pipeline is named, which then must be used."""
        return len(self.pipeline) == 1

    def tile_for(self, family: str) -> Tile | None:
        """The tile declared for an arch family; a single tile serves every family."""
        return dict(self.tile).get(family) if isinstance(self.tile, tuple) else self.tile

    def resolved(self, **changes: Any) -> KernelConfig:
        """A copy with some fields changed, as the chooser settles them."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as JSON-ready values."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if self.pipeline:
            plain["pipeline"] = " -> ".join(self.pipeline)
        if isinstance(self.tile, Tile):
            plain["tile"] = self.tile.to_dict()
        elif self.tile is not None:
            plain["tile"] = {family: one.to_dict() for family, one in self.tile}
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> KernelConfig:
        """The inverse of `to_dict`."""
        given = dict(plain)
        if isinstance(given.get("tile"), Mapping):
            given["tile"] = _tile_from_dict(given["tile"])
        return cls.from_fields(given)

    def to_json(self) -> str:
        """One line of JSON; `from_json` gives back an equal configuration."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> KernelConfig:
        """The inverse of `to_json`."""
        plain = json.loads(text)
        if not isinstance(plain, dict):
            raise error("config.value", field="configuration", value=text, expected="a JSON object",
                        hint="Write it with to_json().")
        return cls.from_dict(plain)

    def identity(self) -> str:
        """As `to_json` without tile names: equal configurations have equal identities. For cache keys."""
        return _nameless(self).to_json()


def without_cpu_options(config: KernelConfig) -> KernelConfig:
    """The configuration as targets other than cpu see it."""
    return config.resolved(**dict.fromkeys(CPU_OPTIONS)) if any(getattr(config, name) for name in CPU_OPTIONS) else config


def _tile_from_dict(plain: Mapping[str, Any]) -> Tile | dict[str, Tile]:
    if "block" in plain:
        return Tile.from_fields(plain)
    return {family: Tile.from_fields(one) for family, one in plain.items()}


def _nameless(config: KernelConfig) -> KernelConfig:
    if isinstance(config.tile, Tile):
        return replace(config, tile=replace(config.tile, name=None))
    if config.tile is not None:
        return replace(config, tile=tuple((family, replace(one, name=None)) for family, one in config.tile))
    return config


def _tiles(value: Any) -> Tile | FamilyTiles | None:
    """A tile, sorted (family, tile) pairs, or None."""
    if value is None or isinstance(value, Tile):
        return value
    if isinstance(value, TileSpace):
        raise error("config.value", field="tile", value=value.name, expected="one tile",
                    hint="A tile with choices stands for several: use it in a sweep, or pick one, as in list(space)[0].")
    pairs = value
    if isinstance(value, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        pairs = dict(value)
    if not isinstance(pairs, Mapping) or not pairs or not all(isinstance(one, Tile) for one in pairs.values()):
        raise error("config.value", field="tile", value=value, expected="a gconv.Tile or {family: gconv.Tile}",
                    hint="Declare one with @gconv.tile, or write gconv.Tile(block=(64, 16, 64), ...).")
    for family in pairs:
        if family not in FAMILIES:
            raise error("config.value", field="tile", value=family, expected="an arch family",
                        hint=_did_you_mean(family, FAMILIES))
    return tuple(sorted(pairs.items()))


def _chain(value: Any) -> tuple[str, ...]:
    """Pipeline names from "a -> b", one name, a sequence of names, or None."""
    names = [part.strip() for part in value.split("->")] if isinstance(value, str) else value or ()
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise error("config.value", field="pipeline", value=value, expected="a pipeline or a chain of them",
                    hint='Write "compv4" or "compv4 -> basic_v1".')
    for name in names:
        if name not in PIPELINES:
            raise error("config.value", field="pipeline", value=name, expected="a pipeline", hint=_did_you_mean(name, PIPELINES))
    if len(set(names)) < len(names):
        raise error("config.value", field="pipeline", value=value, expected="a chain without repeats",
                    hint="Name each pipeline once.")
    return tuple(names)


def _option_hint(name: str, option: Option, value: Any) -> str:
    if isinstance(option.kind, tuple):
        return _did_you_mean(value, option.kind)
    return f"Meaning: {option.meaning}."
