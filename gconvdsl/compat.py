"""The names of CK Tile's Python dispatcher for grouped convolution, as thin adapters over this package.

Fields, defaults, argument orders and result fields are those that its users know. Where the old system was wrong the right
thing happens here; docs/from_ck.md lists each such row beside the test that shows it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Callable, Iterable, Sequence

from . import choose
from .compat_config import (
    VALID_NDIM_SPATIAL, GroupedConvKernelConfig, GroupedConvValidationResult, auto_correct_grouped_conv_config,
    get_grouped_conv_default_config, validate_grouped_conv_config, with_implied,
)
from .config import KernelConfig
from .errors import GconvError
from .kernel import Kernel
from .problem import ConvProblem
from .registry import Registry, parse_object
from .rules import check
from .runner import Result, Runner, bare_spec
from .seed_config import ALIASES, direction_of
from .spec import ConvParams, KernelSpec

__all__ = [
    "DIRECTION_MAP", "GpuGroupedConvRunner", "GroupedConvKernelConfig", "GroupedConvProblem", "GroupedConvRegistry",
    "GroupedConvResult", "GroupedConvValidationResult", "VALID_NDIM_SPATIAL", "VALID_VARIANTS", "VARIANT_ALIASES",
    "auto_correct_grouped_conv_config", "detect_gpu_arch", "format_grouped_conv_summary", "get_grouped_conv_default_config",
    "setup_multiple_grouped_conv_dispatchers", "validate_grouped_conv_config",
]

VALID_VARIANTS = ("forward", "bwd_data", "bwd_weight")
VARIANT_ALIASES = ALIASES
DIRECTION_MAP = {"forward": 0, "bwd_data": 1, "bwd_weight": 2}


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
        return not check(problem.problem(config.dtype), with_implied(config), config.arch)
    except GconvError:
        return False


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
            mine = with_implied(config)
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
