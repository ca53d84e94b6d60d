"""Several costs at once: each as a share of what the whole network costs, weighted and added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from gator.cost.price import Cost, Floats, Priced, Widths, handed_on, priced_again
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
        priced = [cost.on(model, graph) for cost, _ in self.parts]
        return self._together(priced, [part.total(whole) for part in priced])

    def again(self, model: nn.Module, graph: Hypergraph, wholes: Mapping[str, Any]) -> _Together:
        """On a smaller network, as shares of what the first one cost."""
        if len(wholes["parts"]) != len(self.parts):
            raise GatorError(f"the prices so far were of {len(wholes['parts'])} costs, now there are {len(self.parts)}")
        pairs = zip(self.parts, wholes["parts"], strict=True)
        return self._together([priced_again(cost, model, graph, part) for (cost, _), part in pairs], wholes["totals"])

    def _together(self, priced: Sequence[Priced], totals: Sequence[float]) -> _Together:
        for (cost, _), total in zip(self.parts, totals, strict=True):
            if not total > 0:
                raise GatorError(f"{type(cost).__name__} says that the whole network costs {total}; expected more than zero")
        shares = [weight / total for (_, weight), total in zip(self.parts, totals, strict=True)]
        return _Together(tuple(priced), tuple(shares), tuple(totals))


@dataclass(frozen=True)
class _Together:
    parts: tuple[Priced, ...]
    shares: tuple[float, ...]
    totals: tuple[float, ...]  # of the first network, by part

    @property
    def wholes(self) -> dict[str, Any]:
        """All that is needed to price this network again, as plain data."""
        return {"totals": list(self.totals), "parts": [getattr(part, "wholes", None) for part in self.parts]}

    def handed_on(self, model: nn.Module, graph: Hypergraph) -> dict[str, Any]:
        """What the prices of a network cut from this one need."""
        return {"totals": list(self.totals), "parts": [handed_on(part, model, graph) for part in self.parts]}

    def total(self, widths: Widths) -> float:
        return sum(share * part.total(widths) for part, share in zip(self.parts, self.shares, strict=True))

    def per_channel(self, widths: Widths) -> Floats:
        prices = [share * part.per_channel(widths) for part, share in zip(self.parts, self.shares, strict=True)]
        return np.sum(prices, axis=0)  # type: ignore[no-any-return]
