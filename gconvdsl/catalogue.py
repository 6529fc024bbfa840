"""The catalogue of errors: code -> one sentence in the user's words (value and limit), then the fix.

Codes are stable: tests and users match on them, never on the text. The first word names the exception class (errors.py).
Internal faults of this package do not belong here.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CATALOGUE", "Entry"]


class Entry(NamedTuple):
    """One kind of error: a message template and the fix."""

    message: str
    fix: str = ""


CATALOGUE: dict[str, Entry] = {
    # --- problem: a convolution that cannot exist (problem.py, problem_text.py)
    "problem.size": Entry("{field} = {value!r} is not a whole number of at least {limit}.",
                          "Give {field} a whole number, {limit} or more."),
    "problem.groups": Entry("{field} = {value} cannot be split into G = {G} equal groups.",
                            "{field} counts channels over all groups: make it a multiple of G."),
    "problem.rank": Entry("{field} = {value} names {count} axes, but the input has {ndim}.",
                          "Give one number for all axes, or one for each of the {ndim} spatial axes."),
    "problem.ndim": Entry("{field} = {value} names {count} axes; a problem has 1 to 3.", "Give one size for each spatial axis."),
    "problem.decorator": Entry("@gconv.problem was put on {got}, which is not a class.",
                               "Write the fields in a class body: class res4: N, C, K = 8, 64, 64 ..."),
    "problem.filter": Entry("The filter reaches over {reach} points along axis {axis}, longer than the padded input of {padded}.",
                            "Enlarge the input or the padding, or make the filter or dilation smaller."),
    "problem.dtype": Entry("{field} = {value!r} is not a dtype that is supported here.", "Use one of: {allowed}."),
    "problem.direction": Entry("direction = {value!r} is not known.", "Use forward, bwd_data or bwd_weight."),
    "problem.layout": Entry("layout = {value!r} is not a layout of a {ndim}-D problem.", "Use one of: {allowed}."),
    "problem.field": Entry("A problem has no field {field!r}.", "{hint}"),
    "problem.missing": Entry("A problem needs {field}, which was not given.", "Give {field}, for example {example}."),
    "problem.text": Entry("This is neither a problem line nor a MIOpenDriver command: {text!r}.",
                          "Write for example: N=2 G=4 C=32 K=48 input=13x11 filter=3x3 pad=1."),
    "problem.driver": Entry("The MIOpenDriver command has {flag} {value}, which is not understood.", "{hint}"),
    # --- tile, config: values that cannot exist (config.py)
    "tile.field": Entry("A tile has no field {field!r}.", "{hint}"),
    "tile.missing": Entry("A tile needs {field}.", "Give {field}, for example {example}."),
    "tile.value": Entry("tile field {field} = {value!r} is not {expected}.", "{hint}"),
    "config.field": Entry("A kernel configuration has no field {field!r}.", "{hint}"),
    "config.value": Entry("{field} = {value!r} is not {expected}.", "{hint}"),
    # --- rule: refused by the rules (rules.py)
    "rule.violated": Entry("The rules refuse this configuration on {arch}: {reasons}.", "{fixes}"),
    # --- trace: kernel bodies (trace.py, kernel.py)
    "trace.branch": Entry("A kernel body cannot branch on the value of a tensor: it is traced once, before any data exists.",
                          "Use gconv.where(condition, a, b)."),
    "trace.numpy": Entry("{function} cannot be applied to a traced tensor.", "Use {hint}."),
    "trace.iterate": Entry("A traced tensor has no length and cannot be looped over or indexed.", "Operate on it as a whole."),
    "trace.op": Entry("A traced tensor does not support {what}.",
                      "Supported: + - * /, comparisons inside gconv.where, and the gconv functions."),
    "trace.conv_count": Entry("A kernel body has exactly one convolution; this one has {count}.", "{hint}"),
    "trace.conv_arg": Entry("The {which} argument of {function} must be {expected}.", "{hint}"),
    "trace.return": Entry("A kernel body must return the value to store; this one returned {got}.", "{hint}"),
    "trace.operand": Entry("The parameter {name!r} of a kernel needs an annotation that says what it is.",
                           "Annotate it: gconv.PerK, gconv.PerC, gconv.LikeY or gconv.Scalar."),
    "trace.operand_place": Entry("{name!r} is {kind} and cannot be used in {place}.", "{hint}"),
    "trace.args": Entry("{function} takes {expected}, not {got}.", ""),
    "trace.condition": Entry("Only a comparison can be the condition of where, and it can be nothing else; see {function}.",
                             "Write where(a < b, c, d)."),
    "trace.params": Entry("{field} = {value!r} is not {expected}.", "{hint}"),
    "trace.name": Entry("{name!r} cannot be the name of {what}: {reason}.", "Choose another name."),
    "trace.directions": Entry("A kernel with {declared} cannot also be for {value!r}.", "{hint}"),
    "trace.array": Entry("{got} cannot be a constant in a kernel expression.",
                         "Pass it as an operand: give the kernel a parameter annotated gconv.PerK, gconv.LikeY or gconv.Scalar."),
    "trace.outside": Entry("gconv.{function} was given {got}, but works on traced values inside a kernel body.",
                           "Use NumPy or math for plain values, or call it in a function decorated with @gconv.kernel."),
    "trace.function": Entry("@gconv.kernel cannot make a kernel of {got}.", "{hint}"),
    "trace.parameter": Entry("The parameter {name!r} cannot be {what}.", "{hint}"),
    "trace.tensors": Entry("A kernel needs two tensors as its first parameters, but {name!r} has {got}.",
                           "Write def {name}(x, w, ...), or (dy, w, ...) for bwd_data, (x, dy, ...) for bwd_weight."),
    "trace.again": Entry("{name!r} is already a kernel.", "Decorate {name}.py_func to declare it again with other options."),
    "trace.const": Entry("{value!r} cannot be a constant in a kernel expression.", "Use a finite int or float."),
    "trace.terms": Entry("The expression has {count} terms, more than the limit of {limit}.",
                         "Split the kernel, or simplify the expression."),
    "trace.source": Entry("The body of {name!r} failed while it was traced: {reason}.", "{hint}"),
    "trace.escaped": Entry("A traced value was used outside its kernel body.", "Return it from the body instead."),
    # --- syntax: .gconv text (grammar/)
    "syntax.expected": Entry("Found {found}, but expected {expected}.", "{hint}"),
    "syntax.end": Entry("The text ends here, but {expected} was still expected.", "{hint}"),
    "syntax.character": Entry("The character {found} cannot stand here.", "{hint}"),
    "syntax.unknown": Entry("{what} {name!r} is not known here.", "{hint}"),
    "syntax.duplicate": Entry("{what} {name!r} is given twice; the first is in line {line}.", "Remove one of the two."),
    "syntax.value": Entry("{field} cannot be {value}: it must be {expected}.", "{hint}"),
    "syntax.missing": Entry("{what} {name!r} needs {field}.", "{hint}"),
    "syntax.large": Entry("The file has {value} bytes, more than the limit of {limit}.", "Split it with include."),
    "syntax.deep": Entry("The text is nested {value} levels deep, more than the limit of {limit}.", "Use let to name parts."),
    "syntax.terms": Entry("The expression has {value} terms, more than the limit of {limit}.",
                          "Use an epilogue declaration to name parts."),
    "syntax.encoding": Entry("The file is not UTF-8: byte {value} at offset {offset}.", "Save it as UTF-8."),
    "syntax.include": Entry("The included file {path!r} cannot be read: {reason}.",
                            "The path is relative to the including file."),
    "syntax.cycle": Entry("The include of {path!r} leads back to itself: {chain}.", "Remove one include of the circle."),
    "syntax.several": Entry("{count} faults were found in the text.", ""),
    "syntax.file": Entry("{path!r} cannot be read: {reason}.", ""),
    "syntax.name": Entry("{name!r} cannot be written as a name in .gconv text.",
                         "Use letters, digits and _, not beginning with a digit."),
    "syntax.object": Entry("{got} cannot be written as .gconv text.",
                           "Pass problems, tiles, kernels, sweeps or what gconv.load returns."),
    "syntax.empty_sweep": Entry("The sweep {name!r} has no member: the clause {clause} admits nothing.", "{hint}"),
    # --- array: what is handed to a kernel (arrays.py)
    "array.kind": Entry("{name} is {got}.", "Pass NumPy arrays, or torch tensors: both inputs and out= of one kind."),
    "array.scalar": Entry("{name} is {got}, but it is declared as one number.",
                          "Pass an int or float that fits into fp32: 3.4e38 at most, or inf or nan."),
    "array.dtype": Entry("{name} has dtype {got}, but {expected} is expected.",
                         "Convert {name} first: astype of a NumPy array, to of a torch tensor."),
    "array.rank": Entry("{name} has {got} axes; {expected}.", "{hint}"),
    "array.shape": Entry("{name} has shape {got}, but the problem needs {expected}.", "{hint}"),
    "array.device": Entry("{name} lives on {got}, but target {target} reads {expected}.",
                          "Move it, or choose the target of its device."),
    "array.out": Entry("out= cannot be written: {reason}.", "Pass a writable array of shape {expected}."),
    "array.missing": Entry("The kernel {kernel!r} needs the operand {name!r}.", "Call it as {signature}."),
    "array.extra": Entry("The kernel {kernel!r} takes no {name}.",
                         "Call it as {signature}; problem, out, out_dtype and target go by name."),
    # --- compile, launch: tools and devices (backends/)
    "compile.missing": Entry("No {tool} was found for target {target}.", "{hint}"),
    "compile.failed": Entry("{tool} could not compile the kernel {kernel} for {arch} (exit status {status}).", "{hint}"),
    "compile.timeout": Entry("{tool} took longer than {limit} s for the kernel {kernel} on {arch} and was stopped.",
                             "Set GCONV_COMPILE_TIMEOUT to a larger number of seconds."),
    "compile.arch": Entry("{arch!r} is not an arch of target {target}.", "Use one of: {allowed}."),
    "launch.target": Entry("Target {target!r} is not known.", "Use one of: {allowed}, as TARGET or TARGET:ARCH."),
    "launch.device": Entry("Target {target} has no device here: {reason}.", "{hint}"),
    "launch.load": Entry("The compiled kernel {path} could not be loaded: {reason}.", "Run gconv doctor."),
    "launch.failed": Entry("The kernel {kernel} failed on {target}: {reason}.", "{hint}"),
    "launch.sim": Entry("The simulator stopped the kernel {kernel}: {reason}.", "{hint}"),
    "launch.driver": Entry("The driver of target {target} serves {have}, but {what} needs {need}.",
                           "{hint}"),
    "launch.memory": Entry("There is no room for {nbytes} bytes on the device of target {target}: {free} of {total} are free.",
                           "Free other arrays, or split the problem along N."),
    "launch.broken": Entry("The device of target {target} stopped at an invalid operation of the kernel {kernel}, or of one "
                           "before it: {reason}. From now on every call of this process fails.",
                           "Restart the process. {hint}"),
    "launch.runtime": Entry("The driver of target {target} refused {call}: {reason}.", "{hint}"),
    "launch.emu": Entry("The emulator stopped the kernel {kernel}: {reason}.", "{hint}"),
    "launch.timeout": Entry("The kernel {kernel} ran longer than {limit} s on {target}.", ""),
    # --- kernel, verify
    "kernel.none": Entry("No kernel is supported for {problem} on {target}.",
                         "gconv explain shows every candidate and its reason."),
    "kernel.bind": Entry("The call of {kernel!r} does not fit its declaration: {reason}.", "{hint}"),
    "verify.memory": Entry("This machine has too little memory to verify {problem}: {reason}.",
                           "Verify it with a smaller N; the reference is computed in float64."),
    "verify.failed": Entry("The result is wrong: {summary}."),
    # --- store, env, usage
    "store.newer": Entry("{path} was written by a newer version (schema {found}, this one reads {known}).",
                         "Update gconvdsl, or remove the file."),
    "store.format": Entry("{path}: {field} is {value!r}, not {expected}.", "Correct the file, or write it anew."),
    "store.model": Entry("The model {path} was trained with other features ({found}; this version has {known}).",
                         "Train it again with gconv train."),
    "store.locked": Entry("{path} has been locked by another process for more than {limit} s.",
                          "Wait for it to end, or use another file: GCONV_RESULTS, or --store FILE."),
    "store.damaged": Entry("{path} is not a file of results that can be read: {reason}.",
                           "It was left as it is. Move it away, or name another file with GCONV_RESULTS or --store FILE."),
    "store.unusable": Entry("The results {path} cannot be used: {reason}.", "Name another file with GCONV_RESULTS or --store FILE."),
    # --- table: problems, configurations and results in CSV, Parquet and JSON
    "table.file": Entry("{path} cannot be read: {reason}.", "{hint}"),
    "table.column": Entry("{path}: the column {column!r} {reason}.", "{hint}"),
    "table.value": Entry("{path}, line {line}: {column} = {value!r} is not {expected}.", ""),
    "table.write": Entry("{path} cannot be written: {reason}.", "{hint}"),
    "env.value": Entry("{name} = {value!r} is not {expected}.", "{hint}"),
    "usage.option": Entry("{what} {value!r} is not known.", "{hint}"),
    "usage.expression": Entry("{text!r} cannot be computed here: {reason}.", "Statements of the spec language and :commands are in :help."),
    "usage.empty": Entry("There is nothing to {what}: {reason}.", "{hint}"),
}
