"""`gator recipes [NAME]`: the recipes that come with Gator."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from gator.cli.screen import width
from gator.errors import RecipeError
from gator.suggest import did_you_mean
from gator.training.shipped import SHIPPED, shipped_names, summary


def _completed(incomplete: str) -> list[str]:
    return [name for name in shipped_names() if name.startswith(incomplete)]


def recipes(
    name: Annotated[str, typer.Argument(help="A recipe to print; without it, all are listed.", autocompletion=_completed)] = "",
) -> None:
    """List the recipes that come with Gator, or print one of them, to run or to start your own from."""
    if not name:
        for each in shipped_names():
            typer.echo(each)
            typer.echo(textwrap.fill(summary(each), width(), initial_indent="  ", subsequent_indent="  "))
        typer.echo("\nPrint one:  gator recipes NAME\nRun one:    gator prune NAME")
        return
    if name not in shipped_names():
        hint = did_you_mean(name, shipped_names(), otherwise=f"there are {', '.join(shipped_names())}")
        raise RecipeError(f"no recipe {name!r} comes with Gator; {hint}")
    typer.echo((SHIPPED / f"{name}.toml").read_text(encoding="utf-8"), nl=False)
