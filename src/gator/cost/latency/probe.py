"""The paper's price of a channel: how much faster the network gets with half of an edge's channels gone (section 3.3).

The prices do not depend on the widths elsewhere. What the network costs is their sum over the living channels, as a share
of that sum at the start, times what the whole network was measured to take (eq. 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from gator.cost.latency.stopwatch import Reference, Stopwatch
from gator.cost.prices import Floats, PlainData, Prices, Widths
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph
from gator.surgery.cut import cut

_AT_ONCE = 6  # networks that are timed in turns; each is held in memory


class Probed(Prices):
    """Prices from one probe an edge."""

    unit = "ms"

    def __init__(self, prices: Floats, widths: Widths, whole_ms: float) -> None:
        whole = float(prices @ np.asarray(widths, dtype=np.float64))
        if not whole > 0:
            raise GatorError("the network did not get faster with half of any edge's channels gone; raise rounds= or batch=")
        self._probed, self.prices = prices, prices * whole_ms / whole

    def state(self) -> PlainData:
        return {"prices": self._probed.tolist()}

    def total(self, widths: Widths) -> float:
        return float(self.prices @ np.asarray(widths, dtype=np.float64))

    def per_channel(self, widths: Widths) -> Floats:  # noqa: ARG002
        return self.prices


def probed_prices(model: nn.Module, graph: Hypergraph, reference: Reference) -> Floats:
    """Milliseconds a channel of every edge, zero where half of them gone saves nothing that can be measured."""
    prices = np.zeros(len(graph.edges))
    for start in range(0, len(graph.edges), _AT_ONCE):
        part = range(len(graph.edges))[start : start + _AT_ONCE]
        for index, saved in zip(part, _saved(model, graph, reference, part), strict=True):
            prices[index] = max(saved, 0.0) / _gone(graph.edges[index].width)
    return prices


def _gone(width: int) -> int:
    return max(width // 2, 1)


def _saved(model: nn.Module, graph: Hypergraph, reference: Reference, edges: Sequence[int]) -> list[float]:
    watch: Stopwatch = reference.stopwatch
    runs = [reference.run]
    for index in edges:
        edge = graph.edges[index]
        kept = {edge.name: range(max(edge.width - _gone(edge.width), 1))}
        runs.append(watch.prepare(cut(model, graph, kept, keep_class=False, verify=False)))
    own, *others = watch.times(runs)
    return [reference.ms * (1 - other.mean_ms / own.mean_ms) for other in others]
