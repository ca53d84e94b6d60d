"""`ProbePrices`: the paper's price of a channel, which is what removing half of an edge's channels saves (section 3.3).

The prices do not depend on the widths elsewhere. A network costs their sum over the living channels, scaled so that the
unpruned network costs what it was measured to take (eq. 3).
"""

from __future__ import annotations

import numpy as np
from torch import nn

from gator.cost.axis_sizes import full_widths
from gator.cost.latency.network_timer import TOGETHER, Baseline
from gator.cost.latency.widths import cut_to
from gator.cost.prices import Floats, PlainData, Prices, Widths
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph


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
    full, prices = full_widths(graph), []
    for start in range(0, len(full), TOGETHER):
        edges = range(len(full))[start : start + TOGETHER]
        removed = [max(full[edge] // 2, 1) for edge in edges]
        narrow = [[w - count * (i == edge) for i, w in enumerate(full)] for edge, count in zip(edges, removed, strict=True)]
        runs = [baseline.run, *(baseline.timer.prepare(cut_to(model, graph, widths)) for widths in narrow)]
        own, *others = baseline.timer.times(runs)
        saved = [baseline.ms * (1 - other.mean_ms / own.mean_ms) for other in others]
        prices += [max(ms, 0.0) / count for ms, count in zip(saved, removed, strict=True)]
    return np.array(prices)
