"""Costs by name."""

from __future__ import annotations

from gator.cost.flops import Flops
from gator.cost.latency.latency import Latency
from gator.cost.memory import Memory
from gator.cost.price import Cost
from gator.errors import GatorError

COSTS: dict[str, type[Flops] | type[Memory] | type[Latency]] = {"flops": Flops, "memory": Memory, "latency": Latency}


def cost_of(cost: str | Cost) -> Cost:
    """A cost from its name, or the cost itself."""
    if isinstance(cost, str):
        if cost not in COSTS:
            raise GatorError(f"cost={cost!r}; expected {', '.join(map(repr, COSTS))} or an object with on(model, graph)")
        return COSTS[cost]()
    if not callable(getattr(cost, "on", None)):
        raise GatorError(f"cost is a {type(cost).__name__} without on(model, graph); see gator.cost.price.Cost")
    return cost
