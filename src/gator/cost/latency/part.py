"""One segment of a network as a network of its own, at other widths: what is timed for the table.

The same rewriting that cuts a whole network cuts its parts, so a part is what it would be inside the cut network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from gator.cost.latency.draws import evenly
from gator.cost.latency.segments import Segment, Size
from gator.cost.latency.setup import Call, Setup
from gator.graph.analysis import ProgramLabels
from gator.graph.bake import baked
from gator.graph.hypergraph import Hypergraph
from gator.graph.program import BatchInt, Program, Ref
from gator.surgery.emit_cut import CutEmitter
from gator.surgery.fold import Folder
from gator.surgery.layers import Leaf, leaves_of
from gator.surgery.plan import Plan
from gator.surgery.slice import canonical_names, sliced_copy


class Part:
    """A segment of a model that can be built at any widths."""

    def __init__(self, model: nn.Module, graph: Hypergraph, segment: Segment) -> None:
        self.model, self.graph, self.segment = baked(model), graph, segment

    @cached_property
    def _alone(self) -> tuple[Hypergraph, nn.Module]:
        """A graph with this segment as its whole program, and a module with its layers alone."""
        graph, segment = self.graph, self.segment
        labelled = graph.eval
        program = labelled.program
        calls = tuple(program.calls[index] for index in segment.calls)
        values = {v for call in calls for _, v in call.tensors()} | {v for call in calls for v in call.outputs if v is not None}
        values |= set(segment.inputs)
        leaves: list[Any] = [Ref(value) for value in segment.outputs]
        own = Program(
            training=False,
            batch=program.batch,
            values=tuple(replace(v, name=f"x{v.id}") if v.id in segment.inputs else v for v in program.values),
            calls=calls,
            inputs=segment.inputs,
            outputs=(leaves, pytree.tree_structure(tuple(leaves))),
            constants=program.constants,
            folded=program.folded,
        )
        part = ProgramLabels(
            own, {v: labelled.axes[v] for v in sorted(values)}, labelled.reads, labelled.moves, labelled.choices
        )
        names = {program.values[v].name for v in values if program.values[v].origin == "attribute"}
        alone = replace(
            graph,
            train=part,
            eval=part,
            attributes={name: axes for name, axes in graph.attributes.items() if name in names},
            edge_of={root: at for root, at in graph.edge_of.items() if at[0] in segment.edges},
        )
        layers = _layers(self.model, {call.module for call in calls if call.module}, names)
        return alone, layers

    @cached_property
    def _leaves(self) -> dict[str, Leaf]:
        return leaves_of(self.model, self.graph.eval.program, canonical_names(self.model))

    def built(self, into: int, out: int, setup: Setup) -> tuple[nn.Module, Call]:
        """The segment reading and writing so many channels, and inputs for it."""
        graph, layers = self._alone
        segment = self.segment
        counts = {index: _share(out, segment.out, graph.edges[index].width) for index in segment.edges}
        counts.update(_spread(segment.out, out))
        counts.update(_spread(segment.into, into))
        kept = {graph.edges[index].name: evenly(graph.edges[index].width, n) for index, n in counts.items()}
        plan = Plan(graph, kept)
        sliced = sliced_copy(layers, plan)
        batch = setup.batch or graph.inputs.batch or 0
        emitter = _PartEmitter(plan, sliced, self._leaves, batch)
        written = emitter.emit()
        return fx.GraphModule(dict(emitter.objects), written), self._inputs(plan, setup, batch)

    def _inputs(self, plan: Plan, setup: Setup, batch: int) -> Call:
        generator = torch.Generator().manual_seed(0)
        values = plan.graph.eval.program.values
        tensors = []
        for value in self.segment.inputs:
            shape = [plain(size, batch) for size in plan.shape("eval", value)]
            dtype = values[value].dtype
            made = (
                torch.randn(shape, generator=generator, dtype=dtype)
                if dtype.is_floating_point
                else torch.zeros(shape, dtype=dtype)
            )
            tensors.append(made)
        return setup.placed((tuple(tensors), {}))


def plain(size: int, batch: int) -> int:
    """The length of an axis at this batch."""
    return size.slope * batch + size.offset if isinstance(size, BatchInt) else int(size)


class _PartEmitter(CutEmitter):
    """Sizes are plain numbers: the batch is known. What is a layer was decided where all its calls are seen."""

    def __init__(self, plan: Plan, sliced: nn.Module, leaves: Mapping[str, Leaf], batch: int) -> None:
        super().__init__(plan, "eval", sliced, canonical_names(sliced), Folder(None))
        self._leaves = dict(leaves)
        self.batch = batch

    def size(self, size: int) -> int:
        return plain(size, self.batch)


def _share(size: int, whole: Size | None, width: int) -> int:
    """Living channels of an edge beside the one that is asked about, as many as there as a share."""
    return width if whole is None else round(width * size / whole.whole)


def _spread(size: Size | None, wanted: int) -> dict[int, int]:
    """Living channels of the edges on an axis, so that it has `wanted` positions as nearly as can be."""
    counts: dict[int, int] = {}
    if size is None:
        return counts
    left, room = max(wanted - size.base, 0), size.whole - size.base
    for edge, positions, width in size.parts:
        count = round(left * positions / room) if room else 0
        counts[edge] = round(count * width / positions)
        left, room = left - count, room - positions
    return counts


def _layers(model: nn.Module, modules: set[str], tensors: set[str]) -> nn.Module:
    """A module that has these layers and tensors of the model, under their names, and nothing else."""
    root = nn.Module()
    placed: set[str] = set()
    for name in sorted(modules | {tensor.rpartition(".")[0] for tensor in tensors} - {""}):
        module = model.get_submodule(name)
        if not any(True for _ in module.children()):
            owner = _owner(root, name)
            owner.add_module(name.rpartition(".")[2], module)
            placed.add(name)
        else:
            _owner(root, f"{name}.x")
    for name in sorted(tensors):
        path, _, last = name.rpartition(".")
        if path not in placed:
            tensor = getattr(model.get_submodule(path), last)
            holder = _owner(root, name)
            if isinstance(tensor, nn.Parameter):
                holder.register_parameter(last, tensor)
            else:
                holder.register_buffer(last, tensor)
    return root


def _owner(root: nn.Module, name: str) -> nn.Module:
    """The module that holds `name`, made if it is not there."""
    for step in name.split(".")[:-1]:
        if not hasattr(root, step):
            root.add_module(step, nn.Module())
        root = getattr(root, step)
    return root
