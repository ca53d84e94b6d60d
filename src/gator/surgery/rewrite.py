"""How the arguments of an operator change when channels leave: one table keyed by the operator.

An operator that is not here takes no sizes, so it is written as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gator.graph.program import BatchInt, Call
from gator.graph.rules.factory import PATTERNED, UNIFORM
from gator.graph.rules.pick import slice_range
from gator.surgery.slice import new_groups, new_normalized_shape, new_num_groups

if TYPE_CHECKING:
    from gator.surgery.emit import Emitter

aten = torch.ops.aten
Rewrite = Callable[["Emitter", Call, dict[str, Any]], Any]
REWRITES: dict[Any, Rewrite] = {}


def rewrite(*packets: Any) -> Callable[[Rewrite], Rewrite]:
    def register(function: Rewrite) -> Rewrite:
        for packet in packets:
            if packet in REWRITES:
                raise ValueError(f"{packet} is rewritten already")
            REWRITES[packet] = function
        return function

    return register


def _out(call: Call, index: int = 0) -> int:
    value = call.outputs[index]
    assert value is not None
    return value


@rewrite(aten.view, aten.reshape, aten._unsafe_view, aten.unflatten, aten.view_copy)
def _view(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    """The new shape is what is left of the old one."""
    op = aten.view.default if emitter.memory_is_written(call) else aten.reshape.default
    return emitter.graph.call_function(op, (args["self"], emitter.sizes(_out(call))))


@rewrite(aten.expand)
def _expand(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    return emitter.call_op(call.op, {**args, "size": [emitter.size(s) for s in emitter.shape(_out(call))]})


@rewrite(aten.repeat, aten.tile)
def _repeat(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    """Copies of a single position follow the living; copies of many stay as many."""
    name = "repeats" if "repeats" in call.args else "dims"
    return emitter.call_op(call.op, {**args, name: [emitter.size(s) for s in _repeats(emitter, call, name)]})


def _repeats(emitter: Emitter, call: Call, name: str) -> list[int]:
    before, after = emitter.program.values[call.value_at("self")].shape, emitter.shape(_out(call))
    repeats = list(call.args[name])
    for axis, size in enumerate(after):
        own, count = axis - len(after) + len(before), axis - len(after) + len(repeats)
        if count >= 0 and repeats[count] != 1 and (own < 0 or before[own] == 1):
            repeats[count] = size
    return repeats


@rewrite(aten.slice, aten.narrow)
def _slice(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    source = call.value_at("self")
    shape = emitter.program.values[source].shape
    dim = call.args.get("dim", 0) % len(shape)
    alive = emitter.alive(source, dim)
    if alive is None:
        return emitter.call_op(call.op, args)
    taken = np.zeros(len(alive), bool)
    taken[slice_range(call.args, int(shape[dim]))] = True
    positions = np.flatnonzero(taken[alive])
    steps = np.unique(np.diff(positions))
    if len(steps) <= 1:
        step = int(steps[0]) if len(steps) else 1
        start, end = int(positions[0]), int(positions[-1]) + 1
        arguments = (args["self"], dim, start, end) + (() if step == 1 else (step,))
        return emitter.graph.call_function(aten.slice.Tensor, arguments)
    return _select_positions(emitter, call, args["self"], dim, positions)


def _select_positions(emitter: Emitter, call: Call, node: Any, dim: int, positions: Any) -> Any:
    mode = "train" if emitter.program.training else "eval"
    index = emitter.index_tensor(np.asarray(positions, dtype=np.int64), f"_index_{mode}_{call.index}_{dim}")
    return emitter.graph.call_function(aten.index_select.default, (node, dim, index))


@rewrite(aten.split, aten.split_with_sizes, aten.chunk, aten.tensor_split, aten.unsafe_split, aten.unsafe_chunk)
def _split(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    rank = len(emitter.program.values[call.value_at("self")].shape)
    dim = call.args.get("dim", 0) % rank
    if emitter.alive(call.value_at("self"), dim) is None:
        return emitter.call_op(call.op, args)
    parts = [int(emitter.shape(_out(call, i))[dim]) for i in range(len(call.outputs))]
    unsafe = call.packet in (aten.unsafe_split, aten.unsafe_chunk)  # its parts may be written in place
    op = aten.unsafe_split_with_sizes.default if unsafe else aten.split_with_sizes.default
    return emitter.graph.call_function(op, (args["self"], parts, dim))


@rewrite(aten.select)
def _select(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    source = call.value_at("self")
    shape = emitter.program.values[source].shape
    dim = call.args["dim"] % len(shape)
    alive = emitter.alive(source, dim)
    if alive is None:
        return emitter.call_op(call.op, args)
    index = int(call.args["index"]) % int(shape[dim])
    return emitter.call_op(call.op, {**args, "index": int(alive[:index].sum())})


@rewrite(aten.index_select, aten.index, aten.roll, aten.flip, aten.channel_shuffle)
def _moved(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    """Along an axis that lost channels the rearrangement is written as a selection of what is left."""
    moves = emitter.labelled.moves.get(call.index, {})
    lossy = {a: move for a, move in moves.items() if emitter.alive(call.value_at("self"), move[0]) is not None}
    if not lossy:
        return emitter.call_op(call.op, args)
    node = _along_others(emitter, call, args, lossy) if call.packet in (aten.roll, aten.flip) else args["self"]
    for axis, (source, coordinates) in lossy.items():
        alive = emitter.alive(call.value_at("self"), source)
        assert alive is not None
        rank = np.cumsum(alive) - 1
        node = _select_positions(emitter, call, node, axis, rank[coordinates[alive[coordinates]]])
    return node


def _along_others(emitter: Emitter, call: Call, args: dict[str, Any], lossy: Collection[int]) -> Any:
    """The same roll or flip along the axes that keep all their positions."""
    rank = len(emitter.program.values[call.value_at("self")].shape)
    given = [d % rank for d in call.args["dims"]]
    chosen = [i for i, d in enumerate(given) if d not in lossy]
    if not chosen:
        return args["self"]
    changed = {**args, "dims": [given[i] for i in chosen]}
    if call.packet is aten.roll:
        changed["shifts"] = [args["shifts"][i] for i in chosen]
    return emitter.call_op(call.op, changed)


@rewrite(aten.constant_pad_nd)
def _pad(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    if "self" not in args:
        value = call.args.get("value", 0) or 0
        shape = [emitter.size(s) for s in emitter.shape(_out(call))]
        dtype = emitter.program.values[_out(call)].dtype
        device = emitter._argument(torch.device("cpu"))
        return emitter.graph.call_function(aten.full.default, (shape, value), {"dtype": dtype, "device": device})
    return emitter.call_op(call.op, {**args, "pad": pads(emitter, call)})


def pads(emitter: Emitter, call: Call) -> list[int]:
    pad = [int(p) for p in call.args["pad"]]
    source, out = call.value_at("self"), _out(call)
    rank = len(emitter.program.values[source].shape)
    for pair in range(len(pad) // 2):
        axis = rank - 1 - pair
        alive = emitter.alive(out, axis)
        if alive is not None:
            before, after = pad[2 * pair], pad[2 * pair + 1]
            pad[2 * pair] = int(alive[:before].sum())
            pad[2 * pair + 1] = int(alive[len(alive) - after :].sum())
    return pad


@rewrite(
    aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution, aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d
)
def _conv(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    return emitter.call_op(call.op, _with(args, "groups", new_groups(emitter.plan, emitter.mode, call), 1))


def _with(args: dict[str, Any], name: str, value: Any, default: Any) -> dict[str, Any]:
    return args if value == default and name not in args else {**args, name: value}


@rewrite(aten.group_norm)
def _group_norm(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    return emitter.call_op(call.op, {**args, "num_groups": new_num_groups(emitter.plan, emitter.mode, call)})


@rewrite(aten.layer_norm, aten.rms_norm)
def _layer_norm(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    shape = new_normalized_shape(emitter.plan, emitter.mode, call)
    return emitter.call_op(call.op, {**args, "normalized_shape": shape})


@rewrite(aten.scaled_dot_product_attention)
def _attention(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    """The scale stays that of the head dimension the network was trained with."""
    width = int(emitter.program.values[call.value_at("query")].shape[-1])
    if call.args.get("scale") is None and emitter.shape(call.value_at("query"))[-1] != width:
        args = {**args, "scale": width**-0.5}
    return emitter.call_op(call.op, args)


@rewrite(aten.squeeze)
def _squeeze(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    """Squeeze what had size 1 before, not what has now."""
    shape = emitter.program.values[call.value_at("self")].shape
    dims = call.args.get("dim", range(len(shape)))
    dims = [dims] if isinstance(dims, int) else dims
    dims = [d % len(shape) for d in dims if shape[d] == 1]
    return emitter.graph.call_function(aten.squeeze.dims, (args["self"], dims))


@rewrite(*UNIFORM)
def _uniform(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    return emitter.call_op(call.op, {**args, "size": [emitter.size(s) for s in emitter.shape(_out(call))]})


@rewrite(*PATTERNED)
def _patterned(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    node = emitter.call_op(call.op, args)
    for axis in range(len(emitter.shape(_out(call)))):
        alive = emitter.alive(_out(call), axis)
        if alive is not None:
            node = _select_positions(emitter, call, node, axis, np.flatnonzero(alive))
    return node


@rewrite(aten.cat, aten.concat, aten.concatenate)
def _cat(emitter: Emitter, call: Call, args: dict[str, Any]) -> Any:
    """Empty parts are gone already; a single part needs no joining."""
    return args["tensors"][0] if len(args["tensors"]) == 1 else emitter.call_op(call.op, args)


def static_arguments(emitter: Emitter, call: Call) -> dict[str, Any]:
    """The arguments of a call on constants after the cut, sizes as plain numbers of the recorded batch."""
    args = dict(call.args)
    out = [int(s) for s in emitter.shape(_out(call))]
    if call.packet in (aten.view, aten.expand, *UNIFORM):
        args["size"] = out
    elif call.packet is aten.reshape:
        args["shape"] = out
    elif call.packet in (aten.repeat, aten.tile):
        name = "repeats" if "repeats" in args else "dims"
        args[name] = [int(s) for s in _repeats(emitter, call, name)]
    elif call.packet is aten.constant_pad_nd:
        args["pad"] = pads(emitter, call)
    elif call.packet in (aten.layer_norm, aten.rms_norm):
        args["normalized_shape"] = new_normalized_shape(emitter.plan, emitter.mode, call)
    elif call.packet is aten.group_norm:
        args["num_groups"] = new_num_groups(emitter.plan, emitter.mode, call)
    elif "groups" in args:
        args["groups"] = new_groups(emitter.plan, emitter.mode, call)
    return {name: int(arg) if isinstance(arg, BatchInt) else arg for name, arg in args.items()}
