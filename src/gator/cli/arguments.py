"""Arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Source = Annotated[str, typer.Argument(help="A run folder, or a network file that gator prune or gator.save wrote.")]
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        help="The original network, if the file does not name it or it is code of your own (file.py:factory).",
    ),
]
DataName = Annotated[
    str,
    typer.Option("--data", help="A data set by name, or its folder; by default the one that the recipe in the file names."),
]
DataFolder = Annotated[str, typer.Option("--folder", help="Where the data set is, if --data is a name.")]
