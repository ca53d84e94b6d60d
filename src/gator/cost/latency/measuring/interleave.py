"""Which layers are timed together, so that each finds the processor's caches as it does inside its network.

Inside a network all other layers run before a layer runs again, so that its weights may have left the cache. Timed beside a few
layers, they are still there: layers of ResNet-50 that use each weight for 49 pixels looked 10 to 15 % too fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gator.cost.latency.layers.fused_layers import FusedLayer, Point
from gator.cost.latency.layers.standalone import length_at
from gator.graph.hypergraph import Hypergraph
from gator.graph.macs import macs

Place = tuple[FusedLayer, Point]  # a layer, and widths to time it at
AT_ONCE = 8  # widths of one layer: enough to share the cost of the reference workload
_HELD = 64  # layers at most that are held in memory together
_REUSE = 256  # times that a weight is used in a run: with more, fetching it takes a few percent of the time at most


class Interleaving:
    """Divides the layers of one network, at one batch size, into sessions in which they are timed together."""

    def __init__(self, graph: Hypergraph, layers: Sequence[FusedLayer], batch: int) -> None:
        self._program, self._layers, self._batch = graph.eval.program, layers, batch
        self._network_weights = sum(self.weights(layer, layer.full) for layer in layers)

    def sessions(self, places: Sequence[Place]) -> Iterator[tuple[list[Place], list[Place]]]:
        """All places, each once, by session; with each, layers to run beside them that need no timing.

        A session has widths of one layer. Layers with cold weights are mixed instead, until a session has as many weights as
        the network.
        """
        warm: dict[FusedLayer, list[Place]] = {}
        cold: list[Place] = []
        for place in places:
            (cold if self.has_cold_weights(place[0]) else warm.setdefault(place[0], [])).append(place)
        for some in warm.values():
            yield from ((some[start : start + AT_ONCE], []) for start in range(0, len(some), AT_ONCE))
        if cold:
            cold.sort(key=lambda place: -self.weights(*place))  # so that every session gets large and small ones
            networks = sum(self.weights(*place) for place in cold) / self._network_weights  # this many networks' weights
            count = max(int(networks), math.ceil(len(cold) / _HELD))
            yield from ((cold[first::count], self._fillers(1 - networks / count)) for first in range(count))

    def _fillers(self, share: float) -> list[Place]:
        """Unpruned layers, the largest first, until they have this share of the network's weights."""
        found: list[Place] = []
        for layer in sorted(self._layers, key=lambda layer: -self.weights(layer, layer.full)):
            if share <= 0:
                break
            found.append((layer, layer.full))
            share -= self.weights(layer, layer.full) / self._network_weights
        return found

    def has_cold_weights(self, layer: FusedLayer) -> bool:
        """Whether the weights are used so few times in a run that fetching them takes a noticeable part of it."""
        call = self._program.calls[layer.anchor]
        uses = macs(call, lambda v: [length_at(size, self._batch) for size in self._program.values[v].shape])
        return uses < _REUSE * self.weights(layer, layer.full)

    def weights(self, layer: FusedLayer, point: Point) -> float:
        """How many weights the layer has at these widths."""
        values = (self._program.values[value] for _, value in self._program.calls[layer.anchor].tensors())
        count = sum(math.prod(value.shape) for value in values if value.origin == "attribute")
        return count * math.prod(size / full for size, full in zip(point, layer.full, strict=True) if full)
