"""Close channels, the least wanted first, until a budget is met: never above it, and less than one unit below.

A unit is one channel of an edge, or `round_to` of them. The cost falls with every unit that is closed, so the shortest
list of closings that meets the budget is found by bisection; what the last of them saved too much is given back.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gator.cost.budget import shown
from gator.cost.prices import Prices
from gator.errors import GatorError, KeptError
from gator.graph.hypergraph import Hypergraph
from gator.graph.program import MODES
from gator.surgery.fate import check_connected, decide
from gator.surgery.plan import Plan

Alive = NDArray[np.bool_]
Scores = NDArray[np.float64]
_LOOK_BACK = 300  # closings


@dataclass(frozen=True)
class Limits:
    """What may be closed: the least width of every edge, steps of widths, and edges that stay whole."""

    least: NDArray[np.int64]
    round_to: int  # 0: the steps of the cost, until it is known

    @staticmethod
    def of(graph: Hypergraph, min_width: int | Mapping[str, int], round_to: int | str, keep: Sequence[str]) -> Limits:
        steps = 0 if round_to == "auto" else round_to
        if isinstance(steps, bool) or not isinstance(steps, int) or (steps < 1 and round_to != "auto"):
            raise GatorError(f'round_to={round_to!r}; expected a whole number of channels, 1 or more, or "auto"')
        if isinstance(keep, str):
            raise GatorError(f"keep={keep!r} is a string; expected a list of edge names, [{keep!r}]")
        asked = min_width if isinstance(min_width, Mapping) else {}
        for name in (*keep, *asked):
            graph[name]  # raises for a name that is not there, with the closest ones
        given = [asked.get(edge.name, 0) if isinstance(min_width, Mapping) else min_width for edge in graph.edges]
        for edge, number in zip(graph.edges, given, strict=True):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise GatorError(f"min_width of {edge.name!r} is {number!r}; expected a whole number, 0 or more")
        least = [
            edge.width if edge.name in keep else min(edge.width, number)
            for edge, number in zip(graph.edges, given, strict=True)
        ]
        return Limits(np.array(least, dtype=np.int64), steps)

    def in_steps_of(self, prices: Prices) -> Limits:
        """The same, with steps left to the cost made those it shows."""
        if self.round_to:
            return self
        return Limits(self.least, prices.width_step)

    def with_one_of(self, graph: Hypergraph, name: str) -> Limits:
        """The same, but this edge keeps at least one channel."""
        least = self.least.copy()
        index = next(i for i, edge in enumerate(graph.edges) if edge.name == name)
        assert least[index] == 0, f"edge {name!r} keeps a channel already"
        least[index] = 1
        return Limits(least, self.round_to)

    def widths_down(self, edge: int, width: int) -> list[int]:
        """The widths an edge can go down to from here, in order."""
        steps = range(((width - 1) // self.round_to) * self.round_to, -1, -self.round_to) if width else ()
        return [step for step in steps if step >= self.least[edge]]


@dataclass(frozen=True)
class Projection:
    """The living channels that meet the budget, and the score of the last one that had to close."""

    alive: Alive
    score: float


def project(
    graph: Hypergraph, prices: Prices, limits: Limits, alive: Alive, scores: Scores, target: float, *, unit: str
) -> Projection:
    """Close the channels with the lowest scores until the cost is at most `target`."""
    while True:
        try:
            found = _closed(graph, prices, limits, alive, scores, target, unit)
        except KeptError as error:  # counting what an edge's closing leaves showed that it cannot close
            limits = limits.with_one_of(graph, error.edge)
            continue
        blamed = blamed_edge(graph, alive, found.alive)
        if blamed is None:
            return found
        limits = limits.with_one_of(graph, graph.edges[blamed].name)


def _closed(
    graph: Hypergraph,
    prices: Prices,
    limits: Limits,
    alive: Alive,
    scores: Scores,
    target: float,
    unit: str,
) -> Projection:
    starts = graph.starts
    widths = np.array([alive[a:b].sum() for a, b in itertools.pairwise(starts)], dtype=np.int64)
    if prices.total(widths) <= target:
        return Projection(alive.copy(), -np.inf)
    steps: list[tuple[float, int, int]] = []  # wanted how much, edge, width after
    order: list[NDArray[np.int64]] = []
    for index in range(len(graph.edges)):
        living = starts[index] + np.flatnonzero(alive[starts[index] : starts[index + 1]])
        order.append(living[np.argsort(scores[living], kind="stable")])
        width, highest = int(widths[index]), -np.inf
        for lower in limits.widths_down(index, width):
            chunk = order[-1][widths[index] - width : widths[index] - lower]
            highest = max(highest, float(scores[chunk].mean()))  # an edge's steps stay in order
            steps.append((highest, index, lower))
            width = lower
    steps.sort(key=lambda step: (step[0], step[1], -step[2]))

    def after(count: int) -> NDArray[np.int64]:
        left: NDArray[np.int64] = widths.copy()
        for _, index, lower in steps[:count]:
            left[index] = lower
        return left

    if prices.total(after(len(steps))) > target:
        raise unreachable(target, prices.total(after(len(steps))), unit)
    low, high = 0, len(steps)  # the first `low` are not enough, the first `high` are
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if prices.total(after(middle)) <= target else (middle, high)
    left = _reopened(prices, steps[:high], after(high), widths, target)
    result = alive.copy()
    for index, width in enumerate(left):
        result[order[index][: widths[index] - width]] = False
    return Projection(result, steps[high - 1][0])


def unreachable(target: float, lowest: float, unit: str) -> GatorError:
    return GatorError(
        f"the target of {shown(target, unit)} cannot be reached: with everything closed that may be, "
        f"{shown(lowest, unit)} are left\n  Raise the target, or loosen min_width, round_to, keep or fixed."
    )


def smallest(graph: Hypergraph, limits: Limits, alive: Alive) -> Alive:
    """Everything closed that may be, as long as there is a network left."""
    while True:
        result: Alive = alive.copy()
        for index, (start, end) in enumerate(itertools.pairwise(graph.starts)):
            living = start + np.flatnonzero(alive[start:end])
            lower = limits.widths_down(index, len(living))
            result[living[lower[-1] :] if lower else []] = False
        blamed = blamed_edge(graph, alive, result)
        if blamed is None:
            return result
        limits = limits.with_one_of(graph, graph.edges[blamed].name)


def _reopened(
    prices: Prices, closed: Sequence[tuple[float, int, int]], left: NDArray[np.int64], widths: NDArray[np.int64], target: float
) -> NDArray[np.int64]:
    """The last closing may have been a dear one: open again what was closed just before and still fits."""
    before: list[tuple[int, int, int]] = []
    current = widths.copy()
    for _, index, lower in closed:
        before.append((index, lower, int(current[index])))
        current[index] = lower
    for index, lower, wider in before[: -_LOOK_BACK - 1 : -1]:
        if left[index] == lower and wider > lower > 0:  # an edge that went altogether stays away
            trial = left.copy()
            trial[index] = wider
            left = trial if prices.total(trial) <= target else left
    return left


def blamed_edge(graph: Hypergraph, before: Alive, after: Alive) -> int | None:
    """Of the edges that would lose their last channel now, one that must keep it; None if the network holds together."""

    def empty(alive: Alive) -> list[int]:
        return [i for i in range(len(graph.edges)) if not alive[graph.starts[i] : graph.starts[i + 1]].any()]

    gone, closing = empty(before), [i for i in empty(after) if i not in empty(before)]
    if not closing or holds_together(graph, [*gone, *closing]):
        return None
    # One of them alone, or all together: then the last.
    return next((edge for edge in closing if not holds_together(graph, [*gone, edge])), closing[-1])


def holds_together(graph: Hypergraph, emptied: Sequence[int]) -> bool:
    """Whether there is a network without these edges."""
    plan = Plan(graph, {graph.edges[index].name: [] for index in emptied})
    try:
        for mode in MODES:
            check_connected(plan, mode, decide(plan, mode))
    except KeptError:
        return False
    return True
