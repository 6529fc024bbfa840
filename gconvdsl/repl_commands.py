"""The commands of the REPL, which begin with a colon: one function and one line of help each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from . import choose
from .cli_table import print_table
from .errors import error
from .problem import ConvProblem
from .spec import KernelSpec

if TYPE_CHECKING:
    from .repl import Repl

__all__ = ["COMMANDS", "Command"]


class Command(NamedTuple):
    """``run(session, rest of the line)``."""

    run: Callable[[Repl, str], None]
    takes: str
    help: str


def _settled(session: Repl, spec: KernelSpec, problem: ConvProblem) -> tuple[Any, str, Any]:
    """(backend, arch, lowered) of the choice, before any compiler."""
    backend, arch = choose.resolve_target(session.target)
    return backend, arch, choose.decide(spec, problem, spec.config, backend, arch, compiled=False).lowered


def _source(session: Repl, rest: str) -> None:
    for spec, problem in session.jobs(rest):
        print(_settled(session, spec, problem)[2].source)


def _asm(session: Repl, rest: str) -> None:
    for spec, problem in session.jobs(rest):
        backend, arch, lowered = _settled(session, spec, problem)
        print(backend.assembly(lowered.source, arch, spec.name))


def _resources(session: Repl, rest: str) -> None:
    from .cli_show import _print_resources

    for spec, problem in session.jobs(rest):
        backend, arch, lowered = _settled(session, spec, problem)
        _print_resources(lowered.with_shared(backend.resources(lowered.source, arch, spec.name)), backend.name)


def _explain(session: Repl, rest: str) -> None:
    from .explain import explain

    for spec, problem in session.jobs(rest):
        print(explain(spec, problem, target=session.target))


def _compare(session: Repl, rest: str) -> None:
    """Each kernel named before ``on``, timed on the same problems."""
    names, on, problems = rest.partition(" on ")
    kernels = [name.strip() for name in names.split(",") if name.strip()]
    if not on or len(kernels) < 2:
        raise error("usage.option", what=":compare", value=rest, hint="Write :compare KERNEL, KERNEL on PROBLEM.")
    rows: dict[str, list[str]] = {}
    for name in kernels:
        for title, outcome in session.outcomes(f"{name} on {problems}"):
            row = rows.setdefault(f"{title.partition(' on ')[2]} {outcome.problem.direction}", [])
            row.append(f"{outcome.run_s * 1e3:.3f} ms" if outcome.ok else outcome.status)
    print_table(["problem", *kernels], [[name, *row] for name, row in rows.items()], kernels)


def _tune(session: Repl, rest: str) -> None:
    from .tune import tune

    text, _, budget = rest.partition(" within ")
    for spec, problem in session.jobs(text):
        print(tune(spec, problem, budget=budget.strip() or "30s", target=session.target_text()).summary())


def _arch(session: Repl, rest: str) -> None:
    if rest:
        backend, arch = choose.resolve_target(None if session.target is None else session.target.partition(":")[0], rest)
        session.target = f"{backend.name}:{arch}"
    print(f"arch here: {choose.detect_arch()}; target: {session.target_text()}")


def _target(session: Repl, rest: str) -> None:
    if rest:
        choose.resolve_target(rest)
        session.target = rest
    print(f"target: {session.target_text()}")


def _undo(session: Repl, rest: str) -> None:
    print(f"forgotten: {session.undo()}")


def _save(session: Repl, rest: str) -> None:
    if not rest:
        raise error("usage.option", what="file", value="", hint="Write :save FILE.gconv.")
    path = Path(rest).expanduser()
    try:
        path.write_text("\n".join(session.chunks) + "\n", encoding="utf-8")
    except OSError as failure:
        raise error("syntax.file", path=rest, reason=failure.strerror) from None
    print(f"{len(session.chunks)} statements in {path}")


def _memo(session: Repl, rest: str) -> None:
    from .memo import Memo

    if rest not in ("on", "off", "clear", ""):
        raise error("usage.option", what=":memo", value=rest, hint="Write :memo on, :memo off or :memo clear.")
    if rest == "clear":
        print(f"{Memo().clear()} results forgotten")
    elif rest:
        session.memo = Memo() if rest == "on" else None
    if session.memo is None:
        print("memo: off; every run computes")
    else:
        print(f"memo: on; {session.memo.hits} results were known, {session.memo.misses} were computed")


def _list(session: Repl, rest: str) -> None:
    print("\n".join(session.chunks) or "nothing is declared")
    for name, value in session.values.items():
        shape = getattr(value, "shape", None)
        print(f"{name} = {type(value).__name__} of shape {tuple(shape)}" if shape else f"{name} = {value!r}")


def _help(session: Repl, rest: str) -> None:
    print("Statements of the .gconv language declare problems, tiles, kernels and epilogues; a repeated name replaces the old one.")
    print("run KERNEL on PROBLEM [for DIRECTIONS] runs; what is declared can be used in Python expressions; name = expression keeps one.")
    width = max(len(f"{name} {one.takes}") for name, one in COMMANDS.items())
    for name, one in COMMANDS.items():
        print(f"  {f'{name} {one.takes}'.ljust(width)}  {one.help}")


_ON = "KERNEL on PROBLEM [for DIRECTIONS]"
COMMANDS: dict[str, Command] = {
    ":run": Command(lambda session, rest: session.enter(f"run {rest}"), _ON, "run on random data, verified and timed"),
    ":bench": Command(lambda session, rest: session.enter(f"run {rest}"), _ON, "the same: the time is a median of several runs"),
    ":tune": Command(_tune, f"{_ON} [within 30s]", "measure configurations and use the fastest from then on"),
    ":explain": Command(_explain, _ON, "what would run, and why"),
    ":source": Command(_source, _ON, "the generated source"),
    ":asm": Command(_asm, _ON, "the machine code as assembly"),
    ":resources": Command(_resources, _ON, "registers, LDS, spills, occupancy (GPU targets)"),
    ":compare": Command(_compare, "KERNEL, KERNEL on PROBLEM", "times side by side"),
    ":arch": Command(_arch, "[ARCH]", "show or choose the arch, such as gfx950"),
    ":target": Command(_target, "[TARGET]", "show or choose the target, such as sim:gfx942"),
    ":memo": Command(_memo, "on|off|clear", "keep results by content, so that a repeated run is instant"),
    ":undo": Command(_undo, "", "forget the last declaration"),
    ":save": Command(_save, "FILE", "write the declarations to a .gconv file"),
    ":list": Command(_list, "", "what is declared"),
    ":help": Command(_help, "", "this text"),
    ":quit": Command(lambda session, rest: session.leave(), "", "leave (or end of input)"),
}
