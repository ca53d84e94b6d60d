"""A latency table: the log of one device and setup, and what is computed from it.

A table never changes: `plus` gives a new one with a longer log. So nothing that was computed can become out of date.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from gator.cost.latency.layers.fused_layers import FusedLayer
from gator.cost.latency.table.measurements import (
    Key,
    LayerTime,
    Log,
    Measurement,
    NetworkTime,
    Point,
    Purpose,
    ReferenceTime,
    as_json,
    from_json,
)
from gator.cost.latency.table.step_patterns import LayerSteps, Series, pattern_of, series_widths
from gator.cost.latency.table.time_grid import TimeGrid

STEP_PURPOSES: tuple[Purpose, Purpose] = ("read steps", "written steps")  # by side
SeriesName = tuple[str, Point, int]  # kind, full widths, and the side: 0 for channels read, 1 for channels written


@dataclass(frozen=True)
class Table:
    """Times under one key."""

    key: Key
    log: Log = ()

    def plus(self, measurements: Iterable[Measurement]) -> Table:
        return Table(self.key, (*self.log, *measurements))

    @cached_property
    def reference_ms(self) -> float | None:
        """The first time of the reference workload; None if the log is empty."""
        return next((each.ms for each in self.log if isinstance(each, ReferenceTime)), None)

    @cached_property
    def grids(self) -> dict[tuple[str, Point], TimeGrid]:
        """By kind and full widths."""
        found: dict[tuple[str, Point], TimeGrid] = {}
        for each in self.log:
            if isinstance(each, LayerTime) and each.purpose == "grid":
                grid = found.setdefault((each.kind, each.full), TimeGrid(each.kind, each.title, each.full))
                grid.ms[each.point] = each.ms
        return found

    def grid_for(self, layer: FusedLayer) -> TimeGrid | None:
        """The smallest complete grid of this kind that covers the layer."""
        steps = self.steps_of(layer.group)
        covering = [g for (kind, _), g in self.grids.items() if kind == layer.kind and g.covers(layer.full)]
        return min((grid for grid in covering if not grid.missing(steps)), key=lambda grid: grid.full, default=None)

    @cached_property
    def series(self) -> dict[SeriesName, dict[int, float]]:
        """Times of neighbouring widths, complete or not."""
        found: dict[SeriesName, dict[int, float]] = {}
        for each in self.log:
            if isinstance(each, LayerTime) and each.purpose in STEP_PURPOSES:
                side = STEP_PURPOSES.index(each.purpose)
                found.setdefault((each.kind, each.full, side), {})[each.point[side]] = each.ms
        return found

    @cached_property
    def series_of_groups(self) -> dict[tuple[str, int], list[Series]]:
        """Complete series, by group of layers and side."""
        groups = {each.kind: each.group for each in self.log if isinstance(each, LayerTime)}
        found: dict[tuple[str, int], list[Series]] = {}
        for (kind, full, side), times in self.series.items():
            if times.keys() >= set(series_widths(full[side])):
                found.setdefault((groups[kind], side), []).append(times)
        return found

    @cached_property
    def steps(self) -> dict[str, LayerSteps]:
        """By group of layers, of those with complete series."""
        groups = dict.fromkeys(group for group, _ in self.series_of_groups)
        return {
            group: LayerSteps(*(pattern_of(self.series_of_groups.get((group, side), ())) for side in (0, 1)))
            for group in groups
        }

    def steps_of(self, group: str) -> LayerSteps:
        """The patterns of a group; without series all widths are alike."""
        return self.steps.get(group, LayerSteps())

    def networks(self, name: str) -> list[NetworkTime]:
        """The networks that were cut from the one of this name and measured."""
        return [each for each in self.log if isinstance(each, NetworkTime) and each.network == name]

    def to_json(self) -> str:
        return as_json(self.key, self.log)

    @staticmethod
    def from_json(text: str, where: str) -> Table:
        return Table(*from_json(text, where))
