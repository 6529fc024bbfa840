"""``gconv emu trace``: a kernel on the emulator, instruction by instruction."""

from __future__ import annotations

import argparse

from .cli_show import subject
from .errors import error

__all__ = ["emu"]


def emu(options: argparse.Namespace) -> int:
    """Run the kernel on random data and print what one wave does."""
    from .backends import base
    from .backends.emu_trace import Trace
    from .inputs import make_inputs, make_operands
    from .runner import execute

    spec, problem = subject(options)
    target = options.target or f"emu:{options.arch or base.get('emu').default_arch()}"
    backend, _ = base.parse_target(target)
    if backend.name != "emu":
        raise error("usage.option", what="The target of gconv emu", value=target, hint="Use emu:ARCH, for example emu:gfx942.")
    trace = Trace(print, _block(options.block), options.wave, options.lane, options.first, options.limit)
    backend.observer = trace  # type: ignore[attr-defined]
    try:
        execute(
            spec,
            None,
            problem,
            make_inputs(problem, "normal", options.seed),
            make_operands(problem, spec, options.seed),
            target=target,
        )
    finally:
        backend.observer = None  # type: ignore[attr-defined]
    if not trace.count:
        raise error(
            "usage.empty",
            what="trace",
            reason=f"no block {trace.block} with a wave {trace.wave} was launched",
            hint="Name another with --block and --wave.",
        )
    return 0


def _block(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if not all(part.isdigit() for part in parts) or len(parts) > 3:
        raise error("usage.option", what="The block", value=text, hint="Write one to three numbers, such as 2 or 2,0,1.")
    x, y, z = (*map(int, parts), 0, 0)[:3]
    return x, y, z
