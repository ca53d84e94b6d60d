"""Networks of random widths: what a table is calibrated on, and what it is tested on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gator.cost.prices import Widths
from gator.graph.hypergraph import Hypergraph

_SHARES = (0.25, 1.0)  # of a network
_APART = (0.6, 1.4)  # of an edge, against the network's


def drawn_widths(graph: Hypergraph, count: int, *, seed: int, block: int = 1) -> list[NDArray[np.int64]]:
    """Widths of so many networks: each has a share of its own, around which its edges differ; multiples of `block`."""
    generator = np.random.default_rng(seed)
    whole = np.array([edge.width for edge in graph.edges])
    drawn = []
    for _ in range(count):
        shares = generator.uniform(*_SHARES) * generator.uniform(*_APART, size=len(whole))
        widths = np.round(np.minimum(shares, 1.0) * whole / block).astype(np.int64) * block
        drawn.append(np.clip(widths, np.minimum(block, whole), whole))
    return drawn


def kept_of(graph: Hypergraph, widths: Widths) -> dict[str, list[int]]:
    """Channels of every edge: which ones does not matter to the time a network takes."""
    return {edge.name: evenly(edge.width, int(width)) for edge, width in zip(graph.edges, widths, strict=True)}


def evenly(width: int, count: int) -> list[int]:
    """So many channels of an edge, at least one, from everywhere: where an edge is split, every part keeps some."""
    count = min(max(count, 1), width)
    return [index * width // count for index in range(count)]
