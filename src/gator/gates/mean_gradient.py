"""What gates learn from, gradients or their squares: the mean over micro-batches and processes, however the loss is scaled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from gator.errors import GatorError
from gator.gates.gate import Gates


class _Scale(torch.autograd.Function):
    """Zero. Its gradient is what a loss scaler (or accumulation) multiplied the loss by, and the square of that."""

    @staticmethod
    def forward(ctx: Any, scale: Tensor) -> Tensor:  # noqa: ARG004
        return scale.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # noqa: ARG004
        return torch.stack([grad, grad.square()])


def loss_scale(gates: Gates) -> Tensor:
    """The leaf of `scale_term`: two zeros, whose gradient tells how the loss was scaled."""
    return torch.zeros(2, device=gates.device, dtype=gates.dtype, requires_grad=True)


def scale_term(scale: Tensor) -> Tensor:
    """A zero that is added to the loss, so that `scale` gets its gradient."""
    found: Tensor = _Scale.apply(scale)  # type: ignore[no-untyped-call]
    return found


def mean_gradient_(gates: Gates, scale: Tensor) -> Tensor | None:
    """The mean over micro-batches and processes of what gates learn from; resets it. None after an overflow of a scaler."""
    if scale.grad is None:
        raise GatorError(
            "pruner.step() found no gradient of pruner.loss(): add it to the loss (loss = criterion(...) + pruner.loss()) "
            "and call loss.backward() before"
        )
    total, squares = scale.grad.detach()
    scale.grad = None
    gradient = gates.taken_gradient(total, squares)
    both = torch.cat([gradient, total[None]])
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(both)
        dist.broadcast(both, 0)  # bit for bit the same everywhere, in whatever order the ranks were added
    if not bool(torch.isfinite(both).all()) or float(both[-1]) == 0:
        return None
    return both[:-1] / both[-1]
