"""Rules for element-wise operators: axes are aligned from the right, equal sizes are tied, broadcast axes are fixed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gator.graph.labels import Axes, Axis
from gator.graph.rules.table import Scope, rule

aten = torch.ops.aten


def broadcast(scope: Scope, parts: Sequence[tuple[Sequence[Axis], Sequence[int]]], shape: Sequence[int]) -> Axes:
    """The axes of a result of `shape` from parts given as (axes, sizes), all broadcast together."""
    result: list[Axis] = []
    rank = len(shape)
    for axis in range(rank):
        labels: list[Axis] = []
        for axes, sizes in parts:
            own = axis - rank + len(sizes)
            if own < 0:
                continue
            if sizes[own] == shape[axis]:
                labels.append(axes[own])
            else:
                scope.fix(axes[own], "broadcast from size 1")
        merged = labels[0] if labels else None
        for other in labels[1:]:
            merged = scope.tie(merged, other, "element-wise", shape[axis])
        result.append(merged)
    return tuple(result)


@rule(
    torch.Tag.pointwise, aten.hardswish, aten.hardswish_, aten.masked_fill, aten.masked_fill_, aten.copy_, aten.relu6,
    aten.relu6_, aten.selu, aten.selu_, aten.celu_, aten.elu_, aten.where, aten.logical_not, aten.hardtanh_,
    aten.leaky_relu_, aten.silu_, aten.mish_, aten.softplus, aten.clamp_, aten.mul_, aten.add_, aten.div_, aten.sub_,
    aten.gelu_, aten.rsub, aten.true_divide, aten.multiply, aten.divide, aten.subtract, aten.float_power, aten.square,
    aten.complex, aten.polar,
)  # fmt: skip
def _pointwise(scope: Scope) -> Sequence[Axes]:
    """All tensor arguments are broadcast together."""
    program = scope.analysis.program
    parts = [(scope.analysis.axes[v], program.values[v].shape) for _, v in scope.call.tensors()]
    axes = broadcast(scope, parts, scope.out_shape())
    return [axes for _ in scope.call.outputs]


@rule(
    aten.dropout, aten.dropout_, aten.feature_dropout, aten.feature_dropout_, aten.alpha_dropout, aten.alpha_dropout_,
    aten.feature_alpha_dropout, aten.native_dropout, aten.to, aten._to_copy, aten.contiguous, aten.alias, aten.detach,
    aten.detach_, aten.type_as, aten.fill_, aten.zero_, aten.lift_fresh_copy, aten.lift_fresh, aten.lift, aten.bernoulli,
    aten.bernoulli_, aten.uniform_, aten.normal_, aten.random_, aten.requires_grad_, aten.exponential_, aten.rrelu,
    aten.rrelu_, aten.clone, aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like, aten.rand_like,
    aten.randn_like, aten._conj, aten.resolve_conj, aten.resolve_neg,
)  # fmt: skip
def _same(scope: Scope) -> Sequence[Axes]:
    """The result has the axes of the first argument; other tensors only give a dtype or a single number."""
    (_, value), *rest = scope.call.tensors()
    for _, other in rest:
        for axis in scope.analysis.axes[other]:
            if scope.call.packet not in (aten.type_as, aten.to):
                scope.fix(axis, "a single number")
    return [scope.analysis.axes[value] for _ in scope.call.outputs]


@rule(aten.prelu)
def _prelu(scope: Scope) -> Sequence[Axes]:
    """One slope for all channels, or one per channel (axis 1)."""
    axes, sizes, weight = scope.axes("self"), scope.shape("self"), scope.axes("weight")[0]
    channel = 1 if len(sizes) > 1 else 0
    if scope.shape("weight")[0] == sizes[channel]:
        scope.tie(axes[channel], weight, "one slope per channel")
    else:
        scope.fix(weight, "one slope for all channels")
    return [tuple(axes)]


@rule(aten.glu)
def _glu(scope: Scope) -> Sequence[Axes]:
    """The two halves of an axis are multiplied with each other, so they are tied."""
    axes = scope.axes("self")
    dim = scope.dim(scope.get("dim", -1), len(axes))
    labels = axes[dim]
    if labels is not None:
        half = len(labels) // 2
        axes[dim] = scope.tie(labels[:half], labels[half:], "the halves of a gated linear unit")
    return [tuple(axes)]
