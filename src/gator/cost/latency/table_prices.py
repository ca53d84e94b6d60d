"""`TablePrices`: a network priced by a table, without measuring it."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from gator.cost.latency.fit import LatencyFit
from gator.cost.latency.layer_times import LayerTimes
from gator.cost.latency.width_step import paying_step
from gator.cost.prices import Floats, PlainData, Prices, Widths

_REACH = 1 / 8  # of a width, and at least a block: how far to either side the slope per channel is taken


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

    @property
    def width_step(self) -> int:  # type: ignore[override]
        return paying_step(self._layers.graph, lambda networks: [self.total(widths) for widths in networks])

    def state(self) -> PlainData:
        return {"method": "table", "fit": asdict(self.fit), "baseline": None}
