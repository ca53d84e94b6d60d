"""The `gator` command: collects the subcommands, and prints the library's errors as one message with exit code 2.

Modules of commands import torch and the library only inside their functions, so that `--version`, `--help` and shell completion
answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import cast

from gator.errors import GatorError, MissingExtraError


def app() -> None:
    """The entry point of the `gator` command."""
    try:
        _commands()()
    except GatorError as error:
        print(f"gator: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except SystemExit as end:
        interrupt = _interrupt_behind(end)
        if interrupt is not None:  # Typer ends without a word
            print(f"\ngator: {interrupt.args[0] if interrupt.args else 'stopped by Ctrl-C'}", file=sys.stderr)  # noqa: T201
        raise


def _interrupt_behind(end: BaseException) -> KeyboardInterrupt | None:
    """The KeyboardInterrupt that made Typer exit, if it was one; its argument is the message to print."""
    found: BaseException | None = end
    while found is not None and not isinstance(found, KeyboardInterrupt):
        found = found.__cause__ or found.__context__
    return found


def _commands() -> Callable[[], None]:
    try:
        import typer
    except ImportError as error:
        raise MissingExtraError("the command line needs Typer and Rich; pip install 'torch-gator[cli]'") from error
    import gator
    from gator.cli import eval, export, init, inspect, latency, measure, predict, prune, recipes, report

    commands = typer.Typer(
        help="Make trained networks smaller and faster by learning which channels they can live without.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @commands.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            typer.echo(gator.__version__)
            raise typer.Exit

    commands.command("prune")(prune.prune)
    commands.command("recipes")(recipes.recipes)
    commands.command("init")(init.init)
    commands.command("eval")(eval.evaluate)
    commands.command("predict")(predict.predict)
    commands.command("export")(export.export)
    commands.command("inspect")(inspect.inspect)
    commands.command("measure")(measure.measure)
    commands.command("report")(report.report)
    commands.add_typer(latency.commands, name="latency")
    return cast("Callable[[], None]", commands)
