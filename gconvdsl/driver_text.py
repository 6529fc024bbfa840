"""MIOpenDriver command lines: ``./bin/MIOpenDriver convbfp16 -n 64 -c 256 -H 28 -W 28 -k 256 -y 3 -x 3 -p 1 -q 1 -g 32 -F 1``.

Flags, their short names and defaults are those of MIOpen's conv driver (README and help text of MIOpen, driver/). Flags that do
not change the problem (timing, verification, files, iterations) are skipped; flags that would change it in a way that cannot be
expressed here are errors, never ignored.
"""

from __future__ import annotations

import difflib
import re
from typing import Mapping

from .errors import GconvError, error
from .layouts import LAYOUTS
from .problem import ConvProblem

__all__ = ["is_driver", "parse_driver"]

_DTYPES = {"conv": "fp32", "convfp16": "fp16", "convbfp16": "bf16"}
_DRIVER = re.compile(r"(?:.*[/\\])?MIOpenDriver(?:\.exe)?\Z", re.IGNORECASE)

# long name -> (short name, default), for what makes up a problem
_FLAGS: dict[str, tuple[str, str]] = {
    "batchsize": ("n", "100"), "in_channels": ("c", "3"), "out_channels": ("k", "32"), "group_count": ("g", "1"),
    "in_d": ("!", "32"), "in_h": ("H", "32"), "in_w": ("W", "32"), "fil_d": ("@", "3"), "fil_h": ("y", "3"), "fil_w": ("x", "3"),
    "pad_d": ("$", "0"), "pad_h": ("p", "0"), "pad_w": ("q", "0"),
    "conv_stride_d": ("#", "1"), "conv_stride_h": ("u", "1"), "conv_stride_w": ("v", "1"),
    "dilation_d": ("^", "1"), "dilation_h": ("l", "1"), "dilation_w": ("j", "1"),
    "trans_output_pad_d": ("%", "0"), "trans_output_pad_h": ("Y", "0"), "trans_output_pad_w": ("X", "0"),
    "spatial_dim": ("_", "2"), "forw": ("F", "0"), "mode": ("m", "conv"), "pad_mode": ("z", "default"), "pad_val": ("r", "0"),
    "in_layout": ("I", ""), "fil_layout": ("f", ""), "out_layout": ("O", ""), "tensor_vect": ("Z", "0"),
    "vector_length": ("L", "1"),
}
_IGNORED = {
    "iter": "i", "verify": "V", "verification_cache": "C", "time": "t", "wall": "w", "search": "s", "printconv": "P",
    "dump_output": "o", "in_data": "d", "weights": "e", "bias": "b", "in_bias": "a", "dout_data": "D", "solution": "S",
    "gpualloc": "G",
}
_LONG = {**{short: name for name, (short, _) in _FLAGS.items()}, **{short: name for name, short in _IGNORED.items()}}


def is_driver(text: str) -> bool:
    """Whether ``text`` is meant as a MIOpenDriver command: it names the driver, or begins with one of its operations."""
    words = _words(text)
    return any(map(_DRIVER.match, words)) or bool(words and re.fullmatch(r"conv\w*", words[0]) and "=" not in text.split()[0])


def parse_driver(text: str) -> ConvProblem:
    """The problem of a command; what stands before the driver's name (a log prefix, variables) is skipped.

    -F 1, 2, 4 are forward, bwd_data, bwd_weight; of several at once the first (0: all, so forward). ``-m trans``: the forward
    of a transposed convolution is the bwd_data of a convolution whose output is the command's input, and so on. Without layout
    flags the layout is nchw (ncdhw).
    """
    words = _words(text)
    names = [at for at, word in enumerate(words) if _DRIVER.match(word)]
    words = words[names[0] + 1:] if names else words
    operation = words[0] if words else "nothing after MIOpenDriver"
    if operation not in _DTYPES:
        raise _refused("the operation", operation, f"Use one of: {', '.join(_DTYPES)}.")
    return _problem(_DTYPES[operation], _read(words[1:]))


def _words(text: str) -> list[str]:
    joined = re.sub(r"\\\s*\n", " ", text)
    return [word for word in (raw.strip("\"'`") for raw in joined.split()) if word]


def _refused(flag: str, value: object, hint: str = "") -> GconvError:
    return error("problem.driver", flag=flag, value=value, hint=hint)


def _read(words: list[str]) -> dict[str, str]:
    """Long flag name -> value, defaults filled in."""
    values = {name: default for name, (_, default) in _FLAGS.items()}
    at = 0
    while at < len(words):
        flag, equal, value = words[at].partition("=") if words[at].startswith("--") else (words[at], "", "")
        name = _name(flag)
        if not equal:
            at += 1
            if at == len(words):
                raise _refused(flag, "without a value", f"Give {flag} a value.")
            value = words[at]
        at += 1
        if name in _FLAGS:
            values[name] = value
    return values


