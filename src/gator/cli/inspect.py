"""`gator inspect NAME`: the channel hypergraph of a network, as a table, as JSON or as an HTML page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from gator.errors import GatorError

if TYPE_CHECKING:
    import torch


def inspect(
    name: Annotated[
        str, typer.Argument(help="cifar:resnet56, torchvision:NAME, timm:NAME, hf:FOLDER with config.json, or file.py:factory.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print the graph as JSON.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Write an HTML page with a picture of the graph.")] = False,
    out: Annotated[str, typer.Option("--out", help="The file for --html; by default the name of the network.")] = "",
    input: Annotated[
        str, typer.Option("--input", help="Shape of the input, for example 1,3,224,224; by default the network's own.")
    ] = "",
    fixed: Annotated[list[str], typer.Option("--fixed", help="A layer to keep as it is; may be repeated.")] = [],  # noqa: B006
    heads: Annotated[str, typer.Option("--heads", help="Prune attention by heads (whole) or inside them (dims).")] = "whole",
    outputs: Annotated[
        list[str], typer.Option("--output", help="An output that matters, by name; may be repeated; by default all do.")
    ] = [],  # noqa: B006
    explain: Annotated[str, typer.Option("--explain", help="Explain why this edge, layer or parameter is tied or fixed.")] = "",
) -> None:
    """Print which channels of a network depend on each other."""
    from gator import zoo
    from gator.graph.trace import trace

    network = zoo.build(name, example_inputs=shape_of(input) if input else None)
    graph = trace(network.model, network.example_inputs, fixed=fixed, heads=heads, outputs=outputs)
    if explain:
        typer.echo(graph.explain(explain))
    elif html:
        from gator.report.write import figures_folder, write_graph

        path = write_graph(graph, name, out or f"{re.sub('[^A-Za-z0-9.]+', '-', name).strip('-')}.html")
        typer.echo(f"page: {path}; figures: {figures_folder(path)}")
    else:
        typer.echo(graph.to_json() if json else str(graph))


def shape_of(text: str) -> torch.Tensor:
    """A tensor of the shape that is given on the command line."""
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        raise GatorError(f"--input {text!r} is not a shape; write sizes separated by commas, for example 1,3,224,224") from None
    if any(size < 1 for size in sizes):
        raise GatorError(f"--input {text!r}: every size must be at least 1")
    import torch

    return torch.zeros(sizes)
