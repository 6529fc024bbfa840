"""``gconv explain``, ``inspect``, ``rules``, ``env``, ``doctor`` and ``cache``."""

from __future__ import annotations

import argparse
import json
from typing import Any, Mapping, TypeVar

from . import choose
from .cli_table import print_table
from .errors import error
from .problem import ConvProblem
from .runner import bare_spec
from .spec import KernelSpec

T = TypeVar("T")

__all__ = ["cache", "doctor", "env", "explain", "inspect", "rules", "subject"]


def subject(options: argparse.Namespace) -> tuple[KernelSpec, ConvProblem]:
    """The kernel and problem that FILE, --kernel, --problem and --direction name."""
    from .problem_text import parse_problem

    module = _load(options.file)
    if module is None:
        if options.problem is None:
            raise error("usage.empty", what="show", reason="neither a file nor --problem is given",
                        hint='Write --problem "N=1 C=8 ..."')
        problem = parse_problem(options.problem)
        problem = problem.as_(options.direction) if options.direction else problem
        return bare_spec(problem.direction), problem
    spec = _kernel_of(module, options.kernel)
    problem = _problem_of(module, options.problem)
    return spec, problem.as_(options.direction or spec.direction)


def _load(path: str | None) -> Any:
    if path is None:
        return None
    from .grammar import load

    return load(path)


def _kernel_of(module: Any, name: str | None) -> KernelSpec:
    name = name or next((run.kernel for run in module.runs), None) or next(iter(module.kernels), None)
    kernels: Mapping[str, KernelSpec] = module.kernels
    return _pick("kernel", name, kernels)


def _problem_of(module: Any, text: str | None) -> ConvProblem:
    from .problem_text import parse_problem

    text = text or next((name for run in module.runs for name in run.problems), None) or next(iter(module.problems), None)
    if text is not None and text not in module.problems and ("=" in text or " " in text):
        return parse_problem(text)
    problems: Mapping[str, ConvProblem] = module.problems
    return _pick("problem", text, problems)


def _pick(what: str, name: str | None, known: Mapping[str, T]) -> T:
    if name is None:
        raise error("usage.empty", what="show", reason=f"the file declares no {what}", hint=f"Declare a {what}.")
    if name not in known:
        raise error("usage.option", what=f"The {what}", value=name, hint=f"The file declares: {', '.join(known)}.")
    return known[name]


def _target_of(options: argparse.Namespace) -> str | None:
    """The target named, or the one that an arch belongs to: gfx950 is of hip, sm_90 of cuda."""
    if options.target or not options.arch:
        return str(options.target) if options.target else None
    from .archs import arch

    return arch(options.arch).target


def explain(options: argparse.Namespace) -> int:
    """Print the choice for a kernel and problem; exit code 1 if nothing can run."""
    from .explain import explain as explain_choice

    spec, problem = subject(options)
    found = explain_choice(spec, problem, target=_target_of(options), arch=options.arch)
    print(found)
    return 0 if found.supported else 1


def inspect(options: argparse.Namespace) -> int:
    """Print the generated source, the assembly, registers, LDS, spills and occupancy, or figures of the main loop."""
    spec, problem = subject(options)
    spec = spec if problem.direction == spec.direction else spec.bare(problem.direction)
    backend, arch = choose.resolve_target(_target_of(options), options.arch)
    lowered = choose.decide(spec, problem, spec.config, backend, arch, compiled=False).lowered
    if options.what == "source":
        print(lowered.source)
    elif options.what == "asm":
        print(backend.assembly(lowered.source, arch, spec.name))
    elif options.what in ("loop", "mca"):
        from .cli_loop import print_figures

        print_figures(options.what, backend, lowered, problem, arch, spec.name)
    else:
        _print_resources(lowered.with_shared(backend.resources(lowered.source, arch, spec.name)), backend.name)
    return 0


def _print_resources(found: dict[str, dict[str, int]], target: str) -> None:
    if not found:
        raise error("usage.empty", what="show", reason=f"target {target} has no registers and LDS of its own",
                    hint="Use a target of hip or cuda, such as --arch gfx950.")
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    rows = [[kernel, *(str(row.get(name, "-")) for name in names)] for kernel, row in found.items()]
    print_table(["kernel", *names], rows, names)


def rules(options: argparse.Namespace) -> int:
    """Print the matrix pipeline x scheduler x direction x dtype x arch with reasons."""
    from . import rules_table

    print(rules_table.render(arch=options.arch, dtype=options.dtype))
    return 0


def env(options: argparse.Namespace) -> int:
    """Print every environment variable; exit code 2 if one has a value it cannot take."""
    from . import env as table

    settings = table.describe()
    rows = [[s.name, _shown(s.value), "set" if s.is_set else "default", s.description] for s in settings]
    print_table(["variable", "value", "from", "meaning"], rows)
    wrong = [s for s in settings if s.problem]
    for setting in wrong:
        print(setting.problem)
    return 2 if wrong else 0


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "1" if value else "0"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def doctor(options: argparse.Namespace) -> int:
    """Print what is here and what is missing."""
    from .doctor import doctor as examine

    text, facts = examine()
    print(json.dumps(facts, indent=2) if options.json else text)
    return 0


def cache(options: argparse.Namespace) -> int:
    """Show, empty or check the cache of compiled kernels and the recorded decisions; exit code 1 if an entry was damaged."""
    from . import cache as binaries, records

    if options.action == "clear":
        print(f"{binaries.clear()} compiled kernels and {records.clear()} recorded decisions removed")
        return 0
    if options.action == "info":
        for title, facts in (("compiled kernels", binaries.info()), ("recorded decisions", records.info())):
            print(title)
            for name, value in facts.items():
                print(f"  {name:10} {value}")
        return 0
    damaged = binaries.verify()
    for entry, reason in damaged:
        print(f"{entry}: {reason}")
    print(f"{len(damaged)} damaged entries were removed" if damaged else "every entry is sound")
    return 1 if damaged else 0
