"""Predicted latencies compared with measured ones, on networks of random widths that the table has not seen."""

from __future__ import annotations

from torch import nn

from gator.cost.latency.build import Progress, log_progress
from gator.cost.latency.latency import Latency
from gator.cost.latency.measured_prices import MeasuredPrices
from gator.cost.latency.random_widths import kept_of, random_widths
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph
from gator.surgery.cut import cut


def compare(
    model: nn.Module, graph: Hypergraph, cost: Latency, networks: int, progress: Progress = log_progress, *, seed: int = 77
) -> list[tuple[float, float]]:
    """Predicted and measured milliseconds of so many networks. What is missing in the table is measured first."""
    if networks < 2:
        raise GatorError(f"networks={networks}; expected 2 or more, because their order is compared too")
    if cost.other_device:
        raise GatorError("a table of another device cannot be checked on this one")
    if cost.method == "table":
        cost.build_table(model, graph, progress=progress)
    prices = cost.on(model, graph)
    assert isinstance(prices, MeasuredPrices)
    found = []
    for widths in random_widths(graph, networks, seed=seed):
        network = cut(model, graph, kept_of(graph, widths), keep_class=False, verify=False)
        found.append((prices.total(widths), prices.measure(network, widths)))
    return found
