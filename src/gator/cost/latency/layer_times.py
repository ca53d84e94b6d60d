"""The times of a network's layers at any living widths, each as if it ran alone, grouped as a fit adds them up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gator.cost.axis_sizes import AxisSize, AxisSizes, full_widths
from gator.cost.latency.layers.fused_layers import FusedLayer, Point, fused_layers_of, network_name
from gator.cost.latency.table.latency_table import Table
from gator.cost.latency.table.time_grid import TimeGrid
from gator.cost.polynomial import liveness_by_mode
from gator.cost.prices import Floats, Widths
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph

_UNALIGNED = ", unaligned"  # added to the group of layers that a runtime may run by another kernel and in another layout
LEAST_SHARE = 0.2  # of the time of layers alone that stays, whatever is subtracted from it: a time is never negative
_REMEMBERED = 1 << 17  # times of layers: a search asks for networks that differ in an edge or two


@dataclass(frozen=True)
class Border:
    """A value that one layer passes to others. Layers are given by index."""

    producer: int
    readers: tuple[int, ...]
    sizes: tuple[AxisSize, ...]  # of its axes

    def elements(self, widths: Widths) -> float:
        """The number of elements, of one example."""
        return float(np.prod([size.exact(widths) for size in self.sizes]))

    def slopes(self, widths: Widths) -> dict[int, float]:
        """The elements that one more channel would add, by edge."""
        edges = frozenset[int]().union(*(size.edges for size in self.sizes))
        wider = {edge: np.asarray(widths, dtype=np.float64) + (np.arange(len(widths)) == edge) for edge in edges}
        return {edge: self.elements(some) - self.elements(widths) for edge, some in wider.items()}


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


@dataclass(frozen=True)
class NetworkParts:
    """What the time of a network is added up from."""

    layers: dict[str, float]  # milliseconds by group of layers
    borders: float  # millions of elements that layers pass on in a layout they share, for one example


class LayerTimes:
    """The layers of a network with their grids. A layer that empty edges make unnecessary takes no time."""

    def __init__(self, graph: Hypergraph, table: Table) -> None:
        self.graph, self.layers = graph, fused_layers_of(graph)
        self.network, self.full_widths = network_name(self.layers), full_widths(graph)
        found = [table.grid_for(layer) for layer in self.layers]
        missing = [layer.title for layer, grid in zip(self.layers, found, strict=True) if grid is None]
        if missing:
            raise GatorError(
                f"the latency table has no times for {len(missing)} of {len(self.layers)} layers of this network, such as "
                f"{missing[0]}\n  Build it for this network: gator latency build."
            )
        self.grids: list[TimeGrid] = [grid for grid in found if grid is not None]
        self.fastest_ms = min(ms for grid in self.grids for ms in grid.ms.values())
        # Where no width is unaligned all layouts are the same: borders count only beside a layer that has alignments.
        with_alignment = {
            index for index, grid in enumerate(self.grids) if any(side.alignment > 1 for side in grid.steps.sides)
        }
        self._borders = [
            border for border in borders_of(graph, self.layers) if with_alignment & {border.producer, *border.readers}
        ]
        self._live: dict[tuple[int, ...], frozenset[int]] = {}
        self._alone = lru_cache(_REMEMBERED)(self._time)

    def _time(self, index: int, point: Point) -> tuple[float, bool]:
        """Milliseconds of a layer alone, and whether it is aligned on both sides."""
        grid = self.grids[index]
        return grid.at(point), all(grid.steps.aligned(point))

    def live(self, widths: Floats) -> frozenset[int]:
        """The layers that are left, by index."""
        empty = tuple(np.flatnonzero(widths == 0).tolist())
        if empty not in self._live:
            left = frozenset(range(len(self.layers)))
            if empty:
                liveness = liveness_by_mode(self.graph, [self.graph.edges[index].name for index in empty])["eval"]
                left = frozenset(index for index in left if self.layers[index].anchor in liveness.live)
            self._live[empty] = left
        return self._live[empty]

    def parts(self, widths: Widths, alone_ms: float) -> NetworkParts:
        """The parts of a network with these living widths; `alone_ms` is subtracted from the time of every layer."""
        w = np.asarray(widths, dtype=np.float64)
        live, plain = self.live(w), w.tolist()
        layers: dict[str, float] = {}
        aligned = set[int]()
        for index in sorted(live):
            group = self.layers[index].group
            alone, is_aligned = self._alone(index, self.layers[index].at(plain))
            if is_aligned:
                aligned.add(index)
            else:
                group += _UNALIGNED
            layers[group] = layers.get(group, 0.0) + max(alone - alone_ms, LEAST_SHARE * alone)
        shared = [(b, readers) for b, readers in self.borders(live) if b.producer in aligned and aligned.issuperset(readers)]
        return NetworkParts(layers, sum((1 + len(readers)) * border.elements(w) for border, readers in shared) / 1e6)

    def borders(self, live: frozenset[int]) -> Iterator[tuple[Border, list[int]]]:
        """The borders between layers that are left, with those of their readers that are left."""
        for border in self._borders:
            readers = [index for index in border.readers if index in live]
            if readers and border.producer in live:
                yield border, readers
