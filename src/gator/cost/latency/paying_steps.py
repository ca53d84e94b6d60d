"""Which steps of a device are worth rounding widths to, edge by edge.

Steps may show in the times of single layers and still gain nothing, because the layers on the other side of an edge have none:
then rounding widths only keeps fewer channels. So the time of the whole network decides.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gator.cost.latency.layer_times import LayerTimes
from gator.cost.latency.widths import random_widths
from gator.cost.prices import Steps, Widths

_NETWORKS = 3  # of random widths, in which an edge is looked at
_EDGES, _WIDTHS = 2, 5  # of edges that are alike so many are looked at, and so many widths of each
_PAYS = 0.5  # of the average price of a channel: what channels that fill a block must cost less than


def paying_steps(layers: LayerTimes, total: Callable[[Widths], float]) -> Steps:
    """For every edge the largest block of channels that pays to fill, given `total` milliseconds for widths; 1 where none pays.

    Edges of the same width between layers of the same kinds have the same step.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for edge, width in enumerate(layers.full_widths):
        kinds = sorted(layer.kind for layer in layers.layers if edge in layer.edges)
        alike.setdefault((width, *kinds), []).append(edge)
    steps = np.ones(len(layers.full_widths), dtype=np.int64)
    for block in sorted(_blocks(layers)):
        # All other edges fill their blocks: beside one that does not, a runtime may leave its fast layout anyway.
        networks = random_widths(layers.graph, _NETWORKS, seed=3, multiple_of=block)
        for edges in alike.values():
            found = [
                _filling(total, network, edge, int(steps[edge]), block, layers)
                for network in networks
                for edge in edges[:_EDGES]
            ]
            extra, average = np.sum(found, axis=0)
            if extra < _PAYS * average:
                steps[edges] = block
    return steps


def _blocks(layers: LayerTimes) -> set[int]:
    """The numbers of channels to look at: the block and the alignment of every layer."""
    sides = [side for grid in layers.grids for side in grid.steps.sides]
    return {size for side in sides for size in (side.block, side.alignment)} - {1}


def _filling(
    total: Callable[[Widths], float], network: Widths, edge: int, step: int, block: int, layers: LayerTimes
) -> tuple[float, float]:
    """What it costs to go from multiples of `step` to the next multiples of `block`, and what as many average channels cost."""
    full = layers.full_widths[edge]

    def at(width: int) -> float:
        widths = np.array(network)
        widths[edge] = width
        return total(widths)

    unfilled = [width for width in range(step, full, step) if width % block]
    if not unfilled:
        return 0.0, 0.0
    chosen = [unfilled[index * len(unfilled) // _WIDTHS] for index in range(min(_WIDTHS, len(unfilled)))]
    filled = [min(-(-width // block) * block, full) for width in chosen]
    extra = sum(at(wider) - at(width) for width, wider in zip(chosen, filled, strict=True))
    slope = max(at(full) - at(step), 0.0) / (full - step)
    return extra, slope * (sum(filled) - sum(chosen))
