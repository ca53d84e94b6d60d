"""Layer norm over the open channels, with the gradient of the gates worked out by hand.

Autograd keeps an activation for every step of `masked_statistics.layer_norm`, and goes over each of them in backward. This
keeps what a plain layer norm keeps: its input, a mean and a scale for every position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def layer_norm_of_open(x: Tensor, gate: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """A layer norm over the last axis; `gate` broadcasts against `x` and is zero where a channel is closed."""
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    normal: Tensor = _Normalised.apply(x, gate.to(wide), eps)  # type: ignore[no-untyped-call]
    if weight is not None and bias is not None and weight.dtype == bias.dtype == x.dtype:
        return torch.addcmul(bias, normal, weight)
    scaled = normal if weight is None else normal * weight
    return (scaled if bias is None else scaled + bias).to(x.dtype)


class _Normalised(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) for open channels, zero for closed ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, eps: float) -> Tensor:
        count = gate.sum(-1, keepdim=True).clamp(min=1)
        mean = (x * gate).sum(-1, keepdim=True) / count
        centred = (x - mean).mul_(gate)
        variance = (centred * centred).sum(-1, keepdim=True) / count
        scale = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, gate, mean, scale, count)
        ctx.eps = eps
        return centred.mul_(scale).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, gate, mean, scale, count = ctx.saved_tensors
        grad = grad.to(gate.dtype)
        normal = (x - mean).mul_(scale)  # of closed channels too
        open_grad = grad * gate
        first = open_grad.sum(-1, keepdim=True) / count
        second = (open_grad * normal).sum(-1, keepdim=True) / count
        # Along x: the usual gradient of a layer norm, over open channels.
        grad_x = (grad - first).addcmul_(normal, -second).mul_(gate).mul_(scale)
        # Along a gate: the channel enters the mean, the variance and the count.
        share = 1 - ctx.eps * scale * scale  # variance / (variance + eps)
        grad_gate = (grad - first).mul_(normal) - (gate * normal * normal - share / 2) * second
        return grad_x.to(x.dtype), _summed(grad_gate, gate.shape), None


def _summed(grad: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of something that was broadcast from this shape."""
    dims = [
        axis for axis in range(grad.ndim) if axis < grad.ndim - len(shape) or shape[axis - grad.ndim] == 1 != grad.shape[axis]
    ]
    return (grad.sum(dims, keepdim=True) if dims else grad).reshape(shape)
