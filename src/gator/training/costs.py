"""The cost a recipe names, as the pruner takes it."""

from __future__ import annotations

from gator.cost.by_name import cost_of
from gator.cost.price import Cost
from gator.training.recipe import Recipe


def cost_for(recipe: Recipe) -> Cost:
    return cost_of(recipe.prune.cost)
