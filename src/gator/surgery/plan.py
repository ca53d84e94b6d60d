"""`Plan`: which positions of every axis of every value are kept, given the kept channels of the edges.

`kept` is checked first: names, lengths and indices. An edge that is not named keeps all its channels. (The plan that is saved
to files is `CutPlan`, in cut_plan.py.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gator.errors import KeptError
from gator.graph.hypergraph import Edge, Hypergraph
from gator.graph.labels import Axis
from gator.graph.program import BatchInt, Mode, Program
from gator.suggest import did_you_mean

Mask = NDArray[np.bool_]
Kept = Mapping[str, Any]


def masks_of(graph: Hypergraph, kept: Kept) -> dict[str, Mask]:
    """A boolean mask for every edge, from indices or masks for some of them."""
    if not isinstance(kept, Mapping):
        raise KeptError(f"kept is a {type(kept).__name__}; expected a dict of edge names to indices or boolean masks")
    names = {edge.name for edge in graph.edges}
    for name in kept:
        if name not in names:
            owner = [e.name for e in graph.edges if any(m.parameter.rpartition(".")[0] == name for m in e.members)]
            hint = did_you_mean(str(name), names, otherwise="print(graph) lists the edges")
            if owner:
                hint = f"its channels belong to {' and '.join(dict.fromkeys(owner))}"
            raise KeptError(f"kept names {name!r}, which is not an edge of this graph; {hint}")
    return {edge.name: _mask(edge, kept[edge.name]) if edge.name in kept else np.ones(edge.width, bool) for edge in graph.edges}


def _mask(edge: Edge, given: Any) -> Mask:
    array = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
    if array.ndim != 1:
        raise KeptError(f"kept[{edge.name!r}] has shape {array.shape}; expected one axis of indices or booleans")
    if array.dtype == bool:
        if len(array) != edge.width:
            raise KeptError(f"kept[{edge.name!r}] has {len(array)} booleans; the edge has {edge.width} units")
        return np.array(array, dtype=bool)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise KeptError(f"kept[{edge.name!r}] holds {array.dtype}; expected integer indices or booleans")
    array = array.astype(np.int64)
    if array.size and (array.min() < 0 or array.max() >= edge.width):
        wrong = array[(array < 0) | (array >= edge.width)][0]
        raise KeptError(f"kept[{edge.name!r}] holds index {wrong}; the edge has units 0 to {edge.width - 1}")
    if len(np.unique(array)) != len(array):
        raise KeptError(f"kept[{edge.name!r}] names a unit twice")
    mask = np.zeros(edge.width, bool)
    mask[array] = True
    return mask


class Plan:
    """The kept channels of one graph, applied to all axes of all values."""

    def __init__(self, graph: Hypergraph, kept: Kept) -> None:
        self.graph = graph
        self.masks = masks_of(graph, kept)
        self.emptied = tuple(name for name, mask in self.masks.items() if not mask.any())
        alive = np.ones(len(graph.roots), bool)
        for root, (index, unit) in graph.edge_of.items():
            alive[root] = self.masks[graph.edges[index].name][unit]
        self._alive = alive[graph.roots]
        self._masks: dict[int, tuple[Axis, Mask | None]] = {}  # by id of the labels, which are stored to keep the id
        self._shapes: dict[tuple[Mode, int], tuple[int, ...]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self  # it is immutable

    @property
    def keeps_everything(self) -> bool:
        """Whether no channel is removed."""
        return all(mask.all() for mask in self.masks.values())

    def alive(self, labels: Axis) -> Mask | None:
        """The mask of kept positions of an axis, None if all are kept."""
        if labels is None:
            return None
        if id(labels) not in self._masks:
            mask: Mask = self._alive[labels]
            self._masks[id(labels)] = (labels, None if mask.all() else mask)
        return self._masks[id(labels)][1]

    def alive_attribute(self, name: str) -> list[Mask | None]:
        return [self.alive(labels) for labels in self.graph.attributes[name]]

    @cached_property
    def attributes(self) -> dict[str, list[Mask | None]]:
        """Parameters and buffers that lose channels, with the mask of kept positions of each axis."""
        found = {name: self.alive_attribute(name) for name in self.graph.attributes if ":" not in name}
        return {name: axes for name, axes in found.items() if any(axis is not None for axis in axes)}

    def shape(self, mode: Mode, value: int) -> tuple[int, ...]:
        """The shape of a value after the cut."""
        if (mode, value) not in self._shapes:
            self._shapes[mode, value] = self._shape(mode, value)
        return self._shapes[mode, value]

    def _shape(self, mode: Mode, value: int) -> tuple[int, ...]:
        labelled = self.graph.of(mode)
        sizes = []
        for labels, size in zip(labelled.axes[value], labelled.program.values[value].shape, strict=True):
            mask = self.alive(labels)
            sizes.append(size if mask is None else resized(size, int(mask.sum()), labelled.program))
        return tuple(sizes)

    def edge_at(self, labels: Axis) -> str:
        """The name of an edge among these labels, for messages."""
        assert labels is not None
        for root in np.unique(self.graph.roots[labels]).tolist():
            if root in self.graph.edge_of:
                return self.graph.edges[self.graph.edge_of[root][0]].name
        return "?"


def resized(size: int, count: int, program: Program) -> int:
    """A size of `count` kept positions, which depends on the batch if the old size did."""
    if isinstance(size, BatchInt) and program.batch:
        return BatchInt(count // program.batch, 0, program.batch)
    return count
