"""Simulated launches under the address and undefined-behaviour sanitizers.

Python is not built with the sanitizers, so a child process runs the kernel: the runtime built as a program. It gets every buffer
in a block of exactly its size, and a block-shared array has guarded ends, so that one element too far is an error.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

import numpy as np

from .. import env
from ..errors import GconvError, error
from ..plan import MAX_OPERANDS
from .base import Buffer
from .sim import options, raise_report

if TYPE_CHECKING:
    from ..plan import Launch

__all__ = ["SanitizedModule"]

_POINTERS = 4 + MAX_OPERANDS    # the argument block begins with so many addresses
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:exitcode=93:color=never",
    "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=94:color=never",
}
_DETAIL_CHARACTERS = 6000


class SanitizedModule:
    """A kernel library built with the sanitizers, and the program that runs it."""

    def __init__(self, path: Path, program: Path) -> None:
        self.path, self.program = path, program

    def function(self, name: str) -> str:
        """The kernel's name, if the library mentions it."""
        if name.encode() not in self.path.read_bytes():
            raise error("launch.load", path=str(self.path), reason=f"it has no kernel {name}")
        return name

    def run(self, launches: Sequence[Launch], args: bytes, known: Sequence[Buffer]) -> None:
        """Run the launches in a child process; ``known`` are the buffers that the addresses in ``args`` may point into."""
        if not launches:
            return
        names = ", ".join(self.function(launch.kernel) for launch in launches)
        buffers = _used(args, known, names)
        with tempfile.TemporaryDirectory(prefix="gconv-sim-") as directory:
            job = Path(directory) / "job"
            job.write_bytes(_job(launches, args, buffers))
            self._start(job, names)
            _read_answer(Path(f"{job}.out").read_bytes(), buffers, names)

    def _start(self, job: Path, kernel: str) -> None:
        limit = env.get("GCONV_RUN_TIMEOUT")
        try:
            done = subprocess.run([str(self.program), str(self.path), str(job)], env={**os.environ, **_OPTIONS}, timeout=limit,
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        except subprocess.TimeoutExpired:
            raise error("launch.timeout", kernel=kernel, limit=f"{limit:g}", target="sim") from None
        if done.returncode:
            raise _sanitizer_error(done.stderr.decode(errors="replace"), done.returncode, kernel)


def _job(launches: Sequence[Launch], args: bytes, buffers: Sequence[Buffer]) -> bytes:
    """A job file, as sim_program.hpp describes it."""
    from ._sim_api import ffi

    parts = [struct.pack("<q", len(launches))]
    for launch in launches:
        parts += [launch.kernel.encode().ljust(256, b"\0"), bytes(ffi.buffer(options(launch, args)))]
    parts += [args, struct.pack("<q", len(buffers))]
    for buffer in buffers:
        parts += [struct.pack("<qq", buffer.address, buffer.nbytes), buffer.array.tobytes()]
    return b"".join(parts)


def _read_answer(answer: bytes, buffers: Sequence[Buffer], kernel: str) -> None:
    from ._sim_api import ffi

    report, at = ffi.new("Report *"), ffi.sizeof("Report")
    ffi.buffer(report)[:] = answer[:at]
    if report.failure:
        raise_report(report, kernel)
    for buffer in buffers:
        buffer.array[:] = np.frombuffer(answer, np.uint8, buffer.nbytes, at)
        at += buffer.nbytes


def _used(args: bytes, known: Sequence[Buffer], kernel: str) -> list[Buffer]:
    """The buffers that the argument block points into, each once."""
    found: dict[int, Buffer] = {}
    for address in filter(None, struct.unpack_from(f"<{_POINTERS}Q", args)):
        owner = next((b for b in known if b.address <= address < b.address + max(b.nbytes, 1)), None)
        if owner is None:
            raise error("launch.sim", kernel=kernel, reason="an address in its arguments is not memory of this target",
                        hint="Under GCONV_SIM_SANITIZE use buffers of Backend.allocate, so that their sizes are known.")
        found[owner.address] = owner
    return list(found.values())


def _sanitizer_error(text: str, status: int, kernel: str) -> GconvError:
    summary = re.search(r"ERROR: AddressSanitizer: (.+?)(?: on address.*)?$|^\S+?: (runtime error: .+)$", text, re.MULTILINE)
    reason = (summary[1] or summary[2]) if summary else f"its process ended with status {status}"
    place = re.search(r"^\s+#\d+ .* in \S.* (\S+):(\d+)(?::\d+)?$", text, re.MULTILINE)
    file, line = (os.path.basename(place[1]), int(place[2])) if place else ("", 0)
    return error("launch.sim", kernel=kernel, reason=f"{file}:{line}: {reason}" if place else reason, file=file, line=line,
                 hint="The sanitizer's report follows.", details=text.strip()[:_DETAIL_CHARACTERS])
