"""The names of CK Tile's Python dispatcher for grouped convolution, as thin adapters over this package.

Fields, defaults, argument orders and result fields are those that its users know. Where the old system was wrong the right
thing happens here; docs/from_ck.md lists each such row beside the test that shows it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Callable, Iterable, Mapping, Sequence

from . import choose
from .config import KernelConfig, Tile
from .errors import GconvError
from .kernel import Kernel
from .pipelines import PIPELINES
from .problem import ConvProblem
from .registry import Registry, parse_object
from .rules import check
from .runner import Result, Runner, bare_spec
from .seed_config import ALIASES, config_of, direction_of, kernel_name, values_of
from .spec import ConvParams, KernelSpec

__all__ = [
    "DIRECTION_MAP", "GpuGroupedConvRunner", "GroupedConvKernelConfig", "GroupedConvProblem", "GroupedConvRegistry",
    "GroupedConvResult", "GroupedConvValidationResult", "VALID_NDIM_SPATIAL", "VALID_VARIANTS", "VARIANT_ALIASES",
    "auto_correct_grouped_conv_config", "detect_gpu_arch", "format_grouped_conv_summary", "get_grouped_conv_default_config",
    "setup_multiple_grouped_conv_dispatchers", "validate_grouped_conv_config",
]

VALID_VARIANTS = ("forward", "bwd_data", "bwd_weight")
VALID_NDIM_SPATIAL = (1, 2, 3)
VARIANT_ALIASES = ALIASES
DIRECTION_MAP = {"forward": 0, "bwd_data": 1, "bwd_weight": 2}

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


@dataclass
class GroupedConvProblem:
    """A problem with the old fields: C and K count over all groups, padding is symmetric. ``ValueError`` for sizes that do not fit."""

    N: int = 1
    C: int = 64
    K: int = 128
    G: int = 1
    Hi: int = 28
    Wi: int = 28
    Di: int = 1
    Y: int = 3
    X: int = 3
    Z: int = 1
    stride_h: int = 1
    stride_w: int = 1
    stride_d: int = 1
    pad_h: int = 0
    pad_w: int = 0
    pad_d: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    dilation_d: int = 1
    direction: str = "forward"
    split_k: int = 1
    dtype: str = "fp16"

    def __post_init__(self) -> None:
        self.direction = direction_of(self.direction, "GroupedConvProblem")
        self.problem()

    @property
    def is_3d(self) -> bool:
        return self.Di > 1 or self.Z > 1 or self.pad_d > 0

    @property
    def ndim_spatial(self) -> int:
        return 3 if self.is_3d else 2

    def problem(self, dtype: str | None = None) -> ConvProblem:
        """The same as a `ConvProblem`."""
        letters = "dhw"[3 - self.ndim_spatial:]
        sizes = {"d": (self.Di, self.Z), "h": (self.Hi, self.Y), "w": (self.Wi, self.X)}
        steps = {name: tuple(getattr(self, f"{name}_{a}") for a in letters) for name in ("stride", "pad", "dilation")}
        return ConvProblem(
            N=self.N, G=self.G, C=self.C, K=self.K, input=tuple(sizes[a][0] for a in letters), filter=tuple(sizes[a][1] for a in letters),
            stride=steps["stride"], pad=steps["pad"], dilation=steps["dilation"], direction=self.direction, dtype=dtype or self.dtype)

    def _output(self, axis: int) -> int:
        return ((1, 1, 1) + self.problem().output)[axis - 3]

    @property
    def Do(self) -> int:
        return self._output(0) if self.is_3d else 1

    @property
    def Ho(self) -> int:
        return self._output(1)

    @property
    def Wo(self) -> int:
        return self._output(2)

    @property
    def flops(self) -> int:
        return self.problem().flops

    @property
    def gflops(self) -> float:
        return self.flops / 1e9

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(N[, Di], Hi, Wi, G, C/G)."""
        return self.problem().shape("x")

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(G, K/G[, Z], Y, X, C/G)."""
        return self.problem().shape("w")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(N[, Do], Ho, Wo, G, K/G)."""
        return self.problem().shape("y")


@dataclass
class GroupedConvResult:
    """What a run gave."""

    success: bool
    time_ms: float = 0.0
    tflops: float = 0.0
    output: Any = None
    error: str = ""


class GpuGroupedConvRunner:
    """``run(input, weight, problem)`` with (X, W), (dY, W) or (X, dY) by ``problem.direction``.

    ``lib_path`` may be what `setup_multiple_grouped_conv_dispatchers` returned for a configuration; without it the kernel is
    chosen. ``target`` is one of this package's (default: a GPU that is here, else cpu).
    """

    def __init__(self, lib_path: Any = None, target: str | None = None) -> None:
        self._config = lib_path if isinstance(lib_path, KernelConfig) else getattr(lib_path, "config", None)
        self._target = target
        self.library_path = str(lib_path) if lib_path is not None else None

    def is_available(self) -> bool:
        """Whether anything can run here; true at once, and not only after the first run."""
        return not self.get_init_error()

    def get_init_error(self) -> str:
        """Why not, or an empty text."""
        try:
            choose.resolve_target(self._target)
        except GconvError as failure:
            return str(failure)
        return ""

    def run(self, input_np: Any, weight_np: Any, problem: Any, output_np: Any = None, verbose: bool = False) -> GroupedConvResult:
        """One run; the dtype is that of ``input_np``. Failures are results with ``success`` False and their text."""
        try:
            mine = problem if isinstance(problem, ConvProblem) else problem.problem(_dtype_name(input_np))
            found = Runner(self._config, self._target).run(input_np, weight_np, mine, output_np)
        except GconvError as failure:
            return GroupedConvResult(False, error=str(failure))
        if verbose:
            print(format_grouped_conv_summary(found))
        return GroupedConvResult(found.success, found.time_ms, found.tflops, found.output, found.error)

    def cleanup(self) -> None:
        """Nothing is held."""


