"""How calls are rewritten after channels are removed: one table keyed by the operator.

Most operators stay the same and get new sizes from sizes.py. Those in this table need more: another operator, or a selection of
positions that a slice cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch

from gator.graph.program import Call
from gator.graph.rules.creation import PATTERNED
from gator.surgery.sizes import dim_of, new_arguments, selected_positions
from gator.surgery.writer import Writer

aten = torch.ops.aten
Rewrite = Callable[[Writer, Call, dict[str, Any]], Any]
REWRITES: dict[Any, Rewrite] = {}


def rewritten(writer: Writer, call: Call, args: dict[str, Any]) -> Any:
    """The call after the cut; `args` are its arguments as the writer has them, without removed ones."""
    special = REWRITES.get(call.packet)
    if special is not None:
        return special(writer, call, args)
    changed = {name: writer.argument(value) for name, value in new_arguments(writer.cutting, call).items()}
    return writer.call_op(call.op, {**args, **changed})


def rewrite(*packets: Any) -> Callable[[Rewrite], Rewrite]:
    """Register how operators are rewritten. Raises ValueError for an operator that is registered already."""

    def register(function: Rewrite) -> Rewrite:
        for packet in packets:
            if packet in REWRITES:
                raise ValueError(f"{packet} is registered already")
            REWRITES[packet] = function
        return function

    return register


def _out(call: Call, index: int = 0) -> int:
    value = call.outputs[index]
    assert value is not None
    return value


def _rank(writer: Writer, call: Call) -> int:
    return len(writer.cutting.before(call.value_at("self")))


@rewrite(aten.view, aten.reshape, aten._unsafe_view, aten.unflatten, aten.view_copy)
def _view(writer: Writer, call: Call, args: dict[str, Any]) -> Any:
    """A view to the shape that the result has after the cut."""
    op = aten.view.default if writer.memory_is_written(call) else aten.reshape.default
    return writer.call(op, (args["self"], writer.sizes(_out(call))))


@rewrite(aten.slice, aten.narrow)
def _slice(writer: Writer, call: Call, args: dict[str, Any]) -> Any:
    positions = selected_positions(writer.cutting, call)
    if positions is None:
        return writer.call_op(call.op, args)
    dim = dim_of(call, _rank(writer, call))
    steps = np.unique(np.diff(positions))
    if len(steps) > 1:
        return _select_positions(writer, call, args["self"], dim, positions)
    step = int(steps[0]) if len(steps) else 1
    start, end = int(positions[0]), int(positions[-1]) + 1
    return writer.call(aten.slice.Tensor, (args["self"], dim, start, end) + (() if step == 1 else (step,)))


def _select_positions(writer: Writer, call: Call, source: Any, dim: int, positions: Any) -> Any:
    index = writer.index_tensor(np.asarray(positions, dtype=np.int64), f"_index_{writer.cutting.mode}_{call.index}_{dim}")
    return writer.call(aten.index_select.default, (source, dim, index))


@rewrite(aten.split, aten.split_with_sizes, aten.chunk, aten.tensor_split, aten.unsafe_split, aten.unsafe_chunk)
def _split(writer: Writer, call: Call, args: dict[str, Any]) -> Any:
    dim = dim_of(call, _rank(writer, call))
    if writer.cutting.alive(call.value_at("self"), dim) is None:
        return writer.call_op(call.op, args)
    parts = [int(writer.cutting.after(_out(call, i))[dim]) for i in range(len(call.outputs))]
    unsafe = call.packet in (aten.unsafe_split, aten.unsafe_chunk)  # its parts may be written in place
    op = aten.unsafe_split_with_sizes.default if unsafe else aten.split_with_sizes.default
    return writer.call(op, (args["self"], parts, dim))


@rewrite(aten.index_select, aten.index, aten.roll, aten.flip, aten.channel_shuffle)
def _moved(writer: Writer, call: Call, args: dict[str, Any]) -> Any:
    """Along an axis that lost channels, the operator becomes a selection of the remaining positions."""
    cutting = writer.cutting
    moves = cutting.labelled.moves.get(call.index, {})
    shrunk = {a: move for a, move in moves.items() if cutting.alive(call.value_at("self"), move[0]) is not None}
    if not shrunk:
        return writer.call_op(call.op, args)
    result = _along_other_axes(writer, call, args, shrunk) if call.packet in (aten.roll, aten.flip) else args["self"]
    for axis, (source, coordinates) in shrunk.items():
        alive = cutting.alive(call.value_at("self"), source)
        assert alive is not None
        rank = np.cumsum(alive) - 1
        result = _select_positions(writer, call, result, axis, rank[coordinates[alive[coordinates]]])
    return result


def _along_other_axes(writer: Writer, call: Call, args: dict[str, Any], shrunk: Collection[int]) -> Any:
    """The same roll or flip along the axes that keep all their positions."""
    given = [d % _rank(writer, call) for d in call.args["dims"]]
    chosen = [i for i, d in enumerate(given) if d not in shrunk]
    if not chosen:
        return args["self"]
    changed = {**args, "dims": [given[i] for i in chosen]}
    if call.packet is aten.roll:
        changed["shifts"] = [args["shifts"][i] for i in chosen]
    return writer.call_op(call.op, changed)


@rewrite(aten.constant_pad_nd)
def _pad(writer: Writer, call: Call, args: dict[str, Any]) -> Any:
    """If the padded tensor is removed, only the padding remains."""
    if "self" in args:
        return writer.call_op(call.op, {**args, **new_arguments(writer.cutting, call)})
    shape = [writer.size(s) for s in writer.cutting.after(_out(call))]
    keywords = {"dtype": writer.cutting.program.values[_out(call)].dtype, "device": writer.device()}
    return writer.call(aten.full.default, (shape, call.args.get("value", 0) or 0), keywords)


@rewrite(aten.scaled_dot_product_attention)
def _attention(writer: Writer, call: Call, args: dict[str, Any]) -> Any:
    """The scale stays that of the original head dimension."""
    query = call.value_at("query")
    width = int(writer.cutting.before(query)[-1])
    if call.args.get("scale") is None and writer.cutting.after(query)[-1] != width:
        args = {**args, "scale": width**-0.5}
    return writer.call_op(call.op, args)


@rewrite(aten.squeeze)
def _squeeze(writer: Writer, call: Call, args: dict[str, Any]) -> Any:
    """Squeeze the axes that had size 1 before the cut, not those that have size 1 now."""
    shape = writer.cutting.before(call.value_at("self"))
    dims = call.args.get("dim", range(len(shape)))
    dims = [dims] if isinstance(dims, int) else dims
    return writer.call(aten.squeeze.dims, (args["self"], [d % len(shape) for d in dims if shape[d] == 1]))


@rewrite(*PATTERNED)
def _patterned(writer: Writer, call: Call, args: dict[str, Any]) -> Any:
    result = writer.call_op(call.op, args)
    for axis in range(len(writer.cutting.after(_out(call)))):
        alive = writer.cutting.alive(_out(call), axis)
        if alive is not None:
            result = _select_positions(writer, call, result, axis, np.flatnonzero(alive))
    return result


@rewrite(aten.cat, aten.concat, aten.concatenate)
def _cat(writer: Writer, call: Call, args: dict[str, Any]) -> Any:
    """Empty parts are already removed; a single part needs no concatenation."""
    return args["tensors"][0] if len(args["tensors"]) == 1 else writer.call_op(call.op, args)
