"""Multiply-adds of a call, from the shapes of its tensors alone. A multiply-add is two FLOPs to torch, one to fvcore."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gator.graph.program import Call, Ref

aten = torch.ops.aten
Shape = Sequence[int]
Shapes = Callable[[int], Shape]  # value id -> shape


def macs(call: Call, shapes: Shapes) -> int:
    """Multiply-adds of one call; 0 for operators that do not contract."""
    count = _MACS.get(call.packet)
    return count(call, shapes) if count else 0


def _shape(call: Call, shapes: Shapes, name: str, position: int | None = None) -> Shape:
    arg = call.args[name]
    ref: Ref = arg if position is None else arg[position]
    return shapes(ref.id)


def _out(call: Call, shapes: Shapes) -> Shape:
    assert call.outputs[0] is not None
    return shapes(call.outputs[0])


def _linear(call: Call, shapes: Shapes) -> int:
    return math.prod(_out(call, shapes)) * _shape(call, shapes, "weight")[-1]


def _conv(call: Call, shapes: Shapes) -> int:
    weight = _shape(call, shapes, "weight")
    if call.args.get("transposed"):
        return _conv_transpose(call, shapes)
    return math.prod(_out(call, shapes)) * math.prod(weight[1:])


def _conv_transpose(call: Call, shapes: Shapes) -> int:
    weight = _shape(call, shapes, "weight")
    return math.prod(_shape(call, shapes, "input")) * math.prod(weight[1:])


def _matmul(call: Call, shapes: Shapes) -> int:
    left = next(name for name in ("self", "mat1", "batch1") if name in call.args and call.packet in _LEFT[name])
    return math.prod(_out(call, shapes)) * _shape(call, shapes, left)[-1]


def _attention(call: Call, shapes: Shapes) -> int:
    query, key, value = (_shape(call, shapes, name) for name in ("query", "key", "value"))
    return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _einsum(call: Call, shapes: Shapes) -> int:
    left, _, right = call.args["equation"].replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) < 2:
        return 0
    sizes: dict[str, int] = {}
    for i, term in enumerate(terms):
        shape = list(_shape(call, shapes, "tensors", i))
        spread = len(shape) - len(term.replace("...", ""))
        letters = term.replace("...", "".join(chr(0x100 + k) for k in range(spread)))
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), int(size)) if size else 0
    # A letter that only one operand has and the result has not is summed before anything is multiplied.
    alone = {letter for letter in sizes if left.count(letter) == 1 and letter not in right} if right else set()
    return math.prod(size for letter, size in sizes.items() if letter not in alone)


def _recurrent(call: Call, shapes: Shapes) -> int:
    tokens = math.prod(_shape(call, shapes, "input")[:-1])
    count = 0
    for i in range(len(call.args["params"])):
        shape = _shape(call, shapes, "params", i)
        if len(shape) == 2:
            count += tokens * shape[0] * shape[1]
    return count


def _bilinear(call: Call, shapes: Shapes) -> int:
    weight = _shape(call, shapes, "weight")
    return math.prod(_out(call, shapes)) * math.prod(weight[1:])


_LEFT: dict[str, tuple[Any, ...]] = {
    "self": (aten.matmul, aten.mm, aten.bmm, aten.mv, aten.dot),
    "mat1": (aten.addmm,),
    "batch1": (aten.baddbmm,),
}
_MACS: dict[Any, Callable[[Call, Shapes], int]] = {
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
    aten.einsum: _einsum,
    aten.bilinear: _bilinear,
    aten.lstm: _recurrent,
    aten.gru: _recurrent,
    aten.rnn_tanh: _recurrent,
    aten.rnn_relu: _recurrent,
}
