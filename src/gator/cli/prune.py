"""`gator prune RECIPE`: a whole run, from a recipe to a smaller network and a folder that holds everything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gator.cli.progress import watch_for
from gator.errors import RecipeError


def prune(
    recipe: Annotated[
        str, typer.Argument(help="A file, or the name of a shipped recipe. Without it: a small network on handwritten digits.")
    ] = "digits",
    set: Annotated[
        list[str], typer.Option("--set", help="Change a key of the recipe, for example prune.target=0.4; may be given again.")
    ] = [],  # noqa: B006
    out: Annotated[str, typer.Option("--out", help="The folder of the run; by default a new one under runs/.")] = "",
    resume: Annotated[str, typer.Option("--resume", help="Go on with the run in this folder, from its last checkpoint.")] = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Build everything, run two steps of every phase on made-up data, write nothing."),
    ] = False,
) -> None:
    """Train, prune and fine-tune a network as a recipe says."""
    from gator.training import dry, run
    from gator.training.reading import read_recipe

    if resume and (set or out or dry_run or recipe != "digits"):
        raise RecipeError("--resume takes the recipe of the run itself: give the folder and nothing else")
    watch = watch_for()
    if resume:
        result = run.resume(resume, watch=watch)
    elif dry_run:
        typer.echo(dry.dry_run(read_recipe(recipe, set)))
        return
    else:
        result = run.run(read_recipe(recipe, set), folder=out or None, watch=watch)
    if watch.speaks:
        typer.echo(f"\n{result}\n\ntested on {result.tested_on}; {result.seconds:.0f} s")
        typer.echo(f"everything is in {result.folder}; the network: {Path(result.folder) / result.rounds[-1].file}")
