"""`gator measure MODEL [--against OTHER]`: what a network costs on this device, beside another, and its slowest layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gator.cli.arguments import ModelName
from gator.cli.inspect import shape_of
from gator.cli.latency import Batch, ChannelsLast, Classes, Device, Dtype, Input, Runtime, Threads
from gator.errors import FileError, GatorError

if TYPE_CHECKING:
    from torch import nn

    from gator.cost.latency.network_timer import NetworkTimer
    from gator.graph.inputs import Inputs


def measure(
    name: Annotated[str, typer.Argument(help="A network by name, as for gator inspect, a network file, or a run folder.")],
    against: Annotated[str, typer.Option("--against", help="A second network, or a file that was cut from the first.")] = "",
    model: ModelName = "",
    runtime: Runtime = "eager",
    threads: Threads = 0,
    batch: Batch = 0,
    dtype: Dtype = "float32",
    channels_last: ChannelsLast = False,
    device: Device = "cpu",
    input: Input = "",
    classes: Classes = 0,
    rounds: Annotated[int, typer.Option("--rounds", help="How often each network is run, interleaved.")] = 30,
    layers: Annotated[int, typer.Option("--layers", help="How many layers to list, the slowest first.")] = 12,
) -> None:
    """Multiply-adds, parameters, bytes and time of a network, interleaved with another one if one is given."""
    from gator.cost.denormals import denormals_of
    from gator.cost.latency.network_timer import NetworkTimer
    from gator.cost.latency.runtimes.by_name import runtime_of
    from gator.cost.latency.runtimes.run_setup import checked_setup
    from gator.cost.measure import measure as footprint
    from gator.cost.timing import undisturbed
    from gator.graph.inputs import describe

    setup = checked_setup(runtime, device, threads or None, dtype, channels_last, batch or None)
    runtime_of(setup)
    if rounds < 1:
        raise GatorError(f"--rounds {rounds}; expected 1 or more")
    inputs = shape_of(input) if input else None
    first, example = _network(name, model, inputs, classes)
    described = describe(example)
    models = [(name, first)]
    if against:
        other, its_example = _network(against, model or _name_of(name), inputs, classes)
        if describe(its_example).leaves != described.leaves:
            raise GatorError(f"{against} takes other inputs than {name}; give both the same with --input")
        models.append((against, other))
    timer = NetworkTimer(setup, described, rounds)
    runs = [timer.prepare(model) for _, model in models]
    timings = undisturbed(lambda: timer.times(runs))
    typer.echo(timer.conditions)
    args, kwargs = described.random(batch=setup.batch)
    call = args or kwargs
    for (label, network), timing in zip(models, timings, strict=True):
        typer.echo(f"{label}: {footprint(network, call)}, {timing}")
        found = denormals_of(network, call)
        if found:
            typer.echo(f"  {found}")
    if against:
        share = timings[1].mean_ms / timings[0].mean_ms
        typer.echo(f"{against} takes {share:.3f} of the time of {name}, on average over {rounds} interleaved rounds")
    for label, network in models:
        _breakdown(label, network, timer, described, layers)


def _network(name: str, model: str, inputs: Any, classes: int) -> tuple[nn.Module, Any]:
    """A network, by name or from a file, in eval mode, and example inputs."""
    from gator import zoo
    from gator.training.opened import is_network, opened

    if not is_network(name):
        network = zoo.build(name, example_inputs=inputs, classes=classes)
        return network.model.eval(), network.example_inputs
    found = opened(name, model=model, classes=classes, example_inputs=inputs)
    if found.model is None:
        raise FileError(f"{name} is an exported file; give the run folder or the .safetensors file it came from")
    return found.model, found.example_inputs


def _name_of(name: str) -> str:
    """The name to build a file with that is measured against `name`; the file's own name counts if `name` is a file too."""
    from gator.training.opened import is_network

    return "" if is_network(name) else name


def _breakdown(label: str, model: nn.Module, timer: NetworkTimer, inputs: Inputs, most: int) -> None:
    if not most:
        return
    from gator.cost.latency.runtimes.by_name import runtime_of

    setup = timer.setup
    with setup.on():
        found = runtime_of(setup).layers(model, setup.arguments(inputs), setup, max(timer.rounds // 3, 3))
    if not found:
        typer.echo(f"{setup.runtime} does not report the time of layers; eager, onnxruntime and openvino do")
        return
    total = sum(ms for _, ms in found)
    typer.echo(f"\nwhere the time of {label} goes, the slowest of {len(found)} (timed one by one: {total:.3g} ms)")
    for layer, ms in sorted(found, key=lambda item: -item[1])[:most]:
        typer.echo(f"{ms:9.3f} ms {ms / max(total, 1e-9):6.1%}  {layer}")
