"""`OpenGates`: gates on the way to a target. They are open until they are closed, and find out what channels are worth.

The worth of a channel is how much the loss would grow without it. The gradient of its gate, the first term of the Taylor
series, says little about that: near a minimum it is mostly noise. The next term is half the second derivative. The squared
gradient of an example's loss, averaged over the examples (the empirical Fisher information), estimates it up to a factor and
costs nothing. The factor depends on the loss, so squares rank channels but cannot be added to gradients. Every reader of a
channel has a square of its own, and they are added: in the sum of the gradients those of several readers cancel, and a channel
of a residual stream would seem to be worth little. With one row of gates for a batch, the squared gradient of the batch times
its size is used, which overrates channels that all examples use alike. Gates are not drawn at random, because the network
would have to recover from that noise too.
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


class _WithSquares(torch.autograd.Function):
    """Passes gates on. In backward the squared gradients of the examples become the gradient of `squares`."""

    @staticmethod
    def forward(ctx: Any, squares: Tensor, gates: Tensor, shared: Tensor, examples: int) -> Tensor:  # noqa: ARG004
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
        return squares * ctx.examples, None, None, None


class OpenGates(Gates):
    """Gates that are open as long as the channel lives. `worth` is averaged over the latest steps."""

    learned = ("worth",)

    def __init__(
        self, graph: Hypergraph, *, device: torch.device, dtype: torch.dtype, shared: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(graph, device=device, dtype=dtype, shared=shared)
        self.worth = torch.zeros(len(self), device=device, dtype=dtype)
        self._squares = torch.zeros_like(self.worth, requires_grad=True)  # always zero; for its gradient

    @property
    def probabilities(self) -> Tensor:
        return self.alive.to(self.dtype)

    def of_forward(self, rows: int, examples: int) -> Tensor:  # noqa: ARG002
        return self.alive.to(self.dtype).expand(rows, -1)

    def read(self, gates: Tensor, channels: slice | Tensor, examples: int) -> Tensor:
        squares, shared = self._squares[channels], self._shared[channels]
        found: Tensor = _WithSquares.apply(squares, gates, shared, examples)  # type: ignore[no-untyped-call]
        return found

    def taken_gradient(self, scale: Tensor, squared_scale: Tensor) -> Tensor:
        """The sum of the squared gradients, scaled like the loss itself (a square is scaled twice)."""
        found, self._squares.grad = self._squares.grad, None
        if found is None:
            return torch.zeros_like(self.worth)
        once = torch.where(squared_scale > 0, scale / squared_scale, squared_scale)  # squares are scaled twice
        return found.detach() * once

    @torch.no_grad()
    def update_(self, gradient: Tensor, price: Tensor, lr: float) -> None:  # noqa: ARG002
        self.worth.lerp_(gradient, 1 / _STEPS).mul_(self.alive)

    @torch.no_grad()
    def inherit_(self, old: OpenGates, origin: Origin) -> None:
        self.worth.copy_(origin.total(old.worth))

    def keep_only_(self, alive: NDArray[np.bool_]) -> None:
        super().keep_only_(alive)
        self.worth *= self.alive
