"""Costs by name."""

from __future__ import annotations

from typing import Literal, get_args

from gator.cost.flops import Flops
from gator.cost.latency.latency import Latency
from gator.cost.memory import Memory
from gator.cost.prices import Cost, PlainCost, as_cost
from gator.errors import GatorError

CostName = Literal["flops", "memory", "latency"]
_COSTS: dict[str, type[Cost]] = {"flops": Flops, "memory": Memory, "latency": Latency}
assert tuple(_COSTS) == get_args(CostName)


def cost_of(cost: str | Cost | PlainCost) -> Cost:
    """A cost from its name; or the cost itself, wrapped if it is a plain object of the user's."""
    if isinstance(cost, str):
        if cost not in _COSTS:
            raise GatorError(f"cost={cost!r}; expected {', '.join(map(repr, _COSTS))} or an object with on(model, graph)")
        return _COSTS[cost]()
    return as_cost(cost)
