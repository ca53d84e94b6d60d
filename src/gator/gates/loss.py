"""The computational loss of eq. 3: what the open channels cost, as a share of what all of them cost at the start."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gator.cost.prices import Floats
from gator.errors import GatorError
from gator.gates.budget import Budget
from gator.gates.gate import Gates


class ComputationalLoss:
    """Holds lambda, the cost of a channel, which counts the living channels on its other side and has no gradient."""

    def __init__(self, budget: Budget, gates: Gates, gated: frozenset[int], at_start: float | None = None) -> None:
        self._budget = budget
        self._gates = gates
        self._has_gate = np.isin(gates.edge_of, sorted(gated))
        # What all channels with gates cost at the start of the run, by the prices of that time.
        self.at_start = at_start if at_start is not None else float(self._by_channel()[gates.living()].sum())
        if not self.at_start > 0:
            raise GatorError("no channel that may be closed costs anything; check cost=, keep= and fixed=")
        self.refresh()

    def _by_channel(self) -> Floats:
        """lambda of every channel's edge; edges without gates have none."""
        prices = self._budget.prices.per_channel(self._gates.widths())
        return np.where(self._has_gate, prices[self._gates.edge_of], 0.0)

    def refresh(self) -> None:
        """Compute lambda again after channels were closed or prices have changed."""
        by_channel = self._by_channel() / self.at_start
        self.lambda_hat = torch.as_tensor(by_channel, dtype=self._gates.dtype, device=self._gates.device)

    def __call__(self, drawn: Tensor) -> Tensor:
        """For one draw of the gates, rows x channels."""
        return (drawn.mean(0) * self.lambda_hat).sum()
