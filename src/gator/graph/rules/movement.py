"""Rules for operators that move data (view, permute, cat, roll, ...): labels move with their positions.

View, permute, cat and expand have rules that work axis by axis. For any other operator, `by_index` runs the operator itself on
a tensor of indices, which shows where every position of the result comes from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from gator.graph.labels import Axes, Axis, Labels
from gator.graph.program import BatchInt, Ref
from gator.graph.rules.table import Scope, rule

aten = torch.ops.aten


@rule(aten.view, aten.reshape, aten._unsafe_view, aten.flatten, aten.unflatten, aten.view_copy)
def _view(scope: Scope) -> Sequence[Axes]:
    return [regroup(scope, scope.axes("self"), scope.shape("self"), scope.out_shape())]


def regroup(scope: Scope, axes: Sequence[Axis], before: Sequence[int], after: Sequence[int]) -> Axes:
    """The axes of a reshaped tensor: groups of old axes become groups of new axes with the same product of sizes."""
    result: list[Axis] = [None] * len(after)
    for axis, size in enumerate(before):
        if size == 1 and _same_axis(axis, before, after):
            result[axis] = axes[axis]
        elif size == 1:
            scope.fix(axes[axis], "an axis of size 1 removed by a reshape")
    for old, new in _runs(before, after):
        if len(old) == 1 and len(new) == 1:
            result[new[0]] = axes[old[0]]
        elif any(axes[a] is not None for a in old):
            sizes = [after[a] for a in new]
            flat = np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)
            parts = _moved_axes(scope, [axes[a] for a in old], [int(before[a]) for a in old], sizes, flat)
            for axis, labels in zip(new, parts, strict=True):
                result[axis] = labels
    return tuple(result)


def _same_axis(axis: int, before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether an axis of size 1 is the same axis before and after the reshape."""
    if len(before) != len(after) or axis >= len(after) or after[axis] != 1:
        return False
    return list(before[:axis]) == list(after[:axis])


