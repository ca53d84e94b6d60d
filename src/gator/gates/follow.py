"""Which channel of the old network each channel of the smaller one was."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gator.errors import GatorError
from gator.gates.gate import Gates
from gator.graph.hypergraph import Hypergraph


def old_units(before: Hypergraph, after: Hypergraph, gates: Gates) -> NDArray[np.int64]:
    """For every channel of `after`, in order, its place among the gates of `before`, read off the parameters they share."""
    alive = gates.living()
    origin: dict[tuple[str, int], list[int]] = {}  # (parameter, axis) -> old channel at each surviving position
    for index, edge in enumerate(before.edges):
        for member in edge.members:
            places = origin.setdefault((member.parameter, member.axis), [-2] * len(member.units))
            for position, unit in enumerate(member.units):
                if unit >= 0:
                    channel = int(gates.starts[index]) + unit
                    places[position] = channel if alive[channel] else -1
    survivors = {key: [channel for channel in places if channel != -1] for key, places in origin.items()}
    result: list[int] = []
    for edge in after.edges:
        found = [-1] * edge.width
        for member in edge.members:
            places = survivors.get((member.parameter, member.axis), [])
            if len(places) == len(member.units):
                for channel, unit in zip(places, member.units, strict=True):
                    if unit >= 0 and channel >= 0:
                        found[unit] = channel
        if -1 in found:
            raise GatorError(f"edge {edge.name!r} of the smaller network was not found in the larger one; please report this")
        result.extend(found)
    return np.array(result, dtype=np.int64)
