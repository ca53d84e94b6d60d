"""A latency model held against networks it has not seen."""

from __future__ import annotations

from torch import nn

from gator.cost.latency.build import Progress, logged
from gator.cost.latency.draws import drawn_widths, kept_of
from gator.cost.latency.latency import Latency, Measured
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph
from gator.surgery.cut import cut


def checked(
    model: nn.Module, graph: Hypergraph, cost: Latency, networks: int, progress: Progress = logged, *, seed: int = 77
) -> list[tuple[float, float]]:
    """Predicted and measured milliseconds of networks of random widths; what the table lacks is timed before."""
    if networks < 2:
        raise GatorError(f"networks={networks}; expected 2 or more, to see whether their order is right")
    if cost.other_device:
        raise GatorError("a table of another device cannot be checked here")
    if cost.method == "table":
        cost.built(model, graph, progress=progress)
    priced = cost.on(model, graph)
    assert isinstance(priced, Measured)
    found = []
    for widths in drawn_widths(graph, networks, seed=seed):
        network = cut(model, graph, kept_of(graph, widths), keep_class=False, verify=False)
        found.append((priced.total(widths), priced.measure(network, widths)))
    return found
