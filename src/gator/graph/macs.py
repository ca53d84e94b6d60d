"""Multiply-adds (MACs) of a call as products of axis sizes. torch counts a multiply-add as two FLOPs, fvcore as one.

`products` returns the axes whose sizes are multiplied, so the same table gives the MACs of a network, the MACs after a cut, and
the MACs that each removed channel saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gator.graph.program import Call
from gator.private_torch import full_name_of

aten = torch.ops.aten
Shape = Sequence[int]
Shapes = Callable[[int], Shape]  # value id -> shape
Factor = tuple[int, int]  # value id, axis
Product = tuple[Factor, ...]


def macs(call: Call, shapes: Shapes) -> int:
    """Multiply-adds of one call; 0 for operators that do not contract."""
    return sum(math.prod(shapes(value)[axis] for value, axis in product) for product in products(call, shapes))


def products(call: Call, shapes: Shapes) -> list[Product]:
    """The products of axis sizes whose sum is the call's multiply-adds."""
    found = _PRODUCTS.get(call.packet) or _PRODUCTS.get(full_name_of(call.op))
    return found(call, shapes) if found else []


def _axes(call: Call, shapes: Shapes, name: str, axes: slice | int = slice(None), position: int | None = None) -> Product:
    value = call.value_at((name, position))
    chosen = range(len(shapes(value)))[axes]
    return tuple((value, axis) for axis in ([chosen] if isinstance(chosen, int) else chosen))


def _out(call: Call, shapes: Shapes) -> Product:
    value = call.outputs[0]
    assert value is not None
    return tuple((value, axis) for axis in range(len(shapes(value))))


def _linear(call: Call, shapes: Shapes) -> list[Product]:
    return [_out(call, shapes) + _axes(call, shapes, "weight", -1)]


def _conv(call: Call, shapes: Shapes) -> list[Product]:
    if call.args.get("transposed"):
        return _conv_transpose(call, shapes)
    return [_out(call, shapes) + _axes(call, shapes, "weight", slice(1, None))]


def _conv_transpose(call: Call, shapes: Shapes) -> list[Product]:
    return [_axes(call, shapes, "input") + _axes(call, shapes, "weight", slice(1, None))]


def _matmul(call: Call, shapes: Shapes) -> list[Product]:
    left = next(name for name in ("self", "mat1", "batch1") if name in call.args and call.packet in _LEFT[name])
    return [_out(call, shapes) + _axes(call, shapes, left, -1)]


def _grouped(call: Call, shapes: Shapes) -> list[Product]:
    return [_out(call, shapes) + _axes(call, shapes, "self" if "self" in call.args else "input", -1)]


def _attention(call: Call, shapes: Shapes) -> list[Product]:
    both = _axes(call, shapes, "query", slice(None, -1)) + _axes(call, shapes, "key", -2)
    return [both + _axes(call, shapes, name, -1) for name in ("query", "value")]


def _einsum(call: Call, shapes: Shapes) -> list[Product]:
    left, _, right = call.args["equation"].replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) < 2:
        return []
    chosen: dict[str, Factor] = {}
    for i, term in enumerate(terms):
        factors = _axes(call, shapes, "tensors", position=i)
        dots = len(factors) - len(term.replace("...", ""))
        letters = term.replace("...", "".join(chr(0x100 + k) for k in range(dots)))
        for letter, (value, axis) in zip(letters, factors, strict=True):
            # If an axis is broadcast, the longer side counts.
            if letter not in chosen or shapes(chosen[letter][0])[chosen[letter][1]] == 1:
                chosen[letter] = (value, axis)
    # A letter of a single operand that is not in the result is summed over before the multiplication.
    summed_first = {letter for letter in chosen if left.count(letter) == 1 and letter not in right} if right else set()
    return [tuple(factor for letter, factor in chosen.items() if letter not in summed_first)]


def _recurrent(call: Call, shapes: Shapes) -> list[Product]:
    tokens = _axes(call, shapes, "input", slice(None, -1))
    weights = [_axes(call, shapes, "params", position=i) for i in range(len(call.args["params"]))]
    return [tokens + weight for weight in weights if len(weight) == 2]


def _bilinear(call: Call, shapes: Shapes) -> list[Product]:
    return [_out(call, shapes) + _axes(call, shapes, "weight", slice(1, None))]


_LEFT: dict[str, tuple[Any, ...]] = {
    "self": (aten.matmul, aten.mm, aten.bmm, aten.mv, aten.dot),
    "mat1": (aten.addmm,),
    "batch1": (aten.baddbmm,),
}
_PRODUCTS: dict[Any, Callable[[Call, Shapes], list[Product]]] = {
    aten.linear: _linear,
    aten.conv1d: _conv,
    aten.conv2d: _conv,
    aten.conv3d: _conv,
    aten.convolution: _conv,
    aten.conv_transpose1d: _conv_transpose,
    aten.conv_transpose2d: _conv_transpose,
    aten.conv_transpose3d: _conv_transpose,
    **{packet: _matmul for packets in _LEFT.values() for packet in packets},
    aten.scaled_dot_product_attention: _attention,
    aten._grouped_mm: _grouped,
    "transformers::grouped_mm_fallback": _grouped,
    aten.einsum: _einsum,
    aten.bilinear: _bilinear,
    aten.lstm: _recurrent,
    aten.gru: _recurrent,
    aten.rnn_tanh: _recurrent,
    aten.rnn_relu: _recurrent,
}
