"""The `gator` command: collects the subcommands, and prints the library's errors as one message with exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import cast

from gator.errors import GatorError, MissingExtraError


def app() -> None:
    """The entry point of the `gator` command."""
    try:
        commands = _commands()
        commands()
    except GatorError as error:
        print(f"gator: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


def _commands() -> Callable[[], None]:
    try:
        import typer
    except ImportError as error:
        raise MissingExtraError("the command line needs Typer and Rich; pip install 'torch-gator[cli]'") from error
    import gator
    from gator.cli import inspect, latency, measure, prune, report

    commands = typer.Typer(
        help="Make trained networks smaller and faster by learning which channels they can live without.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @commands.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            typer.echo(gator.__version__)
            raise typer.Exit

    commands.command("inspect")(inspect.inspect)
    commands.command("prune")(prune.prune)
    commands.command("measure")(measure.measure)
    commands.command("report")(report.report)
    commands.add_typer(latency.commands, name="latency")
    return cast("Callable[[], None]", commands)
