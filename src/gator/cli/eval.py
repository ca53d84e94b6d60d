"""`gator eval FILE --data ...`: the accuracy and the footprint of a network, computed here and now."""

from __future__ import annotations

from typing import Annotated

import typer

from gator.cli.arguments import DataFolder, DataName, ModelName
from gator.cli.screen import say
from gator.errors import GatorError

_SAME = 0.01  # points; half a unit of the last digit that is printed would ask for more than processors agree on


def evaluate(
    source: Annotated[
        str, typer.Argument(help="A run folder, a network file (.safetensors), or an exported one (.onnx, .pt2, .xml).")
    ],
    data: DataName = "",
    folder: DataFolder = "",
    model: ModelName = "",
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Print the accuracy of a network on test data, its MACs, parameters and bytes, and what its file says they are."""
    from gator.cost.measure import measure
    from gator.training.accuracy import accuracy
    from gator.training.opened import opened
    from gator.training.recorded_data import data_settings, recorded_data

    found = opened(source, model=model)
    recipe = found.recipe
    loaded = recorded_data(data_settings(recipe.data if recipe else None, data, folder))
    if found.about.class_names and loaded.class_names and found.about.class_names != loaded.class_names:
        raise GatorError(
            f"the data has other classes than the network: {_brief(loaded.class_names)}, not {_brief(found.about.class_names)}"
        )
    percent = accuracy(found.scores, loaded.test, channels_last=bool(recipe and recipe.run.in_channels_last), model=found.model)
    figures = {"accuracy": percent, "tested_on": loaded.tested_on, "runtime": found.runtime}
    if found.model is not None:
        counted = measure(found.model, found.example_inputs)
        figures |= {"macs": counted.macs, "params": counted.params, "bytes": counted.bytes}
    if json:
        import json as format_json

        typer.echo(format_json.dumps({**figures, "recorded": dict(found.about.figures)}))
        return
    say(f"{found.path} on {found.runtime}")
    say(f"accuracy {percent:.2f} % on {loaded.tested_on}{_recorded(percent, found.about.accuracy)}")
    if found.model is not None:
        say(str(counted))


def _recorded(percent: float, recorded: float | None) -> str:
    if recorded is None:
        return ""
    same = "as recorded" if abs(percent - recorded) <= _SAME + 1e-9 else f"the file says {recorded:.2f} %"
    return f" ({same})"


def _brief(names: tuple[str, ...]) -> str:
    return f"{len(names)} ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})"
