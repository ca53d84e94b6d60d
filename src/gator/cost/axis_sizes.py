"""The sizes of axes as linear functions of the living widths: exact counts and latency tables are made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gator.cost.prices import Widths
from gator.graph.hypergraph import Hypergraph
from gator.graph.labels import Axis
from gator.graph.program import BatchInt


@dataclass(frozen=True)
class AxisSize:
    """The size of one axis: `fixed`, and for every edge on it the positions that its living channels take."""

    fixed: int  # positions that belong to no edge
    parts: tuple[tuple[int, int, int], ...] = ()  # edge, positions on this axis and width of the edge, both when unpruned

    @property
    def full(self) -> int:
        return self.fixed + sum(positions for _, positions, _ in self.parts)

    @property
    def edges(self) -> frozenset[int]:
        return frozenset(edge for edge, _, _ in self.parts)

    def exact(self, widths: Widths) -> float:
        return self.fixed + sum(positions * float(widths[edge]) / width for edge, positions, width in self.parts)

    def at(self, widths: Widths) -> int:
        return round(self.exact(widths))


def full_widths(graph: Hypergraph) -> tuple[int, ...]:
    """The widths of the unpruned network."""
    return tuple(edge.width for edge in graph.edges)


class AxisSizes:
    """The sizes of the axes of one network; those of values are of the network in eval mode."""

    def __init__(self, graph: Hypergraph) -> None:
        self._graph = graph
        self._edge_at = np.full(len(graph.roots), -1)
        for root, (edge, _) in graph.edge_of.items():
            self._edge_at[root] = edge

    def of_axis(self, axis: Axis) -> AxisSize | None:
        """The size of an axis; None if pruning never changes it."""
        if axis is None:
            return None
        edges = self._edge_at[self._graph.roots[axis]]
        found, counts = np.unique(edges[edges >= 0], return_counts=True)
        if not len(found):
            return None
        parts = tuple((int(e), int(n), self._graph.edges[e].width) for e, n in zip(found, counts, strict=True))
        return AxisSize(int((edges < 0).sum()), parts)

    def of_axes(self, value: int) -> list[AxisSize | None]:
        return [self.of_axis(axis) for axis in self._graph.eval.axes[value]]

    def of_one_example(self, value: int) -> tuple[AxisSize, ...]:
        """The sizes of all axes of a value, for a batch of one."""
        shape = self._graph.eval.program.values[value].shape
        plain = (length.slope if isinstance(length, BatchInt) else int(length) for length in shape)
        return tuple(size or AxisSize(length) for size, length in zip(self.of_axes(value), plain, strict=True))
