"""Several costs at once: each as a share of what the whole network costs, weighted and added."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from gator.cost.price import Cost, Floats, Priced, Widths, scaled
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

    def on(self, model: nn.Module, graph: Hypergraph) -> Priced:
        whole = [edge.width for edge in graph.edges]
        found = []
        for cost, weight in self.parts:
            priced = cost.on(model, graph)
            total = priced.total(whole)
            if not total > 0:
                raise GatorError(f"{type(cost).__name__} says that the whole network costs {total}; expected more than zero")
            found.append(scaled(priced, weight / total))
        return _Together(tuple(found))


@dataclass(frozen=True)
class _Together:
    parts: tuple[Priced, ...]

    def total(self, widths: Widths) -> float:
        return sum(part.total(widths) for part in self.parts)

    def per_channel(self, widths: Widths) -> Floats:
        return np.asarray(sum(part.per_channel(widths) for part in self.parts))