def _name(flag: str) -> str:
    """The long name of a flag."""
    name = flag[2:] if flag.startswith("--") else _LONG.get(flag[1:], "") if flag.startswith("-") else ""
    if name not in _FLAGS and name not in _IGNORED:
        close = difflib.get_close_matches(flag[2:], [*_FLAGS, *_IGNORED], 1) if flag.startswith("--") else []
        raise _refused("the flag", flag, f"Did you mean --{close[0]}?" if close else "Flags are those of MIOpen's conv driver.")
    return name


def _problem(dtype: str, values: Mapping[str, str]) -> ConvProblem:
    ndim = _number(values, "spatial_dim")
    if ndim not in (2, 3):
        raise _refused("--spatial_dim", ndim, "Use 2 or 3.")
    axes = "dhw"[3 - ndim:]

    def each(prefix: str) -> list[int]:
        return [_number(values, f"{prefix}_{axis}") for axis in axes]

    _refuse_unusable(values)
    size, taps, stride, dilation = each("in"), each("fil"), each("conv_stride"), each("dilation")
    transposed = _choice(values, "mode", {"conv": False, "trans": True})
    pad = _pad(values, each("pad"), size, taps, stride, dilation, transposed)
    inner, outer = _number(values, "in_channels"), _number(values, "out_channels")
    direction = _direction(_number(values, "forw"))
    if transposed:
        size = _transposed_size(size, taps, stride, dilation, pad, each("trans_output_pad"))
        inner, outer = outer, inner
        direction = {"forward": "bwd_data", "bwd_data": "forward"}.get(direction, direction)
    return ConvProblem(
        N=_number(values, "batchsize"), G=_number(values, "group_count"), C=inner, K=outer, input=size, filter=taps,
        stride=stride, pad=pad, dilation=dilation, dtype=dtype, direction=direction, layout=_layout(values, ndim))


def _number(values: Mapping[str, str], name: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", values[name]):
        raise _refused(f"--{name}", values[name], "Give it a whole number.")
    return int(values[name])


def _choice(values: Mapping[str, str], name: str, table: Mapping[str, bool]) -> bool:
    if values[name] not in table:
        raise _refused(f"--{name}", values[name], f"Use one of: {', '.join(table)}.")
    return table[values[name]]


def _refuse_unusable(values: Mapping[str, str]) -> None:
    for name, plain in (("pad_val", "0"), ("tensor_vect", "0"), ("vector_length", "1")):
        if values[name] != plain:
            raise _refused(f"--{name}", values[name], f"Only --{name} {plain} is supported.")


def _direction(forw: int) -> str:
    if not 0 <= forw <= 7:
        raise _refused("--forw", forw, "Use 1 (forward), 2 (bwd_data) or 4 (bwd_weight).")
    return next((name for bit, name in ((1, "forward"), (2, "bwd_data"), (4, "bwd_weight")) if forw & bit), "forward")


def _pad(values: Mapping[str, str], pad: list[int], size: list[int], taps: list[int], stride: list[int], dilation: list[int],
         transposed: bool) -> list[int]:
    """The pads after --pad_mode, which the driver applies to undilated (or 1x1), not transposed convolutions only."""
    mode = values["pad_mode"]
    if mode not in ("default", "same", "valid"):
        raise _refused("--pad_mode", mode, "Use one of: default, same, valid.")
    if mode == "default" or transposed or not (set(dilation) == {1} or set(taps) == {1}):
        return pad
    if mode == "valid":
        return [0] * len(pad)
    return [max(t - (n % s or s), 0) // 2 if s > 0 else 0 for n, t, s in zip(size, taps, stride)]


def _transposed_size(size: list[int], taps: list[int], stride: list[int], dilation: list[int], pad: list[int],
                     extra: list[int]) -> list[int]:
    """What a transposed convolution produces; the extra rows must be fewer than the stride, or no convolution leads back."""
    for more, step in zip(extra, stride):
        if not 0 <= more < max(1, step):
            raise _refused("--trans_output_pad", more, f"Give it at least 0 and less than the stride, {step}.")
    return [s * (n - 1) + d * (t - 1) + 1 - 2 * p + more for n, t, s, d, p, more in zip(size, taps, stride, dilation, pad, extra)]


def _layout(values: Mapping[str, str], ndim: int) -> str:
    """The layout of x, which fixes the others; the driver names all three tensors in the letters of x."""
    named = {name: values[name].lower() for name in ("in_layout", "fil_layout", "out_layout") if values[name]}
    chosen = named.get("in_layout") or next(iter(named.values()), "nchw" if ndim == 2 else "ncdhw")
    for name, value in named.items():
        known = LAYOUTS.get(value)
        if known is None or known.ndim != ndim or known.split:
            allowed = [each.name.upper() for each in LAYOUTS.values() if each.ndim == ndim and not each.split]
            raise _refused(f"--{name}", values[name], f"Use one of: {', '.join(allowed)}.")
        if value != chosen:
            raise _refused(f"--{name}", values[name], f"All three tensors need the layout of the input, {chosen.upper()}.")
    return chosen
