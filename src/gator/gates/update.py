"""The update of the gates, from the mean gradient of all micro-batches and processes: eq. 8 and 9, or the worth of channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from gator.errors import GatorError
from gator.gates.gate import Gates

_STEPS = 100  # that the worth of a channel is averaged over


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
    return torch.zeros(2, device=gates.logits.device, dtype=gates.logits.dtype, requires_grad=True)


def scale_term(scale: Tensor) -> Tensor:
    """A zero that is added to the loss, so that `scale` gets its gradient."""
    found: Tensor = _Scale.apply(scale)  # type: ignore[no-untyped-call]
    return found


def mean_gradient_(gates: Gates, scale: Tensor) -> Tensor | None:
    """The mean gradient of the logits over micro-batches and processes, taken off; None after an overflow of a scaler.

    For gates that are not drawn, half of the second derivative is subtracted: minus the worth of a channel.
    """
    logits, curvature = gates.logits, gates.curvature
    if scale.grad is None:
        raise GatorError(
            "pruner.step() found no gradient of pruner.loss(): add it to the loss (loss = criterion(...) + pruner.loss()) "
            "and call loss.backward() before"
        )
    gradient = torch.zeros_like(logits) if logits.grad is None else logits.grad.detach()
    total, squares = scale.grad.detach()
    if curvature.grad is not None:  # squares of gradients, scaled twice
        gradient = gradient - 0.5 * curvature.grad.detach() * torch.where(squares > 0, total / squares, squares)
    both = torch.cat([gradient, total[None]])
    logits.grad = curvature.grad = scale.grad = None
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(both)
        dist.broadcast(both, 0)  # bit for bit the same everywhere, in whatever order the ranks were added
    if not bool(torch.isfinite(both).all()) or float(both[-1]) == 0:
        return None
    return both[:-1] / both[-1]


@torch.no_grad()
def update_(gates: Gates, gradient: Tensor, price: Tensor, *, rate: float, momentum: float, weight_decay: float) -> None:
    """One step of SGD on the logits; `price` is the share of the cost of one channel (lambda of eq. 6 and 7)."""
    if weight_decay:
        gradient = gradient + weight_decay * gates.logits
    # Divided by the edge's own price, every edge closes at the same pace (eq. 9). Channels that cost nothing stay.
    pull = torch.where(price > 0, gradient / price, 0.0)
    gates.momentum.mul_(momentum).add_(pull).mul_(gates.alive & ~gates.held)
    gates.logits.sub_(rate * gates.momentum)


@torch.no_grad()
def learn_worth_(gates: Gates, gradient: Tensor) -> None:
    """Average what the channels are worth over the latest steps: the network changes, and so does what it needs."""
    gates.worth.lerp_(-gradient, 1 / _STEPS).mul_(gates.alive)
