"""Compare what a sliced copy of the user's class runs with what the plan says it must run, call by call, in both modes.

Numbers can agree by chance (a saturated output, one huge value, a batch of one). The calls cannot: the same operators on
the same sizes with the same settings are the same function. A scale computed from a width, or a literal slice, shows here.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import nn

from gator.errors import TraceError
from gator.graph.program import Call, Mode, Program, Ref
from gator.graph.record import record_once
from gator.graph.rules import has_rule
from gator.graph.rules.factory import PATTERNED, UNIFORM
from gator.graph.rules.pick import slice_range
from gator.surgery.emit import Emitter
from gator.surgery.emit_cut import CutEmitter
from gator.surgery.fold import Folder
from gator.surgery.rewrite import pads
from gator.surgery.slice import canonical_names

aten = torch.ops.aten

# Arguments that follow the channels; the shapes of the results say whether they are right.
_SIZES: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((aten.view, aten.reshape, aten._unsafe_view, aten.unflatten, aten.view_copy), ("size", "shape", "sizes")),
    **dict.fromkeys((aten.expand, *UNIFORM), ("size",)),
    **dict.fromkeys((aten.repeat, aten.tile), ("repeats", "dims")),
    **dict.fromkeys(
        (aten.split, aten.split_with_sizes, aten.chunk, aten.tensor_split, aten.unsafe_split, aten.unsafe_chunk),
        ("split_size", "split_sizes", "chunks", "sections", "indices"),
    ),
    **dict.fromkeys((aten.layer_norm, aten.rms_norm), ("normalized_shape",)),
    **dict.fromkeys((aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution), ("groups",)),
    **dict.fromkeys((aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d), ("groups",)),
    aten.group_norm: ("num_groups",),
    aten.slice: ("start", "end", "step"),
    aten.narrow: ("start", "length"),
    aten.select: ("index",),
    aten.constant_pad_nd: ("pad",),
}


def class_differs(sliced: nn.Module, plan: Any) -> str:
    """Where the sliced class does something else than the plan expects, in eval or train mode; empty if nowhere."""
    names = canonical_names(sliced)
    modes: tuple[Mode, ...] = ("eval",) if _same_in_both_modes(plan) else ("eval", "train")
    for mode in modes:
        expected = plan.graph.of(mode).program
        batch = expected.batch or plan.graph.inputs.batch
        try:
            found = record_once(
                sliced, plan.graph.inputs, has_rule, training=mode == "train", batch=batch, fold=expected.folded
            )
        except TraceError as error:
            return f"in {mode} mode {error}"
        emitter = CutEmitter(plan, mode, sliced, names, Folder())
        for one, other in zip_longest(expected.calls, found.calls):
            if one is None or other is None or one.op is not other.op:
                return f"in {mode} mode it runs other operators, first at {(one or other).where()}"
            if not _same(emitter, one, other, found):
                return f"in {mode} mode it runs otherwise at {one.where()}"
    return ""


def _same_in_both_modes(plan: Any) -> bool:
    """Whether train mode runs the same calls as eval mode, flags and counters of batches aside."""

    def calls(mode: Mode) -> list[Any]:
        program = plan.graph.of(mode).program
        counters = {v.id for v in program.values if v.origin == "attribute"}
        return [call for call in program.calls if call.mutates not in counters]

    one, other = calls("train"), calls("eval")
    flags = ("training", "train", "use_input_stats")
    return len(one) == len(other) and all(
        a.op is b.op and all(name in flags or _equal(arg, b.args.get(name)) for name, arg in a.args.items())
        for a, b in zip(one, other, strict=True)
    )


def _same(emitter: Emitter, one: Call, other: Call, found: Program) -> bool:
    for value, result in zip(one.outputs, other.outputs, strict=True):
        if value is not None and result is not None and emitter.shape(value) != found.values[result].shape:
            return False
    sizes = _SIZES.get(one.packet, ())
    for name in one.args.keys() | other.args.keys():
        if name not in sizes and not _equal(one.args.get(name), other.args.get(name)):
            return False
    return _special(emitter, one, other) if emitter.touched(one) else True


def _equal(one: Any, other: Any) -> bool:
    """Whether two arguments are the same, tensors aside."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, Ref) or isinstance(other, Ref):
        return isinstance(one, Ref) and isinstance(other, Ref)
    same: bool = one == other
    return same


def _special(emitter: Emitter, one: Call, other: Call) -> bool:
    """Calls whose shapes do not say which positions they take."""
    if one.packet in (aten.slice, aten.narrow, aten.select):
        source = one.value_at("self")
        shape = emitter.program.values[source].shape
        dim = one.args.get("dim", 0) % len(shape)
        alive = emitter.alive(source, dim)
        if alive is None:
            return all(_equal(one.args.get(name), other.args.get(name)) for name in _SIZES[one.packet])
        if one.packet is aten.select:
            index, size = int(one.args["index"]) % len(alive), int(alive.sum())
            return int(other.args["index"]) % size == int(alive[:index].sum())
        taken = np.zeros(len(alive), bool)
        taken[slice_range(one.args, len(alive))] = True
        expected: list[int] = np.flatnonzero(taken[alive]).tolist()
        return expected == list(range(int(alive.sum())))[slice_range(other.args, int(alive.sum()))]
    if one.packet is aten.constant_pad_nd:
        return pads(emitter, one) == [int(p) for p in other.args["pad"]]
    if one.packet is aten.scaled_dot_product_attention:
        query = one.value_at("query")
        width = emitter.program.values[query].shape[-1]
        return bool(emitter.shape(query)[-1] == width) or one.args.get("scale") is not None
    if one.packet in PATTERNED:
        return False
    moves = emitter.labelled.moves.get(one.index, {})
    return all(emitter.alive(one.value_at("self"), source) is None for source, _ in moves.values())
