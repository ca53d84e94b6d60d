"""A latency table: the measurements of one device and setup, and what is computed from them.

Measurements are only appended, in the order they are made. A table never changes: `plus` gives a new one with more of them.
So nothing that was computed can become out of date.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gator.cost.latency.layers.fused_layers import FusedLayer, Point
from gator.cost.latency.runtimes.run_setup import Setup
from gator.cost.latency.table.step_patterns import LayerSteps, Series, pattern_of, series_widths
from gator.cost.latency.table.time_grid import TimeGrid, covers

Purpose = Literal["grid", "read steps", "written steps"]
STEP_PURPOSES: tuple[Purpose, Purpose] = ("read steps", "written steps")  # by side: 0 for channels read, 1 for those written


@dataclass(frozen=True)
class Key:
    """What the times of a table were measured on. Times under another key are times of something else."""

    device: str
    setup: Setup
    versions: tuple[tuple[str, str], ...]  # of the packages that run the network

    def __str__(self) -> str:
        return f"{self.device}; {self.setup}; {', '.join(f'{name} {version}' for name, version in self.versions)}"


@dataclass(frozen=True)
class ReferenceTime:
    """The reference workload (measuring/reference.py)."""

    ms: float


@dataclass(frozen=True)
class LayerTime:
    """A layer run alone, reading and writing the channels of `point`."""

    purpose: Purpose
    kind: str  # layers of one kind differ only in their widths
    group: str  # of kinds, such as "conv2d 3x3"
    title: str  # of the kind, for people
    full: Point  # the widths of the unpruned layer
    point: Point
    ms: float  # at the speed the device had when the reference workload was first measured


@dataclass(frozen=True)
class NetworkTime:
    """A network with fewer channels, interleaved with the unpruned network it comes from."""

    network: str
    title: str  # of the unpruned network, for people
    widths: tuple[int, ...]
    held_out: bool  # used to test the fit, not to make it
    ms: float
    unpruned_ms: float


Measurement = ReferenceTime | LayerTime | NetworkTime


@dataclass(frozen=True)
class Table:
    """Times under one key."""

    key: Key
    measurements: tuple[Measurement, ...] = ()

    def plus(self, measurements: Iterable[Measurement]) -> Table:
        return Table(self.key, (*self.measurements, *measurements))

    @cached_property
    def reference_ms(self) -> float | None:
        """The first time of the reference workload; None if nothing was measured."""
        return next((each.ms for each in self.measurements if isinstance(each, ReferenceTime)), None)

    @cached_property
    def _layer_times(self) -> list[LayerTime]:
        return [each for each in self.measurements if isinstance(each, LayerTime)]

    @cached_property
    def series(self) -> dict[tuple[str, Point, int], dict[int, float]]:
        """Times of neighbouring widths by kind, full widths and side, complete or not."""
        found: dict[tuple[str, Point, int], dict[int, float]] = {}
        for each in self._layer_times:
            if each.purpose in STEP_PURPOSES:
                side = STEP_PURPOSES.index(each.purpose)
                found.setdefault((each.kind, each.full, side), {})[each.point[side]] = each.ms
        return found

    @cached_property
    def series_of_groups(self) -> dict[tuple[str, int], list[Series]]:
        """Complete series, by group of layers and side."""
        groups = {each.kind: each.group for each in self._layer_times}
        found: dict[tuple[str, int], list[Series]] = {}
        for (kind, full, side), times in self.series.items():
            if times.keys() >= set(series_widths(full[side])):
                found.setdefault((groups[kind], side), []).append(times)
        return found

    @cached_property
    def steps(self) -> dict[str, LayerSteps]:
        """Step patterns by group of layers, of those with complete series."""
        series = self.series_of_groups
        groups = dict.fromkeys(group for group, _ in series)
        return {group: LayerSteps(*(pattern_of(series.get((group, side), ())) for side in (0, 1))) for group in groups}

    def steps_of(self, group: str) -> LayerSteps:
        """The patterns of a group; without series all widths are alike."""
        return self.steps.get(group, LayerSteps())

    @cached_property
    def grids(self) -> dict[tuple[str, Point], TimeGrid]:
        """By kind and full widths."""
        found: dict[tuple[str, Point], TimeGrid] = {}
        times: dict[tuple[str, Point], dict[Point, float]] = {}
        for each in self._layer_times:
            if each.purpose == "grid":
                key = each.kind, each.full
                times.setdefault(key, {})[each.point] = each.ms
                found.setdefault(key, TimeGrid(each.title, each.full, self.steps_of(each.group), times[key]))
        return found

    def grid_for(self, layer: FusedLayer) -> TimeGrid | None:
        """The smallest complete grid of this kind that covers the layer."""
        covering = [grid for (kind, full), grid in self.grids.items() if kind == layer.kind and covers(full, layer.full)]
        return min((grid for grid in covering if not grid.missing()), key=lambda grid: grid.full, default=None)

    def networks(self, name: str) -> list[NetworkTime]:
        """The networks that were cut from the one of this name and measured."""
        return [each for each in self.measurements if isinstance(each, NetworkTime) and each.network == name]
