"""The contract of prices: corrections by measurements, whether anything is measured, and targets in a user's own unit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import gator
from gator.cost.prices import Prices
from gator.cost.target import parse_target

X = torch.zeros(1, 8)


class Estimate(Prices):
    unit, tolerance = "units", 0.03

    def total(self, widths):
        return float(np.sum(widths))

    def per_channel(self, widths):
        return np.ones(len(widths))


@pytest.mark.parametrize("measured", [8.0, 8.0001, 7.0])
def test_a_correction_replaces_the_one_before(measured) -> None:
    first = Estimate().recalibrated([5, 5], 14.0)
    assert first.total([5, 5]) == pytest.approx(14.0)
    assert first.recalibrated([4, 4], measured).total([4, 4]) == pytest.approx(measured)


def test_only_what_measures_needs_a_network() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    graph = gator.trace(model, X)
    flops, memory = gator.Flops(), gator.Memory()
    assert not flops.on(model, graph).measures
    assert memory.on(model, graph).measures
    assert not gator.WeightedCost((flops, 1.0)).on(model, graph).measures
    assert gator.WeightedCost((flops, 0.5), (memory, 0.5)).on(model, graph).measures


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("0.002 MB", "MB", 0.002),
        ("3 mJ/frame", "mJ/frame", 3.0),
        ("0.5 GMACs", "GMACs", 0.5),
        ("2 kjoule", "joule", 2000.0),
        ("2 joule", "joule", 2.0),
    ],
)
def test_a_unit_of_ones_own_is_read_as_it_stands(text, unit, value) -> None:
    assert parse_target(text, 100.0, unit) == value


def test_the_unit_of_another_cost_is_named() -> None:
    with pytest.raises(gator.GatorError, match="given in bytes, but the cost is counted in joule"):
        parse_target("4 MB", 100.0, "joule")


def test_narrow_grouped_convolutions_can_lose_groups() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=4), nn.ReLU(), nn.Conv2d(16, 4, 1))
    pruner = gator.Pruner(model, torch.zeros(1, 3, 8, 8), target=0.6, steps=5)
    assert pruner.budget.limits.multiples.max() <= 2
    pruner.detach()
