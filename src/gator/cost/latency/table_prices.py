"""`TablePrices`: a network priced by a table, without measuring it."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property

import numpy as np

from gator.cost.latency.fit import LatencyFit
from gator.cost.latency.layer_times import LayerTimes
from gator.cost.latency.widths import random_widths
from gator.cost.prices import Floats, PlainData, Prices, Widths

_REACH = 1 / 8  # of a width, and at least a block: how far to either side the slope per channel is taken
_SAMPLES = 12  # networks of random widths that decide whether rounding widths up pays
_PAYS = 0.5  # of the average price of a channel: what channels that fill a block up must cost less than


class TablePrices(Prices):
    """The times of layers at the living widths, added up by a fit."""

    unit = "ms"

    def __init__(self, layers: LayerTimes, fit: LatencyFit) -> None:
        self._layers, self.fit = layers, fit

    def total(self, widths: Widths) -> float:
        return self.fit.total(self._layers.parts(widths, self.fit.alone_ms))

    def per_channel(self, widths: Widths) -> Floats:
        """The slope around the living widths, without steps: a single channel saves nothing, a block of channels does."""
        w = np.asarray(widths, dtype=np.float64)
        full = np.array(self._layers.full_widths, dtype=np.float64)
        live = self._layers.live(w)
        result = np.zeros(len(w))
        for index in sorted(live):
            layer, grid = self._layers.layers[index], self._layers.grids[index]
            factor = self.fit.factors.get(layer.group, 1.0)
            reach = np.maximum(grid.steps.block, _REACH * w)
            for edge in layer.edges:
                below, above = w.copy(), w.copy()
                below[edge], above[edge] = max(w[edge] - reach[edge], 0.0), min(w[edge] + reach[edge], full[edge])
                if above[edge] > below[edge]:
                    wider, narrower = (
                        grid.smooth(layer.read.exact(widths), layer.written.exact(widths)) for widths in (above, below)
                    )
                    result[edge] += factor * (wider - narrower) / (above[edge] - below[edge])
        for border, readers in self._layers.borders(live):
            for edge, slope in border.slopes(w).items():
                result[edge] -= self.fit.border_ms / 1e6 * (1 + len(readers)) * slope
        return np.maximum(result, 0.0)

    @cached_property
    def width_step(self) -> int:  # type: ignore[override]
        """The block of channels that pays most to fill up; 1 if none pays.

        Steps may show in the times of single layers and still gain nothing: then rounding widths only keeps fewer channels.
        """
        full = np.array(self._layers.full_widths)
        prices = {1: _PAYS}  # of channels that fill blocks up, relative to the average price of a channel
        for block in sorted({grid.steps.block for grid in self._layers.grids} - {1}):
            extra = average = 0.0
            for widths in random_widths(self._layers.graph, _SAMPLES, seed=3):
                filled = np.minimum(-(-widths // block) * block, full)
                extra += self.total(filled) - self.total(widths)
                average += float(self.per_channel(widths) @ (filled - widths))
            if average > 0:
                prices[block] = extra / average
        return min(prices, key=lambda block: prices[block])

    def state(self) -> PlainData:
        return {"method": "table", "fit": asdict(self.fit), "baseline": None}
