"""The order in which channels close: by their scores, or by what they are worth for their cost.

A measured cost is not linear in the width of an edge: the first channels may save nothing, and the last ones, which take a
layer with them, save much. So for every edge the smaller widths are compared by what they save (`Prices.savings`), and the edge
goes at once to the one that gives up the least for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gator.cost.prices import Floats, Prices
from gator.gates.limits import Limits, Widths

_EQUAL = 1e-9  # relative: ratios that differ by less do so by rounding, and the wider of two equal widths comes first


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
    lower = [np.array(limits.widths_down(edge, width), dtype=np.int64) for edge, width in enumerate(widths.tolist())]
    savings = None if per is None else per.savings(widths, lower)
    found = []
    for edge, width in enumerate(widths.tolist()):
        if len(lower[edge]):
            given_up = np.concatenate([[0.0], np.cumsum(scores[edge])])[width - lower[edge]]
            if savings is None:
                found += _by_mean(edge, width, lower[edge], given_up)
            else:
                found += _by_saving(edge, lower[edge], given_up, savings[edge])
    return sorted(found, key=lambda closing: (closing.score, closing.edge, -closing.width))


def _by_mean(edge: int, width: int, lower: NDArray[np.int64], given_up: Floats) -> list[Closing]:
    """One unit after the other, by the mean score of its channels."""
    means = np.diff(given_up, prepend=0.0) / np.diff(width - lower, prepend=0)
    in_order = np.maximum.accumulate(means)  # a closing never comes before a wider one of the same edge
    return [Closing(score, edge, left) for score, left in zip(in_order.tolist(), lower.tolist(), strict=True)]


def _by_saving(edge: int, lower: NDArray[np.int64], given_up: Floats, savings: Floats) -> list[Closing]:
    """Always to the width that gives up the least for what it saves. What saves nothing comes last."""
    found = list[Closing]()
    at, score, worth_before, saving_before = 0, 0.0, 0.0, 0.0
    while at < len(lower):
        worth, saving = given_up[at:] - worth_before, savings[at:] - saving_before
        ratio = np.where(saving > 0, worth / np.maximum(saving, 1e-300), np.inf)
        least = float(ratio.min())
        at += int(np.argmax(ratio <= least * (1 + _EQUAL)))
        score = max(score, least)  # in order, as above
        found.append(Closing(score, edge, int(lower[at])))
        worth_before, saving_before, at = given_up[at], savings[at], at + 1
    return found
