"""`measure`: the footprint of a network, counted from its program; `predict_macs`: the same for a cut that is not made yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gator.cost.timing import Timing, timed
from gator.errors import GatorError
from gator.graph.call_names import call_names, module_of
from gator.graph.hypergraph import Hypergraph
from gator.graph.inputs import Inputs, as_call, describe
from gator.graph.macs import macs
from gator.graph.outline import owner_of
from gator.graph.program import Call, Program, needed
from gator.graph.record_forward import record
from gator.graph.rules import has_rule
from gator.graph.temporary_mode import modes_set
from gator.surgery.liveness import macs_left
from gator.surgery.plan import Kept, Plan


@dataclass(frozen=True)
class Footprint:
    """What one forward pass of the example inputs costs. A multiply-add (MAC) is two FLOPs."""

    macs: int
    flops: int
    params: int
    bytes: int  # of parameters and buffers
    latency_ms: float | None = None
    timing: Timing | None = None  # spread, rounds and threads behind latency_ms

    def __str__(self) -> str:
        text = f"{self.macs:,} MACs ({self.flops:,} FLOPs), {self.params:,} parameters, {self.bytes:,} bytes"
        if self.timing is not None:
            text += f", {self.timing.median_ms:.2f} ms +- {self.timing.spread_ms:.2f} ({self.timing.threads} threads)"
        return text


def measure(model: nn.Module, example_inputs: Any, *, latency: bool = False, rounds: int = 20) -> Footprint:
    """Multiply-adds, parameters and bytes of a network in eval mode; with `latency=True` also its time on this machine.

    Only what the result depends on is counted: a layer whose output is not used costs nothing here.

    Args:
        model: the network; it is not changed.
        example_inputs: a tensor, a tuple of positional or a dict of keyword arguments; MACs are those of one forward of these.
        latency: whether to time it in PyTorch, as it is, with the threads torch uses.
        rounds: how often it is timed.

    Raises:
        GatorError: if rounds is less than 1; TraceError if the network cannot be run on these inputs.

    Examples:
        >>> gator.measure(torch.nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8)).macs
        3888
    """
    if rounds < 1:
        raise GatorError(f"rounds={rounds}; at least one is needed to measure a latency")
    inputs = describe(example_inputs)
    total = sum(count for _, count in _macs_by_call(record(model, inputs, has_rule, training=False), inputs))
    timing = _latency(model, example_inputs, rounds) if latency else None
    return Footprint(
        macs=total,
        flops=2 * total,
        params=sum(parameter.numel() for parameter in model.parameters()),
        bytes=bytes_of(model),
        latency_ms=timing.median_ms if timing else None,
        timing=timing,
    )


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs: multiply-adds of one forward pass of the example inputs, and its own parameters."""

    name: str  # of the module that owns the weight, or that runs a product without weights
    macs: int
    params: int


def layer_costs(model: nn.Module, example_inputs: Any) -> tuple[LayerCost, ...]:
    """The cost of every layer, in the order of forward; their sums are what `measure` counts. Unused layers come last.

    Examples:
        >>> layer_costs(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), torch.zeros(1, 3, 8, 8))
        (LayerCost(name='0', macs=3888, params=112),)
    """
    inputs = describe(example_inputs)
    program = record(model, inputs, has_rule, training=False)
    names = call_names(program)
    owned: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        owner = owner_of(name)
        owned[owner] = owned.get(owner, 0) + parameter.numel()
    counted: dict[str, int] = {}
    for call, count in _macs_by_call(program, inputs):
        used = [owner_of(program.values[v].name) for _, v in call.tensors() if program.values[v].origin == "attribute"]
        layer = used[0] if used else module_of(names[call.index])
        if count or layer in owned:
            counted[layer] = counted.get(layer, 0) + count
    return tuple(LayerCost(name, counted.get(name, 0), owned.get(name, 0)) for name in dict.fromkeys([*counted, *owned]))


def _macs_by_call(program: Program, inputs: Inputs) -> list[tuple[Call, int]]:
    """The multiply-adds of every call that the result depends on, for the batch of the example inputs."""
    live = needed(program)
    found = [(call, macs(call, lambda v: program.values[v].shape)) for call in program.calls if call.index in live]
    if program.batch and inputs.batch:
        found = [(call, count * inputs.batch // program.batch) for call, count in found]
    return found


def bytes_of(model: nn.Module) -> int:
    """Bytes of parameters and buffers, tied ones once."""
    tensors = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _latency(model: nn.Module, example_inputs: Any, rounds: int) -> Timing:
    args, kwargs = as_call(example_inputs)
    with modes_set(model, False), torch.inference_mode():
        return timed([lambda: model(*args, **kwargs)], rounds=rounds)[0]


def predict_macs(graph: Hypergraph, kept: Kept) -> int:
    """The multiply-adds that `measure` will count on the cut network, without building it.

    Examples:
        >>> graph = gator.trace(torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)), torch.zeros(1, 4))
        >>> gator.predict_macs(graph, {"0": [0, 1, 2]})
        18
    """
    return macs_left(Plan(graph, kept))
