"""Trade channels between edges: close what is least important for what it saves, reopen what is most important for its cost.

Closing by price assumes that the cost is linear in every width. Measured times have kinks, and the price of an edge changes
with the widths of its neighbours; here every trade is judged by the cost of the whole network.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gator.cost.prices import Prices
from gator.gates.limits import Limits
from gator.gates.project import Alive, Scores
from gator.graph.hypergraph import Hypergraph

_STEPS_AT_ONCE = (1, 2, 4)  # how many steps an edge may take at once: beyond a kink it may pay again
_TRIED = 12  # candidates for closing that are tried in each round
_EVALUATIONS = 2500  # evaluations of the whole cost, at most
Counts = NDArray[np.int64]


def traded(graph: Hypergraph, prices: Prices, limits: Limits, alive: Alive, scores: Scores, budget: float) -> Alive:
    """Living channels that cost no more than the budget and are worth at least what the given ones are.

    Of every edge the channels with the highest scores live, before and after. An edge without channels stays without.
    """
    return _Trade(graph, prices, limits, scores, budget).done(alive)


class _Trade:
    """What channels are worth, the widths every edge may have, and how often the cost was evaluated."""

    def __init__(self, graph: Hypergraph, prices: Prices, limits: Limits, scores: Scores, budget: float) -> None:
        self.starts, self.prices, self.budget, self.evaluated = graph.starts, prices, budget, 0
        parts = [scores[part] for part in self._slices()]
        self.best = [np.argsort(part, kind="stable")[::-1] for part in parts]  # as a projection closes them
        self.worth = [np.concatenate([[0.0], np.cumsum(part[best])]) for part, best in zip(parts, self.best, strict=True)]
        self.allowed = [
            [width for width in reversed((edge.width, *limits.widths_down(index, edge.width))) if width]
            for index, edge in enumerate(graph.edges)
        ]

    def _slices(self) -> Iterator[slice]:
        return (slice(start, end) for start, end in itertools.pairwise(self.starts))

    def done(self, alive: Alive) -> Alive:
        widths: Counts = np.array([alive[part].sum() for part in self._slices()])
        while self.evaluated < _EVALUATIONS:
            better = self._better(widths)
            if better is None:
                break
            widths = better
        result = np.zeros_like(alive)
        for part, best, width in zip(self._slices(), self.best, widths, strict=True):
            result[part.start + best[:width]] = True
        return result

    def _better(self, widths: Counts) -> Counts | None:
        """Widths that are worth more within the budget; None if no trade is found."""
        cost, worth = self._cost(widths), self._worth(widths)
        wider = [(index, width, *self._change(widths, index, width, cost)) for index, width in self._widths_near(widths, 1)]
        narrower = [(index, width, *self._change(widths, index, width, cost)) for index, width in self._widths_near(widths, -1)]
        wider.sort(key=lambda move: -move[2] / max(move[3], 1e-12))
        narrower.sort(key=lambda move: move[2] / min(move[3], -1e-12))
        # First without closing anything: some channels may fit into the budget as it is.
        given_up = [(-1, widths), *((index, _with(widths, index, width)) for index, width, _, _ in narrower[:_TRIED])]
        for given, trial in given_up:
            left = self._cost(trial)
            for index, width, _, price in wider:
                if index != given and trial[index] < width and left + price <= self.budget:
                    taken = _with(trial, index, width)
                    after = self._cost(taken)
                    trial, left = (taken, after) if after <= self.budget else (trial, left)
            if left <= self.budget and self._worth(trial) > worth * (1 + 1e-9):
                return trial
        return None

    def _widths_near(self, widths: Counts, direction: int) -> Iterator[tuple[int, int]]:
        for index, allowed in enumerate(self.allowed):
            if widths[index]:
                here = allowed.index(int(widths[index]))
                there = (here + direction * steps for steps in _STEPS_AT_ONCE)
                yield from ((index, allowed[place]) for place in there if 0 <= place < len(allowed))

    def _change(self, widths: Counts, index: int, width: int, cost: float) -> tuple[float, float]:
        """What it is worth and what it costs to give an edge this width."""
        worth = self.worth[index]
        return float(worth[width] - worth[widths[index]]), self._cost(_with(widths, index, width)) - cost

    def _cost(self, widths: Counts) -> float:
        self.evaluated += 1
        return self.prices.total(widths)

    def _worth(self, widths: Counts) -> float:
        return float(sum(worth[width] for worth, width in zip(self.worth, widths, strict=True)))


def _with(widths: Counts, index: int, width: int) -> Counts:
    result: Counts = widths.copy()
    result[index] = width
    return result