def _dtype_name(array: Any) -> str:
    from .dtypes import dtype_of

    return dtype_of(array.dtype) or "fp16"


class GroupedConvRegistry:
    """Configurations by name; `select` looks at direction, dtype, ndim, arch and what the rules admit."""

    def __init__(self, name: str = "default") -> None:
        self.name = name
        self._configs: list[GroupedConvKernelConfig] = []

    def add(self, config: GroupedConvKernelConfig) -> None:
        """Add a configuration; one that is there already is not added twice."""
        if config not in self._configs:
            self._configs.append(config)

    def kernels(self) -> list[GroupedConvKernelConfig]:
        """All, in the order in which they were added."""
        return list(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    def registry(self) -> Registry:
        """The same as a `Registry`."""
        made = Registry(self.name)
        for number, config in enumerate(self._configs):
            name = f"{config.name}_{config.arch}"
            spec = KernelSpec("kernel", ConvParams(config.variant), config=config.kernel_config())
            made.add(spec, f"{name}_{number}" if name in made else name, dtypes=(config.dtype,), ndims=(config.ndim_spatial,),
                     archs=(config.arch,))
        return made

    def select(self, problem: GroupedConvProblem,
               heuristic: Callable[[GroupedConvProblem], Iterable[str]] | None = None) -> GroupedConvKernelConfig | None:
        """The first configuration that serves the problem on its own arch; ``heuristic(problem)`` gives parts of names, best first."""
        order = self._configs
        if heuristic is not None:
            parts = list(heuristic(problem))
            order = sorted(order, key=lambda one: next((i for i, part in enumerate(parts) if part in one.name), len(parts)))
        return next((one for one in order if _serves(one, problem)), None)

    def filter_by_variant(self, variant: str) -> list[GroupedConvKernelConfig]:
        """Those of a direction."""
        return [one for one in self._configs if one.variant == direction_of(variant)]

    def filter_by_arch(self, arch: str) -> list[GroupedConvKernelConfig]:
        """Those of an arch."""
        return [one for one in self._configs if one.arch == arch]

    def to_json(self) -> str:
        """All fields of all configurations."""
        import json

        return json.dumps({"name": self.name, "kernels": [one.to_dict() for one in self._configs]}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> GroupedConvRegistry:
        """The inverse of `to_json`; nothing is lost."""
        document = parse_object(text, "GroupedConvRegistry")
        made = cls(str(document.get("name", "default")))
        known = {one.name for one in fields(GroupedConvKernelConfig)}
        for plain in document.get("kernels", []):
            made.add(GroupedConvKernelConfig(**{name: value for name, value in plain.items() if name in known}))
        return made

    def build(self, verbose: bool = False, max_workers: int | None = None) -> dict[str, GpuGroupedConvRunner]:
        """A runner for each configuration that compiles, by its name; the old one kept only the first of each direction."""
        paths = setup_multiple_grouped_conv_dispatchers(self._configs, verbose, max_workers)
        return {one.name: GpuGroupedConvRunner(path) for one, path in zip(self._configs, paths) if path is not None}

    def print_registry(self) -> None:
        """A line for each."""
        for one in self._configs:
            one.print_config()


def _serves(config: GroupedConvKernelConfig, problem: GroupedConvProblem) -> bool:
    if config.variant != problem.direction or config.ndim_spatial != problem.ndim_spatial:
        return False
    try:
        return not check(problem.problem(config.dtype), _with_implied(config), config.arch)
    except GconvError:
        return False


def _with_implied(config: GroupedConvKernelConfig) -> KernelConfig:
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
    mine = _with_implied(config)
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


@dataclass(frozen=True)
class _Built:
    """A configuration and the file that was compiled for it; prints as the file's path."""

    config: KernelConfig
    path: str

    def __fspath__(self) -> str:
        return self.path

    __str__ = __fspath__


def setup_multiple_grouped_conv_dispatchers(configs: Sequence[GroupedConvKernelConfig], verbose: bool = False,
                                            max_workers: int | None = None) -> list[Any]:
    """Compile the configurations in parallel for their archs, on a small problem each; the compiled file's path, or None where
    a rule or the compiler refuses. Compiled kernels stay in the cache."""
    def build(config: GroupedConvKernelConfig) -> Any:
        try:
            axes = config.ndim_spatial
            problem = ConvProblem(N=1, G=2, C=64, K=64, input=(8,) * axes, filter=(3,) * axes, pad=1, dtype=config.dtype,
                                  direction=config.variant)
            mine = _with_implied(config)
            spec = KernelSpec(config.variant, bare_spec(config.variant).conv, config=mine)
            decision = Kernel(spec).compile(problem, arch=config.arch)
            return _Built(mine, str(decision.built.artifact.path) if decision.built else "")
        except GconvError as failure:
            if verbose:
                print(f"{config.name}: {failure}")
            return None

    with ThreadPoolExecutor(max_workers) as pool:
        return list(pool.map(build, configs))


def detect_gpu_arch(fallback: str = "none") -> str:
    """The arch of a GPU that is here, else ``fallback``; no arch is guessed."""
    found = choose.detect_arch()
    return fallback if found == "none" else found


def format_grouped_conv_summary(result: Result | GroupedConvResult) -> str:
    """One line."""
    if not result.success:
        return f"failed: {result.error}"
    return f"{result.time_ms:.4f} ms, {result.tflops:.2f} TFLOP/s"
