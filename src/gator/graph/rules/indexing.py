"""Rules for operators that take a part of a tensor (slice, split, select, index): the part keeps its labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gator.graph.labels import Axes, Axis
from gator.graph.program import Ref
from gator.graph.rules.movement import fix_all
from gator.graph.rules.table import Scope, rule

aten = torch.ops.aten


@rule(aten.slice, aten.narrow)
def _slice(scope: Scope) -> Sequence[Axes]:
    axes, shape = scope.axes("self"), scope.shape("self")
    dim = scope.dim(scope.get("dim", 0), len(axes))
    labels = axes[dim]
    if labels is not None:
        taken = slice_range(scope.call.args, int(shape[dim]))
        if taken.step not in (None, 1) and scope.analysis.is_written(scope.id("self"), scope.call.index):
            scope.fix(labels, "written through a strided slice")
        axes[dim] = labels[taken]
    return [tuple(axes)]


def slice_range(args: dict[str, object], size: int) -> slice:
    """The Python slice that a slice or narrow call takes along its axis."""
    if "length" in args:
        start = int(args["start"]) % size  # type: ignore[call-overload]
        return slice(start, start + int(args["length"]))  # type: ignore[call-overload]
    start, end, step = (args.get(name) for name in ("start", "end", "step"))
    return slice(*slice(start, end, step).indices(size))


@rule(aten.split, aten.split_with_sizes, aten.chunk, aten.tensor_split, aten.unsafe_split, aten.unsafe_chunk)
def _split(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    dim = scope.dim(scope.get("dim", 0), len(axes))
    labels = axes[dim]
    sizes = [int(scope.out_shape(index)[dim]) for index in range(len(scope.call.outputs))]
    if scope.analysis.equal_parts and labels is not None and len(set(sizes)) == 1:
        scope.tie_rows(labels, np.tile(np.arange(sizes[0]), len(sizes)), sizes[0], "parts of equal width")
    result, start = [], 0
    for size in sizes:
        part = list(axes)
        part[dim] = None if labels is None else labels[start : start + size]
        start += size
        result.append(tuple(part))
    return result


@rule(aten.unbind)
def _unbind(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    dim = scope.dim(scope.get("dim", 0), len(axes))
    scope.fix(axes[dim], "unbind gives every position its own tensor")
    return [tuple(axes[:dim] + axes[dim + 1 :]) for _ in scope.call.outputs]


@rule(aten.select)
def _select(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    dim = scope.dim(scope.get("dim"), len(axes))
    labels = axes[dim]
    if labels is not None:
        index = int(scope.get("index"))
        scope.fix(labels[[index]], "selected by index")
    return [tuple(axes[:dim] + axes[dim + 1 :])]


@rule(aten.index_select)
def _index_select(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    dim = scope.dim(scope.get("dim"), len(axes))
    return [_selected(scope, axes, dim, scope.data_of("index"), "index")]


def _selected(
    scope: Scope, axes: list[Axis], dim: int, index: torch.Tensor | None, name: str, position: int | None = None
) -> Axes:
    labels = axes[dim]
    for axis in scope.axes(name, position):
        scope.fix(axis, "a tensor of indices")
    if labels is None:
        return tuple(axes)
    if index is None or index.ndim != 1 or index.dtype == torch.bool:
        scope.fix(labels, "selected by indices that are not constant")
        axes[dim] = None
        return tuple(axes)
    coordinates = index.numpy().astype(np.int64) % len(labels)
    axes[dim] = labels[coordinates]
    scope.moved(dim, dim, coordinates)
    return tuple(axes)


@rule(aten.index)
def _index(scope: Scope) -> Sequence[Axes]:
    """One constant list of positions is followed; any other indexing fixes the axes it indexes."""
    axes, indices = scope.axes("self"), scope.get("indices")
    given = [i for i, index in enumerate(indices) if isinstance(index, Ref)]
    if len(given) == 1 and len(scope.shape("indices", given[0])) == 1:
        known = scope.data_of("indices", given[0])
        dtype = scope.analysis.program.values[scope.id("indices", given[0])].dtype
        if dtype not in (torch.bool, torch.uint8):
            return [_selected(scope, axes, given[0], known, "indices", given[0])]
    widths = 0
    for i in given:
        shape = scope.shape("indices", i)
        dtype = scope.analysis.program.values[scope.id("indices", i)].dtype
        if dtype in (torch.bool, torch.uint8):
            return fix_all(scope)
        widths = max(widths, len(shape))
        scope.fix(axes[i], "selected by a tensor of indices")
        for axis in scope.axes("indices", i):
            scope.fix(axis, "a tensor of indices")
    together = given == list(range(given[0], given[-1] + 1))
    rest: list[Axis] = [labels for i, labels in enumerate(axes) if i not in given]
    at = given[0] if together else 0
    return [tuple(rest[:at] + [None] * widths + rest[at:])]


@rule(aten.gather)
def _gather(scope: Scope) -> Sequence[Axes]:
    """Positions along one axis are chosen by index, which fixes it; along the others the index says nothing new."""
    axes, index = scope.axes("self"), scope.axes("index")
    if not axes:
        return [()]
    dim = scope.dim(scope.get("dim"), len(axes))
    scope.fix(axes[dim], "selected by a tensor of indices")
    return [tuple(index[axis] if axis == dim else _aligned(scope, axis, "index") for axis in range(len(axes)))]


@rule(aten.scatter, aten.scatter_, aten.scatter_add, aten.scatter_add_, aten.scatter_reduce, aten.scatter_reduce_)
def _scatter(scope: Scope) -> Sequence[Axes]:
    """Values are written to positions that an index chooses along one axis; the other axes correspond."""
    axes = scope.axes("self")
    if not axes:
        return fix_all(scope)
    dim = scope.dim(scope.get("dim"), len(axes))
    others = [name for name in ("index", "src") if scope.has(name)]
    for name in ("self", *others):
        scope.fix(scope.axes(name)[dim], "written by a tensor of indices")
    for name in others:
        for axis in range(len(axes)):
            if axis != dim:
                _aligned(scope, axis, name)
    axes[dim] = None
    return [tuple(axes)]


def _aligned(scope: Scope, axis: int, name: str) -> Axis:
    """Tie an axis of `self` to that of an index or a source, whose positions are the first ones of `self`."""
    own, other = scope.axes("self")[axis], scope.axes(name)[axis]
    if scope.shape("self")[axis] == scope.shape(name)[axis]:
        return scope.tie(own, other, "element-wise", scope.shape("self")[axis])
    scope.fix(own, "indexed in part")
    scope.fix(other, "indexed in part")
    return None


@rule(aten.index_add, aten.index_add_, aten.index_copy, aten.index_copy_)
def _index_add(scope: Scope) -> Sequence[Axes]:
    """Slices of the source are added or written at indexed positions of one axis; the other axes correspond."""
    axes, source = scope.axes("self"), scope.axes("source")
    dim = scope.dim(scope.get("dim"), len(axes))
    for labels in (axes[dim], source[dim], *scope.axes("index")):
        scope.fix(labels, "written by a tensor of indices")
    result = [None if axis == dim else scope.tie(axes[axis], source[axis], "element-wise") for axis in range(len(axes))]
    return [tuple(result)]


@rule(aten.index_put, aten.index_put_)
def _index_put(scope: Scope) -> Sequence[Axes]:
    """A mask corresponds to the axes it covers; an index fixes its axis. The last axes of the values are the remaining ones."""
    axes, shape = scope.axes("self"), scope.shape("self")
    at = 0
    for position, index in enumerate(scope.get("indices")):
        if not isinstance(index, Ref):
            return fix_all(scope)  # an axis that is not indexed, before one that is
        parts = scope.axes("indices", position)
        if scope.analysis.program.values[index.id].dtype in (torch.bool, torch.uint8):
            for labels in parts:
                axes[at] = scope.tie(axes[at], labels, "element-wise")
                at += 1
            continue
        for labels in (axes[at], *parts):
            scope.fix(labels, "a tensor of indices")
        axes[at] = None
        at += 1
    values, sizes = scope.axes("values"), scope.shape("values")
    for back, (labels, size) in enumerate(zip(reversed(values), reversed(sizes), strict=True)):
        axis = len(axes) - 1 - back
        if axis >= at and size == shape[axis]:
            axes[axis] = scope.tie(axes[axis], labels, "element-wise")
        else:
            scope.fix(labels, "broadcast or selected by a mask")
    return [tuple(axes)]
