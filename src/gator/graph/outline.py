"""`Outline`: the layers and edges of a network as short plain data, for drawing: who writes and who reads which channels."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from gator.errors import FileError
from gator.graph.hypergraph import Hypergraph
from gator.graph.json_fields import field, strings
from gator.graph.program import Program

FORMAT = 1
aten = torch.ops.aten
_SUMS = (aten.add, aten.add_, aten.sub, aten.sub_)


@dataclass(frozen=True)
class OutlineEdge:
    """An edge without its members: see `Edge`."""

    name: str
    width: int
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    highway: bool  # it ties several layers through additions, as residual connections do

    @property
    def layers(self) -> tuple[str, ...]:
        """All layers that write or read these channels."""
        return tuple(dict.fromkeys([*self.producers, *self.consumers]))


@dataclass(frozen=True)
class Outline:
    """The layers that edges touch, in the order of forward, and the edges."""

    layers: tuple[str, ...]
    edges: tuple[OutlineEdge, ...]

    def to_data(self) -> dict[str, Any]:
        """As dictionaries, lists, strings and numbers, for `from_data`."""
        return {"format": FORMAT, **asdict(self)}

    @staticmethod
    def from_data(data: Any) -> Outline:
        """What `to_data` gave. Raises FileError for anything else."""
        try:
            found = field(data, "format", int)
            if found != FORMAT:
                raise FileError(f"the outline has format {found}; this version of gator reads format {FORMAT}")
            edges = tuple(
                OutlineEdge(
                    field(edge, "name", str), field(edge, "width", int), strings(edge, "producers"),
                    strings(edge, "consumers"), field(edge, "highway", bool),
                )
                for edge in field(data, "edges", list)
            )  # fmt: skip
            return Outline(strings(data, "layers"), edges)
        except ValueError as error:
            raise FileError(f"the outline of the network is damaged: {error}") from error


def outline_of(graph: Hypergraph) -> Outline:
    """The outline of a traced network."""
    highways = _summed_edges(graph)
    edges = tuple(
        OutlineEdge(edge.name, edge.width, edge.producers, edge.consumers, len(edge.producers) > 1 and index in highways)
        for index, edge in enumerate(graph.edges)
    )
    named = dict.fromkeys(layer for edge in edges for layer in edge.layers)
    ordered = [layer for layer in _layers_in_order(graph.eval.program) if layer in named]
    return Outline(tuple(dict.fromkeys([*ordered, *named])), edges)


def owner_of(tensor: str) -> str:
    """The module that owns a parameter or buffer; a parameter of the network itself is named by its own name."""
    return tensor.rpartition(".")[0] or tensor


def _layers_in_order(program: Program) -> list[str]:
    """Modules that run or whose parameters are used, in the order of their first call."""
    found: dict[str, None] = {}
    for call in program.calls:
        values = (program.values[value] for _, value in call.tensors())
        found.update(dict.fromkeys(owner_of(value.name) for value in values if value.origin == "attribute"))
        found.setdefault(call.module)
    return list(found)


def _summed_edges(graph: Hypergraph) -> set[int]:
    """The edges on which the results of two calls are added: adding a parameter, such as a bias, ties no layers."""
    program, axes = graph.eval.program, graph.eval.axes
    found: set[int] = set()
    for call in program.calls:
        values = [program.values[value] for _, value in call.tensors()]
        if call.packet not in _SUMS or len(values) != 2 or any(value.origin in ("attribute", "constant") for value in values):
            continue
        if values[0].id == values[1].id or values[0].shape != values[1].shape:
            continue
        for labels in axes[values[0].id]:
            if labels is not None:
                roots = np.unique(graph.roots[labels]).tolist()
                found.update(graph.edge_of[root][0] for root in roots if root in graph.edge_of)
    return found
