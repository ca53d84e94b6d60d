"""`gator latency build|show|check`: build latency tables, print them, and compare them with measured networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gator import zoo
from gator.cli.inspect import shape_of
from gator.cost.latency.build import Progress
from gator.cost.latency.calibrate import mape, spearman
from gator.cost.latency.check import checked
from gator.cost.latency.latency import Latency
from gator.cost.latency.segments import segments_of
from gator.cost.latency.store import cache_folder, read
from gator.cost.latency.table import Table, network_name
from gator.errors import FileError
from gator.graph.trace import trace

commands = typer.Typer(help="Latency tables: how long the layers of a network take on this device.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A network by name, as for gator inspect.")]
Runtime = Annotated[str, typer.Option("--runtime", help="eager, compile, onnxruntime or openvino.")]
Threads = Annotated[int, typer.Option("--threads", help="Number of threads; 0: as many as torch uses.")]
Batch = Annotated[int, typer.Option("--batch", help="Batch size; 0: that of the example inputs.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, float16, bfloat16 or float64.")]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="Use the channels_last memory format.")]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
Input = Annotated[str, typer.Option("--input", help="Shape of the input, for example 1,3,224,224.")]
Classes = Annotated[int, typer.Option("--classes", help="Number of classes; 0: as many as the name implies.")]
File = Annotated[str, typer.Option("--table", help="The file of the table, instead of the one in the cache folder.")]


@commands.command("build")
def build(
    name: Name,
    runtime: Runtime = "eager",
    threads: Threads = 0,
    batch: Batch = 0,
    dtype: Dtype = "float32",
    channels_last: ChannelsLast = False,
    device: Device = "cpu",
    input: Input = "",
    classes: Classes = 0,
    table: File = "",
) -> None:
    """Time the layers of a network. Layers that are in the table already are not timed again; a stopped build is resumed."""
    cost = Latency(runtime, "table", batch or None, threads or None, channels_last, dtype, device)
    network = zoo.build(name, example_inputs=shape_of(input) if input else None, classes=classes)
    graph = trace(network.model, network.example_inputs)
    with _bar() as progress:
        path, found = cost.built(network.model, graph, Path(table) if table else None, progress)
    calibration = found.calibrations[network_name(segments_of(graph))]
    typer.echo(f"{path}\n{found.key}\n{name}: {calibration.whole_ms:.3g} ms; {calibration}")


@contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar, shown as soon as something is timed."""
    from rich import progress

    bar = progress.Progress(
        *progress.Progress.get_default_columns(), progress.TimeElapsedColumn(), progress.TextColumn("{task.fields[what]}")
    )
    task = bar.add_task("timing", what="")

    def told(done: int, total: int, what: str) -> None:
        bar.start()
        bar.update(task, completed=done, total=total, what=what)

    try:
        yield told
        bar.update(task, completed=1, total=1, what="done")
    finally:
        if bar.live.is_started:
            bar.stop()


@commands.command("show")
def show(
    table: Annotated[str, typer.Argument(help="The file of a table; by default all tables in the cache folder.")] = "",
    layers: Annotated[bool, typer.Option("--layers", help="Also print the times of every layer.")] = False,
) -> None:
    """Print the tables: the device and conditions, and the errors of their predictions."""
    paths = [Path(table)] if table else sorted((cache_folder() / "latency").glob("*.json"))
    if not paths:
        typer.echo(f"no tables in {cache_folder() / 'latency'}; gator latency build makes one")
    for path in paths:
        try:
            text = shown(read(path), layers=layers)
        except FileError as error:
            if table:
                raise
            text = f"  {error}"  # go on with the other tables
        typer.echo(f"{path}\n{text}\n")


def shown(table: Table, *, layers: bool) -> str:
    """A readable summary of a table."""
    points = sum(len(entry.ms) for entry in table.entries.values())
    lines = [f"  {table.key}", f"  {len(table.entries)} kinds of layers at {points} widths"]
    for group, steps in table.steps.items():
        if steps.block > 1:
            lines.append(f"  {group}: steps of {steps.read.block} channels read, {steps.written.block} written")
    lines += [f"  {found.title}: {found.whole_ms:.3g} ms; {found}" for found in table.calibrations.values()]
    for entry in table.entries.values() if layers else ():
        least, most = min(entry.ms.values(), default=0.0), max(entry.ms.values(), default=0.0)
        lines.append(f"    {entry.title}, up to {entry.whole[0]} -> {entry.whole[1]}: {least:.3g} to {most:.3g} ms")
    return "\n".join(lines)


@commands.command("check")
def check(
    name: Name,
    runtime: Runtime = "eager",
    threads: Threads = 0,
    batch: Batch = 0,
    dtype: Dtype = "float32",
    channels_last: ChannelsLast = False,
    device: Device = "cpu",
    input: Input = "",
    classes: Classes = 0,
    table: File = "",
    networks: Annotated[int, typer.Option("--networks", help="How many networks of random widths to measure.")] = 10,
) -> None:
    """Measure networks of random widths and print the measured beside the predicted latencies."""
    cost = Latency(runtime, "table", batch or None, threads or None, channels_last, dtype, device, table=table)
    network = zoo.build(name, example_inputs=shape_of(input) if input else None, classes=classes)
    graph = trace(network.model, network.example_inputs)
    with _bar() as progress:
        found = checked(network.model, graph, cost, networks, progress)
    typer.echo("predicted ms   measured ms   error")
    for predicted, measured in found:
        typer.echo(f"{predicted:12.3f}  {measured:12.3f}  {predicted / measured - 1:+7.1%}")
    predictions, measurements = zip(*found, strict=True)
    typer.echo(f"mean error {mape(predictions, measurements):.1%}, rank correlation {spearman(predictions, measurements):.3f}")
