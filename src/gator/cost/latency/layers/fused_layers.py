"""A network divided into layers: layers with their fused neighbours, which a runtime is likely to run as one kernel.

A layer has one call that multiplies and adds (its anchor) and the cheap calls that follow from its result: a norm, an
activation, a residual sum. Two layers are of one kind if they differ in nothing but the widths of their channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gator.cost.axis_sizes import AxisSize, AxisSizes
from gator.cost.latency.layers.layer_kind import group_of, kind_of, title_of
from gator.cost.latency.table.measurements import Point
from gator.cost.prices import Widths
from gator.graph.hypergraph import Hypergraph
from gator.graph.macs import macs
from gator.graph.program import Call, Program, Ref, needed


@dataclass(frozen=True)
class FusedLayer:
    """An anchor and what is fused to it."""

    name: str  # of the layer that runs the anchor
    anchor: int
    calls: tuple[int, ...]
    inputs: tuple[int, ...]  # values that come from other layers
    outputs: tuple[int, ...]  # values that other layers read
    read: AxisSize | None  # channels that the anchor reads; None if pruning never changes them
    written: AxisSize | None
    edges: frozenset[int]
    kind: str
    group: str  # of kinds, such as "conv2d 3x3"; fitted together
    title: str  # of the kind, for people

    @property
    def full(self) -> Point:
        """Channels read and written in the unpruned network."""
        return self.read.full if self.read else 0, self.written.full if self.written else 0

    def at(self, widths: Widths) -> Point:
        """Channels read and written with these living widths."""
        return self.read.at(widths) if self.read else 0, self.written.at(widths) if self.written else 0

    def exact(self, widths: Widths) -> tuple[float, float]:
        """The same for widths that are not integers."""
        return self.read.exact(widths) if self.read else 0.0, self.written.exact(widths) if self.written else 0.0


@dataclass(frozen=True)
class Border:
    """A value that one layer passes to others. Segments are given by index."""

    producer: int
    readers: tuple[int, ...]
    lengths: tuple[AxisSize, ...]

    def elements(self, widths: Widths) -> float:
        """The number of elements, of one example."""
        return float(np.prod([length.exact(widths) for length in self.lengths]))

    def slopes(self, widths: Widths) -> dict[int, float]:
        """The elements that one more channel would add, by edge."""
        edges = frozenset[int]().union(*(length.edges for length in self.lengths))
        wider = {edge: np.asarray(widths, dtype=np.float64) + (np.arange(len(widths)) == edge) for edge in edges}
        return {edge: self.elements(some) - self.elements(widths) for edge, some in wider.items()}


def network_name(layers: Sequence[FusedLayer]) -> str:
    """A hash that is the same for networks with the same layers at the same widths."""
    return hashlib.sha256("\n".join(f"{s.kind} {s.full}" for s in layers).encode()).hexdigest()[:16]


def borders_of(graph: Hypergraph, layers: Sequence[FusedLayer]) -> tuple[Border, ...]:
    """The values that the layers of a network pass to each other."""
    sizes = AxisSizes(graph)
    readers: dict[int, list[int]] = {}
    for index, layer in enumerate(layers):
        for value in layer.inputs:
            readers.setdefault(value, []).append(index)
    return tuple(
        Border(index, tuple(readers[value]), sizes.of_one_example(value))
        for index, layer in enumerate(layers)
        for value in layer.outputs
        if value in readers
    )


def fused_layers_of(graph: Hypergraph) -> tuple[FusedLayer, ...]:
    """The layers of a network in eval mode, in the order they run."""
    program, sizes = graph.eval.program, AxisSizes(graph)
    live = needed(program)
    calls = [call for call in program.calls if call.index in live]
    anchors = _anchors(program, calls)
    members: dict[int, list[Call]] = {}
    producer: dict[int, int] = {}  # of a value: the layer, by its anchor
    readers: dict[int, set[int]] = {leaf.id: {-1} for leaf in program.outputs[0] if isinstance(leaf, Ref)}  # -1: the user
    for call in calls:
        anchor = anchors[call.index]
        members.setdefault(anchor, []).append(call)
        producer.update({value: anchor for value in call.outputs if value is not None})
        for _, value in call.tensors():
            readers.setdefault(value, set()).add(anchor)
    found = []
    for anchor, own in members.items():
        read = [value for call in own for _, value in call.tensors() if producer.get(value) != anchor]
        inputs = [value for value in read if program.values[value].origin in ("call", "input")]
        outputs = [value for value, by in producer.items() if by == anchor and readers.get(value, set()) - {anchor}]
        # What follows from weights alone still takes its batch and its device from an input.
        given = tuple(dict.fromkeys(inputs)) or program.inputs[:1]
        found.append(_fused_layer(graph, sizes, own, anchor, given, tuple(sorted(outputs))))
    return tuple(found)


def _anchors(program: Program, calls: Sequence[Call]) -> dict[int, int]:
    """The anchor of every call: itself, the latest anchor that its arguments come from, or the anchor of its first reader."""
    anchors: dict[int, int] = {}
    producer: dict[int, int] = {}  # of a value: the call
    readers: dict[int, list[int]] = {}  # of a call: other calls
    deferred: list[Call] = []
    last = calls[-1].index if calls else 0
    for call in calls:
        sources = [producer[value] for _, value in call.tensors() if value in producer]
        for source in sources:
            readers.setdefault(source, []).append(call.index)
        before = [anchors[source] for source in sources if source in anchors]
        if macs(call, lambda value: program.values[value].shape):
            anchors[call.index] = last = call.index
        elif before:
            anchors[call.index] = max(before)
        else:
            deferred.append(call)  # its arguments are weights or inputs of the network
        producer.update({value: call.index for value in call.outputs if value is not None})
    for call in reversed(deferred):
        anchors[call.index] = min((anchors[reader] for reader in readers.get(call.index, ())), default=last)
    return anchors


def _fused_layer(
    graph: Hypergraph, sizes: AxisSizes, calls: list[Call], anchor: int, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> FusedLayer:
    labelled, program = graph.eval, graph.eval.program
    main = next((call for call in calls if call.index == anchor), calls[0])
    summed = [labelled.axes[main.value_at(one.argument)][one.axis] for one in labelled.reads.get(main.index, ())]
    read = next((size for axis in summed if (size := sizes.of_axis(axis)) is not None), None)
    assert main.outputs[0] is not None
    written = next((size for size in sizes.of_axes(main.outputs[0]) if size is not None), None)
    values = {value for call in calls for _, value in call.tensors()} | {
        v for call in calls for v in call.outputs if v is not None
    }
    changing = [size for value in sorted(values | set(inputs)) for size in sizes.of_axes(value) if size is not None]
    if read is None and written is None and changing:
        read = changing[0]
    if read == written:
        written = None  # depthwise: one axis of a grid is enough
    return FusedLayer(
        name=main.module or main.packet.__name__,
        anchor=anchor,
        calls=tuple(call.index for call in calls),
        inputs=inputs,
        outputs=outputs,
        read=read,
        written=written,
        edges=frozenset[int]().union(*(size.edges for size in changing)),
        kind=kind_of(calls, labelled, sizes, read, written),
        group=group_of(main, program),
        title=title_of(main, calls, program),
    )
