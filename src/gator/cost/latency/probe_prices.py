"""`ProbePrices`: the paper's price of a channel, which is what removing half of an edge's channels saves (section 3.3).

The prices do not depend on the widths elsewhere. A network costs their sum over the living channels, scaled so that the
unpruned network costs what it was measured to take (eq. 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from gator.cost.latency.network_timer import Baseline
from gator.cost.prices import Floats, PlainData, Prices, Widths
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph
from gator.surgery.cut import cut

_TOGETHER = 6  # networks that are interleaved; each is held in memory


class ProbePrices(Prices):
    """One measured price per edge."""

    unit = "ms"

    def __init__(self, probed: Floats, full_widths: Widths, unpruned_ms: float) -> None:
        total = float(probed @ np.asarray(full_widths, dtype=np.float64))
        if not total > 0:
            raise GatorError("removing half of an edge's channels did not make the network faster; raise rounds= or batch=")
        self._probed, self._prices = probed, probed * unpruned_ms / total

    def total(self, widths: Widths) -> float:
        return float(self._prices @ np.asarray(widths, dtype=np.float64))

    def per_channel(self, widths: Widths) -> Floats:  # noqa: ARG002
        return self._prices

    def state(self) -> PlainData:
        return {"method": "probe", "probed": self._probed.tolist()}


def probe(model: nn.Module, graph: Hypergraph, baseline: Baseline) -> Floats:
    """Milliseconds per channel of every edge; zero where removing half of the channels saves nothing that can be measured."""
    prices = np.zeros(len(graph.edges))
    for start in range(0, len(graph.edges), _TOGETHER):
        edges = range(len(graph.edges))[start : start + _TOGETHER]
        for index, saved in zip(edges, _saved(model, graph, baseline, edges), strict=True):
            prices[index] = max(saved, 0.0) / _half(graph.edges[index].width)
    return prices


def _half(width: int) -> int:
    return max(width // 2, 1)


def _saved(model: nn.Module, graph: Hypergraph, baseline: Baseline, edges: Sequence[int]) -> list[float]:
    """Milliseconds that the network is faster with half of one edge's channels, for each of these edges."""
    timer = baseline.timer
    runs = [baseline.run]
    for index in edges:
        edge = graph.edges[index]
        kept = {edge.name: range(max(edge.width - _half(edge.width), 1))}
        runs.append(timer.prepare(cut(model, graph, kept, keep_class=False, verify=False)))
    own, *others = timer.times(runs)
    return [baseline.ms * (1 - other.mean_ms / own.mean_ms) for other in others]
