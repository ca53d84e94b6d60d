"""`dry_run`: build everything that a recipe names, and run two steps of every phase on made-up data."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TypeVar

from gator.errors import RecipeError
from gator.training.recipe import Phase, Recipe
from gator.training.recipe_check import check
from gator.training.run import run_on
from gator.training.watch import Watch
from gator.training.weights import missing_weights
from gator.zoo.data import made_up, shape_of

P = TypeVar("P", bound=Phase)
_STEPS = 2
_EXAMPLES = 2  # per forward pass: enough for batch norms


def dry_run(recipe: Recipe) -> str:
    """Raise the errors about settings that a real run would raise, and return a summary; writes and downloads nothing."""
    check(recipe)
    known = shape_of(recipe.data.name, image_size=recipe.data.image_size, folder=recipe.data.folder)
    if known is None and not recipe.model.input:
        raise RecipeError("a dry run with your own data needs model.input: the shape of one example, without the batch")
    # Without known classes the network has as many as its name implies, and all made-up examples are of the first.
    shape, classes = known or (recipe.model.input, 0)
    parts = min(recipe.data.batch // recipe.data.sub_batch, 2) if recipe.data.sub_batch else 1
    data = made_up(tuple(recipe.model.input or shape), classes, batch=parts * _EXAMPLES, batches=_STEPS)
    with tempfile.TemporaryDirectory() as folder:
        result = run_on(_short(recipe, parts), data, Path(folder) / "run", Watch())
    lines = [f"{recipe.name}: two steps of every phase done on made-up data of shape {'x'.join(map(str, data.shape))}"]
    if known is not None and not classes:
        where = recipe.data.folder or "the folder of the images"
        lines.append(f"  {where} is not here: the network has as many classes as its name implies")
    if advice := missing_weights(recipe):
        lines.append(advice)
    lines += [f"  {outcome.name}: {outcome.figures.macs:,} of {result.before.macs:,} MACs left" for outcome in result.rounds]
    return "\n".join(lines)


def _short(recipe: Recipe, parts: int) -> Recipe:
    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, weights=""),
        data=dataclasses.replace(recipe.data, batch=parts * _EXAMPLES, sub_batch=_EXAMPLES if recipe.data.sub_batch else 0),
        train=_one_epoch(recipe.train),
        prune=dataclasses.replace(_one_epoch(recipe.prune), alphas=recipe.prune.alphas[:_STEPS]),
        finetune=dataclasses.replace(
            _one_epoch(recipe.finetune), recalibrate=min(recipe.finetune.recalibrate, 1), anneal="restart"
        ),
        # Not a table: building one takes minutes, and the file would stay.
        latency=dataclasses.replace(recipe.latency, method="probe", batch=1, rounds=1, table="", other_device=False),
    )


def _one_epoch(phase: P) -> P:
    # A small learning rate, so that training on noise does not diverge.
    epochs, lr = min(phase.epochs, 1), min(phase.lr, 1e-4)
    return dataclasses.replace(phase, epochs=epochs, lr=lr, schedule="constant", steps=(), warmup=0.0)
