"""`gator report RUN [RUN ...]`: the report of one run or several as one HTML file, with its figures beside it."""

from __future__ import annotations

from typing import Annotated

import typer

from gator.errors import GatorError, MissingExtraError


def report(
    runs: Annotated[list[str], typer.Argument(help="Run folders, finished or not; several are compared.", metavar="RUN...")],
    out: Annotated[
        str,
        typer.Option("--out", help="The file or folder to write to; by default the run folder, for several runs this one."),
    ] = "",
) -> None:
    """Write an HTML report of one or more runs, and its figures as SVG and PNG."""
    from gator.report.write import figures_folder, write_report

    path = write_report(runs, out=out or None)
    typer.echo(f"report: {path}; figures: {figures_folder(path)}")


def report_line(folder: str) -> str:
    """Write the report of a finished run, and say where it is. If that fails, say why: the run itself has not failed."""
    from gator.report.write import write_report

    try:
        return f"report: {write_report([folder])}"
    except MissingExtraError:
        return f"no report: pip install 'torch-gator[report]', then run: gator report {folder}"
    except GatorError as error:
        return f"no report: {error}"