def _runs(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    old = [i for i, size in enumerate(before) if size != 1]
    new = [i for i, size in enumerate(after) if size != 1]
    runs = []
    i = j = 0
    while i < len(old) and j < len(new):
        left, right = [old[i]], [new[j]]
        a, b = int(before[old[i]]), int(after[new[j]])
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a *= int(before[old[i]])
                left.append(old[i])
                i += 1
            else:
                b *= int(after[new[j]])
                right.append(new[j])
                j += 1
        runs.append((left, right))
    return runs


def _moved_axes(scope: Scope, axes: Sequence[Axis], before: Sequence[int], after: Sequence[int], moved: Labels) -> list[Axis]:
    """The labels of the new axes. `moved` has the new shape and holds the flat index that every position had before.

    If an old axis is split into several new axes, only one of them stays prunable, because the result must stay rectangular.
    If two old axes are merged into one new axis, only the one with more units stays prunable.
    """
    result: list[Axis] = [None] * len(after)
    for source, labels in enumerate(axes):
        if labels is None:
            continue
        coordinate = (moved // math.prod(before[source + 1 :])) % before[source]
        depends = [a for a in range(moved.ndim) if moved.shape[a] > 1 and np.ptp(coordinate, axis=a).any()]
        if not depends:
            scope.fix(labels[np.unique(coordinate)], "selected by index")
            continue
        flat = labels[coordinate]
        along: Axis
        if len(depends) == 1:
            target = depends[0]
            along = np.moveaxis(flat, target, 0).reshape(flat.shape[target], -1)[:, 0]
        else:
            target, along = _split_axis(scope, flat, {a: after[a] for a in depends})
            if along is None:
                continue
        other = result[target]
        if other is None or scope.units(along) > scope.units(other):
            scope.fix(other, "merged with an axis that has more units")
            result[target] = along
        else:
            scope.fix(along, "merged with an axis that has more units")
    return result


def _split_axis(scope: Scope, flat: Labels, sizes: dict[int, int]) -> tuple[int, Axis]:
    """Which of several new axes stays prunable, and its labels."""
    # An axis of size batch * heads has the labels of the heads, repeated for every example.
    period = {a: size.slope if isinstance(size, BatchInt) else int(size) for a, size in sizes.items()}
    rows = {a: np.broadcast_to(_index_of(flat.shape, a) % n, flat.shape).ravel() for a, n in period.items() if n > 1}
    labels = flat.ravel()
    if not rows:
        scope.fix(labels, "reshaped into the batch axis")
        return 0, None
    choice = scope.choose({a: scope.analysis.space.units(labels, row) for a, row in rows.items()})
    chosen = scope.tie_rows(labels, rows[choice], period[choice], "split into several axes")
    scope.set_choice_labels(chosen)
    return choice, np.tile(chosen, flat.shape[choice] // period[choice])


@rule(aten.permute)
def _permute(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    return [tuple(axes[scope.dim(d, len(axes))] for d in scope.get("dims"))]


@rule(aten.transpose, aten.transpose_, aten.swapaxes)
def _transpose(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    names = ("dim0", "dim1") if "dim0" in scope.call.args else ("axis0", "axis1")
    a, b = (scope.dim(scope.get(name), len(axes)) for name in names)
    axes[a], axes[b] = axes[b], axes[a]
    return [tuple(axes)]


@rule(aten.t, aten.t_, aten.numpy_T, aten.mT, aten.adjoint)
def _flip_axes(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    if scope.call.packet in (aten.mT, aten.adjoint):
        return [(*axes[:-2], axes[-1], axes[-2])]
    return [tuple(reversed(axes))]


@rule(aten.unsqueeze, aten.unsqueeze_)
def _unsqueeze(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    axes.insert(scope.dim(scope.get("dim"), len(axes) + 1), None)
    return [tuple(axes)]


@rule(aten.squeeze, aten.squeeze_)
def _squeeze(scope: Scope) -> Sequence[Axes]:
    axes, shape, dims = scope.axes("self"), scope.shape("self"), scope.get("dim")
    if dims is None:
        dims = range(len(shape))
    dropped = {scope.dim(d, len(axes)) for d in (dims if not isinstance(dims, int) else [dims])}
    dropped = {d for d in dropped if shape[d] == 1}
    for axis in dropped:
        scope.fix(axes[axis], "squeezed")
    return [tuple(labels for axis, labels in enumerate(axes) if axis not in dropped)]


@rule(aten.expand)
def _expand(scope: Scope) -> Sequence[Axes]:
    """All copies of a position are the same, so any of them can be removed: the new axis gets new labels."""
    return [_expanded(scope, scope.out_shape())]


def _expanded(scope: Scope, after: Sequence[int]) -> Axes:
    axes, before = scope.axes("self"), scope.shape("self")
    result: list[Axis] = []
    for axis, size in enumerate(after):
        own = axis - len(after) + len(before)
        if own >= 0 and before[own] == size:
            result.append(axes[own])
            continue
        if own >= 0:
            scope.fix(axes[own], "broadcast from size 1")
        result.append(_copies(scope, size))
    return tuple(result)


def _copies(scope: Scope, size: int) -> Axis:
    """New labels for copies of one position. On an axis of size batch * heads every example has the same ones."""
    if not isinstance(size, BatchInt):
        return scope.fresh(size)
    return np.tile(scope.fresh(size.slope), size // size.slope) if size.slope > 1 and not size.offset else None


@rule(aten.repeat, aten.tile)
def _repeat(scope: Scope) -> Sequence[Axes]:
    axes, before, after = scope.axes("self"), scope.shape("self"), scope.out_shape()
    shift = len(after) - len(before)
    result: list[Axis] = []
    for axis, size in enumerate(after):
        own = axis - shift
        labels = axes[own] if own >= 0 else None
        if own >= 0 and before[own] == size:
            result.append(labels)
        elif own < 0 or before[own] == 1:
            scope.fix(labels, "broadcast from size 1")
            result.append(None if isinstance(size, BatchInt) else scope.fresh(size))
        else:
            result.append(None if labels is None else np.tile(labels, int(size) // len(labels)))
    return [tuple(result)]


@rule(aten.repeat_interleave)
def _repeat_interleave(scope: Scope) -> Sequence[Axes]:
    axes, repeats, dim = scope.axes("self"), scope.get("repeats"), scope.get("dim")
    if dim is None or not isinstance(repeats, int):
        return fix_all(scope)
    dim = scope.dim(dim, len(axes))
    labels = axes[dim]
    axes[dim] = None if labels is None else np.repeat(labels, int(repeats))
    return [tuple(axes)]


def fix_all(scope: Scope) -> Sequence[Axes]:
    """For a call whose movement is not followed: fix all axes of its arguments and results."""
    for _, value in scope.call.tensors():
        for axis in scope.analysis.axes[value]:
            scope.fix(axis, "moved by an operator that is not followed")
    values = scope.analysis.program.values
    return [(None,) * len(values[v].shape) if v is not None else () for v in scope.call.outputs]


@rule(aten.cat, aten.concat, aten.concatenate)
def _cat(scope: Scope) -> Sequence[Axes]:
    """Labels are concatenated along the joined axis; along the other axes the parts are tied."""
    parts = [i for i in range(len(scope.get("tensors"))) if scope.shape("tensors", i) != (0,)]
    rank = len(scope.out_shape())
    dim = scope.dim(scope.get("dim", 0), rank)
    result: list[Axis] = list(scope.axes("tensors", parts[0]))
    for i in parts[1:]:
        for axis, labels in enumerate(scope.axes("tensors", i)):
            if axis != dim:
                result[axis] = scope.tie(result[axis], labels, "concatenated tensors", scope.out_shape()[axis])
    joined = [(scope.axes("tensors", i)[dim], int(scope.shape("tensors", i)[dim])) for i in parts]
    if all(labels is None for labels, _ in joined):
        result[dim] = None
    else:
        result[dim] = np.concatenate([np.zeros(n, dtype=np.int64) if a is None else a for a, n in joined])
    return [tuple(result)]


@rule(aten.stack)
def _stack(scope: Scope) -> Sequence[Axes]:
    result = list(scope.axes("tensors", 0))
    for i in range(1, len(scope.get("tensors"))):
        for axis, labels in enumerate(scope.axes("tensors", i)):
            result[axis] = scope.tie(result[axis], labels, "stacked tensors")
    result.insert(scope.dim(scope.get("dim", 0), len(result) + 1), None)
    return [tuple(result)]


@rule(aten.unfold)
def _unfold(scope: Scope) -> Sequence[Axes]:
    """Sliding windows along one axis, which is fixed; the other axes keep their labels."""
    axes = scope.axes("self")
    dim = scope.dim(scope.get("dimension"), len(axes))
    scope.fix(axes[dim], "the axis of a sliding window")
    axes[dim] = None
    return [(*axes, None)]


@rule(aten.roll, aten.flip, aten.channel_shuffle, aten.rot90)
def _rearranged(scope: Scope) -> Sequence[Axes]:
    return by_axis(scope) or by_index(scope)


def by_axis(scope: Scope) -> Sequence[Axes] | None:
    """For operators that act on each axis separately: run the operator on one axis at a time, with the others of size 1."""
    if scope.call.packet is aten.rot90:
        return None
    axes, shape = scope.axes("self"), scope.shape("self")
    if scope.call.packet is aten.roll and not scope.get("dims"):
        return None
    along = [1] if scope.call.packet is aten.channel_shuffle else [d % len(axes) for d in scope.get("dims")]
    for axis, labels in enumerate(axes):
        if labels is None or axis not in along:
            continue
        probe = torch.arange(int(shape[axis])).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        coordinates = _run(scope, probe).reshape(-1).numpy()
        axes[axis] = labels[coordinates]
        scope.moved(axis, axis, coordinates)
    return [tuple(axes)]


def _run(scope: Scope, probe: torch.Tensor) -> torch.Tensor:
    args = {name: scope.data_of(name) if isinstance(arg, Ref) else arg for name, arg in scope.call.args.items()}
    args["self"] = probe
    result: torch.Tensor = scope.call.op(**args)
    return result


def by_index(scope: Scope) -> Sequence[Axes]:
    """For any operator that moves one tensor: run it on indices and see which old axis each new axis depends on."""
    before = [int(s) for s in scope.shape("self")]
    moved = _run(scope, torch.arange(math.prod(before)).reshape(before)).numpy()
    return [tuple(_moved_axes(scope, scope.axes("self"), before, scope.out_shape(), moved))]


def _index_of(shape: Sequence[int], axis: int) -> Labels:
    return np.arange(shape[axis], dtype=np.int64).reshape([-1 if a == axis else 1 for a in range(len(shape))])
