"""`gator latency build|show|check`: make latency tables, print them, and compare them with networks they have not seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gator.cli.inspect import shape_of
from gator.errors import FileError, GatorError

if TYPE_CHECKING:
    from gator.cost.latency.latency import Latency
    from gator.cost.latency.measuring.builder import Progress
    from gator.cost.latency.runtimes.run_setup import DtypeName, RuntimeName
    from gator.cost.latency.table.latency_table import Table

_SEED = 77  # of the networks to check: not one that tables are fitted to
commands = typer.Typer(help="Latency tables: how long the layers of a network take on this device.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A network by name, as for gator inspect.")]
Runtime = Annotated[str, typer.Option("--runtime", help="eager, compile, onnxruntime or openvino.")]
Threads = Annotated[int, typer.Option("--threads", help="Number of threads; 0 for as many as torch uses.")]
Batch = Annotated[int, typer.Option("--batch", help="Batch size; 0 for that of the example inputs.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, float16, bfloat16 or float64.")]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="PyTorch's channels_last layout.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or mps.")]
Input = Annotated[str, typer.Option("--input", help="Shape of the input, for example 1,3,224,224.")]
Classes = Annotated[int, typer.Option("--classes", help="Number of classes; 0 for as many as the network's name implies.")]
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
    """Time the layers of a network. What is in the table is not timed again, so that an interrupted build resumes."""
    from gator import zoo
    from gator.cost.latency.fit import fit_of
    from gator.cost.latency.layer_times import LayerTimes
    from gator.graph.trace import trace

    cost = _cost(runtime, batch, threads, channels_last, dtype, device, table)
    network = zoo.build(name, example_inputs=shape_of(input) if input else None, classes=classes)
    graph = trace(network.model, network.example_inputs)
    with _bar() as progress:
        path, found = cost.build_table(network.model, graph, progress)
    typer.echo(f"{path}\n{found.key}\n{fit_of(LayerTimes(graph, found), found)}")


def _cost(runtime: str, batch: int, threads: int, channels_last: bool, dtype: str, device: str, table: str) -> Latency:
    """`Latency` checks the names."""
    from gator.cost.latency.latency import Latency

    names = cast("RuntimeName", runtime), cast("DtypeName", dtype)
    return Latency(names[0], "table", batch or None, threads or None, channels_last, names[1], device, table=table)


@contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar that appears when something is timed."""
    from rich import progress

    bar = progress.Progress(
        *progress.Progress.get_default_columns(), progress.TimeElapsedColumn(), progress.TextColumn("{task.fields[what]}")
    )
    task = bar.add_task("timing", what="")

    def report(done: int, total: int, what: str) -> None:
        bar.start()
        bar.update(task, completed=done, total=total, what=what)

    try:
        yield report
        bar.update(task, completed=1, total=1, what="done")
    finally:
        if bar.live.is_started:
            bar.stop()


@commands.command("show")
def show(
    table: Annotated[str, typer.Argument(help="The file of a table; by default all tables in the cache folder.")] = "",
    layers: Annotated[bool, typer.Option("--layers", help="Also the times of every kind of layer.")] = False,
) -> None:
    """Print which tables there are and what they contain. `gator latency build` prints the error of a network."""
    from gator.cost.latency.table.table_file import cache_folder, read

    paths = [Path(table)] if table else sorted(cache_folder().glob("*.json"))
    if not paths:
        typer.echo(f"no tables in {cache_folder()}; gator latency build makes one")
    for path in paths:
        try:
            text = shown(read(path), layers=layers)
        except FileError as error:
            if table:
                raise
            text = f"  {error}"  # the other tables are still shown
        typer.echo(f"{path}\n{text}\n")


def shown(table: Table, *, layers: bool) -> str:
    """A table for people."""
    from gator.cost.latency.table.latency_table import NetworkTime

    points = sum(len(grid.ms) for grid in table.grids.values())
    lines = [f"  {table.key}", f"  {len(table.grids)} kinds of layers at {points} widths"]
    for group, steps in table.steps.items():
        if steps.block > 1:
            lines.append(f"  {group}: steps of {steps.read.block} channels read, {steps.written.block} written")
    for name in dict.fromkeys(each.network for each in table.measurements if isinstance(each, NetworkTime)):
        networks = table.networks(name)
        ms, cuts = fmean(each.unpruned_ms for each in networks), len({each.widths for each in networks})
        lines.append(f"  {networks[0].title}: {ms:.3g} ms; {cuts} cuts of it measured")
    for grid in table.grids.values() if layers else ():
        least, most = min(grid.ms.values()), max(grid.ms.values())
        lines.append(f"    {grid.title}, up to {grid.full[0]} -> {grid.full[1]}: {least:.3g} to {most:.3g} ms")
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
    """Measure networks of random widths and compare them with what the table predicts."""
    from gator import zoo
    from gator.cost.latency.fit import mape, rank_correlation
    from gator.cost.latency.widths import cut_to, random_widths
    from gator.graph.trace import trace

    if networks < 2:
        raise GatorError(f"--networks {networks}; expected 2 or more, because their order is compared too")
    cost = _cost(runtime, batch, threads, channels_last, dtype, device, table)
    network = zoo.build(name, example_inputs=shape_of(input) if input else None, classes=classes)
    graph = trace(network.model, network.example_inputs)
    with _bar() as progress:
        cost.build_table(network.model, graph, progress)
    prices = cost.on(network.model, graph)
    predictions, measurements = [], []
    typer.echo("predicted ms   measured ms   off by")
    for widths in random_widths(graph, networks, seed=_SEED):
        small = cut_to(network.model, graph, widths)
        predicted, measured = prices.total(widths), prices.measure(small, widths)
        assert measured is not None
        predictions.append(predicted)
        measurements.append(measured)
        typer.echo(f"{predicted:12.3f}  {measured:12.3f}  {predicted / measured - 1:+7.1%}")
    typer.echo(
        f"mean error {mape(predictions, measurements):.1%}, rank correlation {rank_correlation(predictions, measurements):.3f}"
    )
