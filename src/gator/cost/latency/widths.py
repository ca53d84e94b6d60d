"""Networks of given widths and of random ones: what is timed, what a table is fitted to, and what it is tested on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gator.cost.axis_sizes import full_widths
from gator.cost.prices import Widths
from gator.graph.hypergraph import Hypergraph
from gator.surgery.cut import cut_for_measurement

_NETWORK_SHARES = (0.25, 1.0)  # of the channels: from where pruning begins to about where it ends
_EDGE_FACTORS = (0.6, 1.4)  # of the network's share: pruned networks are not uniformly thinner


def random_widths(graph: Hypergraph, count: int, *, seed: int, multiple_of: int = 1) -> list[NDArray[np.int64]]:
    """Widths of so many networks. Each network has a share of channels to keep, around which its edges vary."""
    generator = np.random.default_rng(seed)
    full = np.array(full_widths(graph))
    drawn = []
    for _ in range(count):
        shares = generator.uniform(*_NETWORK_SHARES) * generator.uniform(*_EDGE_FACTORS, size=len(full))
        widths = np.round(np.minimum(shares, 1.0) * full / multiple_of).astype(np.int64) * multiple_of
        drawn.append(np.clip(widths, np.minimum(multiple_of, full), full))
    return drawn


def cut_to(model: nn.Module, graph: Hypergraph, widths: Widths) -> nn.Module:
    """A cut in the form in which all networks are timed: an fx graph over the layers of the model."""
    return cut_for_measurement(model, graph, kept_of(graph, widths))


def kept_of(graph: Hypergraph, widths: Widths) -> dict[str, list[int]]:
    """Channels to keep for these widths; which ones does not matter to the time a network takes."""
    return {edge.name: evenly_spaced(edge.width, int(width)) for edge, width in zip(graph.edges, widths, strict=True)}


def evenly_spaced(width: int, count: int) -> list[int]:
    """So many channels of an edge, at least one, spread out: where an edge is split, every part keeps some."""
    count = min(max(count, 1), width)
    return [index * width // count for index in range(count)]
