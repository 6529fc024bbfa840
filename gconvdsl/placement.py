"""Where a call runs: the target, the device and the stream that its arrays and its caller name."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Iterator

from . import choose, env
from .devicearrays import DeviceArray
from .errors import error

if TYPE_CHECKING:
    from .backends.base import Backend
    from .devicearrays import Library

__all__ = ["Placement", "place"]


@dataclass(frozen=True)
class Placement:
    """A target and, for arrays in GPU memory, ``device`` and ``library``. ``stream`` is a handle; None: the default stream."""

    backend: Backend
    arch: str
    stream: int | None = None
    device: int | None = None
    library: Library | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, memory, copies and launches are on the device and in the order of the stream, the arrays' library's as well."""
        if self.backend.host_memory or not self.backend.can_launch:
            yield
            return
        with ExitStack() as stack:
            if self.library is not None and self.device is not None:
                stack.enter_context(self.library.scope(self.device, self.stream or 0))
            stack.enter_context(self.backend.activate(self.arch, self.device, self.stream))
            yield

    def taken(self, array: Any) -> Any:
        """The array, ready in the order of the stream. Only inside `entered`."""
        if not isinstance(array, DeviceArray) or array.stream is None:
            return array
        self.backend.wait_for(array.stream)
        return replace(array, stream=self.stream or 0)

    def check(self, name: str, array: Any) -> None:
        """Raises ``array.device`` for an array that lies elsewhere than where this call works."""
        wanted = f"{self.backend.name}:{self.device}" if self.device is not None else ""
        found = array.place if isinstance(array, DeviceArray) else ""
        if found != wanted:
            raise error("array.device", name=name, got=found or "the host", target=f"{self.backend.name}:{self.arch}",
                        expected=f"arrays on {wanted}, as the first one is" if wanted else "arrays in host memory")


def place(first: Any, target: str | None, arch: str | None, stream: int | None) -> Placement:
    """Where a call whose first array is ``first`` runs: as told, else on the target of the array, else on the default target.

    A target without an arch means the array's device; a call without a stream works on the current stream of the array's library.
    """
    if not isinstance(first, DeviceArray):
        return Placement(*choose.resolve_target(target, arch), stream)
    text = target or env.get("GCONV_TARGET") or first.target
    if text == first.target and arch is None:
        arch = _arch(first)
    backend, arch = choose.resolve_target(text, arch)
    if backend.name != first.target:
        return Placement(backend, arch, stream)     # where `check` refuses the array
    current = first.library.stream(first.device) if stream is None else stream
    return Placement(backend, arch, first.stream if current is None else current, first.device, first.library)


def _arch(array: DeviceArray) -> str:
    from .backends.base import get

    found = get(array.target).detect()
    if array.device >= len(found.devices):
        raise error("launch.device", target=array.target, reason=found.reason, hint="Run gconv doctor.")
    return found.devices[array.device].arch
