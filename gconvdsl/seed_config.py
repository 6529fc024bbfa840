"""Configuration files of CK Tile's grouped-convolution benchmark tool: read into a `Registry`.

Such a file holds ``variant``, ``ndim_spatial``, ``arch``, ``dtype`` and ``layout``, and two tables, ``tile_config`` and
``trait_config``, whose fields are one value, a list, ``{"values": [...]}`` or ``{"min", "max", "step"}``; a kernel is every
combination of them that the rules admit.
"""

from __future__ import annotations

import itertools
from typing import Any, Iterator, Mapping, Sequence

from .archs import arch as find_arch
from .archs import arch_names
from .config import KernelConfig, Tile
from .errors import GconvError, error
from .pipelines import PIPELINES
from .problem import DIRECTIONS, ConvProblem
from .registry import Registry
from .rules import check
from .spec import ConvParams, KernelSpec

__all__ = ["ALIASES", "config_of", "direction_of", "kernel_name", "registry_of", "values_of"]

ALIASES = {"fwd": "forward", "2d_fwd": "forward", "bwdd": "bwd_data", "2d_bwdd": "bwd_data", "bwdw": "bwd_weight",
           "2d_bwdw": "bwd_weight"}
"""Other names of the directions."""

_TILE_FIELDS = {"tile_m": ("tile_m",), "tile_n": ("tile_n",), "tile_k": ("tile_k",), "wave_m": ("wave_m", "warp_m"),
                "wave_n": ("wave_n", "warp_n"), "wave_k": ("wave_k", "warp_k"), "warp_tile_m": ("warp_tile_m",),
                "warp_tile_n": ("warp_tile_n",), "warp_tile_k": ("warp_tile_k",)}
_DEFAULTS = {"wave_m": 1, "wave_n": 1, "wave_k": 1, "vector_size_a": 8, "vector_size_b": 8, "vector_size_c": 8, "scheduler": "intrawave"}
_TRAITS = ("scheduler", "epilogue", "double_smem_buffer", "num_groups_to_merge", "split_image", "explicit_gemm", "two_stage",
           "num_wave_groups", "block_per_cu", "pad_m", "pad_n", "pad_k")
_USUAL = {"num_groups_to_merge": 1, "block_per_cu": 1, "num_wave_groups": 1, "double_smem_buffer": False, "split_image": False,
          "explicit_gemm": False, "two_stage": False}
_OLD_DEFAULT = (1, 128, 128, 2, 2, 1, 32, 32, 16)
"""The seed system's default tile, waves and wave tile, which no kernel can have: here they mean that the tile is chosen."""

_DTYPES = {"fp16": "fp16", "bf16": "bf16", "fp32": "fp32"}


def direction_of(variant: Any, where: str = "variant") -> str:
    """The direction that a variant's name means."""
    name = ALIASES.get(str(variant), str(variant))
    if name not in DIRECTIONS:
        raise error("store.format", path=where, field="variant", value=variant, expected=f"one of {', '.join(DIRECTIONS)}")
    return name


def values_of(field: str, given: Any, where: str) -> list[Any]:
    """The values that a field of a table stands for."""
    if isinstance(given, Mapping):
        if "values" in given:
            return values_of(field, given["values"], where)
        if all(isinstance(given.get(key), int) for key in ("min", "max", "step")) and given["step"] > 0:
            return list(range(given["min"], given["max"] + 1, given["step"]))
    elif isinstance(given, list) and given:
        return given
    elif isinstance(given, (str, int, bool)):
        return [given]
    raise error("store.format", path=where, field=field, value=given,
                expected='a value, a list of values, {"values": [...]} or {"min", "max", "step"}')


def config_of(fields: Mapping[str, Any]) -> KernelConfig:
    """A configuration from one value for each field, named as in the seed system's kernel configuration.

    Values that mean "as usual" there (one group, one block, no option, the default tile) are left to the choice here.
    """
    full = {**_DEFAULTS, **fields}
    def size(what: str, axes: str = "mnk") -> Any:
        return tuple(full[f"{what}_{axis}"] for axis in axes)

    tile = None if _cut(full) == _OLD_DEFAULT else Tile(size("tile"), size("wave"), size("warp_tile"), size("vector_size", "abc"))
    options = {name: full[name] for name in _TRAITS if name in full and full[name] != _USUAL.get(name)}
    return KernelConfig(tile=tile, pipeline=full.get("pipeline"), **options)


