"""`TablePrices`: a network priced by a table, without measuring it."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from gator.cost.latency.fit import LatencyFit
from gator.cost.latency.layer_times import LayerTimes
from gator.cost.latency.widths import random_widths
from gator.cost.prices import Floats, PlainData, Prices, Steps, Widths

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

    def width_steps(self, full_widths: Widths) -> Steps:
        """For every edge the largest block of channels that pays to fill up; 1 where none pays.

        Steps may show in the times of single layers and still gain nothing: then rounding widths only keeps fewer channels.
        """
        full = np.array(full_widths)
        steps = np.ones(len(full), dtype=np.int64)
        for block in sorted(self._blocks()):  # from widths that are multiples of the step that pays so far
            extra, average = np.zeros(len(full)), np.zeros(len(full))
            for widths in random_widths(self._layers.graph, _SAMPLES, seed=3):
                # All other edges fill their blocks: beside one that does not, a runtime may leave its fast layout anyway.
                before, filled = (np.minimum(-(-widths // step) * step, full) for step in (steps, block))
                price, cost = self.per_channel(filled), self.total(filled)
                for edge in np.flatnonzero(filled > before):
                    thinner = filled.copy()
                    thinner[edge] = before[edge]
                    extra[edge] += cost - self.total(thinner)
                    average[edge] += price[edge] * (filled[edge] - before[edge])
            steps = np.where((average > 0) & (extra < _PAYS * average), block, steps)
        return steps

    def _blocks(self) -> set[int]:
        """The numbers of channels to look at: the block and the alignment of every layer."""
        sides = [side for grid in self._layers.grids for side in grid.steps.sides]
        return {size for side in sides for size in (side.block, side.alignment)} - {1}

    def state(self) -> PlainData:
        return {"method": "table", "fit": asdict(self.fit), "baseline": None}
