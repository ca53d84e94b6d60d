"""The kind of a layer: a text of its calls without the widths of its channels, so that layers of one kind share their times."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from gator.cost.axis_sizes import AxisSize, AxisSizes
from gator.graph.analysis import ProgramLabels
from gator.graph.program import BatchInt, Call, Program, Ref
from gator.surgery.sizes import size_arguments


def kind_of(calls: Sequence[Call], labelled: ProgramLabels, sizes: AxisSizes, read: AxisSize, written: AxisSize) -> str:
    """A hash of the calls with their arguments, dtypes and shapes, in which names stand for the sizes that pruning changes."""
    names = {size: name for size, name in ((read, "in"), (written, "out")) if size.parts}

    def tensor(value: int) -> str:
        found = labelled.program.values[value]
        words = []
        for length, size in zip(found.shape, sizes.of_axes(value), strict=True):
            fixed = f"{length.slope}b+{length.offset}" if isinstance(length, BatchInt) else str(int(length))
            words.append(names.setdefault(size, f"other{len(names)} of {size.full}") if size else fixed)
        return f"{found.dtype}[{', '.join(words)}]"

    def argument(arg: Any) -> str:
        if isinstance(arg, Ref):
            return tensor(arg.id)
        if isinstance(arg, (list, tuple)):
            return f"[{', '.join(map(argument, arg))}]"
        return "batch" if isinstance(arg, BatchInt) else str(arg)

    lines = []
    for call in calls:
        skipped = set(size_arguments(call.packet).implied_by_shapes)
        if labelled.choices.get(call.index) != "groups":  # else pruning changes the number of groups
            skipped.discard("groups")
        arguments = [f"{name}={argument(arg)}" for name, arg in sorted(call.args.items()) if name not in skipped]
        results = [tensor(value) for value in call.outputs if value is not None]
        lines.append(f"{'; '.join(results)} = {call.op}({', '.join(arguments)})")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def group_of(call: Call, program: Program) -> str:
    """The operator and its kernel size: "conv2d 3x3 grouped"."""
    weight = call.args.get("weight")
    kernel = program.values[weight.id].shape[2:] if isinstance(weight, Ref) else ()
    words = [call.packet.__name__, "x".join(map(str, kernel)), "grouped" if call.args.get("groups", 1) > 1 else ""]
    return " ".join(filter(None, words))


def title_of(main: Call, calls: Sequence[Call], program: Program) -> str:
    """The kind for people: "conv2d 3x3 to 8x8 + add + relu"."""
    strides = main.args.get("stride") or [1]
    shape = program.values[main.outputs[0] or 0].shape
    words = [group_of(main, program)]
    words += [f"stride {strides[0]}"] if isinstance(strides, (list, tuple)) and strides[0] != 1 else []
    words += ["to " + "x".join(map(str, shape[2:]))] if len(shape) > 2 else []
    return " ".join([*words, *(f"+ {call.packet.__name__.rstrip('_')}" for call in calls if call is not main)])
