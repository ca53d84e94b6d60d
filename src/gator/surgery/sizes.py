"""Which arguments of operators are sizes of an axis or positions on it, and their new values: one table keyed by the operator.

It is used to rewrite calls, to compare calls and to tell kinds of calls apart. An operator that is not in the table has no such
arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gator.graph.analysis import ProgramLabels
from gator.graph.labels import Axis
from gator.graph.program import Call, Mode, Program
from gator.graph.rules.creation import UNIFORM
from gator.graph.rules.indexing import slice_range
from gator.surgery.plan import Mask, Plan

aten = torch.ops.aten


@dataclass(frozen=True)
class Cutting:
    """One program of a graph, with its sizes before and after a cut."""

    plan: Plan
    mode: Mode

    @property
    def labelled(self) -> ProgramLabels:
        return self.plan.graph.of(self.mode)

    @property
    def program(self) -> Program:
        return self.labelled.program

    def axes(self, value: int) -> tuple[Axis, ...]:
        return self.labelled.axes[value]

    def alive(self, value: int, axis: int) -> Mask | None:
        """The mask of kept positions of an axis; None if all are kept."""
        return self.plan.alive(self.labelled.axes[value][axis])

    def touches(self, call: Call) -> bool:
        """Whether an argument or a result of the call loses channels."""
        values = [v for _, v in call.tensors()] + [v for v in call.outputs if v is not None]
        return any(self.plan.alive(labels) is not None for v in values for labels in self.labelled.axes[v])

    def before(self, value: int) -> tuple[int, ...]:
        """The recorded shape of a value."""
        return self.program.values[value].shape

    def after(self, value: int) -> tuple[int, ...]:
        """The shape of a value after the cut."""
        return self.plan.shape(self.mode, value)


NewArguments = Callable[[Cutting, Call], dict[str, Any]]


@dataclass(frozen=True)
class SizeArguments:
    """The arguments of one operator that depend on the sizes of its tensors."""

    implied_by_shapes: tuple[str, ...] = ()  # the shapes of the arguments and results determine them
    positions: tuple[str, ...] = ()  # which positions of an axis are selected; shapes do not determine them
    new: NewArguments | None = None  # computes their values after a cut, if the operator stays the same


def size_arguments(packet: Any) -> SizeArguments:
    """The entry of an operator; an empty one for an operator without such arguments."""
    return _TABLE.get(packet, _NONE)


def new_arguments(cutting: Cutting, call: Call) -> dict[str, Any]:
    """The arguments of a call that change after a cut; empty if none does, or if rewrite.py uses another operator."""
    found = size_arguments(call.packet).new
    return {} if found is None else found(cutting, call)


def dim_of(call: Call, rank: int) -> int:
    """The axis that a call names as `dim`."""
    dim: int = call.args.get("dim", 0)
    return dim % rank


def selected_positions(cutting: Cutting, call: Call) -> NDArray[np.int64] | None:
    """The positions that a slice, narrow or select selects from its axis after the cut; None if the axis does not change."""
    source = call.value_at("self")
    shape = cutting.before(source)
    dim = dim_of(call, len(shape))
    alive = cutting.alive(source, dim)
    if alive is None:
        return None
    marked = np.zeros(len(alive), bool)
    marked[positions(call, len(alive))] = True
    return np.flatnonzero(marked[alive])


def positions(call: Call, size: int) -> slice:
    """The positions that a slice, narrow or select selects from an axis of this size."""
    if call.packet is aten.select:
        index = int(call.args["index"]) % size
        return slice(index, index + 1)
    return slice_range(call.args, size)


def _result(call: Call) -> int:
    value = call.outputs[0]
    assert value is not None
    return value


def _shape(cutting: Cutting, call: Call) -> dict[str, Any]:
    return {"size": list(cutting.after(_result(call)))}


def _repeats_as(name: str) -> SizeArguments:
    """The number of copies of a single position follows the new size; the number of copies of many positions stays."""

    def new(cutting: Cutting, call: Call) -> dict[str, Any]:
        before, after = cutting.before(call.value_at("self")), cutting.after(_result(call))
        repeats = list(call.args[name])
        for axis, size in enumerate(after):
            own, count = axis - len(after) + len(before), axis - len(after) + len(repeats)
            if count >= 0 and repeats[count] != 1 and (own < 0 or before[own] == 1):
                repeats[count] = size
        return {name: repeats}

    return SizeArguments((name,), new=new)


def _repeated(cutting: Cutting, call: Call) -> dict[str, Any]:
    """The size of the result is given twice: by the number of copies, and by itself."""
    if call.args.get("output_size") is None:
        return {}
    rank = len(cutting.before(call.value_at("self")))
    return {"output_size": cutting.after(_result(call))[dim_of(call, rank)]}


def _select(cutting: Cutting, call: Call) -> dict[str, Any]:
    found = selected_positions(cutting, call)
    return {} if found is None else {"index": int(found[0])}


def _pad(cutting: Cutting, call: Call) -> dict[str, Any]:
    """Padding with as many positions as are kept."""
    pad = [int(p) for p in call.args["pad"]]
    rank = len(cutting.before(call.value_at("self")))
    for pair in range(len(pad) // 2):
        alive = cutting.alive(_result(call), rank - 1 - pair)
        if alive is not None:
            before, after = pad[2 * pair], pad[2 * pair + 1]
            pad[2 * pair] = int(alive[:before].sum())
            pad[2 * pair + 1] = int(alive[len(alive) - after :].sum())
    return {"pad": pad}


def _groups_of_convolution(cutting: Cutting, call: Call) -> dict[str, Any]:
    rank = len(cutting.before(call.value_at("weight"))) - 2
    groups = _groups(cutting, call, call.args.get("groups", 1), axis=-rank - 1)
    return {"groups": groups} if "groups" in call.args or groups != 1 else {}


def _groups_of_norm(cutting: Cutting, call: Call) -> dict[str, Any]:
    return {"num_groups": _groups(cutting, call, call.args["num_groups"], axis=1)}


def _groups(cutting: Cutting, call: Call, groups: int, axis: int) -> int:
    """The number of groups: as before, or fewer if whole groups are removed."""
    if cutting.labelled.choices.get(call.index) != "groups":
        return groups
    value = call.value_at("input")
    return groups * int(cutting.after(value)[axis]) // int(cutting.before(value)[axis])


def _normalized_shape(cutting: Cutting, call: Call) -> dict[str, Any]:
    shape = cutting.after(call.value_at("input"))
    return {"normalized_shape": [int(size) for size in shape[len(shape) - len(call.args["normalized_shape"]) :]]}


_NONE = SizeArguments()
_TABLE: dict[Any, SizeArguments] = {
    **dict.fromkeys((aten.view, aten._unsafe_view, aten.view_copy), SizeArguments(("size",))),
    aten.reshape: SizeArguments(("shape",)),
    aten.unflatten: SizeArguments(("sizes",)),
    **dict.fromkeys((aten.expand, *UNIFORM), SizeArguments(("size",), new=_shape)),
    aten.repeat: _repeats_as("repeats"),
    aten.tile: _repeats_as("dims"),
    aten.repeat_interleave: SizeArguments(("output_size",), new=_repeated),
    aten.split: SizeArguments(("split_size", "split_sizes")),
    aten.unsafe_split: SizeArguments(("split_size",)),
    aten.split_with_sizes: SizeArguments(("split_sizes",)),
    **dict.fromkeys((aten.chunk, aten.unsafe_chunk), SizeArguments(("chunks",))),
    aten.tensor_split: SizeArguments(("sections", "indices")),
    aten.slice: SizeArguments(positions=("start", "end", "step")),
    aten.narrow: SizeArguments(positions=("start", "length")),
    aten.select: SizeArguments(positions=("index",), new=_select),
    aten.constant_pad_nd: SizeArguments(("pad",), new=_pad),
    **dict.fromkeys(
        (
            aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution, aten.conv_transpose1d, aten.conv_transpose2d,
            aten.conv_transpose3d,
        ),
        SizeArguments(("groups",), new=_groups_of_convolution),
    ),
    aten.group_norm: SizeArguments(("num_groups",), new=_groups_of_norm),
    **dict.fromkeys((aten.layer_norm, aten.rms_norm), SizeArguments(("normalized_shape",), new=_normalized_shape)),
}  # fmt: skip
