"""What a table must contain for a network, and which of it is missing. Nothing is measured here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from gator.cost.latency.layers.fused_layers import FusedLayer, fused_layers_of, network_name
from gator.cost.latency.measuring.interleave import Place
from gator.cost.latency.random_widths import random_widths
from gator.cost.latency.table.latency_table import Table
from gator.cost.latency.table.measurements import Point
from gator.cost.latency.table.step_patterns import series_widths
from gator.cost.latency.table.time_grid import TimeGrid
from gator.graph.hypergraph import Hypergraph
from gator.graph.macs import macs

_FIT_ON, _TEST_ON = 16, 8  # networks of random widths; the fit has about as many coefficients as a network has groups of layers
_PASSES = 2  # times that each network is measured, minutes apart, because one pass differs from the next by 2 to 5 %
_STEP_GROUPS = 3  # groups of layers with a step pattern of their own, those with the most work; others matter little
_NARROW = 8  # channels: narrower layers show no steps


@dataclass(frozen=True)
class Network:
    """A network of random widths to measure."""

    widths: tuple[int, ...]
    held_out: bool


class Needs:
    """What one network needs."""

    def __init__(self, graph: Hypergraph) -> None:
        self.graph, self.layers = graph, fused_layers_of(graph)
        self.name = network_name(self.layers)

    def met_by(self, table: Table, *, layers_only: bool) -> bool:
        """Whether nothing is missing, or nothing but whole networks."""
        layers = table.reference_ms is not None and not self.series(table) and not self.points(table)
        return layers and (layers_only or not self.networks(table))

    def series(self, table: Table) -> list[tuple[FusedLayer, int]]:
        """Layers and sides whose times at neighbouring widths are missing.

        A group is asked again only if this network has a wider layer than all series so far, or if its own were interrupted.
        """
        wanted: dict[tuple[str, int], list[FusedLayer]] = {}
        for layer in self._representatives():
            for side in (0, 1):
                if layer.full[side] >= _NARROW:
                    wanted.setdefault((layer.group, side), []).append(layer)
        missing = []
        for (group, side), layers in wanted.items():
            widest = max(max(series_widths(layer.full[side])) for layer in layers)
            known = max((max(times) for times in table.series_of_groups.get((group, side), ())), default=0)
            begun = any((layer.kind, layer.full, side) in table.series for layer in layers)
            if known < widest or begun:
                missing += [(layer, side) for layer in layers if self.widths_missing(table, layer, side)]
        return missing

    @staticmethod
    def widths_missing(table: Table, layer: FusedLayer, side: int) -> list[int]:
        times = table.series.get((layer.kind, layer.full, side), {})
        return [width for width in series_widths(layer.full[side]) if width not in times]

    def _representatives(self) -> list[FusedLayer]:
        """Of the groups with the most work, the layer with the most work and the widest one, which may show different steps."""
        program = self.graph.eval.program
        found: dict[str, list[tuple[int, int, FusedLayer]]] = {}
        for layer in self.layers:
            if max(layer.full) >= _NARROW:
                work = macs(program.calls[layer.anchor], lambda value: program.values[value].shape)
                width = max(layer.full[0], 1) * max(layer.full[1], 1)
                found.setdefault(layer.group, []).append((work, width, layer))
        groups = sorted(found.values(), key=lambda group: -max(work for work, _, _ in group))[:_STEP_GROUPS]
        most_work, widest = ([max(group, key=key)[2] for group in groups] for key in (lambda one: one[0], lambda one: one[1]))
        return list({(layer.kind, layer.full): layer for layer in (*most_work, *widest)}.values())

    def points(self, table: Table) -> list[Place]:
        """Layers, with the widths that are missing in their grids. A layer that a wider one covers needs no grid of its own."""
        wanted: dict[tuple[str, Point], FusedLayer] = {}
        for layer in sorted(self.layers, key=lambda layer: layer.full, reverse=True):
            wider = any(s.kind == layer.kind and TimeGrid("", "", s.full).covers(layer.full) for s in wanted.values())
            if not wider and table.grid_for(layer) is None:
                wanted[layer.kind, layer.full] = layer
        grids = {key: table.grids.get(key, TimeGrid(s.kind, s.title, s.full)) for key, s in wanted.items()}
        return [(s, point) for key, s in wanted.items() for point in grids[key].missing(table.steps_of(s.group))]

    def networks(self, table: Table) -> list[Network]:
        """Networks of random widths that are still to be measured, in order."""
        planned = _PASSES * list(self._random_networks(table))
        return planned[len(table.networks(self.name)) :]

    def _random_networks(self, table: Table) -> Iterator[Network]:
        """Networks to fit to and networks to test on. Half of either have widths that are multiples of the largest block."""
        block = max(table.steps_of(layer.group).block for layer in self.layers)
        for count, seed, held_out in ((_FIT_ON, 1, False), (_TEST_ON, 2, True)):
            any_width = random_widths(self.graph, count - count // 2, seed=seed)
            blocks = random_widths(self.graph, count // 2, seed=seed + 100, multiple_of=block)
            for widths in itertools.chain.from_iterable(zip(any_width, blocks, strict=True)):
                yield Network(tuple(map(int, widths)), held_out)
