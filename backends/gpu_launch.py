"""Kernels of a cubin or code object on GPUs: loading, and launching a plan on a stream."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable

from ..errors import error
from ..plan import addresses
from .base import Artifact
from .cuda_tensor_map import maps_of
from .gpu_driver import Driver
from .gpu_memory import Place

if TYPE_CHECKING:
    from ..plan import Launch, Plan

__all__ = ["GpuModule", "launcher"]

_MAX_DYNAMIC_SHARED = 8         # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_OVERLAPS = 6                   # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

_loaded: dict[tuple[str, int], Any] = {}
"""(path, device) -> module handle. Kept to the end of the process: a graph may hold functions of a forgotten kernel."""
_lock = threading.RLock()


class GpuModule:
    """A kernel file; loaded on each device when first launched there, so that kernels for absent devices can be had as well."""

    def __init__(self, artifact: Artifact) -> None:
        self.path, self._compiler = str(artifact.path), str(artifact.meta.get("tool", ""))
        try:
            self._image = artifact.path.read_bytes()
        except OSError as failure:
            raise error("launch.load", path=self.path, reason=f"{failure}") from None
        self._functions: dict[tuple[int, str], Any] = {}
        self._shared: dict[tuple[int, str], int] = {}

    def function(self, driver: Driver, place: Place, launch: Launch) -> Any:
        """The driver's handle of a kernel on a device, allowed to have the shared memory of the launch. Raises `LaunchError`."""
        key = place.device, launch.kernel
        function = self._functions.get(key)
        if function is None:
            with _lock:
                function = self._functions[key] = self._find(driver, place, launch.kernel)
        if launch.shared > self._shared.get(key, driver.dynamic_shared):
            driver.call("FuncSetAttribute", function, _MAX_DYNAMIC_SHARED, launch.shared, kernel=launch.kernel)
            self._shared[key] = launch.shared
        return function

    def _find(self, driver: Driver, place: Place, name: str) -> Any:
        function = driver.ffi.new("void **")
        if driver.function("ModuleGetFunction")(function, self._load(driver, place), name.encode()):
            raise error("launch.load", path=self.path, reason=f"it has no kernel {name}")
        return function[0]

    def _load(self, driver: Driver, place: Place) -> Any:
        if (self.path, place.device) not in _loaded:
            module = driver.ffi.new("void **")
            status = driver.function("ModuleLoadData")(module, driver.ffi.from_buffer(self._image))
            if status:
                raise driver.image_failure(status, self.path, self._compiler)
            _loaded[self.path, place.device] = module[0]
        return _loaded[self.path, place.device]


def launcher(driver: Driver, place: Place, module: GpuModule, plan: Plan) -> Callable[[Any, int], None]:
    """A function that makes the launches of a plan in order, given the argument block and a stream; every kernel gets the block
    by value, then its tensor maps. It does not wait. The device is that of ``place``, whose context is current then."""
    ffi, null, pointer, many = driver.ffi, driver.ffi.NULL, driver.ffi.typeof("void *"), driver.ffi.typeof("void *[]")
    calls = [(module.function(driver, place, one), one) for one in plan.launches if all(one.grid)]

    def launch(args: Any, stream: int) -> None:
        block, handle = ffi.cast(pointer, ffi.from_buffer(args)), ffi.cast(pointer, stream)
        for function, one in calls:
            maps = _maps(driver, one, args)
            parameters = ffi.new(many, [block, *(one_map for one_map, _ in maps)])
            if one.overlaps and driver.overlaps:
                attribute = ffi.new("LaunchAttribute[1]", [(_OVERLAPS, 0, [1])])
                config = ffi.new("LaunchConfig *", (one.grid, (one.block, 1, 1), one.shared, handle, attribute, 1))
                driver.call("LaunchKernelEx", config, function, parameters, null, kernel=one.kernel)
            else:
                driver.call("LaunchKernel", function, *one.grid, one.block, 1, 1, one.shared, handle, parameters, null,
                            kernel=one.kernel)
    return launch


def _maps(driver: Driver, one: Launch, args: bytes) -> list[tuple[Any, Any]]:
    if not one.maps:
        return []
    at = addresses(args)
    return [maps_of(driver).encoded(wanted, at[wanted.operand], one.kernel) for wanted in one.maps]
