"""The order in which channels close: by their scores, or by what they are worth for their cost.

A measured cost is not linear in the width of an edge: the first channels may save nothing, and the last ones, which take a
layer with them, save much. So for every edge all smaller widths are compared, and the edge goes at once to the one that gives
up the least for what it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gator.cost.prices import Floats, Prices
from gator.gates.limits import Limits, Widths

_LOOKED_AT = 8  # smaller widths of an edge at which an estimated cost is evaluated; between them it is interpolated
Saved = Callable[[int, NDArray[np.int64]], Floats]  # what an edge saves at smaller widths, while the others stay as they are


@dataclass(frozen=True)
class Closing:
    """An edge goes down to `width`; closings are made in the order of `score`."""

    score: float
    edge: int
    width: int


def closings_of(limits: Limits, widths: Widths, scores: Sequence[Floats], per: Prices | None) -> list[Closing]:
    """All closings that the limits allow, in the order in which they are to be made.

    Args:
        limits: what widths the edges may have.
        widths: of the edges now.
        scores: of the living channels of every edge, in rising order.
        per: if given, scores are divided by what the channels save by these prices.
    """
    saved = None if per is None else _saved_by(per, widths)
    found = []
    for edge, width in enumerate(widths.tolist()):
        lower = np.array(limits.widths_down(edge, width), dtype=np.int64)
        if len(lower):
            given_up = np.concatenate([[0.0], np.cumsum(scores[edge])])[width - lower]
            found += _by_mean(edge, width, lower, given_up) if saved is None else _by_saving(edge, lower, given_up, saved)
    return sorted(found, key=lambda closing: (closing.score, closing.edge, -closing.width))


def _by_mean(edge: int, width: int, lower: NDArray[np.int64], given_up: Floats) -> list[Closing]:
    """One unit after the other, by the mean score of its channels."""
    means = np.diff(given_up, prepend=0.0) / np.diff(width - lower, prepend=0)
    in_order = np.maximum.accumulate(means)  # a closing never comes before a wider one of the same edge
    return [Closing(score, edge, left) for score, left in zip(in_order.tolist(), lower.tolist(), strict=True)]


def _by_saving(edge: int, lower: NDArray[np.int64], given_up: Floats, saved: Saved) -> list[Closing]:
    """Always to the width that gives up the least for what it saves. What saves nothing comes last."""
    savings, found = saved(edge, lower), list[Closing]()
    at, score, worth_before, saving_before = 0, 0.0, 0.0, 0.0
    while at < len(lower):
        worth, saving = given_up[at:] - worth_before, savings[at:] - saving_before
        ratio = np.where(saving > 0, worth / np.maximum(saving, 1e-300), np.inf)
        at += int(np.argmin(ratio))
        score = max(score, float(ratio.min()))  # in order, as above
        found.append(Closing(score, edge, int(lower[at])))
        worth_before, saving_before, at = given_up[at], savings[at], at + 1
    return found


def _saved_by(prices: Prices, widths: Widths) -> Saved:
    if not prices.tolerance:  # exact counts are linear in the width of one edge
        slopes = prices.per_channel(widths)
        return lambda edge, lower: slopes[edge] * (widths[edge] - lower).astype(np.float64)
    whole = prices.total(widths)

    def saved(edge: int, lower: NDArray[np.int64]) -> Floats:
        places = np.unique(np.geomspace(1, len(lower), min(_LOOKED_AT, len(lower))).round().astype(int)) - 1
        found = [0.0]
        for width in lower[places]:
            trial = widths.copy()
            trial[edge] = width
            found.append(whole - prices.total(trial))
        removed = widths[edge] - lower
        result: Floats = np.interp(removed, [0, *removed[places]], found)
        return result

    return saved
