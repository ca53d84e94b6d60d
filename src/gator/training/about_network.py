"""What a run knows about its networks, for their files and for the run folder."""

from __future__ import annotations

from torch import Tensor

from gator.files.about import About, Figure
from gator.training.recipe import Recipe
from gator.training.recipe_file import recipe_text
from gator.training.report import Figures
from gator.zoo.data import Data


def about_network(
    recipe: Recipe, data: Data, example: Tensor, *, dense: Figures | None = None, figures: Figures | None = None
) -> About:
    """`figures` are those of the network, `dense` those of the network before pruning, as far as they are known yet."""
    return About(
        network=recipe.model.name,
        classes=data.classes,
        input=tuple(example.shape[1:]),
        preprocessing=data.preprocessing,
        class_names=data.class_names,
        recipe=recipe_text(recipe),
        tested_on=data.tested_on,
        figures=_counted(figures),
        dense=_counted(dense),
    )


def _counted(found: Figures | None) -> dict[str, Figure]:
    """What does not depend on the device: latencies are measured when all networks of a run are finished."""
    if found is None:
        return {}
    return {"accuracy": found.accuracy, "macs": found.macs, "params": found.params, "bytes": found.bytes}
