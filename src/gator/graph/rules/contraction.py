"""Contractions: what is summed over is tied to the weight's input axis; the weight's output axis is the result's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gator.graph.labels import Axes, Axis, Labels
from gator.graph.rules.pointwise import broadcast
from gator.graph.rules.table import Scope, rule

aten = torch.ops.aten
_SUMMED = "summed over by the weight"
_WRITTEN = "written by the weight"


@rule(aten.linear)
def _linear(scope: Scope) -> Sequence[Axes]:
    x, weight = scope.axes("input"), scope.axes("weight")
    scope.tie(x[-1], weight[-1], _SUMMED)
    scope.read("input", len(x) - 1, "sum")
    scope.consumes("weight", len(weight) - 1)
    if len(weight) == 1:
        return [tuple(x[:-1])]
    scope.produces("weight", 0)
    out = weight[0]
    if scope.has("bias"):
        out = broadcast(
            scope, [([out], scope.shape("weight")[:1]), (scope.axes("bias"), scope.shape("bias"))], scope.shape("weight")[:1]
        )[0]
    return [(*x[:-1], out)]


@rule(aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution)
def _conv(scope: Scope) -> Sequence[Axes]:
    if scope.get("transposed", False):
        return _conv_transpose(scope)
    x, weight, sizes = scope.axes("input"), scope.axes("weight"), scope.shape("weight")
    channel = len(x) - (len(sizes) - 2) - 1
    beyond = _through_space(scope, x[channel + 1 :], weight[2:], sizes[2:])
    groups = scope.get("groups", 1)
    _, outside = _grouped(scope, x[channel], weight[1], weight[0], groups, int(sizes[1]), int(sizes[0]) // groups)
    if scope.has("bias"):
        outside = scope.tie(outside, scope.axes("bias")[0], _WRITTEN)
    scope.read("input", channel, "sum")
    scope.produces("weight", 0)
    if not (groups > 1 and sizes[1] == 1):
        scope.consumes("weight", 1)
    return [(*x[:channel], outside, *beyond)]


@rule(aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
def _conv_transpose(scope: Scope) -> Sequence[Axes]:
    """The weight is (in, out / groups, ...)."""
    x, weight, sizes = scope.axes("input"), scope.axes("weight"), scope.shape("weight")
    channel = len(x) - (len(sizes) - 2) - 1
    _fix_space(scope, x[channel + 1 :], weight[2:])
    groups, per_group = scope.get("groups", 1), int(sizes[1])
    tied = scope.tie(x[channel], weight[0], _SUMMED)
    out: Axis
    if groups == 1:
        out = weight[1]
    else:
        rows = int(sizes[0]) // groups
        fresh = scope.fresh(groups * per_group)
        _, out = _grouped(scope, tied, None, fresh, groups, rows, per_group, inner=weight[1])
    if scope.has("bias"):
        out = scope.tie(out, scope.axes("bias")[0], _WRITTEN)
    scope.read("input", channel, "sum")
    scope.consumes("weight", 0)
    scope.produces("weight", 1)
    return [(*x[:channel], out, *[None] * (len(x) - channel - 1))]


def _through_space(scope: Scope, x: Sequence[Axis], kernel: Sequence[Axis], sizes: Sequence[int]) -> list[Axis]:
    """Under a kernel of one, space passes position by position; under any other it is fixed."""
    _fix_space(scope, kernel)
    result: list[Axis] = []
    for axis, (labels, size) in enumerate(zip(x, sizes, strict=True)):
        if size == 1 and _along(scope.get("stride", 1), axis) == 1 and _along(scope.get("padding", 0), axis) in (0, "valid"):
            result.append(labels)
        else:
            scope.fix(labels, "space under a kernel")
            result.append(None)
    return result


def _along(argument: object, axis: int) -> object:
    """One entry of an argument that is given for all axes or for each."""
    if isinstance(argument, (list, tuple)):
        return argument[axis] if len(argument) > 1 else argument[0] if argument else 0
    return argument


def _fix_space(scope: Scope, *parts: Sequence[Axis]) -> None:
    for part in parts:
        for axis in part:
            scope.fix(axis, "space under a kernel")


def _grouped(
    scope: Scope,
    x: Axis,
    weight_in: Axis,
    weight_out: Axis,
    groups: int,
    per_in: int,
    per_out: int,
    inner: Axis = None,
) -> tuple[Axis, Axis]:
    """Tie input, weight and output of a (grouped) convolution; returns the labels of input and output.

    Same position in every group, or whole groups: whichever leaves more units. `inner` is the output axis of a
    transposed weight, which has one position for all groups.
    """
    if groups == 1:
        return scope.tie(x, weight_in, _SUMMED), weight_out
    rows_in = np.arange(groups * per_in, dtype=np.int64)
    rows_out = np.arange(groups * per_out, dtype=np.int64)
    space = scope.analysis.space
    x_labels = x if x is not None else np.zeros(groups * per_in, dtype=np.int64)
    out_labels = weight_out if weight_out is not None else np.zeros(groups * per_out, dtype=np.int64)
    both: Labels = np.concatenate([x_labels, out_labels])
    by_group = np.concatenate([rows_in // per_in, rows_out // per_out])
    options = {
        "groups": space.units(both, by_group),
        "positions": space.units(x_labels, rows_in % per_in) + space.units(out_labels, rows_out % per_out),
    }
    if per_in == 1:
        options.pop("positions")
    choice = scope.choose(options)
    if choice == "groups":
        chosen = scope.tie_rows(both, by_group, groups, "whole groups of a grouped convolution")
        scope.fix(weight_in, "whole groups are kept")
        scope.fix(inner, "whole groups are kept")
        scope.watch(chosen)
        return x, weight_out
    columns = scope.tie_rows(x_labels, rows_in % per_in, per_in, "same position in every group")
    if weight_in is not None:
        scope.tie(columns, weight_in, _SUMMED)
    columns_out = scope.tie_rows(out_labels, rows_out % per_out, per_out, "same position in every group")
    if inner is not None:
        scope.tie(columns_out, inner, _WRITTEN)
    scope.watch(np.concatenate([columns, columns_out]))
    return x, weight_out


@rule(aten.matmul, aten.mm, aten.bmm, aten.mv, aten.dot)
def _matmul(scope: Scope) -> Sequence[Axes]:
    left, right = ("self", "vec" if scope.call.packet is aten.mv else "tensor" if scope.call.packet is aten.dot else "mat2")
    if scope.call.packet is aten.matmul:
        right = "other"
    return [_product(scope, left, right)]


def _product(scope: Scope, left: str, right: str) -> Axes:
    a, b = scope.axes(left), scope.axes(right)
    shape_a, shape_b = scope.shape(left), scope.shape(right)
    row = len(b) - 2 if len(b) > 1 else 0
    scope.tie(a[-1], b[row], "contracted")
    scope.read(left, len(a) - 1, "sum")
    scope.read(right, row, "sum")
    _ports(scope, left, right, len(a) - 1, row)
    rank = len(scope.out_shape()) - (len(a) > 1) - (len(b) > 1)
    batch_shape = scope.out_shape()[:rank]
    batch = broadcast(scope, [(a[:-2], shape_a[:-2]), (b[:-2], shape_b[:-2])], batch_shape)
    tail: list[Axis] = []
    if len(a) > 1:
        tail.append(a[-2])
    if len(b) > 1:
        tail.append(b[-1])
    return (*batch, *tail)


def _ports(scope: Scope, left: str, right: str, axis_left: int, axis_right: int) -> None:
    """A parameter on either side is the layer; with none, it is attention: its head dimension is contracted here."""
    weights = [scope.id(name) in scope.analysis.static for name in (left, right)]
    for name, axis, is_weight in ((left, axis_left, weights[0]), (right, axis_right, weights[1])):
        if is_weight:
            scope.consumes(name, axis)
            if len(scope.shape(name)) > 1:
                rank = len(scope.shape(name))
                scope.produces(name, rank - 2 if axis == rank - 1 else rank - 1)
    if not any(weights) and len(scope.shape(left)) > 2 and len(scope.shape(right)) > 2:
        for labels in (*scope.axes(left)[-2:], *scope.axes(right)[-2:]):
            scope.analysis.mark_attention(labels)
        for labels in (*scope.axes(left)[:-2], *scope.axes(right)[:-2]):
            scope.analysis.mark_heads(labels)


@rule(aten.addmm, aten.baddbmm)
def _addmm(scope: Scope) -> Sequence[Axes]:
    left, right = ("mat1", "mat2") if scope.call.packet is aten.addmm else ("batch1", "batch2")
    out = _product(scope, left, right)
    shape = scope.out_shape()
    return [broadcast(scope, [(out, shape), (scope.axes("self"), scope.shape("self"))], shape)]


@rule(aten.einsum)
def _einsum(scope: Scope) -> Sequence[Axes]:
    """A letter is one axis wherever it stands; a letter missing on the right is summed over."""
    equation = scope.get("equation").replace(" ", "")
    left, _, right = equation.partition("->")
    terms = left.split(",")
    ranks = [len(scope.shape("tensors", i)) for i in range(len(terms))]
    dots = max((rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)), default=0)
    spread = "".join(chr(0x100 + i) for i in range(dots))
    terms = [_spell(term, rank, spread) for term, rank in zip(terms, ranks, strict=True)]
    letters = "".join(terms)
    if "->" not in equation:
        right = spread + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in spread))
    right = right.replace("...", spread)
    sizes = {c: int(s) for i, term in enumerate(terms) for c, s in zip(term, scope.shape("tensors", i), strict=True) if s != 1}
    found: dict[str, Axis] = {}
    for i, term in enumerate(terms):
        axes, shape = scope.axes("tensors", i), scope.shape("tensors", i)
        is_weight = scope.id("tensors", i) in scope.analysis.static
        for axis, letter in enumerate(term):
            if shape[axis] == 1 and sizes.get(letter, 1) != 1:
                scope.fix(axes[axis], "one position is spread over many")
                continue
            if term.count(letter) > 1:
                scope.fix(axes[axis], "a diagonal is taken")
            found[letter] = scope.tie(found[letter], axes[axis], "the same letter of einsum") if letter in found else axes[axis]
            if letter not in right:
                scope.read("tensors", axis, "sum", i)
                if is_weight:
                    scope.consumes("tensors", axis, i)
            if len(terms) > 1 and not is_weight and (letter not in right or sum(letter in other for other in terms) == 1):
                scope.analysis.mark_attention(axes[axis])
            elif len(terms) > 1 and not is_weight:
                scope.analysis.mark_heads(axes[axis])
            if letter not in right:
                continue
            if is_weight and sum(letter in other for other in terms) == 1:
                scope.produces("tensors", axis, i)
    return [tuple(found.get(letter) for letter in right)]


def _spell(term: str, rank: int, spread: str) -> str:
    if "..." not in term:
        return term
    count = rank - len(term.replace("...", ""))
    return term.replace("...", spread[len(spread) - count :])


@rule(aten.bilinear)
def _bilinear(scope: Scope) -> Sequence[Axes]:
    """out[k] = x1[i] W[k, i, j] x2[j]."""
    one, two, weight = scope.axes("input1"), scope.axes("input2"), scope.axes("weight")
    scope.tie(one[-1], weight[1], _SUMMED)
    scope.tie(two[-1], weight[2], _SUMMED)
    scope.read("input1", len(one) - 1, "sum")
    scope.read("input2", len(two) - 1, "sum")
    scope.consumes("weight", 1)
    scope.consumes("weight", 2)
    scope.produces("weight", 0)
    out = weight[0]
    if scope.has("bias"):
        out = scope.tie(out, scope.axes("bias")[0], _WRITTEN)
    batch = [scope.tie(a, b, "element by element") for a, b in zip(one[:-1], two[:-1], strict=True)]
    return [(*batch, out)]


@rule(aten.scaled_dot_product_attention)
def _attention(scope: Scope) -> Sequence[Axes]:
    """Heads are tied over query, key and value; the key axis is normalised over and fixed."""
    q, k, v = scope.axes("query"), scope.axes("key"), scope.axes("value")
    shape_q, shape_k, shape_v = scope.shape("query"), scope.shape("key"), scope.shape("value")
    scope.tie(q[-1], k[-1], "contracted in attention")
    scope.read("query", len(q) - 1, "sum")
    scope.read("key", len(k) - 1, "sum")
    scope.analysis.mark_attention(q[-1])
    scope.analysis.mark_attention(v[-1])
    for labels in (*q[:-2], *k[:-2], *v[:-2]):
        scope.analysis.mark_heads(labels)
    for axis in (k[-2], v[-2]):
        scope.fix(axis, "attended to")
    if scope.get("is_causal", False):
        scope.fix(q[-2], "causal attention counts positions")
    heads_q, heads_kv = (shape_q[-3] if len(shape_q) > 2 else 1), (shape_k[-3] if len(shape_k) > 2 else 1)
    if scope.get("enable_gqa", False) and heads_q != heads_kv:
        repeat = heads_q // heads_kv
        kv = scope.tie(k[-3], v[-3], "heads of key and value")
        if kv is None:
            scope.fix(q[-3], "heads that share a key")
        else:
            scope.tie(q[-3], np.repeat(kv, repeat), "heads that share a key")
        batch = broadcast(
            scope, [(q[:-3], shape_q[:-3]), (k[:-3], shape_k[:-3]), (v[:-3], shape_v[:-3])], scope.out_shape()[:-3]
        )
        batch = (*batch, q[-3])
    else:
        parts = [(q[:-2], shape_q[:-2]), (k[:-2], shape_k[:-2]), (v[:-2], shape_v[:-2])]
        batch = broadcast(scope, parts, scope.out_shape()[:-2])
    if scope.has("attn_mask"):
        mask, mask_shape = scope.axes("attn_mask"), scope.shape("attn_mask")
        scope.fix(mask[-1], "attended to")
        target = (*scope.out_shape()[:-2], shape_q[-2])
        broadcast(scope, [((*batch, q[-2]), target), (mask[:-1], mask_shape[:-1])], target)
    return [(*batch, q[-2], v[-1])]


@rule(aten.embedding)
def _embedding(scope: Scope) -> Sequence[Axes]:
    weight = scope.axes("weight")
    scope.fix(weight[0], "looked up by index")
    for axis in scope.axes("indices"):
        scope.fix(axis, "an index")
    scope.produces("weight", 1)
    return [(*[None] * len(scope.shape("indices")), weight[1])]
