"""Configurations of CK Tile's Python dispatcher and their validation and correction by the rules of this package."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Mapping, Sequence

from .config import KernelConfig, Tile
from .errors import GconvError
from .pipelines import PIPELINES
from .problem import ConvProblem
from .rules import check
from .seed_config import config_of, direction_of, kernel_name, values_of

__all__ = [
    "GroupedConvKernelConfig", "GroupedConvValidationResult", "VALID_NDIM_SPATIAL", "auto_correct_grouped_conv_config",
    "get_grouped_conv_default_config", "validate_grouped_conv_config", "with_implied",
]

VALID_NDIM_SPATIAL = (1, 2, 3)

_LAYOUTS = {1: "nwgc", 2: "nhwgc", 3: "ndhwgc"}


@dataclass
class GroupedConvKernelConfig:
    """A kernel configuration with the old fields and defaults. The default tile, which no kernel can have, means that the tile is
    chosen; False and 1 mean that an option is as the pipeline needs it; a backward variant keeps its pipeline."""

    variant: str = "forward"
    ndim_spatial: int = 2
    dtype: str = "fp16"
    layout: str = "nhwgc"
    arch: str = "gfx942"
    tile_m: int = 1
    tile_n: int = 128
    tile_k: int = 128
    wave_m: int = 2
    wave_n: int = 2
    wave_k: int = 1
    warp_tile_m: int = 32
    warp_tile_n: int = 32
    warp_tile_k: int = 16
    pipeline: str = "compv4"
    epilogue: str = "cshuffle"
    scheduler: str = "intrawave"
    vector_size_a: int = 4
    vector_size_b: int = 8
    vector_size_c: int = 8
    block_per_cu: int = 1
    num_wave_groups: int = 1
    num_groups_to_merge: int = 1
    pad_m: bool = True
    pad_n: bool = True
    pad_k: bool = True
    double_smem_buffer: bool = False
    split_image: bool = False
    explicit_gemm: bool = False
    two_stage: bool = False

    def __post_init__(self) -> None:
        self.variant = direction_of(self.variant, "GroupedConvKernelConfig")

    @property
    def tile_str(self) -> str:
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k}"

    @property
    def wave_str(self) -> str:
        return f"{self.wave_m}x{self.wave_n}x{self.wave_k}"

    @property
    def warp_str(self) -> str:
        return f"{self.warp_tile_m}x{self.warp_tile_n}x{self.warp_tile_k}"

    @property
    def vec_str(self) -> str:
        return f"{self.vector_size_a}x{self.vector_size_b}x{self.vector_size_c}"

    @property
    def name(self) -> str:
        """The old name with what it left out (waves, wave tile, vectors), so that two kernels never share one."""
        return kernel_name(self.variant, self.to_dict(), self.dtype, self.ndim_spatial)

    def to_dict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    to_json_obj = to_dict

    def kernel_config(self) -> KernelConfig:
        """The same as a `KernelConfig` of this package."""
        return config_of({name: value for name, value in self.to_dict().items() if name not in _NOT_OF_A_KERNEL})

    def print_config(self) -> None:
        """One line."""
        print(f"{self.name} on {self.arch}")


_NOT_OF_A_KERNEL = ("variant", "ndim_spatial", "dtype", "layout", "arch")


def with_implied(config: GroupedConvKernelConfig) -> KernelConfig:
    """With the options that its pipeline cannot do without, where nothing else is said."""
    mine = config.kernel_config()
    row = PIPELINES[mine.pipeline[0]]
    return mine.resolved(**{name: value for name, value in row.implied_options.items() if getattr(mine, name) is None})


@dataclass
class GroupedConvValidationResult:
    """What is wrong with a configuration; ``suggested_fixes`` maps fields to values or sentences."""

    is_valid: bool
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    suggested_fixes: dict[str, Any] = field(default_factory=dict)
    variant: str = "forward"


_REQUIRED = ("tile_config", "trait_config", "variant", "ndim_spatial", "arch", "layout")


def validate_grouped_conv_config(config: Mapping[str, Any]) -> GroupedConvValidationResult:
    """Check a configuration (the old dictionary, or a `GroupedConvKernelConfig`) by all rules of this package."""
    if isinstance(config, GroupedConvKernelConfig):
        config = _dictionary(config)
    missing = [name for name in _REQUIRED if name not in config]
    if missing:
        return GroupedConvValidationResult(False, [f"missing: {', '.join(missing)}"], variant=str(config.get("variant", "")))
    try:
        mine = _from_dictionary(config)
    except (GconvError, TypeError) as failure:
        return GroupedConvValidationResult(False, [str(failure)], variant=str(config["variant"]))
    violations = _violations(mine)
    errors = [violation.message for violation in violations]
    if mine.ndim_spatial not in VALID_NDIM_SPATIAL:
        errors.append(f"ndim_spatial = {mine.ndim_spatial} is none of 1, 2, 3.")
    return GroupedConvValidationResult(not errors, errors, [], {one.field: one.fix for one in violations}, mine.variant)


def _violations(config: GroupedConvKernelConfig) -> Sequence[Any]:
    """On a problem of the arch that sets no limits of its own."""
    axes = config.ndim_spatial if config.ndim_spatial in VALID_NDIM_SPATIAL else 2
    filter_size = 1 if config.explicit_gemm else 3
    problem = ConvProblem(N=64, G=64, C=64 * 64, K=64 * 64, input=(56,) * axes, filter=(filter_size,) * axes, pad=filter_size // 2,
                          dtype=config.dtype, direction=config.variant)
    mine = with_implied(config)
    if mine.tile is None:
        from .tiles import default_config

        mine = default_config(problem, config.arch, mine)
    return check(problem, mine, config.arch)


def auto_correct_grouped_conv_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """(a legal configuration near the given one, whether it differs): a tile of the arch where the tile cannot exist, the options
    that the pipeline needs, a scheduler that it has."""
    mine = _from_dictionary(_dictionary(config) if isinstance(config, GroupedConvKernelConfig) else config)
    before = asdict(mine)
    row = PIPELINES.get(mine.pipeline)
    if row is not None:
        mine.scheduler = mine.scheduler if mine.scheduler in row.schedulers else row.schedulers[0]
        mine.double_smem_buffer = mine.double_smem_buffer or row.needs_double_smem_buffer
        mine.num_wave_groups = row.needs_num_wave_groups or 1
    if any(one.rule != "pipeline.direct_to_lds" for one in _violations(mine)):
        _with_tile_of_arch(mine)
    return _dictionary(mine), asdict(mine) != before


def _with_tile_of_arch(config: GroupedConvKernelConfig) -> None:
    """Take the tile that the rules would choose on its arch."""
    from .tiles import default_config

    axes = config.ndim_spatial
    problem = ConvProblem(N=64, C=512, K=512, input=(56,) * axes, filter=(3,) * axes, pad=1, dtype=config.dtype, direction=config.variant)
    asked = KernelConfig(pipeline=config.pipeline, scheduler=config.scheduler, double_smem_buffer=config.double_smem_buffer or None,
                         num_wave_groups=config.num_wave_groups if config.num_wave_groups > 1 else None)
    tile = default_config(problem, config.arch, asked).tile
    assert isinstance(tile, Tile)
    config.tile_m, config.tile_n, config.tile_k = tile.block
    config.wave_m, config.wave_n, config.wave_k = tile.waves
    config.warp_tile_m, config.warp_tile_n, config.warp_tile_k = tile.wave_tile


def _dictionary(config: GroupedConvKernelConfig) -> dict[str, Any]:
    """The old nested form."""
    flat = config.to_dict()
    tile = [name for name in flat if name.startswith(("tile_", "wave_", "warp_tile_"))]
    return {"tile_config": {name: [flat[name]] for name in tile},
            "trait_config": {name: [value] for name, value in flat.items() if name not in (*tile, *_NOT_OF_A_KERNEL)},
            **{name: flat[name] for name in _NOT_OF_A_KERNEL}}


def _from_dictionary(config: Mapping[str, Any]) -> GroupedConvKernelConfig:
    """The first value of each field of the old nested form."""
    known = {one.name for one in fields(GroupedConvKernelConfig)}
    flat = {name: values_of(name, value, "configuration")[0] for table in ("tile_config", "trait_config")
            for name, value in config[table].items() if name in known}
    return GroupedConvKernelConfig(**{name: config[name] for name in _NOT_OF_A_KERNEL if name in config}, **flat)


def get_grouped_conv_default_config(variant: str = "forward", ndim_spatial: int = 2, arch: str = "gfx942", dtype: str = "fp16",
                                    **changes: Any) -> GroupedConvKernelConfig:
    """A legal configuration for a direction on an arch."""
    config = GroupedConvKernelConfig(variant=variant, ndim_spatial=ndim_spatial, arch=arch, dtype=dtype, pipeline="compv3",
                                     layout=_LAYOUTS.get(ndim_spatial, "nhwgc"), double_smem_buffer=False)
    _with_tile_of_arch(config)
    return replace(config, **changes)
