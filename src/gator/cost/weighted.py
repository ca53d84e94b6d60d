"""Several costs at once: each as a share of what the whole network costs, weighted and added."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from gator.cost.price import Cost, Floats, Priced, Widths
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph


@dataclass(frozen=True, init=False)
class WeightedCost:
    """`WeightedCost((Flops(), 0.7), (Memory(), 0.3))`: 1.0 for the whole network when the weights add up to one."""

    parts: tuple[tuple[Cost, float], ...]
    unit = "share"

    def __init__(self, *parts: tuple[Cost, float]) -> None:
        if not parts:
            raise GatorError("WeightedCost() without costs; pass pairs of a cost and its weight")
        for cost, weight in parts:
            if not weight > 0:
                raise GatorError(f"the weight of {type(cost).__name__} is {weight}; expected a number above zero")
        object.__setattr__(self, "parts", parts)

    def on(self, model: nn.Module, graph: Hypergraph) -> _Together:
        whole = [edge.width for edge in graph.edges]
        return self.again(model, graph, tuple(cost.on(model, graph).total(whole) for cost, _ in self.parts))

    def again(self, model: nn.Module, graph: Hypergraph, wholes: tuple[float, ...]) -> _Together:
        """On a smaller network, as shares of what the first one cost."""
        for (cost, _), total in zip(self.parts, wholes, strict=True):
            if not total > 0:
                raise GatorError(f"{type(cost).__name__} says that the whole network costs {total}; expected more than zero")
        priced = tuple(cost.on(model, graph) for cost, _ in self.parts)
        shares = tuple(weight / total for (_, weight), total in zip(self.parts, wholes, strict=True))
        return _Together(priced, shares, wholes)


@dataclass(frozen=True)
class _Together:
    parts: tuple[Priced, ...]
    shares: tuple[float, ...]
    wholes: tuple[float, ...]

    def total(self, widths: Widths) -> float:
        return sum(share * part.total(widths) for part, share in zip(self.parts, self.shares, strict=True))

    def per_channel(self, widths: Widths) -> Floats:
        prices = [share * part.per_channel(widths) for part, share in zip(self.parts, self.shares, strict=True)]
        return np.sum(prices, axis=0)  # type: ignore[no-any-return]
