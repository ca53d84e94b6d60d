"""`gator predict FILE IMAGE...`: the classes of images, with probabilities, prepared as the file says."""

from __future__ import annotations

from typing import Annotated

import typer

from gator.cli.arguments import ModelName
from gator.errors import FileError, GatorError


def predict(
    source: Annotated[
        str, typer.Argument(help="A run folder, a network file (.safetensors), or an exported one (.onnx, .pt2, .xml).")
    ],
    images: Annotated[list[str], typer.Argument(help="Image files.")],
    model: ModelName = "",
    top: Annotated[int, typer.Option("--top", help="How many classes to print, the most probable first.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print all probabilities as JSON, a line per image.")] = False,
) -> None:
    """Print the most probable classes of images. A .safetensors file runs in PyTorch, an .onnx file in ONNX Runtime."""
    import json as format_json

    from gator.training.opened import opened

    if top < 1:
        raise GatorError(f"--top {top}; expected 1 or more")
    found = opened(source, model=model)
    preprocessing = found.about.preprocessing
    if preprocessing is None:
        raise FileError(
            f"{found.path} does not say how images are prepared\n"
            "  With data of your own, return (train, test, gator.About(preprocessing=..., class_names=...)) from its function."
        )
    for image in images:
        probabilities = found.scores(preprocessing.open(image)).softmax(1)[0].tolist()
        names = found.about.class_names or tuple(map(str, range(len(probabilities))))
        if len(names) != len(probabilities):
            raise FileError(f"{found.path} has {len(names)} names of classes, but the network has {len(probabilities)} outputs")
        ranked = sorted(zip(names, probabilities, strict=True), key=lambda pair: -pair[1])
        if json:
            typer.echo(format_json.dumps({"image": image, "class": ranked[0][0], "probabilities": dict(ranked)}))
        else:
            typer.echo(f"{image}: " + ", ".join(f"{name} {100 * share:.2f} %" for name, share in ranked[:top]))
