"""The gates of a network: one logit per channel, drawn once per forward for all readers of the channel (section 3.1).

A channel passes where logit + logistic noise is not negative, so its probability to pass is the sigmoid of its logit.
In backward the step function is replaced by a sigmoid of that sum. A channel whose probability is below 0.5 is
closed permanently.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gator.graph.hypergraph import Hypergraph

PASS_AT_FIRST = 0.995


def drawn_gates(logits: Tensor, noise: Tensor, alive: Tensor, held: Tensor, temperature: float) -> Tensor:
    """Zeros and ones in forward, the slope of a sigmoid in backward."""
    score = logits + noise
    hard = (((score >= 0) | held) & alive).to(logits.dtype)
    soft = torch.sigmoid(score / temperature) * (alive & ~held)
    return hard + (soft - soft.detach())  # the bracket is exactly zero and carries the gradient


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

    def draw(self, rows: int) -> Tensor:
        """Zeros and ones, rows x channels."""
        noise = self.noise(rows)
        if rows > 1 and self._any_shared:
            noise = torch.where(self._shared, noise[:1], noise)
        return drawn_gates(self.logits, noise, self.alive, self.held, self.temperature)
