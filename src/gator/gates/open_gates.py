"""`OpenGates`: gates on the way to a target. They are open until they are closed, and find out what channels are worth.

The worth of a channel is the loss without it minus the loss with it. The gradient of its gate is the first-order term of that,
and in a trained network, which is near a minimum, mostly noise. The next term of the Taylor series is half the second
derivative. The squared gradient of one example estimates it (the Fisher information) at no extra cost; with one row of gates
for a batch, the squared gradient of the batch times its size, which overrates channels that all examples use alike. Nothing is
drawn: the network would have to recover from that as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from gator.gates.channel_origin import Origin
from gator.gates.gate import Gates
from gator.graph.hypergraph import Hypergraph

_STEPS = 100  # that the worth of a channel is averaged over: the network changes, and so does what it needs


class _WithCurvature(torch.autograd.Function):
    """Passes open gates on. In backward the squared gradients of the examples become the gradient of `curvature`."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, curvature: Tensor, shared: Tensor, examples: int) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(shared)
        ctx.examples = examples
        return gates.view_as(gates)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        # The loss is a mean over the examples, so a row has the gradient of one example's loss, divided by their number.
        # Readers without a batch axis have put theirs into the first row, for all examples: those rows belong together.
        (shared,) = ctx.saved_tensors
        squares = torch.where(shared, grad.sum(0).square(), grad.square().sum(0))
        return grad, squares * ctx.examples, None, None


class OpenGates(Gates):
    """Gates that are open as long as the channel lives. `worth` is averaged over the latest steps."""

    learned = ("worth",)

    def __init__(
        self, graph: Hypergraph, *, device: torch.device, dtype: torch.dtype, shared: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(graph, device=device, dtype=dtype, shared=shared)
        self.worth = torch.zeros(len(self), device=device, dtype=dtype)
        # Always zero. Their gradients are the sums of the gradients of all gates, and of their squares.
        self._slope, self._curvature = (torch.zeros_like(self.worth, requires_grad=True) for _ in range(2))

    @property
    def probabilities(self) -> Tensor:
        return self.alive.to(self.dtype)

    def of_forward(self, rows: int, examples: int) -> Tensor:
        gates = (self.alive + self._slope * self.alive).expand(rows, -1)
        opened: Tensor = _WithCurvature.apply(gates, self._curvature, self._shared, examples)  # type: ignore[no-untyped-call]
        return opened

    def taken_gradient(self, scale: Tensor, squared_scale: Tensor) -> Tensor:
        """Minus what the channels are worth."""
        slope, curvature = self._slope.grad, self._curvature.grad
        self._slope.grad = self._curvature.grad = None
        if slope is None or curvature is None:
            return torch.zeros_like(self.worth)
        once = torch.where(squared_scale > 0, scale / squared_scale, squared_scale)  # squares are scaled twice
        return slope.detach() - 0.5 * curvature.detach() * once

    @torch.no_grad()
    def update_(self, gradient: Tensor, price: Tensor, lr: float) -> None:  # noqa: ARG002
        self.worth.lerp_(-gradient, 1 / _STEPS).mul_(self.alive)

    @torch.no_grad()
    def inherit_(self, old: OpenGates, origin: Origin) -> None:
        self.worth.copy_(origin.total(old.worth))

    def keep_only_(self, alive: NDArray[np.bool_]) -> None:
        super().keep_only_(alive)
        self.worth *= self.alive
