"""`DrawnGates`: the gates of the paper (sections 3.1 and 3.4), with a logit per channel and noise.

A channel passes where logit + logistic noise is not negative, so its probability to pass is the sigmoid of its logit. In
backward the step function is replaced by a sigmoid of that sum. The logits learn by eq. 7 and 8.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gator.gates.channel_origin import Origin
from gator.gates.gate import Gates
from gator.gates.settings import GateSettings
from gator.graph.hypergraph import Hypergraph

PASS_AT_FIRST = 0.995


def drawn_gates(logits: Tensor, noise: Tensor, alive: Tensor, held: Tensor, temperature: float) -> Tensor:
    """Zeros and ones in forward, the slope of a sigmoid in backward."""
    score = logits + noise
    hard = (((score >= 0) | held) & alive).to(logits.dtype)
    soft = torch.sigmoid(score / temperature) * (alive & ~held)
    return hard + (soft - soft.detach())  # the bracket is exactly zero and carries the gradient


class DrawnGates(Gates):
    """Gates that are drawn once per forward, for every example or, on shared edges, for the whole batch."""

    learned = ("logits", "held", "momentum")

    def __init__(
        self, graph: Hypergraph, settings: GateSettings, *, device: torch.device, dtype: torch.dtype,
        shared: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        super().__init__(graph, device=device, dtype=dtype, shared=shared)
        first = math.log(PASS_AT_FIRST / (1 - PASS_AT_FIRST))
        self.logits = torch.full((len(self),), first, device=device, dtype=dtype, requires_grad=True)
        # Open whatever their logits say: channels that would close if a limit did not keep them open.
        self.held = torch.zeros_like(self.alive)
        self.momentum = torch.zeros(len(self), device=device, dtype=dtype)
        self._settings = settings
        self._any_shared = bool(self._shared.any())

    @property
    def probabilities(self) -> Tensor:
        return torch.where(self.held, 1.0, torch.sigmoid(self.logits.detach())) * self.alive

    def noise(self, rows: int) -> Tensor:
        """Logistic(0, 1) noise, one row per example."""
        uniform = torch.rand(rows, len(self), device=self.device, dtype=self.dtype)
        uniform = uniform.clamp(min=torch.finfo(self.dtype).tiny)
        return torch.log(uniform) - torch.log1p(-uniform)

    def of_forward(self, rows: int, examples: int) -> Tensor:  # noqa: ARG002
        noise = self.noise(rows)
        if rows > 1 and self._any_shared:
            noise = torch.where(self._shared, noise[:1], noise)
        return drawn_gates(self.logits, noise, self.alive, self.held, self._settings.temperature)

    def taken_gradient(self, scale: Tensor, squared_scale: Tensor) -> Tensor:  # noqa: ARG002
        found, self.logits.grad = self.logits.grad, None
        return torch.zeros_like(self.momentum) if found is None else found.detach()

    @torch.no_grad()
    def update_(self, gradient: Tensor, price: Tensor, lr: float) -> None:
        """One step of SGD on the logits."""
        settings = self._settings
        if settings.weight_decay:
            gradient = gradient + settings.weight_decay * self.logits
        # Divided by the edge's own price, every edge closes at the same pace (eq. 8). Channels that cost nothing stay.
        pull = torch.where(price > 0, gradient / price, 0.0)
        self.momentum.mul_(settings.momentum).add_(pull).mul_(self.alive & ~self.held)
        self.logits.sub_(settings.gamma * lr * self.momentum)

    @torch.no_grad()
    def inherit_(self, old: DrawnGates, origin: Origin) -> None:
        self.logits.copy_(origin.mean(old.logits.detach()))
        self.momentum.copy_(origin.mean(old.momentum))
        self.held = origin.mean(old.held.to(self.dtype)) == 1

    def keep_only_(self, alive: NDArray[np.bool_]) -> None:
        super().keep_only_(alive)
        self.momentum *= self.alive
