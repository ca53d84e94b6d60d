"""Rules for contractions: convolutions, linear layers, matrix products, attention and embeddings.

The axis of the input that is summed over is tied to the input axis of the weight; the output axis of the weight becomes an axis
of the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gator.graph.labels import Axes, Axis, Labels
from gator.graph.rules.movement import fix_all
from gator.graph.rules.pointwise import broadcast
from gator.graph.rules.table import Scope, rule

aten = torch.ops.aten
GROUPED_MM_OF_TRANSFORMERS = "transformers::grouped_mm_fallback"  # what it uses for weights that torch's own does not take
_SUMMED = "input channels of the weight"
_WRITTEN = "output channels of the weight"


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
    spatial = _spatial_axes(scope, x[channel + 1 :], weight[2:], sizes[2:])
    groups = scope.get("groups", 1)
    _, out = _grouped(scope, x[channel], weight[1], weight[0], groups, int(sizes[1]), int(sizes[0]) // groups)
    if scope.has("bias"):
        out = scope.tie(out, scope.axes("bias")[0], _WRITTEN)
    scope.read("input", channel, "sum")
    scope.produces("weight", 0)
    if not (groups > 1 and sizes[1] == 1):
        scope.consumes("weight", 1)
    return [(*x[:channel], out, *spatial)]


@rule(aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
def _conv_transpose(scope: Scope) -> Sequence[Axes]:
    """The weight has shape (in, out / groups, ...)."""
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


def _spatial_axes(scope: Scope, x: Sequence[Axis], kernel: Sequence[Axis], sizes: Sequence[int]) -> list[Axis]:
    """A kernel of size 1 maps spatial positions one to one; any other kernel fixes the axis."""
    _fix_space(scope, kernel)
    result: list[Axis] = []
    for axis, (labels, size) in enumerate(zip(x, sizes, strict=True)):
        if size == 1 and _along(scope.get("stride", 1), axis) == 1 and _along(scope.get("padding", 0), axis) in (0, "valid"):
            result.append(labels)
        else:
            scope.fix(labels, "a spatial axis of a convolution")
            result.append(None)
    return result


def _along(argument: object, axis: int) -> object:
    """The entry for one axis of an argument that is a single value for all axes or a list with one per axis."""
    if isinstance(argument, (list, tuple)):
        return argument[axis] if len(argument) > 1 else argument[0] if argument else 0
    return argument


def _fix_space(scope: Scope, *parts: Sequence[Axis]) -> None:
    for part in parts:
        for axis in part:
            scope.fix(axis, "a spatial axis of a convolution")


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
    """Tie input, weight and output of a convolution, grouped or not; returns the labels of input and output.

    Either the same positions of every group are kept, or whole groups: whichever leaves more units. `inner` is the output axis
    of a transposed weight, which has one position for all groups.
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
        scope.fix(weight_in, "only whole groups can be removed")
        scope.fix(inner, "only whole groups can be removed")
        scope.set_choice_labels(chosen)
        return x, weight_out
    columns = scope.tie_rows(x_labels, rows_in % per_in, per_in, "same position in every group")
    if weight_in is not None:
        scope.tie(columns, weight_in, _SUMMED)
    columns_out = scope.tie_rows(out_labels, rows_out % per_out, per_out, "same position in every group")
    if inner is not None:
        scope.tie(columns_out, inner, _WRITTEN)
    scope.set_choice_labels(np.concatenate([columns, columns_out]))
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
    """A parameter on either side is the weight of a layer. Without one it is attention, which contracts head dimensions."""
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


@rule(aten._grouped_mm, GROUPED_MM_OF_TRANSFORMERS)
def _grouped_product(scope: Scope) -> Sequence[Axes]:
    """Rows (tokens, in) times a stack of weights (experts, in, out): every row is multiplied by the weight of its group."""
    left, right = ("self", "mat2") if scope.call.packet is aten._grouped_mm else ("input", "weight")
    rows, stack = scope.axes(left), scope.axes(right)
    if len(rows) != 2 or len(stack) != 3:
        return fix_all(scope)
    scope.tie(rows[1], stack[1], _SUMMED)
    for labels in (rows[0], stack[0], *scope.axes("offs")):
        scope.fix(labels, "the groups of a grouped product")
    scope.read(left, 1, "sum")
    scope.read(right, 1, "sum")
    scope.consumes(right, 1)
    scope.produces(right, 2)
    out = stack[2]
    if scope.has("bias"):
        out = scope.tie(out, scope.axes("bias")[-1], _WRITTEN)
    return [(None, out)]


@rule(aten.einsum)
def _einsum(scope: Scope) -> Sequence[Axes]:
    """All axes with the same letter are tied; a letter that is missing from the result is summed over."""
    equation = scope.get("equation").replace(" ", "")
    left, _, right = equation.partition("->")
    terms = left.split(",")
    ranks = [len(scope.shape("tensors", i)) for i in range(len(terms))]
    dots = max((rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)), default=0)
    dot_letters = "".join(chr(0x100 + i) for i in range(dots))
    terms = [_expand_dots(term, rank, dot_letters) for term, rank in zip(terms, ranks, strict=True)]
    letters = "".join(terms)
    if "->" not in equation:
        right = dot_letters + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in dot_letters))
    right = right.replace("...", dot_letters)
    sizes = {c: int(s) for i, term in enumerate(terms) for c, s in zip(term, scope.shape("tensors", i), strict=True) if s != 1}
    found: dict[str, Axis] = {}
    for i, term in enumerate(terms):
        axes, shape = scope.axes("tensors", i), scope.shape("tensors", i)
        is_weight = scope.id("tensors", i) in scope.analysis.static
        for axis, letter in enumerate(term):
            if shape[axis] == 1 and sizes.get(letter, 1) != 1:
                scope.fix(axes[axis], "broadcast from size 1")
                continue
            if term.count(letter) > 1:
                scope.fix(axes[axis], "a diagonal of einsum")
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


def _expand_dots(term: str, rank: int, dot_letters: str) -> str:
    if "..." not in term:
        return term
    count = rank - len(term.replace("...", ""))
    return term.replace("...", dot_letters[len(dot_letters) - count :])


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
    batch = [scope.tie(a, b, "element-wise") for a, b in zip(one[:-1], two[:-1], strict=True)]
    return [(*batch, out)]


@rule(aten.scaled_dot_product_attention)
def _attention(scope: Scope) -> Sequence[Axes]:
    """Heads of query, key and value are tied. The axis of keys and values is normalised over by softmax, so it is fixed."""
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
        scope.fix(axis, "the axis of keys in attention")
    if scope.get("is_causal", False):
        scope.fix(q[-2], "causal attention depends on the position")
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
        scope.fix(mask[-1], "the axis of keys in attention")
        target = (*scope.out_shape()[:-2], shape_q[-2])
        broadcast(scope, [((*batch, q[-2]), target), (mask[:-1], mask_shape[:-1])], target)
    return [(*batch, q[-2], v[-1])]


@rule(aten.embedding)
def _embedding(scope: Scope) -> Sequence[Axes]:
    weight = scope.axes("weight")
    scope.fix(weight[0], "the indices of an embedding")
    for axis in scope.axes("indices"):
        scope.fix(axis, "a tensor of indices")
    scope.produces("weight", 1)
    return [(*[None] * len(scope.shape("indices")), weight[1])]
