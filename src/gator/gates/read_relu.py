"""A ReLU whose result is read by gated convolutions: both the result and the gated result, for the price of one.

ReLU keeps its result for backward, and so would a convolution that reads it; gated, they would keep two tensors. Here one is kept:
the gated result, which is the result but for a few closed channels, and those channels as they were.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gator.gates.read import Closed, are_many, is_large

aten = torch.ops.aten


def relu_of_gated(x: Tensor, gate: Tensor, closed: Closed | None, alone: bool) -> tuple[Tensor, Tensor | None]:
    """The ReLU of `x`, and the same gated, or None where the reader should see to that.

    `alone`: nobody reads the result but gated readers, so it is not wanted by itself.
    """
    if closed is None or not is_large(x, gate, closed) or are_many(closed, gate):
        return functional.relu(x), None
    if alone:
        gated = _GatedRelu.apply(x, gate, closed, True)  # type: ignore[no-untyped-call]
        return gated, gated
    result, gated = _GatedRelu.apply(x, gate, closed, False)  # type: ignore[no-untyped-call]
    return result, gated


class _GatedRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, closed: Closed, alone: bool) -> Any:
        result = torch.relu(x)
        taken = result[closed]
        gated = result if alone else result.clone()
        gated.index_put_(closed, x.new_zeros(()))
        ctx.save_for_backward(gated, taken)
        ctx.closed, ctx.dtype = closed, gate.dtype
        return gated if alone else (result, gated)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        gated, taken = ctx.saved_tensors
        of_gated, space = grads[-1], [*range(2, gated.ndim)]
        grad_gate = (of_gated * gated).sum(space).to(ctx.dtype)
        grad_gate.index_put_(ctx.closed, (of_gated[ctx.closed] * taken).flatten(1).sum(1).to(ctx.dtype))
        if len(grads) == 1:
            return aten.threshold_backward.default(of_gated, gated, 0), grad_gate, None, None
        grad_x = aten.threshold_backward.default(grads[0] + of_gated, gated, 0)
        grad_x.index_put_(ctx.closed, aten.threshold_backward.default(grads[0][ctx.closed], taken, 0))
        return grad_x, grad_gate, None, None
