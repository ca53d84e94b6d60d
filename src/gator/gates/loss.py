"""The computational loss of eq. 3: what the open channels cost, as a share of what all of them cost at the start."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gator.cost.prices import Floats, Prices
from gator.errors import GatorError
from gator.gates.gate import Gates


class ComputationalLoss:
    """Holds lambda, the cost of a channel, which counts the living channels on its other side and has no gradient."""

    def __init__(self, prices: Prices, gates: Gates, gated: frozenset[int], whole: float | None = None) -> None:
        self._prices = prices
        self._gates = gates
        self._has_gate = np.isin(gates.edge_of, sorted(gated))
        self.whole = whole if whole is not None else self._sum()
        if not self.whole > 0:
            raise GatorError("no channel that may be closed costs anything; check cost=, keep= and fixed=")
        self.refresh()

    def _by_channel(self) -> Floats:
        """lambda of every channel's edge; edges without gates have none."""
        prices = self._prices.per_channel(self._gates.widths())
        return np.where(self._has_gate, prices[self._gates.edge_of], 0.0)

    def _sum(self) -> float:
        return float(self._by_channel()[self._gates.living()].sum())

    def refresh(self) -> None:
        """Count again after channels were closed."""
        logits = self._gates.logits
        self.lambda_hat = torch.as_tensor(self._by_channel() / self.whole, dtype=logits.dtype, device=logits.device)

    def __call__(self, drawn: Tensor) -> Tensor:
        """For one draw of the gates, rows x channels."""
        return (drawn.mean(0) * self.lambda_hat).sum()
