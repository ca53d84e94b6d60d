"""Several costs at once: each as a share of what the unpruned network costs, weighted and added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gator.cost.axis_sizes import full_widths
from gator.cost.prices import Cost, Floats, PlainCost, PlainData, Prices, Widths, as_cost, restored_prices
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph


@dataclass(frozen=True, init=False)
class WeightedCost(Cost):
    """A weighted sum of costs, each counted as a share of what the unpruned network costs.

    Args:
        parts: pairs of a cost and its weight. If the weights add up to one, the unpruned network costs 1.0.

    Examples:
        >>> cost = gator.WeightedCost((gator.Flops(), 0.7), (gator.Memory(), 0.3))
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
        >>> graph = gator.trace(model, torch.zeros(1, 4))
        >>> cost.on(model, graph).total([6])
        1.0
    """

    parts: tuple[tuple[Cost, float], ...]
    unit = "share"

    def __init__(self, *parts: tuple[Cost | PlainCost, float]) -> None:
        if not parts:
            raise GatorError("WeightedCost() without costs; pass pairs of a cost and its weight")
        for cost, weight in parts:
            if not weight > 0:
                raise GatorError(f"the weight of {type(cost).__name__} is {weight}; expected a number above zero")
        object.__setattr__(self, "parts", tuple((as_cost(cost), weight) for cost, weight in parts))

    def on(self, model: nn.Module, graph: Hypergraph) -> Prices:
        prices = [cost.on(model, graph) for cost, _ in self.parts]
        return self._weighted(prices, [part.total(full_widths(graph)) for part in prices])

    def restored(self, model: nn.Module, graph: Hypergraph, state: PlainData) -> Prices:
        """Prices relative to the cost of the first network."""
        if len(state["parts"]) != len(self.parts):
            raise GatorError(f"the state was saved with {len(state['parts'])} costs, now there are {len(self.parts)}")
        pairs = zip(self.parts, state["parts"], strict=True)
        return self._weighted([restored_prices(cost, model, graph, part) for (cost, _), part in pairs], state["whole_costs"])

    def _weighted(self, prices: Sequence[Prices], whole_costs: Sequence[float]) -> Prices:
        for (cost, _), whole_cost in zip(self.parts, whole_costs, strict=True):
            if not whole_cost > 0:
                raise GatorError(f"{type(cost).__name__} gives {whole_cost} for the unpruned network; expected more than zero")
        shares = [weight / whole_cost for (_, weight), whole_cost in zip(self.parts, whole_costs, strict=True)]
        return _WeightedPrices(tuple(prices), tuple(shares), tuple(whole_costs))


@dataclass(frozen=True)
class _WeightedPrices(Prices):
    parts: tuple[Prices, ...]
    shares: tuple[float, ...]  # by part: its weight over its whole cost
    whole_costs: tuple[float, ...]  # by part: what the first network costs, unpruned
    unit = "share"

    @property
    def tolerance(self) -> float:  # type: ignore[override]
        """As precise as the least precise part."""
        return max(part.tolerance for part in self.parts)

    @property
    def width_step(self) -> int:  # type: ignore[override]
        """A step that suits every part."""
        return math.lcm(*(part.width_step for part in self.parts))

    def total(self, widths: Widths) -> float:
        return sum(share * part.total(widths) for part, share in zip(self.parts, self.shares, strict=True))

    def per_channel(self, widths: Widths) -> Floats:
        prices = [share * part.per_channel(widths) for part, share in zip(self.parts, self.shares, strict=True)]
        return np.sum(prices, axis=0)  # type: ignore[no-any-return]

    def savings(self, widths: Widths, lower: Sequence[NDArray[np.int64]]) -> list[Floats]:
        parts = [part.savings(widths, lower) for part in self.parts]
        return [np.asarray(self.shares) @ np.stack(each) for each in zip(*parts, strict=True)]

    @property
    def measures(self) -> bool:
        return any(part.measures for part in self.parts)

    def measure(self, network: nn.Module, widths: Widths) -> float | None:
        """Measure each part; parts that do not measure are counted."""
        found = [part.measure(network, widths) for part in self.parts]
        if all(cost is None for cost in found):
            return None
        each = [part.total(widths) if cost is None else cost for part, cost in zip(self.parts, found, strict=True)]
        return sum(share * cost for cost, share in zip(each, self.shares, strict=True))

    def recalibrated(self, widths: Widths, measured: float) -> Prices:
        """What differs from the estimate is shared out among the parts that are estimates, in proportion."""
        costs = [share * part.total(widths) for part, share in zip(self.parts, self.shares, strict=True)]
        estimated = sum(cost for part, cost in zip(self.parts, costs, strict=True) if part.tolerance)
        if not estimated:
            return self
        factor = (measured - sum(costs) + estimated) / estimated
        parts = [part.recalibrated(widths, factor * part.total(widths)) if part.tolerance else part for part in self.parts]
        return replace(self, parts=tuple(parts))

    def state(self) -> PlainData:
        return {"whole_costs": list(self.whole_costs), "parts": [part.state() for part in self.parts]}

    def state_for_cut(self, model: nn.Module, graph: Hypergraph) -> PlainData:
        return {"whole_costs": list(self.whole_costs), "parts": [part.state_for_cut(model, graph) for part in self.parts]}
