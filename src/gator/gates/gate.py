"""The gates of a network: one logit per channel, drawn once per forward for all readers of the channel (section 3.1).

A channel passes where logit + logistic noise is not negative, so its probability to pass is the sigmoid of its logit.
In backward the step function is replaced by a sigmoid of that sum. With an alpha, a channel whose probability is below 0.5 is
closed permanently; on the way to a target the schedule closes those with the lowest logits.

The value of a channel is the loss without it minus the loss with it. The gradient of its gate is the first-order term of that,
and in a trained network, which is near a minimum, mostly noise. The next term of the Taylor series is half the second
derivative. The squared gradient of one example estimates it (the Fisher information) at no extra cost; with one draw for a
batch, the squared gradient of the batch times its size. It is used on the way to a target; with an alpha the gates learn as in
the paper.
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
    """Passes the drawn gates on. In backward the sum of the second-order terms becomes the gradient of `curvature`."""

    @staticmethod
    def forward(ctx: Any, drawn: Tensor, curvature: Tensor, slope: Tensor, examples: int) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(drawn, slope)
        ctx.examples = examples
        return drawn.view_as(drawn)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        drawn, slope = ctx.saved_tensors
        # grad is of the mean over the examples. Seen from an open gate the loss without the channel is L - g + h / 2, seen
        # from a closed one the loss with it is L + g + h / 2.
        second = (0.5 - drawn) * slope * grad.square() * ctx.examples
        return grad, second.sum(0), None, None


class Gates:
    """Logits and closed channels of all gated edges, as flat tensors in the order of the graph's edges."""

    def __init__(
        self, graph: Hypergraph, *, device: torch.device, dtype: torch.dtype, shared: frozenset[int], temperature: float = 1.0
    ) -> None:
        self.starts = graph.starts
        self.edge_of: NDArray[np.int64] = np.repeat(np.arange(len(graph.edges)), np.diff(graph.starts))
        first = math.log(PASS_AT_FIRST / (1 - PASS_AT_FIRST))
        self.logits = torch.full((len(self.edge_of),), first, device=device, dtype=dtype, requires_grad=True)
        self.alive = torch.ones(len(self.edge_of), dtype=torch.bool, device=device)
        # Open whatever their logits say: channels that would close if a limit did not keep them open.
        self.held = torch.zeros_like(self.alive)
        self.momentum = torch.zeros_like(self.logits, requires_grad=False)
        self.curvature = torch.zeros_like(
            self.logits, requires_grad=True
        )  # always zero; its gradient has the second-order terms
        self.temperature = temperature
        # Edges with a reader that has no batch axis (a weight, for example) have one draw for the whole batch.
        self._shared = torch.from_numpy(np.isin(self.edge_of, sorted(shared))).to(device)
        self._any_shared = bool(self._shared.any())

    def __len__(self) -> int:
        return len(self.edge_of)

    @property
    def probabilities(self) -> Tensor:
        """How likely each channel is to pass; 0 for closed ones."""
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

    def draw(self, rows: int, examples: int | None = None) -> tuple[Tensor, Tensor]:
        """Zeros and ones, rows x channels: for the computational loss, and for the network.

        Both are the same. With `examples`, the number that the loss is a mean over, the gradient of the second also fills that
        of `curvature`.
        """
        noise = self.noise(rows)
        if rows > 1 and self._any_shared:
            noise = torch.where(self._shared, noise[:1], noise)
        drawn = drawn_gates(self.logits, noise, self.alive, self.held, self.temperature)
        if examples is None:
            return drawn, drawn
        soft = torch.sigmoid((self.logits.detach() + noise) / self.temperature) * (self.alive & ~self.held)
        slope = soft * (1 - soft) / self.temperature
        return drawn, _WithCurvature.apply(drawn, self.curvature, slope, examples)  # type: ignore[no-untyped-call]
