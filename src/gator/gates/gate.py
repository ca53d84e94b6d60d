"""The gates of a network: one per channel, the same for all readers of the channel (section 3.1).

With an alpha, as in the paper, a gate has a logit and is drawn once per forward: a channel passes where logit + logistic noise
is not negative, so its probability to pass is the sigmoid of its logit. In backward the step function is replaced by a sigmoid
of that sum. A channel whose probability is below 0.5 is closed permanently.

On the way to a target nothing is drawn: a channel is open until the schedule closes it, and its gate only finds out its worth,
which is the loss without the channel minus the loss with it. The gradient of the gate is the first-order term of that, and in a
trained network, which is near a minimum, mostly noise. The next term of the Taylor series is half the second derivative. The
squared gradient of one example estimates it (the Fisher information) at no extra cost; with one row of gates for a batch, the
squared gradient of the batch times its size. Noise would hurt: the network would have to recover from it as well (NOTES.md).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from gator.graph.hypergraph import Hypergraph

PASS_AT_FIRST = 0.995


def drawn_gates(logits: Tensor, noise: Tensor, alive: Tensor, held: Tensor, temperature: float) -> Tensor:
    """Zeros and ones in forward, the slope of a sigmoid in backward."""
    score = logits + noise
    hard = (((score >= 0) | held) & alive).to(logits.dtype)
    soft = torch.sigmoid(score / temperature) * (alive & ~held)
    return hard + (soft - soft.detach())  # the bracket is exactly zero and carries the gradient


class _WithCurvature(torch.autograd.Function):
    """Passes open gates on. In backward the squared gradients of the examples become the gradient of `curvature`."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, curvature: Tensor, examples: int) -> Tensor:  # noqa: ARG004
        ctx.examples = examples
        return gates.view_as(gates)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        # The loss is a mean over the examples, so what one example gives is a share of the gradient of its own loss.
        return grad, grad.square().sum(0) * ctx.examples, None


class Gates:
    """The gates of all edges, as flat tensors in the order of the graph's edges.

    With `drawn` they have logits and noise; without, all living channels are open, and `worth` holds what they are worth.
    """

    def __init__(
        self, graph: Hypergraph, *, device: torch.device, dtype: torch.dtype, shared: frozenset[int], temperature: float = 1.0,
        drawn: bool = True,
    ) -> None:  # fmt: skip
        self.starts = graph.starts
        self.edge_of: NDArray[np.int64] = np.repeat(np.arange(len(graph.edges)), np.diff(graph.starts))
        first = math.log(PASS_AT_FIRST / (1 - PASS_AT_FIRST))
        self.logits = torch.full((len(self.edge_of),), first, device=device, dtype=dtype, requires_grad=True)
        self.alive = torch.ones(len(self.edge_of), dtype=torch.bool, device=device)
        # Open whatever their logits say: channels that would close if a limit did not keep them open.
        self.held = torch.zeros_like(self.alive)
        self.momentum = torch.zeros_like(self.logits, requires_grad=False)
        self.worth = torch.zeros_like(self.momentum)
        # Always zero; its gradient has the squared gradients of the gates.
        self.curvature = torch.zeros_like(self.logits, requires_grad=True)
        self.temperature, self.drawn = temperature, drawn
        # Edges with a reader that has no batch axis (a weight, for example) have one draw for the whole batch.
        self._shared = torch.from_numpy(np.isin(self.edge_of, sorted(shared))).to(device)
        self._any_shared = bool(self._shared.any())

    def __len__(self) -> int:
        return len(self.edge_of)

    @property
    def probabilities(self) -> Tensor:
        """How likely each channel is to pass; 0 for closed ones."""
        if not self.drawn:
            return self.alive.to(self.logits.dtype)
        return torch.where(self.held, 1.0, torch.sigmoid(self.logits.detach())) * self.alive

    def living(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.alive.cpu().numpy()
        return found

    def widths(self) -> NDArray[np.int64]:
        """The number of living channels of every edge."""
        return np.bincount(self.edge_of[self.living()], minlength=len(self.starts) - 1)

    def of_edge(self, index: int) -> slice:
        return slice(int(self.starts[index]), int(self.starts[index + 1]))

    def noise(self, rows: int) -> Tensor:
        """Logistic(0, 1) noise, one row per example."""
        uniform = torch.rand(rows, len(self), device=self.logits.device, dtype=self.logits.dtype)
        uniform = uniform.clamp(min=torch.finfo(self.logits.dtype).tiny)
        return torch.log(uniform) - torch.log1p(-uniform)

    def draw(self, rows: int) -> Tensor:
        """Zeros and ones, rows x channels."""
        noise = self.noise(rows)
        if rows > 1 and self._any_shared:
            noise = torch.where(self._shared, noise[:1], noise)
        return drawn_gates(self.logits, noise, self.alive, self.held, self.temperature)

    def open(self, rows: int, examples: int) -> Tensor:
        """Ones for the living channels, rows x channels.

        Their gradient becomes that of the logits, and the squared gradients of the `examples` that of `curvature`.
        """
        gates = self.alive.to(self.logits.dtype) + (self.logits - self.logits.detach()) * self.alive
        opened: Tensor = _WithCurvature.apply(gates.expand(rows, -1), self.curvature, examples)  # type: ignore[no-untyped-call]
        return opened
