"""`gator init FOLDER MODEL`: a commented recipe for a folder of images, to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gator.cli.screen import say
from gator.errors import DataError, RecipeError


def init(
    folder: Annotated[str, typer.Argument(help="A folder with train/CLASS/*.jpg and val/CLASS/*.jpg.")],
    model: Annotated[str, typer.Argument(help="A network by name: torchvision:NAME, timm:NAME, file.py:factory ...")],
    weights: Annotated[
        str,
        typer.Option("--weights", help='A file of weights, or "pretrained"; by default random ones.'),
    ] = "",
    target: Annotated[float, typer.Option("--target", help="The share of the multiply-adds to keep.")] = 0.5,
    image_size: Annotated[int, typer.Option("--image-size", help="Height and width; 0 for those of the network.")] = 0,
    out: Annotated[str, typer.Option("--out", help="The recipe to write.")] = "recipe.toml",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a recipe that exists.")] = False,
) -> None:
    """Write a commented recipe for a folder of images and a network."""
    from gator.atomic_file import write_atomically
    from gator.training.recipe_file import recipe_from_text
    from gator.training.starting_recipe import starting_recipe

    path = Path(out)
    if path.exists() and not overwrite:
        raise RecipeError(f"{path} exists already; choose another name with --out, or pass --overwrite")
    if not Path(folder).is_dir():
        raise DataError(f"there is no folder {folder}; expected one with train/CLASS/*.jpg and val/CLASS/*.jpg")
    text, facts = starting_recipe(
        folder, model, weights=weights, target=target, image_size=image_size, name=Path(folder).resolve().name, file=out
    )
    recipe_from_text(text)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    say(f"{path}: {facts}")
    typer.echo(f"\nTry it:    gator prune {path} --dry-run\nRun it:    gator prune {path}")