def registry_of(document: Mapping[str, Any], where: str = "configuration") -> Registry:
    """Every legal kernel of a configuration file, named as the seed system names its kernels, with the missing parts added."""
    direction = direction_of(document.get("variant", "forward"), where)
    tiles, traits = (_table(document, name, where) for name in ("tile_config", "trait_config"))
    archs = [name for name in _listed(document, "arch", where) if name in arch_names()]
    dtypes = [_DTYPES[name] for name in _listed(document, "dtype", where) + _listed(document, "datatype", where) if name in _DTYPES]
    ndims = [int(value) for value in _listed(document, "ndim_spatial", where)]
    registry = Registry(str(document.get("name", direction)))
    seen = set()
    for fields in _combinations(_tile_columns(tiles, where), _trait_columns(traits, where)):
        config = _with_implied(config_of(fields))
        if config.identity() in seen or not _legal(config, direction, archs, dtypes or ["bf16"], (ndims or [2])[0]):
            continue
        seen.add(config.identity())
        options = {**fields, "double_smem_buffer": config.double_smem_buffer}
        name = kernel_name(direction, options, (dtypes or ["any"])[0], (ndims or [2])[0])
        registry.add(KernelSpec("kernel", ConvParams(direction), config=config), name, dtypes=dtypes, ndims=ndims, archs=archs)
    return registry


def _with_implied(config: KernelConfig) -> KernelConfig:
    """With the options that its pipeline cannot do without, where nothing else is said."""
    implied = PIPELINES[config.pipeline[0]].implied_options
    return config.resolved(**{name: value for name, value in implied.items() if getattr(config, name) is None})


def kernel_name(direction: str, fields: Mapping[str, Any], dtype: str, ndim: int) -> str:
    """As the seed system names kernels, and the waves, the wave tile and the vectors, without which different kernels share a name."""
    full = {**_DEFAULTS, **fields}

    def text(*names: str) -> str:
        return "x".join(str(full[name]) for name in names)

    suffixes = [f"gm{full['num_groups_to_merge']}"] if full.get("num_groups_to_merge", 1) != 1 else []
    suffixes += [short for name, short in (("double_smem_buffer", "dsb"), ("split_image", "si"), ("explicit_gemm", "eg"),
                                           ("two_stage", "2stage")) if full.get(name)]
    tile = ["anytile"] if _cut(full) == _OLD_DEFAULT else [text("tile_m", "tile_n", "tile_k")]
    waves = ["w" + text("wave_m", "wave_n", "wave_k"), "t" + text("warp_tile_m", "warp_tile_n", "warp_tile_k")]
    shape = [] if tile == ["anytile"] else waves
    return "_".join(["grouped_conv", direction, dtype, f"{ndim}d", *tile, str(full.get("pipeline", "any")), str(full["scheduler"]), *shape,
                     "v" + text("vector_size_a", "vector_size_b", "vector_size_c"), *suffixes])


def _cut(full: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(full[name] for name in _TILE_FIELDS)


def _table(document: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    table = document.get(name)
    if not isinstance(table, Mapping):
        raise error("store.format", path=where, field=name, value=table, expected="a JSON object")
    return table


def _listed(document: Mapping[str, Any], name: str, where: str) -> list[Any]:
    return values_of(name, document[name], where) if name in document else []


def _tile_columns(table: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    columns = {}
    for name, spellings in _TILE_FIELDS.items():
        given = next((table[one] for one in spellings if one in table), _DEFAULTS.get(name))
        if given is None:
            raise error("store.format", path=where, field=f"tile_config.{name}", value=None, expected="given")
        columns[name] = values_of(f"tile_config.{name}", given, where)
    return columns


def _trait_columns(table: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    known = {"pipeline", "vector_size_a", "vector_size_b", "vector_size_c", *_TRAITS}
    columns = {name: values_of(f"trait_config.{name}", given, where) for name, given in table.items() if name in known}
    for name in columns.get("pipeline", []):
        if name not in PIPELINES and name != "compv1":
            raise error("store.format", path=where, field="trait_config.pipeline", value=name, expected=f"one of {', '.join(PIPELINES)}")
    columns["pipeline"] = ["basic_v1" if name == "compv1" else name for name in columns.get("pipeline", ["basic_v1"])]
    return columns


def _combinations(*tables: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    columns = {name: values for table in tables for name, values in table.items()}
    for values in itertools.product(*columns.values()):
        yield dict(zip(columns, values))


def _legal(config: KernelConfig, direction: str, archs: Sequence[str], dtypes: Sequence[str], ndim: int) -> bool:
    """Whether any of the archs and dtypes admits it, on a problem that sets no limits of its own."""
    problem = ConvProblem(N=64, G=64, C=64 * 64, K=64 * 64, input=(56,) * ndim, filter=(1,) * ndim, direction=direction)
    for arch in archs or ["gfx942"]:
        for dtype in dtypes:
            try:
                if find_arch(arch) and not check(problem.replace(dtype=dtype, out_dtype=dtype), config, arch):
                    return True
            except GconvError:
                continue
    return False
