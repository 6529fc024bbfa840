"""The driver interface of a GPU, as NVIDIA's driver and the HIP runtime both have it: functions, statuses, devices, contexts.

HIP has the functions of the CUDA driver under other names and with the same arguments, and status numbers that mean the same.
They are called here by what their names have in common; `Driver` is what memory, launches and events are written against.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, ClassVar, Mapping

from ..errors import GconvError, error
from .base import Device

__all__ = ["Driver", "first_library"]

_OUT_OF_MEMORY = 2
_NOT_THIS_KERNEL = {1, 9, 701, 720}     # invalid value or configuration, out of resources: another configuration may do
_OF_A_LAUNCH = ("LaunchKernel", "LaunchKernelEx", "FuncSetAttribute", "TensorMapEncodeTiled")
_CAPTURE = range(900, 909)
_BAD_IMAGE = {200, 209, 218, 222}


class Driver(ABC):
    """An open driver library. Thread-safe; its handles live until the process ends.

    ``target`` owns it; functions are called ``prefix`` and their common name, or as ``spelling`` says; ``title`` stands before
    status numbers in messages.
    """

    target: ClassVar[str]
    title: ClassVar[str]
    prefix: ClassVar[str]
    spelling: ClassVar[Mapping[str, str]]
    no_device: ClassVar[set[int]]
    broken: ClassVar[set[int]]
    hints: ClassVar[Mapping[int, str]]

    def __init__(self, ffi: Any, library: str) -> None:
        self.ffi, self.lib, self.path = ffi, ffi.dlopen(library), library
        self._functions: dict[str, Callable[..., int]] = {}

    def function(self, name: str) -> Callable[..., int]:
        """The library's function of this common name. Raises ``launch.driver`` where the library is too old to have it."""
        found = self._functions.get(name)
        if found is None:
            spelt = self._spelt(name)
            try:
                found = self._functions[name] = getattr(self.lib, spelt)
            except (AttributeError, self.ffi.error):
                raise error("launch.driver", target=self.target, have=self.version_text, what=spelt, need="a newer one",
                            hint=self.update_hint) from None
        return found

    def _spelt(self, name: str) -> str:
        return self.spelling.get(name, self.prefix + name)

    def call(self, name: str, *args: Any, **about: Any) -> None:
        """One function of the driver. ``about`` is what a message may name: ``kernel``, ``nbytes``. Raises `LaunchError`."""
        status = self.function(name)(*args)
        if status:
            raise self.failure(status, name, **about)

    def number(self, name: str, *args: Any) -> int:
        """What a function writes into the int that is its first argument."""
        value = self.ffi.new("int *")
        self.call(name, value, *args)
        return int(value[0])

    def failure(self, status: int, call: str, kernel: str = "", nbytes: int = 0) -> GconvError:
        """The error that a status of ``call`` means."""
        reason = self.said(status)
        if status in self.broken:
            return error("launch.broken", target=self.target, kernel=kernel or "launched last", reason=reason,
                         hint=self.broken_hint)
        if status == _OUT_OF_MEMORY:
            free, total = self._memory()
            return error("launch.memory", target=self.target, nbytes=nbytes, free=free, total=total)
        if status in self.no_device:
            return error("launch.device", target=self.target, reason=reason, hint=self.hints.get(status, "Run gconv doctor."))
        if status in _NOT_THIS_KERNEL and call in _OF_A_LAUNCH:
            return error("launch.failed", kernel=kernel, target=self.target, reason=reason, hint="Use a smaller tile.")
        hint = "Call the kernel once before the capture, on its stream." if status in _CAPTURE else "Run gconv doctor."
        return error("launch.runtime", target=self.target, call=self._spelt(call), reason=reason, hint=hint)

    def image_failure(self, status: int, path: str, compiler: str) -> GconvError:
        """The error of a kernel file that does not load: a driver older than ``compiler``, or a damaged file."""
        if status not in _BAD_IMAGE:
            return self.failure(status, "ModuleLoadData")
        needed = self.needed_by(compiler)
        if needed:
            return error("launch.driver", target=self.target, have=self.version_text, what=f"a kernel compiled by {compiler}",
                         need=needed, hint=self.update_hint)
        return error("launch.load", path=path, reason=self.said(status))

    def said(self, status: int) -> str:
        """A status in the driver's own words, and its number."""
        return f"{self.reason(status)} ({self.title} error {status})"

    def _memory(self) -> tuple[int, int]:
        free, total = self.ffi.new("size_t *"), self.ffi.new("size_t *")
        return (free[0], total[0]) if self.function("MemGetInfo")(free, total) == 0 else (0, 0)

    # --- what differs

    update_hint: ClassVar[str]
    broken_hint: ClassVar[str]
    dynamic_shared: ClassVar[int]
    """Bytes of LDS that a launch may ask for beyond the kernel's own without `FuncSetAttribute`."""
    overlaps: ClassVar[bool] = False
    """Whether a launch may start while the one before it ends (``plan.Launch.overlaps``)."""

    @property
    @abstractmethod
    def version_text(self) -> str:
        """The version that messages name."""

    @abstractmethod
    def needed_by(self, compiler: str) -> str:
        """The version that kernels of a compiler (``nvcc 13.0``) need where this one is too old for them; else empty."""

    @abstractmethod
    def reason(self, status: int) -> str:
        """The driver's own words for a status."""

    @property
    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The devices that the process may use. Raises ``launch.device`` if there is none."""

    @abstractmethod
    def has_pools(self, index: int) -> bool:
        """Whether a device allocates in the order of streams."""

    @abstractmethod
    def context(self, index: int) -> Any:
        """What `enter` takes for a device."""

    @abstractmethod
    def enter(self, context: Any) -> bool:
        """Make a device's context this thread's current one; whether `leave` has to undo it."""

    @abstractmethod
    def push(self, context: Any) -> None:
        """The same in any case, and without raising: for what runs at the end of objects."""

    @abstractmethod
    def leave(self) -> None:
        """Give the thread the context back that it had. Never raises: it runs where another error may be on its way."""

    @abstractmethod
    def adopt(self, context: Any) -> None:
        """Make a context the thread's current one for good, where it has none."""

    @abstractmethod
    def current_device(self) -> int | None:
        """The device of the thread's current context, None if it has none."""


def first_library(driver: Callable[[str], Driver], libraries: tuple[str, ...]) -> Driver:
    """The driver over the first of the libraries that is there. Raises OSError if none is."""
    failure = OSError("no library is named")
    for library in libraries:
        try:
            return driver(library)
        except OSError as err:
            failure = err
    raise failure
