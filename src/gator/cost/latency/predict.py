"""A network priced by a table: the times of its segments at the living widths, added up as its calibration says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property, lru_cache

import numpy as np

from gator.cost.latency.calibrate import AT_LEAST, BORDERS, UNEVEN, applied
from gator.cost.latency.draws import drawn_widths
from gator.cost.latency.grid import Entry
from gator.cost.latency.segments import Border, Segment, borders_of
from gator.cost.latency.steps import Point, Steps
from gator.cost.latency.table import Calibration, Table
from gator.cost.polynomial import fates_of
from gator.cost.prices import Floats, PlainData, Prices, Widths
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph

_MILLION = 1e6
_REACH = 1 / 8  # of a width: how far to either side a slope is taken, but at least a block
_DRAWN = 12  # networks that are asked whether steps pay
_CHEAP = 0.5  # of what channels cost on average: those that fill a block must cost less
_REMEMBERED = 1 << 17  # times of segments: a search asks for networks that differ in an edge or two


class Layers:
    """The segments of a network with their entries in a table. A segment that a closed edge makes unnecessary costs nothing."""

    def __init__(self, graph: Hypergraph, segments: tuple[Segment, ...], table: Table) -> None:
        self.graph, self.segments = graph, segments
        found = [table.entry_for(segment) for segment in segments]
        missing = [s.title for s, entry in zip(segments, found, strict=True) if entry is None]
        if missing:
            raise GatorError(
                f"the latency table has no times for {len(missing)} of {len(segments)} layers of this network, such as "
                f"{missing[0]}\n  Build it for this network: gator latency build."
            )
        self.entries: list[Entry] = [entry for entry in found if entry is not None]
        self.steps: list[Steps] = [table.steps[segment.group] for segment in segments]
        # Where all widths are alike, so are layouts: a border is worth nothing unless a layer beside it tells some apart.
        uneven = {index for index, steps in enumerate(self.steps) if any(step.even > 1 for step in steps.sides)}
        self._borders = [border for border in borders_of(graph, segments) if uneven & {border.maker, *border.readers}]
        self._live: dict[tuple[int, ...], frozenset[int]] = {}
        self._alone = lru_cache(_REMEMBERED)(self._timed)

    def _timed(self, index: int, sizes: Point) -> tuple[float, bool]:
        """Milliseconds of a segment alone at these sizes, and whether they fill their blocks."""
        return self.entries[index].at(sizes, self.steps[index]), all(self.steps[index].fills(sizes))

    def live(self, widths: Floats) -> frozenset[int]:
        """The segments that are left, by index."""
        empty = tuple(np.flatnonzero(widths == 0).tolist())
        if empty not in self._live:
            everything = frozenset(range(len(self.segments)))
            if empty:
                fate = fates_of(self.graph, [self.graph.edges[index].name for index in empty])["eval"]
                everything = frozenset(i for i in everything if self.segments[i].anchor in fate.live)
            self._live[empty] = everything
        return self._live[empty]

    def parts(self, widths: Widths, call_ms: float) -> dict[str, float]:
        """Milliseconds by group of layers without those of calls, and what they hand on in a layout they share."""
        w = np.asarray(widths, dtype=np.float64)
        live, plain = self.live(w), w.tolist()
        found, even = {BORDERS: 0.0}, set[int]()
        for index in sorted(live):
            group = self.segments[index].group
            alone, fills = self._alone(index, self.segments[index].sizes(plain))
            if fills:
                even.add(index)
            else:  # a runtime may run these by another kernel and in another layout
                group += UNEVEN
            found[group] = found.get(group, 0.0) + max(alone - call_ms, AT_LEAST * alone)
        for border, readers in self.borders(live):
            if border.maker in even and even.issuperset(readers):
                found[BORDERS] += (1 + len(readers)) * border.elements(w) / _MILLION
        return found

    def borders(self, live: frozenset[int]) -> Iterator[tuple[Border, list[int]]]:
        """Those between segments that are left, with their readers."""
        for border in self._borders:
            readers = [index for index in border.readers if index in live]
            if readers and border.maker in live:
                yield border, readers


class Tabled(Prices):
    """Prices from a table."""

    unit = "ms"

    def __init__(self, layers: Layers, calibration: Calibration) -> None:
        self._layers, self.calibration = layers, calibration

    @cached_property
    def width_step(self) -> int:  # type: ignore[override]
        """Channels the device works on at a time; 1 where those that fill a block up cost what channels cost anyway.

        Steps can be seen in the times of single layers and still buy nothing: then widths in steps only keep less.
        """
        whole = np.array([edge.width for edge in self._layers.graph.edges])
        prices = {1: _CHEAP}  # of channels that fill blocks up, against those of channels on average
        for block in sorted({steps.block for steps in self._layers.steps} - {1}):
            extra = average = 0.0
            for widths in drawn_widths(self._layers.graph, _DRAWN, seed=3):
                full = np.minimum(-(-widths // block) * block, whole)
                extra += self.total(full) - self.total(widths)
                average += float(self.per_channel(widths) @ (full - widths))
            if average > 0:
                prices[block] = extra / average
        return min(prices, key=lambda block: prices[block])

    def state(self) -> PlainData:
        return {"calibration": asdict(self.calibration), "setup": None}

    def total(self, widths: Widths) -> float:
        calibration = self.calibration
        return applied(self._layers.parts(widths, calibration.call_ms), calibration.factors, calibration.rest_ms)

    def per_channel(self, widths: Widths) -> Floats:
        """The slope around the living widths. Blocks are smoothed over: one channel saves nothing, a block of them does."""
        w = np.asarray(widths, dtype=np.float64)
        whole = np.array([edge.width for edge in self._layers.graph.edges], dtype=np.float64)
        result = np.zeros(len(w))
        for index in sorted(self._layers.live(w)):
            segment, entry, steps = self._layers.segments[index], self._layers.entries[index], self._layers.steps[index]
            reach = np.maximum(steps.block, _REACH * w)
            factor = self.calibration.factors.get(segment.group, 1.0)
            for edge in segment.edges:
                below, above = w.copy(), w.copy()
                below[edge], above[edge] = max(w[edge] - reach[edge], 0.0), min(w[edge] + reach[edge], whole[edge])
                if above[edge] > below[edge]:
                    change = entry.smooth(segment.exact(above), steps) - entry.smooth(segment.exact(below), steps)
                    result[edge] += factor * change / (above[edge] - below[edge])
        live, factor = self._layers.live(w), self.calibration.factors.get(BORDERS, 0.0) / _MILLION
        for border, readers in self._layers.borders(live):
            for edge, slope in border.slopes(w).items():
                result[edge] += factor * (1 + len(readers)) * slope
        return np.maximum(result, 0.0)
