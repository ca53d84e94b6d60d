"""Which layers are timed in turns, so that each finds the caches as it does inside its network.

In a network all other layers run before a layer runs again, and its weights may have to be fetched anew. Timed beside a few
others they are still there: layers of ResNet-50 whose weights are used for 49 pixels looked a tenth too quick against others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gator.cost.latency.part import plain
from gator.cost.latency.segments import Segment
from gator.cost.latency.steps import Point
from gator.graph.hypergraph import Hypergraph
from gator.graph.macs import macs
from gator.graph.program import Program

Place = tuple[Segment, Point]  # a layer, and widths to time it at
_AT_ONCE, _AT_MOST = 8, 64  # of one layer at several widths; of several layers, which are all held in memory
_SELDOM = 256  # times a weight is used in a run; where it is used more often, fetching it takes a few per cent at most


class Turns:
    """Divides the layers of one network, at a batch, into those that take turns."""

    def __init__(self, graph: Hypergraph, segments: Sequence[Segment], batch: int) -> None:
        self._program: Program = graph.eval.program
        self._batch, self._segments = batch, segments
        self._whole = sum(self.weights(segment, segment.whole) for segment in segments)

    def of(self, places: Sequence[Place]) -> Iterator[tuple[list[Place], list[Place]]]:
        """All places, each once, and what has to run beside them.

        Widths of one layer take turns or, where weights are waited for, a network's worth of layers.
        """
        together: dict[Segment, list[Place]] = {}
        waiting: list[Place] = []
        for place in places:
            (waiting if self.waits(place[0]) else together.setdefault(place[0], [])).append(place)
        for some in together.values():
            yield from ((some[start : start + _AT_ONCE], []) for start in range(0, len(some), _AT_ONCE))
        if waiting:
            waiting.sort(key=lambda place: -self.weights(*place))  # dealt out, every group has large ones and small ones
            worth = sum(self.weights(*place) for place in waiting) / self._whole
            groups = max(int(worth), -(-len(waiting) // _AT_MOST))
            yield from ((waiting[first::groups], self._beside(1 - worth / groups)) for first in range(groups))

    def _beside(self, lacking: float) -> list[Place]:
        """Layers as they are, the largest first, until they have this share of the network's weights."""
        found: list[Place] = []
        for segment in sorted(self._segments, key=lambda segment: -self.weights(segment, segment.whole)):
            if lacking <= 0:
                break
            found.append((segment, segment.whole))
            lacking -= self.weights(segment, segment.whole) / self._whole
        return found

    def waits(self, segment: Segment) -> bool:
        """Whether its weights are used so seldom that fetching them takes time."""
        call = self._program.calls[segment.anchor]
        work = macs(call, lambda v: [plain(size, self._batch) for size in self._program.values[v].shape])
        return work < _SELDOM * self.weights(segment, segment.whole)

    def weights(self, segment: Segment, point: Point) -> float:
        """How many numbers the layer multiplies with at these widths."""
        values = (self._program.values[value] for _, value in self._program.calls[segment.anchor].tensors())
        count = sum(math.prod(value.shape) for value in values if value.origin == "attribute")
        return count * math.prod(size / whole for size, whole in zip(point, segment.whole, strict=True) if whole)
