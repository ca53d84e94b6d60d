"""A network divided into fused layers: what a runtime is likely to run as one kernel.

A fused layer has one call that multiplies and adds (its anchor) and the cheap calls that follow from its result: a norm, an
activation, a residual sum. Two layers are of one kind if they differ in nothing but the widths of their channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gator.cost.axis_sizes import AxisSize, AxisSizes
from gator.cost.latency.layers.layer_kind import group_of, kind_of, title_of
from gator.cost.prices import Widths
from gator.graph.hypergraph import Hypergraph
from gator.graph.macs import macs
from gator.graph.program import Call, Program, Ref, needed

Point = tuple[int, int]  # channels that a layer reads, channels that it writes; 0 where pruning never changes them
_UNCHANGED = AxisSize(0)  # stands for channels that pruning never changes


@dataclass(frozen=True)
class FusedLayer:
    """An anchor and what is fused to it. Calls, values and edges are given by index."""

    name: str  # of the module that runs the anchor
    anchor: int
    calls: tuple[int, ...]
    inputs: tuple[int, ...]  # values that come from other layers
    outputs: tuple[int, ...]  # values that other layers read
    read: AxisSize  # channels that the anchor reads
    written: AxisSize
    edges: frozenset[int]
    kind: str
    group: str  # of kinds, such as "conv2d 3x3"; fitted together
    title: str  # of the kind, for people

    @property
    def full(self) -> Point:
        """Channels read and written in the unpruned network."""
        return self.read.full, self.written.full

    def at(self, widths: Widths) -> Point:
        """Channels read and written with these living widths."""
        return self.read.at(widths), self.written.at(widths)


def touched_values(calls: Iterable[Call]) -> set[int]:
    """The values that these calls read or make."""
    return {value for call in calls for value in (*(v for _, v in call.tensors()), *call.outputs) if value is not None}


def network_name(layers: Sequence[FusedLayer]) -> str:
    """A hash that is the same for networks with the same layers at the same widths."""
    return hashlib.sha256("\n".join(f"{s.kind} {s.full}" for s in layers).encode()).hexdigest()[:16]


def fused_layers_of(graph: Hypergraph) -> tuple[FusedLayer, ...]:
    """The fused layers of a network in eval mode, in the order they run."""
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
    assert main.outputs[0] is not None
    read = next(filter(None, map(sizes.of_axis, summed)), _UNCHANGED)
    written = next(filter(None, sizes.of_axes(main.outputs[0])), _UNCHANGED)
    changing = [size for value in sorted(touched_values(calls) | set(inputs)) for size in filter(None, sizes.of_axes(value))]
    if read == written == _UNCHANGED and changing:
        read = changing[0]
    if read == written:
        written = _UNCHANGED  # depthwise: one axis of a grid is enough
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
