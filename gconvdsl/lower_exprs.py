"""The prologue and epilogue of a kernel as C++ functors for the device headers."""

from __future__ import annotations

from .spec import KernelSpec

__all__ = ["epilogue_struct", "prologue_struct"]


def _names(spec: KernelSpec, out: str) -> dict[str, str]:
    """Operand name -> the C++ expression that reads it."""
    reads = {
        "scalar": "args.scalar[{i}]",
        "per_k": "((const float*)args.operand[{i}])[channel]",
        "per_c": "((const float*)args.operand[{i}])[channel]",
        "like_y": f"gconv::to_float(((const {out}*)args.operand[{{i}}])[element])",
    }
    return {one.name: reads[one.kind].format(i=i) for i, one in enumerate(spec.operands)}


def _body(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def prologue_struct(spec: KernelSpec) -> str:
    """``struct Prologue``: what is applied to each element of x inside the image."""
    active = spec.prologue.op != "x"
    body = spec.prologue.cpp_body({"x": "x", **_names(spec, "float")}, "return")
    return (f"struct Prologue {{\n  static constexpr bool kActive = {str(active).lower()};\n"
            f"  static GCONV_DEVICE float apply(float x, const gconv::ConvArgs& args, int channel) {{\n{_body(body)}\n  }}\n}};")


def epilogue_struct(spec: KernelSpec, out: str) -> str:
    """``struct Epilogue``: from the accumulator to the value to store; ``out`` is the C++ type of the result."""
    body = spec.epilogue.cpp_body({"acc": "acc", **_names(spec, out)}, "return")
    return ("struct Epilogue {\n"
            "  static GCONV_DEVICE float apply(float acc, const gconv::ConvArgs& args, int channel, long long element) {\n"
            f"{_body(body)}\n  }}\n}};")
