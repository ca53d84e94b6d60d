"""`gator prune RECIPE`: carry out a recipe; the smaller network and everything else end up in a run folder."""

from __future__ import annotations

from typing import Annotated

import typer

from gator.cli.progress import ShownLog, watch_for
from gator.cli.report import report_line
from gator.cli.screen import say
from gator.errors import RecipeError
from gator.training.shipped import shipped_names


def prune(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A TOML file, or a recipe that comes with Gator; by default a small network on digits.",
            autocompletion=lambda incomplete: [name for name in shipped_names() if name.startswith(incomplete)],
        ),
    ] = "digits",
    cost: Annotated[str, typer.Option("--cost", help="The cost to reduce: flops, memory or latency (prune.cost).")] = "",
    target: Annotated[
        str, typer.Option("--target", help='How much of it to keep: 0.6, 60%, or "300 MMACs", "4 MB", "5 ms" (prune.target).')
    ] = "",
    runtime: Annotated[
        str,
        typer.Option("--runtime", help="Where the network will run: eager, compile, onnxruntime, openvino."),
    ] = "",
    set: Annotated[
        list[str], typer.Option("--set", help="Change a key of the recipe, for example prune.target=0.4; may be repeated.")
    ] = [],  # noqa: B006
    out: Annotated[str, typer.Option("--out", help="The run folder; by default a new one under runs/.")] = "",
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            help="Resume the run in this folder from its last checkpoint; auto: resume the run in --out, or start it.",
        ),
    ] = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in the run folder (runs/NAME, or that of --out).")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Build everything, run two steps of every phase on made-up data, write nothing."),
    ] = False,
) -> None:
    """Train, prune and fine-tune a network as a recipe says."""
    from gator.training import run
    from gator.training.dry_run import dry_run as try_recipe
    from gator.training.recipe_file import read_recipe

    given = {"prune.cost": cost, "prune.target": target, "latency.runtime": runtime}
    set = [*(f"{key}={value}" for key, value in given.items() if value), *set]
    auto = resume == "auto"
    if auto and (not out or overwrite or dry_run):
        raise RecipeError("--resume auto looks for a run in --out: give a recipe and --out, without --overwrite or --dry-run")
    if resume and not auto and (out or overwrite or dry_run or recipe != "digits"):
        raise RecipeError("--resume reads the recipe from the run folder: give the folder, and --set for what shall change")
    if dry_run:
        typer.echo(try_recipe(read_recipe(recipe, set)))
        return
    watch = watch_for()
    with ShownLog(watch):
        if resume and not auto:
            result = run.resume(resume, changes=set, watch=watch)
        else:
            result = run.run(read_recipe(recipe, set), folder=out or None, watch=watch, overwrite=overwrite, resume=auto)
    if watch.prints:
        say(f"\n{result}\n\ntested on {result.tested_on}; {result.seconds:.0f} s")
        say(f"run folder: {result.folder}; network: {result.network}")
        say(report_line(result.folder))
