"""The kind of a layer: a text of its calls without the widths of its channels, so that layers of one kind share their times."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from gator.cost.latency.size import Size, Sizes
from gator.graph.analysis import ProgramLabels
from gator.graph.program import BatchInt, Call, Program, Ref

# Arguments that repeat sizes, which the shapes say already.
_SIZES = ("size", "shape", "repeats", "dims", "split_size", "split_sizes", "normalized_shape", "pad", "num_groups")


def kind_of(
    calls: Sequence[Call], inputs: Sequence[int], labelled: ProgramLabels, sizes: Sizes, read: Size | None, written: Size | None
) -> str:
    """A short hash of the text."""
    text = _Writer(labelled, sizes, read, written).text(calls, inputs)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


class _Writer:
    def __init__(self, labelled: ProgramLabels, sizes: Sizes, read: Size | None, written: Size | None) -> None:
        self._labelled, self._sizes = labelled, sizes
        self._names: dict[Size, str] = {}  # of sizes that pruning changes
        for size, name in ((read, "in"), (written, "out")):
            if size is not None:
                self._names.setdefault(size, name)
        self._numbers: dict[int, int] = {}  # of values, in the order they appear

    def text(self, calls: Sequence[Call], inputs: Sequence[int]) -> str:
        lines = [self._value(value) for value in inputs]
        for call in calls:
            by_group = self._labelled.choices.get(call.index) == "groups"  # then pruning changes the number of groups
            skipped = {*_SIZES, "groups"} if by_group else _SIZES
            arguments = [f"{name}={self._argument(arg)}" for name, arg in sorted(call.args.items()) if name not in skipped]
            results = [self._value(value) for value in call.outputs if value is not None]
            lines.append(f"{'; '.join(results)} = {call.op}({', '.join(arguments)})")
        return "\n".join(lines)

    def _value(self, value: int) -> str:
        return f"{self._numbers.setdefault(value, len(self._numbers))}: {self._shape(value)}"

    def _argument(self, arg: Any) -> str:
        if isinstance(arg, Ref):
            return str(self._numbers[arg.id]) if arg.id in self._numbers else self._value(arg.id)
        if isinstance(arg, (list, tuple)):
            return "[" + ", ".join(self._argument(item) for item in arg) + "]"
        return "batch" if isinstance(arg, BatchInt) else str(arg)

    def _shape(self, value: int) -> str:
        found = self._labelled.program.values[value]
        words = []
        for length, size in zip(found.shape, self._sizes.of_axes(value), strict=True):
            if size is not None:
                words.append(self._names.setdefault(size, f"other{len(self._names)} of {size.full}"))
            elif isinstance(length, BatchInt):
                words.append(f"{length.slope}b+{length.offset}")
            else:
                words.append(str(int(length)))
        return f"{found.dtype}[{', '.join(words)}]"
