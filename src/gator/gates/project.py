"""Close channels, those with the lowest scores first, until a budget is met: never above it, and less than one unit below.

A unit is one channel of an edge, or `round_to` of them. An exact cost falls with every unit that is closed, so bisection finds
the shortest list of closings that meets the budget; units that the last closing made unnecessary are opened again. Where one
unit is a large part of the budget, others are closed in its place, if they come nearer. A closing of many units, such as that
of a whole layer, stops halfway if it would lead more than 2 % below the budget.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gator.cost.prices import Prices
from gator.cost.target import shown
from gator.errors import BudgetError, KeptError
from gator.gates.closings import Closing, closings_of
from gator.gates.limits import Limits, Widths
from gator.graph.hypergraph import Hypergraph
from gator.graph.program import MODES
from gator.surgery.liveness import check_connected, liveness_of
from gator.surgery.plan import Plan

Alive = NDArray[np.bool_]  # one entry per channel, edges one after the other
Scores = NDArray[np.float64]
_LOOK_BACK = 300  # closings
_NEAR = 0.98  # of the target: a unit that leads further below it is left open if others can be closed in its place
_LEFT_OPEN = 8  # units, at most


def project(
    graph: Hypergraph,
    prices: Prices,
    limits: Limits,
    alive: Alive,
    scores: Scores,
    target: float,
    *,
    per: Prices | None = None,
    at_end: float | None = None,
    first_widths: Widths | None = None,
) -> Alive:
    """Close the channels with the lowest scores until the cost is at most `target`.

    An edge whose last channel connects the input with the output keeps it.

    Args:
        per: if given, channels close in the order of their scores (zero or more) for what they save by these prices.
        at_end: the final target, if this is a step on the way to it: the network should not cost much less than that.
        first_widths: if given, the score of a channel is multiplied by the width that its edge had at first over its width now.
            Scores are those of single channels, and narrow edges lose more than the sum of these.

    Raises:
        BudgetError: if the limits do not allow it.
    """
    floor = _NEAR * (target if at_end is None else at_end)
    while True:
        try:
            found: Alive = _closed(graph, prices, limits, alive, scores, target, floor, per, first_widths)
        except KeptError as error:  # computing the cost showed that this edge cannot close
            limits = limits.with_one_of(graph.index_of(error.edge))
            continue
        edge = disconnecting_edge(graph, alive, found)
        if edge is None:
            return found
        limits = limits.with_one_of(edge)


def _closed(
    graph: Hypergraph, prices: Prices, limits: Limits, alive: Alive, scores: Scores, target: float, floor: float,
    per: Prices | None, first_widths: Widths | None,
) -> Alive:  # fmt: skip
    widths = graph.widths_of(alive)
    if prices.total(widths) <= target:
        same: Alive = alive.copy()
        return same
    order = [start + living[np.argsort(scores[start + living], kind="stable")] for start, living in _living(graph, alive)]
    in_order = [scores[channels] for channels in order]
    if first_widths is not None:  # a channel is the first to go, the second, ...
        falling = (np.arange(len(part), 0, -1) for part in in_order)
        in_order = [part * first / left for part, first, left in zip(in_order, first_widths, falling, strict=True)]
    left, last = _shortest(prices, limits, closings_of(limits, widths, in_order, per), widths, target, floor)
    for _ in range(_LEFT_OPEN):
        if prices.total(left) >= floor:
            break
        limits = limits.wider_than(last.edge, last.width)
        try:
            other, last = _shortest(prices, limits, closings_of(limits, widths, in_order, per), widths, target, floor)
        except BudgetError:  # it has to close
            break
        left = other if prices.total(other) > prices.total(left) else left
    result: Alive = alive.copy()
    for index, width in enumerate(left):
        result[order[index][: widths[index] - width]] = False
    return result


def _living(graph: Hypergraph, alive: Alive) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """For every edge its first channel, and which of its channels live."""
    return ((start, np.flatnonzero(alive[start:end])) for start, end in itertools.pairwise(graph.starts))


def _shortest(
    prices: Prices, limits: Limits, closings: Sequence[Closing], widths: NDArray[np.int64], target: float, floor: float
) -> tuple[NDArray[np.int64], Closing]:
    """The widths after as many of the closings, in their order, as the target needs; and the last of them.

    If the last one leads below `floor`, its edge stays as wide as the target allows.
    """

    def after(count: int) -> NDArray[np.int64]:
        left: NDArray[np.int64] = widths.copy()
        for closing in closings[:count]:
            left[closing.edge] = closing.width
        return left

    if prices.total(after(len(closings))) > target:
        raise unreachable_target(target, prices.total(after(len(closings))), prices.unit)
    low, high = 0, len(closings)  # the first `low` are not enough, the first `high` are
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if prices.total(after(middle)) <= target else (middle, high)
    last, left = closings[high - 1], after(high)
    if prices.total(left) < floor:
        last = _stopped_early(prices, limits, last, after(high - 1), target)
        left[last.edge] = last.width
    return _reopened(prices, [*closings[: high - 1], last], left, widths, target), last


def _stopped_early(prices: Prices, limits: Limits, closing: Closing, widths: NDArray[np.int64], target: float) -> Closing:
    """The same closing, but its edge stays as wide as the target allows."""
    for width in limits.widths_down(closing.edge, int(widths[closing.edge])):
        trial = widths.copy()
        trial[closing.edge] = width
        if prices.total(trial) <= target:
            return replace(closing, width=width)
    return closing


def unreachable_target(target: float, lowest: float, unit: str) -> BudgetError:
    return BudgetError(
        f"the target of {shown(target, unit)} cannot be reached: the smallest network these limits allow costs "
        f"{shown(lowest, unit)}\n  Raise the target, or loosen min_width, round_to, keep or fixed."
    )


def smallest(graph: Hypergraph, limits: Limits, alive: Alive) -> Alive:
    """The channels of the smallest network that these limits allow."""
    while True:
        result: Alive = alive.copy()
        for index, (start, end) in enumerate(itertools.pairwise(graph.starts)):
            living = start + np.flatnonzero(alive[start:end])
            lower = limits.widths_down(index, len(living))
            result[living[lower[-1] :] if lower else []] = False
        edge = disconnecting_edge(graph, alive, result)
        if edge is None:
            return result
        limits = limits.with_one_of(edge)


def _reopened(
    prices: Prices, closed: Sequence[Closing], left: NDArray[np.int64], widths: NDArray[np.int64], target: float
) -> NDArray[np.int64]:
    """The last closing may have saved much more than was needed: open again what was closed just before and still fits."""
    before: list[tuple[Closing, int]] = []  # with the width from which it started
    current = widths.copy()
    for closing in closed:
        before.append((closing, int(current[closing.edge])))
        current[closing.edge] = closing.width
    for closing, wider in before[: -_LOOK_BACK - 1 : -1]:
        if left[closing.edge] == closing.width and closing.width > 0:  # an edge that is closed stays closed
            trial = left.copy()
            trial[closing.edge] = wider
            left = trial if prices.total(trial) <= target else left
    return left


def disconnecting_edge(graph: Hypergraph, before: Alive, after: Alive) -> int | None:
    """Of the edges that would lose their last channel now, one that must keep it; None if the network stays connected."""
    gone = np.flatnonzero(graph.widths_of(before) == 0).tolist()
    closing = [edge for edge in np.flatnonzero(graph.widths_of(after) == 0).tolist() if edge not in gone]
    if not closing or is_connected(graph, [*gone, *closing]):
        return None
    # One of them alone, or all of them together: then the last.
    alone = (edge for edge in closing if not is_connected(graph, [*gone, edge]))
    return int(next(alone, closing[-1]))


def is_connected(graph: Hypergraph, emptied: Sequence[int]) -> bool:
    """Whether every output still depends on an input when these edges keep nothing."""
    plan = Plan(graph, {graph.edges[index].name: [] for index in emptied})
    try:
        for mode in MODES:
            check_connected(plan, mode, liveness_of(plan, mode))
    except KeptError:
        return False
    return True
