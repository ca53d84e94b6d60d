"""Which edge closes next, and down to which width."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gator.cost.prices import Prices
from gator.gates.closings import closings_of
from gator.gates.limits import Limits


class Ladder(Prices):
    """The cost of every edge by its width; an estimate, so that nothing is taken to be linear."""

    tolerance = 0.03

    def __init__(self, *costs) -> None:
        self.costs = costs

    def total(self, widths) -> float:
        return float(sum(cost[int(width)] for cost, width in zip(self.costs, widths, strict=True)))

    def per_channel(self, widths):
        raise AssertionError("slopes say nothing about a cost that is not linear")


def limits(edges: int, step: int = 1) -> Limits:
    return Limits(np.zeros(edges, dtype=np.int64), np.full(edges, step, dtype=np.int64))


def closed(scores, per, step=1):
    widths = np.array([len(part) for part in scores])
    found = closings_of(limits(len(scores), step), widths, [np.array(part, dtype=float) for part in scores], per)
    return [(closing.edge, closing.width) for closing in found]


def test_by_their_scores_channels_close_one_after_the_other():
    assert closed([[1, 4], [2, 3]], None) == [(0, 1), (1, 1), (1, 0), (0, 0)]
    assert closed([[1, 9, 9, 9], [2, 3, 4, 5]], None, step=2) == [(1, 2), (1, 0), (0, 2), (0, 0)]


def test_an_edge_goes_at_once_to_the_width_that_gives_up_least_for_what_it_saves():
    """Four channels take as long as three; the last one takes its layer with it."""
    per = Ladder([0, 5, 6, 9, 9], [0, 4, 5, 6, 7])
    assert closed([[1, 1, 1, 1], [1, 1, 1, 1]], per) == [(0, 0), (1, 0)]
    # The last channel is worth much: the edge stops before it.
    assert closed([[1, 1, 1, 100], [5, 5, 5, 5]], per) == [(0, 2), (0, 1), (1, 0), (0, 0)]


def test_channels_that_save_nothing_close_last():
    assert closed([[1, 1], [50, 50]], Ladder([3, 3, 3], [0, 2, 4])) == [(1, 1), (1, 0), (0, 1), (0, 0)]
    assert closed([[0, 0], [50, 50]], Ladder([3, 3, 3], [0, 2, 4]))[-1] == (0, 0)


def test_a_cost_that_is_counted_is_asked_for_its_slopes():
    class Counted(Prices):
        def total(self, widths) -> float:
            raise AssertionError("one slope per edge says it all")

        def per_channel(self, widths):
            return np.array([1.0, 10.0, 0.0])

    assert closed([[1, 2], [11, 12], [0, 0]], Counted()) == [(0, 1), (1, 1), (1, 0), (0, 0), (2, 1), (2, 0)]


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10_000), step=st.sampled_from([1, 2, 4]), edges=st.integers(1, 4))
def test_closings_of_an_edge_are_in_order_and_end_where_the_limits_do(seed, step, edges):
    """For any costs, also those that rise where an edge becomes narrower."""
    random = np.random.default_rng(seed)
    widths = random.integers(1, 20, edges)
    scores = [np.sort(random.random(width)) for width in widths]
    per = Ladder(*(random.random(width + 1) for width in widths))
    found = closings_of(limits(edges, step), widths, scores, per)
    assert [c.score for c in found] == sorted(c.score for c in found)
    for edge, width in enumerate(widths):
        own = [closing.width for closing in found if closing.edge == edge]
        assert own == sorted(set(own), reverse=True)
        assert own[-1] == 0
        assert all(left % step == 0 and left < width for left in own)


@pytest.mark.parametrize("wide", [40, 200])
def test_an_estimate_is_evaluated_at_few_widths_of_a_wide_edge(wide):
    asked = []

    class Asked(Ladder):
        def total(self, widths) -> float:
            asked.append(int(widths[0]))
            return super().total(widths)

    found = closings_of(limits(1), np.array([wide]), [np.arange(1.0, wide + 1)], Asked(np.arange(wide + 1.0)))
    assert len(asked) <= 9
    assert [c.width for c in found] == list(range(wide - 1, -1, -1))
    assert all(a.score <= b.score for a, b in itertools.pairwise(found))
