"""How near to the target a projection ends where layers have a fixed cost, so that closing a whole layer saves much at once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import gator
from gator.gates.limits import Limits


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(8, width, 1), nn.ReLU(), nn.Conv2d(width, 8, 1))

    def forward(self, x):
        return x + self.inner(x)


class Launches:
    """A layer takes 10, and 0.05 for every channel."""

    def on(self, model, graph):
        return self

    def total(self, widths):
        return float(sum(10 + 0.05 * width for width in widths if width))

    def per_channel(self, widths):
        return [0.05] * len(widths)


@pytest.mark.parametrize("target", [0.95, 0.85, 0.7, 0.5, 0.4])
@pytest.mark.parametrize("seed", range(3))
def test_a_whole_layer_closes_only_where_the_target_allows_it(target, seed):
    """With n of six layers left, the cost is between 10 n and 13.2 n: all these targets can be met to a channel."""
    model = nn.Sequential(*(Block(64) for _ in range(6))).eval()
    pruner = gator.Pruner(model, torch.zeros(1, 8, 4, 4), cost=Launches(), target=target, steps=10, round_to=1)
    pruner.gates.worth.copy_(torch.from_numpy(np.random.default_rng(seed).uniform(0.5, 1.5, len(pruner.gates))))
    pruner.project()
    assert 0.97 * pruner.target < pruner.cost_left <= pruner.target


def test_steps_of_any_number_of_channels():
    """Narrow edges have a step that divides the one of the device."""
    model = nn.Sequential(*(nn.Conv2d(*ends, 1) for ends in itertools.pairwise([3, 48, 30, 7, 1, 2])))
    graph = gator.trace(model, torch.zeros(1, 3, 4, 4))
    prices = gator.Flops().on(model, graph)
    for step, expected in ((12, [12, 12, 3, 1]), (24, [24, 12, 3, 1]), (16, [16, 8, 2, 1])):
        prices.width_step = step
        found = Limits.of(model, graph, 0, "auto", []).resolved(prices, graph).multiples
        assert found.tolist() == expected
