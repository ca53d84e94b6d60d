"""`gator export RUN|FILE --to onnx|pt2|openvino`: the network in the format it is shipped in, checked there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gator.cli.arguments import DataFolder, DataName, ModelName, Source
from gator.cli.screen import say

if TYPE_CHECKING:
    from torch import Tensor

    from gator.training.opened import Opened

_EXAMPLES = 8  # real ones to check on


def export(
    source: Source,
    to: Annotated[str, typer.Option("--to", help="onnx, pt2 (torch.export, opens with plain torch) or openvino.")] = "onnx",
    out: Annotated[str, typer.Option("--out", help="The file to write; by default beside the network.")] = "",
    model: ModelName = "",
    data: DataName = "",
    folder: DataFolder = "",
) -> None:
    """Write the network of a run for another runtime, with its preprocessing, class names and a model card.

    The file is run in its own runtime and compared with PyTorch, on random inputs and on examples of the data set if that is
    found; a file that differs is not left behind.
    """
    from gator.errors import FileError
    from gator.files.export import export as write
    from gator.files.formats.by_name import format_named
    from gator.training.opened import opened

    chosen = format_named(to)
    chosen.check()
    found = opened(source, model=model)
    if found.model is None:
        raise FileError(f"{source} is exported already; give the run folder or the .safetensors file it came from")
    target = Path(out) if out else found.path.with_suffix(chosen.suffix)
    if target.suffix != chosen.suffix:
        raise FileError(f"--out {out}: a file for --to {to} ends in {chosen.suffix}")
    real = _real_inputs(found, data, folder)
    done = write(
        found.model, found.example_inputs, target, about=found.about, real_inputs=real, table=found.table, source=found.path
    )
    say(str(done))
    say(f"written: {', '.join(map(str, done.files))}")


def _real_inputs(found: Opened, data: str, folder: str) -> list[Tensor]:
    """A few test examples of the recorded data set; none, with a message, if it is not here."""
    from gator.errors import GatorError
    from gator.training.recorded_data import data_settings, recorded_data

    recipe = found.recipe
    try:
        loaded = recorded_data(data_settings(recipe.data if recipe else None, data, folder))
        x, _ = next(loaded.test.batches(0))
    except GatorError as error:
        if data or folder:
            raise
        say(f"checked on random inputs only, because the data set was not found: {str(error).splitlines()[0]}")
        return []
    return [x[:_EXAMPLES]]
