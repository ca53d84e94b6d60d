"""Which edge closes next, and down to which width."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gator
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
        raise AssertionError("slopes say nothing about a cost that may not be linear")


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


def test_channels_of_equal_worth_close_one_after_the_other():
    """Sums of 0.1 round, so the means of several channels differ in the last digits."""
    per = Ladder(10 * np.arange(21.0))
    assert closed([[0.1] * 20], per) == [(0, width) for width in range(19, -1, -1)]


@pytest.mark.parametrize(("width", "step"), [(64, 1), (128, 8), (2048, 8)])
def test_a_narrow_layer_is_not_credited_with_what_only_its_removal_saves(width, step):
    """A layer takes 10 and 0.05 for every channel. The edge goes to 0 at once, or stays wider than its last step."""
    per = Ladder(np.where(np.arange(width + 1) > 0, 10 + 0.05 * np.arange(width + 1), 0.0))
    saved = per.savings([width], [np.arange(width - step, -1, -step)])[0]
    assert saved[-2] == pytest.approx(0.05 * (width - step))
    assert saved[-1] == pytest.approx(10 + 0.05 * width)
    assert closed([[1.0] * width], per, step) == [(0, 0)]


def test_counted_costs_and_their_sums_go_by_slopes():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 6, 1), nn.ReLU(), nn.Conv2d(6, 2, 1))
    graph = gator.trace(model, torch.zeros(1, 3, 4, 4))
    lower = [np.arange(7, -1, -1), np.arange(5, -1, -1)]
    flops = gator.Flops().on(model, graph)
    for found, slope in zip(flops.savings([8, 6], lower), flops.per_channel([8, 6]), strict=True):
        np.testing.assert_allclose(found, slope * np.arange(1, len(found) + 1))
    # With the other edge as it is, narrower layers cost what the slopes say; layers that are gone leave a constant.
    assert flops.savings([8, 6], lower)[0][3] == flops.total([8, 6]) - flops.total([4, 6])
    both = gator.WeightedCost((gator.Flops(), 0.25), (gator.Memory(), 0.75)).on(model, graph)
    memory = gator.Memory().on(model, graph)
    for found, macs, size in zip(*(each.savings([8, 6], lower) for each in (both, flops, memory)), strict=True):
        expected = 0.25 * macs / flops.total([8, 6]) + 0.75 * size / memory.total([8, 6])
        np.testing.assert_allclose(found, expected)


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
    assert len(asked) <= 10
    assert [c.width for c in found] == list(range(wide - 1, -1, -1))
    assert all(a.score <= b.score for a, b in itertools.pairwise(found))
