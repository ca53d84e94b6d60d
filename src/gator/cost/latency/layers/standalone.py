"""One fused layer of a network as a network of its own, at other widths: what is timed for a table.

It is cut by the same code as a whole network, so it is what it would be inside the cut network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn

from gator.cost.axis_sizes import AxisSize
from gator.cost.latency.layers.fused_layers import FusedLayer, Point, touched_values
from gator.cost.latency.runtimes.run_setup import Arguments, Setup
from gator.cost.latency.widths import evenly_spaced
from gator.graph.analysis import ProgramLabels
from gator.graph.bake import baked
from gator.graph.call_names import call_names
from gator.graph.hypergraph import Hypergraph
from gator.graph.program import BatchInt, Program, Ref
from gator.private_torch import buffers_of, parameters_of, pytree, submodules_of
from gator.surgery.branch_constants import ConstantFolder
from gator.surgery.emit_cut import CutEmitter
from gator.surgery.layers import Leaf, leaves_of
from gator.surgery.plan import Plan
from gator.surgery.slice import canonical_names, sliced_copy


class Standalone:
    """Builds one fused layer of a model as a network, at any widths."""

    def __init__(self, model: nn.Module, graph: Hypergraph, layer: FusedLayer) -> None:
        self.model, self.graph, self.layer = baked(model), graph, layer

    def built(self, point: Point, setup: Setup) -> tuple[nn.Module, Arguments]:
        """A network that reads and writes the channels of `point`, and inputs for it."""
        graph, modules = self._alone
        layer = self.layer
        # Other edges of the layer, such as that of a residual sum, keep the same share as the channels written.
        share = point[1] / layer.full[1] if layer.full[1] else 1.0
        counts = {index: round(graph.edges[index].width * share) for index in layer.edges}
        counts.update(_edge_widths(layer.written, point[1]))
        counts.update(_edge_widths(layer.read, point[0]))
        kept = {graph.edges[index].name: evenly_spaced(graph.edges[index].width, n) for index, n in counts.items()}
        plan = Plan(graph, kept)
        batch = setup.batch or graph.inputs.batch or 0
        emitter = _StandaloneEmitter(plan, sliced_copy(modules, plan), self._leaves, self.graph.eval.program, batch)
        written = emitter.emit()
        return fx.GraphModule(dict(emitter.objects), written), setup.placed((self._inputs(plan, batch), {}))

    @cached_property
    def _alone(self) -> tuple[Hypergraph, nn.Module]:
        """A graph with this layer as its only program, and a module with nothing but its modules and tensors."""
        graph, layer, labelled = self.graph, self.layer, self.graph.eval
        program = labelled.program
        calls = tuple(program.calls[index] for index in layer.calls)
        values = touched_values(calls) | set(layer.inputs)
        leaves: list[Any] = [Ref(value) for value in layer.outputs]
        own = Program(
            training=False,
            batch=program.batch,
            values=tuple(replace(v, name=f"x{v.id}") if v.id in layer.inputs else v for v in program.values),
            calls=calls,
            inputs=layer.inputs,
            outputs=(leaves, pytree.tree_structure(tuple(leaves))),
            constants=program.constants,
            folded=program.folded,
        )
        axes = {value: labelled.axes[value] for value in sorted(values)}
        part = ProgramLabels(own, axes, labelled.reads, labelled.moves, labelled.choices)
        names = {program.values[value].name for value in values if program.values[value].origin == "attribute"}
        alone = replace(
            graph,
            train=part,
            eval=part,
            attributes={name: axes for name, axes in graph.attributes.items() if name in names},
            edge_of={root: at for root, at in graph.edge_of.items() if at[0] in layer.edges},
        )
        return alone, _only(self.model, names | {call.module for call in calls})

    @cached_property
    def _leaves(self) -> dict[str, Leaf]:
        return leaves_of(self.model, self.graph.eval.program, canonical_names(self.model))

    def _inputs(self, plan: Plan, batch: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        tensors = []
        for value in self.layer.inputs:
            shape = [length_at(size, batch) for size in plan.shape("eval", value)]
            dtype = plan.graph.eval.program.values[value].dtype
            floating = dtype.is_floating_point
            tensors.append(
                torch.randn(shape, generator=generator, dtype=dtype) if floating else torch.zeros(shape, dtype=dtype)
            )
        return tuple(tensors)


def length_at(size: int, batch: int) -> int:
    """The length of an axis at this batch size."""
    return size.slope * batch + size.offset if isinstance(size, BatchInt) else int(size)


class _StandaloneEmitter(CutEmitter):
    """Writes sizes as plain numbers, because the batch is known. Leaf layers and call names are those of the network."""

    def __init__(self, plan: Plan, sliced: nn.Module, leaves: Mapping[str, Leaf], network: Program, batch: int) -> None:
        super().__init__(plan, "eval", sliced, canonical_names(sliced), ConstantFolder(None))
        self._leaves, self._network, self.batch = dict(leaves), network, batch

    @cached_property
    def call_names(self) -> dict[int, str]:
        return call_names(self._network)  # the calls of a part keep the indices that they have there

    def size(self, size: int) -> int:
        return length_at(size, self.batch)


def _edge_widths(size: AxisSize, wanted: int) -> dict[int, int]:
    """Widths of the edges on an axis, so that the axis has `wanted` positions as nearly as possible."""
    counts: dict[int, int] = {}
    left, room = max(wanted - size.fixed, 0), size.full - size.fixed
    for edge, positions, width in size.parts:
        count = round(left * positions / room) if room else 0
        counts[edge] = round(count * width / positions)
        left, room = left - count, room - positions
    return counts


def _only(module: nn.Module, names: set[str], prefix: str = "") -> nn.Module:
    """A module that has the layers and tensors of these names, under these names, and nothing else."""
    if not submodules_of(module):
        return module
    found = nn.Module()
    for name, child in submodules_of(module).items():
        path = prefix + name
        if child is not None and any(f"{one}.".startswith(f"{path}.") for one in names):
            found.add_module(name, _only(child, names, f"{path}."))
    for name, parameter in parameters_of(module).items():
        if prefix + name in names:
            found.register_parameter(name, parameter)
    for name, buffer in buffers_of(module).items():
        if prefix + name in names:
            found.register_buffer(name, buffer)
    return found
