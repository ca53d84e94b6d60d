"""What a table lacks for a network. Nothing is measured here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gator.cost.latency.layers.fused_layers import FusedLayer, Point, fused_layers_of, network_name
from gator.cost.latency.measuring.interleave import Place
from gator.cost.latency.table.latency_table import Table
from gator.cost.latency.table.step_patterns import series_widths
from gator.cost.latency.table.time_grid import covers, grid_points
from gator.cost.latency.widths import random_widths
from gator.graph.hypergraph import Hypergraph
from gator.graph.macs import macs

_FIT_ON, _TEST_ON = 16, 8  # networks of random widths; the fit has about as many coefficients as a network has groups of layers
_PASSES = 2  # times that each network is measured, minutes apart, because one pass differs from the next by 2 to 5 %
_STEP_GROUPS = 3  # groups of layers with a step pattern of their own, those with the most work; others matter little
_NARROW = 8  # channels: narrower layers show no steps


@dataclass(frozen=True)
class PlannedNetwork:
    """A network of random widths to measure."""

    widths: tuple[int, ...]
    held_out: bool


@dataclass(frozen=True)
class Missing:
    """What one table lacks for one network."""

    graph: Hypergraph
    table: Table

    @cached_property
    def layers(self) -> tuple[FusedLayer, ...]:
        return fused_layers_of(self.graph)

    def anything(self, *, layers_only: bool) -> bool:
        """Whether there is something to measure, other than whole networks if `layers_only`."""
        layers = self.table.reference_ms is None or self.series() or self.points()
        return bool(layers or (not layers_only and self.networks()))

    def series(self) -> list[tuple[FusedLayer, int, list[int]]]:
        """Layers, sides (0: channels read, 1: written) and the neighbouring widths that are missing there.

        A group is asked again only if this network has a wider layer than all series so far, or if its own were interrupted.
        """
        wanted: dict[tuple[str, int], list[FusedLayer]] = {}
        for layer in self._layers_with_steps():
            for side in (0, 1):
                if layer.full[side] >= _NARROW:
                    wanted.setdefault((layer.group, side), []).append(layer)
        found = []
        for (group, side), layers in wanted.items():
            widest = max(max(series_widths(layer.full[side])) for layer in layers)
            known = max((max(times) for times in self.table.series_of_groups.get((group, side), ())), default=0)
            begun = any((layer.kind, layer.full, side) in self.table.series for layer in layers)
            if known < widest or begun:
                for layer in layers:
                    times = self.table.series.get((layer.kind, layer.full, side), {})
                    found.append((layer, side, [width for width in series_widths(layer.full[side]) if width not in times]))
        return [each for each in found if each[2]]

    def _layers_with_steps(self) -> list[FusedLayer]:
        """Of the groups with the most work, the layer with the most work and the widest one, which may show different steps."""
        program = self.graph.eval.program

        def work(layer: FusedLayer) -> int:
            return macs(program.calls[layer.anchor], lambda value: program.values[value].shape)

        def width(layer: FusedLayer) -> int:
            return max(layer.full[0], 1) * max(layer.full[1], 1)

        by_group: dict[str, list[FusedLayer]] = {}
        for layer in self.layers:
            if max(layer.full) >= _NARROW:
                by_group.setdefault(layer.group, []).append(layer)
        groups = sorted(by_group.values(), key=lambda group: -max(map(work, group)))[:_STEP_GROUPS]
        found = [max(group, key=key) for key in (work, width) for group in groups]
        return list({(layer.kind, layer.full): layer for layer in found}.values())

    def points(self) -> list[Place]:
        """Layers, with the widths that are missing in their grids. A layer that a wider one covers needs no grid of its own."""
        wanted: dict[tuple[str, Point], FusedLayer] = {}
        for layer in sorted(self.layers, key=lambda layer: layer.full, reverse=True):
            wider = any(kind == layer.kind and covers(full, layer.full) for kind, full in wanted)
            if not wider and self.table.grid_for(layer) is None:
                wanted[layer.kind, layer.full] = layer
        found = []
        for key, layer in wanted.items():
            times = self.table.grids[key].ms if key in self.table.grids else {}
            points = grid_points(layer.full, self.table.steps_of(layer.group))
            found += [(layer, point) for point in points if point not in times]
        return found

    def networks(self) -> list[PlannedNetwork]:
        """Networks of random widths that are still to be measured, in order."""
        return (_PASSES * list(self._random_networks()))[len(self.table.networks(network_name(self.layers))) :]

    def _random_networks(self) -> Iterator[PlannedNetwork]:
        """Networks to fit to and networks to test on. Half of either have widths that are multiples of the largest block."""
        block = max(self.table.steps_of(layer.group).block for layer in self.layers)
        for count, seed, held_out in ((_FIT_ON, 1, False), (_TEST_ON, 2, True)):
            any_width = random_widths(self.graph, count - count // 2, seed=seed)
            blocks = random_widths(self.graph, count // 2, seed=seed + 100, multiple_of=block)
            for widths in itertools.chain.from_iterable(zip(any_width, blocks, strict=True)):
                yield PlannedNetwork(tuple(map(int, widths)), held_out)
