"""Rules for operators that mix positions along an axis: reductions, softmax, sorting.

Reductions and softmax can leave removed channels out, so the axis stays prunable; where that is not possible it is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gator.graph.labels import Axes, Axis
from gator.graph.rules.table import ReadKind, Scope, rule

aten = torch.ops.aten

# How removed channels are kept out of each reduction.
KINDS: dict[Any, ReadKind] = {
    aten.sum: "sum", aten.mean: "mean", aten.amax: "max", aten.amin: "min", aten.var: "var", aten.std: "var",
    aten.var_mean: "var", aten.std_mean: "var", aten.linalg_vector_norm: "sum", aten.norm: "sum", aten.prod: "prod",
    aten.logsumexp: "max", aten.any: "sum", aten.all: "min", aten.count_nonzero: "sum",
}  # fmt: skip


@rule(*KINDS)
def _reduction(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    dims = scope.get("dim")
    if dims is None or dims == []:
        reduced = set(range(len(axes)))
    else:
        reduced = {scope.dim(d, len(axes)) for d in (dims if isinstance(dims, (list, tuple)) else [dims])}
    kind = KINDS[scope.call.packet]
    changed_by_zeros = kind == "sum" and scope.get("ord", scope.get("p", 2)) is not None and _order_below_one(scope)
    for axis in sorted(reduced):
        if changed_by_zeros or kind == "prod":
            scope.fix(axes[axis], f"reduced by {scope.call.packet.__name__}")
        else:
            scope.read("self", axis, kind)
    out: list[Axis] = [labels for axis, labels in enumerate(axes) if axis not in reduced]
    if scope.get("keepdim", False):
        out = [None if axis in reduced else labels for axis, labels in enumerate(axes)]
    return [tuple(out) for _ in scope.call.outputs]


def _order_below_one(scope: Scope) -> bool:
    """Whether it is a norm of an order below 1 (a count or a minimum, for example), which zeros would change."""
    order = scope.get("ord", scope.get("p"))
    return isinstance(order, (int, float)) and order < 1


@rule(aten.max, aten.min)
def _extreme(scope: Scope) -> Sequence[Axes]:
    """The maximum along a dimension (values and indices), over all elements, or of two tensors."""
    from gator.graph.rules.pointwise import broadcast

    if scope.has("other"):
        parts = [(scope.axes(n), scope.shape(n)) for n in ("self", "other")]
        return [broadcast(scope, parts, scope.out_shape())]
    axes = scope.axes("self")
    kind: ReadKind = "max" if scope.call.packet is aten.max else "min"
    dim = scope.get("dim")
    if dim is None:
        for axis in range(len(axes)):
            scope.read("self", axis, kind)
        return [()]
    dim = scope.dim(dim, len(axes))
    if len(scope.call.outputs) > 1 and scope.call.outputs[1] in scope.analysis.used:
        scope.fix(axes[dim], "its indices are used")
    scope.read("self", dim, kind)
    out = axes[:dim] + ([None] if scope.get("keepdim", False) else []) + axes[dim + 1 :]
    return [tuple(out) for _ in scope.call.outputs]


@rule(aten.softmax, aten.log_softmax, aten._softmax, aten._log_softmax)
def _softmax(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    scope.read("self", scope.dim(scope.get("dim"), len(axes)), "max")
    return [tuple(axes)]


@rule(aten.cumsum, aten.cumsum_)
def _cumulative(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    scope.read("self", scope.dim(scope.get("dim"), len(axes)), "sum")
    return [tuple(axes)]


@rule(aten.argmax, aten.argmin, aten.sort, aten.argsort, aten.topk, aten.cumprod, aten.median, aten.mode)
def _ordering(scope: Scope) -> Sequence[Axes]:
    """The result depends on positions along the axis, so the axis is fixed."""
    axes = scope.axes("self")
    dim = scope.get("dim", None if scope.call.packet in (aten.argmax, aten.argmin, aten.median) else -1)
    chosen = range(len(axes)) if dim is None else [scope.dim(dim, len(axes))]
    for axis in chosen:
        scope.fix(axes[axis], "sorted or compared along the axis")
        axes[axis] = None
    rank = len(scope.out_shape())
    if rank < len(axes):
        axes = [labels for axis, labels in enumerate(axes) if axis not in chosen]
    return [tuple(axes) for _ in scope.call.outputs]


@rule(aten.tril, aten.triu, aten.tril_, aten.triu_)
def _triangle(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    for axis in (len(axes) - 2, len(axes) - 1):
        scope.fix(axes[axis], "a triangular mask depends on the position")
        axes[axis] = None
    return [tuple(axes)]
