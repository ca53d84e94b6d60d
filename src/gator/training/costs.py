"""The cost a recipe names, as the pruner takes it."""

from __future__ import annotations

from gator.cost.by_name import cost_of
from gator.cost.latency.latency import Latency
from gator.cost.price import Cost
from gator.training.recipe import Recipe


def cost_for(recipe: Recipe, device: str) -> Cost:
    """Latency is measured as the recipe says, on the device the run has."""
    if recipe.prune.cost != "latency":
        return cost_of(recipe.prune.cost)
    settings = recipe.latency
    return Latency(
        runtime=settings.runtime,
        method=settings.method,
        batch=settings.batch,
        threads=recipe.run.threads or None,
        channels_last=recipe.run.channels_last,
        device=device,
        rounds=settings.rounds,
    )
