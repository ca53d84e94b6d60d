"""Edges that trade channels: within the budget, and never for less."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import SmallResNet

import gator
from gator.cost.prices import Cost, Prices
from gator.gates.limits import Limits
from gator.gates.project import project
from gator.gates.trade import traded


@pytest.mark.parametrize("step", [1, 4])
@given(seed=st.integers(0, 1000), target=st.floats(0.3, 0.9))
@settings(max_examples=10, deadline=None)
def test_trading_keeps_the_budget_and_never_keeps_less(step, seed, target) -> None:
    """With scores of chance: on the rungs of widths, the best channels of every edge, no edge gone or come back."""
    model = SmallResNet(16).eval()
    graph = gator.trace(model, torch.zeros(1, 1, 8, 8))
    priced, limits = gator.Flops().on(model, graph), Limits.of(model, graph, 2, step, ())
    scores = np.random.default_rng(seed).random(graph.starts[-1])
    budget = target * priced.total([edge.width for edge in graph.edges])
    before = project(graph, priced, limits, np.ones(len(scores), dtype=bool), scores, budget)
    after = traded(graph, priced, limits, before, scores, budget)
    assert scores[after].sum() >= scores[before].sum() * (1 - 1e-12)
    widths = []
    for edge, (start, end) in zip(graph.edges, itertools.pairwise(graph.starts), strict=True):
        living, given_scores = after[start:end], scores[start:end]
        widths.append(int(living.sum()))
        assert widths[-1] in (edge.width, *range(0, edge.width, step))
        assert widths[-1] >= 2
        if not living.all():
            assert given_scores[living].min() > given_scores[~living].max()
    assert priced.total(widths) <= budget


def test_trading_finds_what_a_slope_hides() -> None:
    """Half of an edge costs nothing to keep: what closing by score took from it comes back for what is worth less."""

    class Kinked:
        def total(self, widths) -> float:
            return float(sum(max(width - 8, 0) if index == 0 else width for index, width in enumerate(widths)))

    model = SmallResNet(16).eval()
    graph = gator.trace(model, torch.zeros(1, 1, 8, 8))
    limits, alive = Limits.of(model, graph, 1, 1, ()), np.ones(graph.starts[-1], dtype=bool)
    first, width = graph.starts[1], graph.edges[0].width
    alive[4:first] = False  # of the first edge four are left
    after = traded(
        graph, Kinked(), limits, alive, np.ones(len(alive)), Kinked().total([4, *(e.width for e in graph.edges[1:])])
    )
    assert width > 8
    assert after[:first].sum() == 8
    assert after[first:].all()


def test_prices_by_flops_steer_a_cost_that_is_measured() -> None:
    """Where a cost's own slopes lead astray, those of FLOPs do not; what keeps more is taken, within the budget."""
    model = SmallResNet(16).eval()
    graph = gator.trace(model, torch.zeros(1, 1, 8, 8))
    whole = [edge.width for edge in graph.edges]

    class Astray(Cost, Prices):
        """Costs what FLOPs do, but says that the last edges cost most."""

        unit = "MACs"

        def __init__(self, tolerance: float) -> None:
            self.tolerance = tolerance

        def on(self, model, graph):
            self.flops = gator.Flops().on(model, graph)
            return self

        def total(self, widths) -> float:
            return self.flops.total(widths)

        def per_channel(self, widths) -> np.ndarray:
            return 1e3 ** np.arange(len(widths))

        def savings(self, widths, lower) -> list[np.ndarray]:
            return [slope * (now - each) for slope, now, each in zip(self.per_channel(widths), widths, lower, strict=True)]

    def kept(tolerance: float, target: float) -> float:
        found = gator.one_shot(model, graph, "random", target=target, cost=Astray(tolerance), per_cost=True)
        channels = [list(found.get(edge.name, range(edge.width))) for edge in graph.edges]
        widths = [len(some) for some in channels]
        assert gator.Flops().on(model, graph).total(widths) <= 0.5 * gator.Flops().on(model, graph).total(whole)
        scores = np.random.default_rng(0).random(sum(whole))
        return sum(scores[start:][some].sum() for some, start in zip(channels, graph.starts, strict=False))

    # A measured cost aims at the middle of what its tolerance allows.
    assert kept(0.03, 0.5) > kept(0.0, 0.5 * (1 - 0.03 / 2))
