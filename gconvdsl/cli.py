"""The command ``gconv``. Each command imports what it needs when it runs, so that ``gconv --help`` is quick.

Exit codes: 0 all right; 1 a result is wrong, a check found something; 2 a user's mistake; 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from typing import Any, Callable, Sequence

from ._version import __version__

__all__ = ["main"]

_Add = Callable[[argparse.ArgumentParser], None]


def _seed(text: str) -> int:
    seed = int(text)
    if seed < 0:
        raise argparse.ArgumentTypeError(f"{seed} is not a whole number of at least 0")
    return seed


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is not a whole number of at least 1")
    return count


def _run(p: argparse.ArgumentParser) -> None:
    p.add_argument("file", help="a .gconv file")
    p.add_argument("--target", help="TARGET[:ARCH], such as sim:gfx942 (default: GCONV_TARGET, a GPU that is here, or cpu)")
    p.add_argument("--seed", type=_seed, default=0, help="seed of the random data (default 0)")


def _check(p: argparse.ArgumentParser) -> None:
    p.add_argument("files", nargs="+", metavar="FILE")


def _fmt(p: argparse.ArgumentParser) -> None:
    p.add_argument("files", nargs="+", metavar="FILE", help="- reads standard input and writes to standard output")
    p.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is not in canonical form")


def _verify(p: argparse.ArgumentParser) -> None:
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--problem", metavar="TEXT", help='"N=2 G=4 C=32 K=48 input=13x11 filter=3x3", or a MIOpenDriver command')
    what.add_argument("--all", action="store_true",
                      help="a fixed set of problems, pipelines and options in every direction and dtype; prints a report in JSON lines")
    p.add_argument("--only", metavar="TEXT", help="with --all: only cases with this in their name, such as compv4 or depthwise")
    p.add_argument("--direction", help="forward, bwd_data, bwd_weight, several with commas, or all (default: the problem's, or all)")
    p.add_argument("--target", help="one or several with commas, such as sim:gfx942,cpu")
    p.add_argument("--seed", type=_seed, default=0)
    p.add_argument("--json", action="store_true", help="one JSON object a line for each direction and target")


def _rules(p: argparse.ArgumentParser) -> None:
    p.add_argument("--arch", help="one arch instead of all")
    p.add_argument("--dtype", help="one dtype instead of all: fp32, fp16, bf16")


def _bench(p: argparse.ArgumentParser) -> None:
    p.add_argument("file", nargs="?", help="a .gconv file: its bench statements are executed")
    p.add_argument("--problems", metavar="SET",
                   help="a .csv or .gconv file, or a set such as cpu, gpu, networks (default: that of the target)")
    p.add_argument("--only", metavar="TEXT", help="only problems whose name contains this")
    p.add_argument("--baseline", choices=("torch",), help="what to compare with")
    p.add_argument("--target", default="cpu", help="TARGET[:ARCH] (default cpu)")
    p.add_argument("--direction", help="forward, bwd_data, bwd_weight, several with commas, or all (default)")
    p.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), help="instead of the problems' own")
    p.add_argument("--threads", type=int, help="of both sides (default: GCONV_THREADS, or all cores)")
    p.add_argument("--cpu-time", action="store_true",
                   help="count CPU time of one thread instead of time: for machines that other processes use as well")
    p.add_argument("--seconds", type=float, help="time for each row (default 2; of a sweep, 0.2 for each kernel)")
    p.add_argument("--rounds", type=int, default=25, help="cuda: timed calls of each contender (default 25)")
    p.add_argument("--json", metavar="FILE", help="write the rows there as well")
    p = p.add_argument_group("sweeps", "Many configurations of each problem, each verified, then measured; interrupted or killed, "
                                       "the same command goes on where it was.")  # type: ignore[assignment]
    p.add_argument("--configs", metavar="SET", help="default, pipelines, few, all, or a .json file of configurations")
    _sweep_options(p)


def _sweep_options(p: Any) -> None:
    p.add_argument("--workers", type=_count, metavar="N", help="processes that compile (default: the cores, 16 at most)")
    p.add_argument("--cold", action="store_true", help="rotate buffers, so that every timed call finds other data in the caches")
    p.add_argument("--timeout", type=float, metavar="S", help="seconds for one kernel (default: GCONV_RUN_TIMEOUT)")
    p.add_argument("--again", action="store_true", help="measure also what the results hold already")
    p.add_argument("--csv", metavar="FILE", help="write the results there as well")
    p.add_argument("--parquet", metavar="FILE", help="write the results there as well (needs pyarrow)")
    p.add_argument("--store", metavar="FILE", help="the file of results (default: GCONV_RESULTS, or beside the caches)")


def _results(p: argparse.ArgumentParser) -> None:
    p.add_argument("--problem", metavar="TEXT", help="only problems with this in their name or text")
    p.add_argument("--kernel", metavar="TEXT", help="only kernels with this in their name")
    for name, example in (("direction", "bwd_data"), ("dtype", "bf16"), ("target", "cuda"), ("arch", "sm_90"), ("status", "WRONG,CRASH"),
                          ("kind", "tune"), ("mode", "cold")):
        p.add_argument(f"--{name}", help=f"one or several with commas, such as {example}")
    p.add_argument("--limit", type=_count, default=50, metavar="N", help="list the newest N rows (default 50)")
    p.add_argument("--all", action="store_true", help="list every row")
    p.add_argument("--csv", metavar="FILE", help="write the rows there")
    p.add_argument("--parquet", metavar="FILE", help="write the rows there (needs pyarrow)")
    p.add_argument("--json", action="store_true", help="one JSON object a line")
    p.add_argument("--read", metavar="FILE", action="append", help="add the rows of a .csv or .parquet to the results first")
    p.add_argument("--store", metavar="FILE", help="the file of results (default: GCONV_RESULTS, or beside the caches)")


def _json_only(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", action="store_true", help="as JSON")


def _subject(p: argparse.ArgumentParser) -> None:
    p.add_argument("file", nargs="?", help="a .gconv file; left out, a bare convolution is meant")
    p.add_argument("--kernel", metavar="NAME", help="a kernel of the file (default: that of its first run, or its first)")
    p.add_argument("--problem", metavar="TEXT", help="a problem of the file by name, a problem line, or a MIOpenDriver command")
    p.add_argument("--direction", help="forward, bwd_data or bwd_weight")
    p.add_argument("--target", help="TARGET[:ARCH]")
    p.add_argument("--arch", help="such as gfx950 or sm_90; no device is needed")


def _tune(p: argparse.ArgumentParser) -> None:
    _subject(p)
    p.add_argument("--problems", metavar="SET", help="bare convolutions of a set or file, each for the whole budget")
    p.add_argument("--only", metavar="TEXT", help="only problems of the set whose name contains this")
    p.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), help="instead of the set's own")
    p.add_argument("--budget", default="60s", metavar="TIME", help="such as 60s, 5min, 1h (default 60s)")
    p.add_argument("--workers", type=_count, metavar="N", help="processes that compile (default: the cores, 16 at most)")
    p.add_argument("--cold", action="store_true", help="rotate buffers, so that every timed call finds other data in the caches")
    p.add_argument("--timeout", type=float, metavar="S", help="seconds for one kernel")
    p.add_argument("--store", metavar="FILE", help="the file of results (default: GCONV_RESULTS, or beside the caches)")


def _inspect(p: argparse.ArgumentParser) -> None:
    _subject(p)
    p.add_argument("--what", choices=("source", "asm", "resources", "loop", "mca"), default="source")


def _compare(p: argparse.ArgumentParser) -> None:
    p.add_argument("a", metavar="A", help='a configuration as .gconv kernels state it: "pipeline = mem  tile = 64x64x64"')
    p.add_argument("b", metavar="B", help="another one")
    p.add_argument("--problem", required=True, metavar="TEXT", help="a problem line or a MIOpenDriver command")
    p.add_argument("--direction", help="forward, bwd_data or bwd_weight")
    p.add_argument("--arch", required=True, help="an AMD arch, such as gfx942; no device is needed")


def _rank(p: argparse.ArgumentParser) -> None:
    p.add_argument("--problem", required=True, metavar="TEXT", help="a problem line or a MIOpenDriver command")
    p.add_argument("--direction", help="forward, bwd_data or bwd_weight")
    p.add_argument("--arch", required=True, help="an AMD arch, such as gfx942; no device is needed")
    p.add_argument("--limit", type=_count, default=12, metavar="N", help="compile at most N candidates (default 12)")


def _convert(p: argparse.ArgumentParser) -> None:
    p.add_argument("--input", required=True, metavar="FILE", help="a .csv or .parquet of measurements")
    p.add_argument("--output", required=True, metavar="FILE", help="a .parquet or .csv")
    p.add_argument("--arch", help="only rows of this arch")


def _train(p: argparse.ArgumentParser) -> None:
    p.add_argument("--data_dir", metavar="DIR", help="tables of measurements, or one table (default: the file of results)")
    p.add_argument("--out_dir", required=True, metavar="DIR", help="where the model goes")
    p.add_argument("--op", default="grouped_conv", help="grouped_conv")
    p.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), help="only problems of this dtype")
    p.add_argument("--arch", required=True, help="such as cpu or sm_90")
    p.add_argument("--targets", default="tflops", help="tflops")
    p.add_argument("--n_splits", type=int, default=5, help="folds of the cross-validation (default 5)")


def _model(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model", metavar="DIR", help="a trained model (default: that of the package for --arch)")
    p.add_argument("--arch", default="cpu", help="such as cpu or sm_90 (default cpu)")


def _predict(p: argparse.ArgumentParser) -> None:
    _model(p)
    p.add_argument("--problem", required=True, metavar="TEXT", help="a problem line or a MIOpenDriver command")
    p.add_argument("--direction", help="forward, bwd_data or bwd_weight")
    p.add_argument("--pool", metavar="FILE", help="a table whose configurations are ranked (default: the candidates of the rules)")
    p.add_argument("--top", type=int, default=5, help="how many (default 5)")


def _evaluate(p: argparse.ArgumentParser) -> None:
    _model(p)
    p.add_argument("--data_dir", metavar="DIR", help="tables of measurements, or one table (default: the file of results)")
    p.add_argument("--spread", type=float, default=1.0, help="only pools whose median is this many times their best (default 1)")


def _emu(p: argparse.ArgumentParser) -> None:
    p.add_argument("action", choices=("trace",))
    _subject(p)
    p.add_argument("--seed", type=_seed, default=0, help="seed of the random data (default 0)")
    p.add_argument("--block", default="0", metavar="X[,Y[,Z]]", help="the block to follow (default 0)")
    p.add_argument("--wave", type=_seed, default=0, help="the wave of the block (default 0)")
    p.add_argument("--lane", type=_seed, default=0, help="the lane whose vector registers are shown (default 0)")
    p.add_argument("--first", type=_seed, default=0, metavar="N", help="leave out the first N instructions")
    p.add_argument("--limit", type=_seed, default=1 << 62, metavar="N", help="print at most N instructions")


def _cache(p: argparse.ArgumentParser) -> None:
    p.add_argument("action", choices=("info", "clear", "verify"))


def _nothing(p: argparse.ArgumentParser) -> None:
    return None


COMMANDS: dict[str, tuple[str, str, _Add]] = {
    "run": ("cli_run:run", "run the run statements of a file on random data, verified and timed", _run),
    "check": ("cli_text:check", "find the errors of .gconv files", _check),
    "fmt": ("cli_text:fmt", "bring .gconv files into canonical form", _fmt),
    "verify": ("cli_run:verify", "verify a problem against the float64 reference", _verify),
    "explain": ("cli_show:explain", "what would run, why, and what was rejected", _subject),
    "inspect": ("cli_show:inspect", "the source, assembly, resources or main loop of a kernel", _inspect),
    "compare": ("cli_loop:compare", "static figures of two configurations side by side", _compare),
    "rank": ("cli_loop:rank_candidates", "candidates ranked by static figures of their compiled code, for an AMD arch", _rank),
    "bench": ("cli_bench:bench", "measure problems side by side with a baseline and the machine's limits", _bench),
    "tune": ("cli_tune:tune", "measure what is left open, and run the fastest from then on", _tune),
    "results": ("cli_results:results", "list, export and import measurements and failures", _results),
    "convert-csv": ("cli_learn:convert_csv", "turn a table of measurements into Parquet", _convert),
    "train": ("cli_learn:train_model", "train a model that selects kernels on measurements", _train),
    "predict": ("cli_learn:predict", "rank configurations for a problem by what a model expects", _predict),
    "evaluate": ("cli_learn:evaluate_model", "efficiency of a model's choices against the best measured", _evaluate),
    "emu": ("cli_emu:emu", "run a kernel on the emulator and print registers per instruction, with source lines", _emu),
    "rules": ("cli_show:rules", "which pipelines are legal where, with reasons", _rules),
    "env": ("cli_show:env", "the environment variables and their values", _nothing),
    "doctor": ("cli_show:doctor", "compilers, targets, devices, caches, and what is missing", _json_only),
    "cache": ("cli_show:cache", "the cache of compiled kernels", _cache),
    "repl": ("cli_text:repl", "declare, run and explain line by line", _nothing),
}
"""Command -> (module:function, help, the function that adds its arguments)."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = argparse.ArgumentParser(prog="gconv", description="Grouped convolution kernels: declare, verify, run.")
    parser.add_argument("--version", action="version", version=f"gconv {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, text, add) in COMMANDS.items():
        add(commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + "."))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    from .errors import GconvError

    options = build_parser().parse_args(argv)
    warnings.showwarning = _show_warning
    try:
        code = _command(options.command)(options)
        sys.stdout.flush()
        return code
    except GconvError as failure:
        sys.stdout.flush()
        print(failure, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    module, function = COMMANDS[name][0].split(":")
    found: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(f".{module}", __package__), function)
    return found


def _show_warning(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    print(f"warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
