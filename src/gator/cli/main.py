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
        commands()()
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


def commands() -> Callable[[], None]:
    """All commands; calling the result runs the one that sys.argv names."""
    try:
        import typer
    except ImportError as error:
        raise MissingExtraError("the command line needs Typer and Rich; pip install 'torch-gator[cli]'") from error
    import gator
    from gator.cli import eval, export, init, inspect, latency, measure, predict, prune, recipes, report

    found = typer.Typer(
        help="Make trained networks smaller and faster by learning which channels they can live without.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @found.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            typer.echo(gator.__version__)
            raise typer.Exit

    found.command("prune")(prune.prune)
    found.command("recipes")(recipes.recipes)
    found.command("init")(init.init)
    found.command("eval")(eval.evaluate)
    found.command("predict")(predict.predict)
    found.command("export")(export.export)
    found.command("inspect")(inspect.inspect)
    found.command("measure")(measure.measure)
    found.command("report")(report.report)
    found.add_typer(latency.commands, name="latency")
    return cast("Callable[[], None]", found)
