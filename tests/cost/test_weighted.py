"""Weighted costs measure where their parts do, and take part in everything a cost takes part in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gator
from gator.cost.prices import Cost, Prices


class Block(nn.Module):
    def __init__(self, width: int, inside: int) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(width, inside, 1), nn.BatchNorm2d(inside)
        self.two = nn.Conv2d(inside, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(torch.relu(self.norm(self.one(x))))


def blocks(width: int = 16, inside: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, width, 1), *(Block(width, inside) for _ in range(3)), nn.Conv2d(width, 4, 1)).eval()


@pytest.mark.parametrize("target", [0.5, 0.6])
@pytest.mark.parametrize("weighted", [True, False])
def test_constants_of_vanished_blocks_count(target: float, weighted: bool) -> None:
    """Two of three blocks go first; each leaves a bias behind, which only the finished network shows."""
    model, x = blocks(), torch.zeros(1, 3, 4, 4)
    cost = gator.WeightedCost((gator.Memory(), 1.0)) if weighted else gator.Memory()
    pruner = gator.Pruner(model, x, cost=cost, target=target, steps=10)
    pruner.gates.worth.fill_(1.0)
    for name in ("1.one", "2.one"):
        pruner.gates.worth[pruner.gates.of_edge(pruner.graph.index_of(name))] = 0.0
    pruner.project()
    small = pruner.cut()
    pruner.detach()
    assert set(pruner.kept).issuperset({"1.one", "2.one"})
    assert gator.measure(small, x).bytes <= target * gator.measure(model, x).bytes


def test_parts_that_do_not_measure_are_counted() -> None:
    model, x = blocks(), torch.zeros(1, 3, 4, 4)
    graph = gator.trace(model, x)
    widths = [edge.width for edge in graph.edges]
    both = gator.WeightedCost((gator.Memory(), 0.5), (gator.Flops(), 0.5)).on(model, graph)
    assert both.measure(model, widths) == pytest.approx(1.0)
    assert gator.WeightedCost((gator.Flops(), 1.0)).on(model, graph).measure(model, widths) is None


class Estimate(Cost, Prices):
    """FLOPs that turn out a quarter higher when they are measured."""

    unit = "MACs"
    tolerance = 0.05

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def on(self, model, graph):
        self.flops = gator.Flops().on(model, graph)
        return self

    def total(self, widths):
        return self.factor * self.flops.total(widths)

    def per_channel(self, widths):
        return self.factor * self.flops.per_channel(widths)

    @property
    def width_step(self):
        return 4

    def measure(self, network, widths):
        return 1.25 * self.flops.total(widths)

    def recalibrated(self, widths, measured):
        found = Estimate(measured / self.flops.total(widths))
        found.flops = self.flops
        return found


def test_estimates_inside_a_weighted_cost_are_measured_and_corrected() -> None:
    model, x = blocks(16, 8), torch.zeros(1, 3, 4, 4)
    graph = gator.trace(model, x)
    widths = np.array([edge.width for edge in graph.edges])
    prices = gator.WeightedCost((Estimate(), 0.5), (gator.Memory(), 0.5)).on(model, graph)
    assert prices.tolerance == 0.05
    assert prices.width_step == 4
    half = widths // 2
    measured = prices.total(half) * 1.1
    after = prices.recalibrated(half, measured)
    assert after.total(half) == pytest.approx(measured)
    assert after.parts[1] is prices.parts[1]  # exact: stays
    cost = gator.WeightedCost((Estimate(), 1.0))
    kept = gator.one_shot(model, graph, target=0.6, cost=cost)
    left = gator.measure(gator.cut(model, graph, kept), x).macs / gator.measure(model, x).macs
    assert 1.25 * left <= 0.6


class Plain:
    """The least that a user can pass: no unit, no base class."""

    def on(self, model, graph):
        return PlainPrices(len(graph.edges))


class PlainPrices:
    def __init__(self, edges: int) -> None:
        self.edges = edges

    def total(self, widths):
        return float(sum(widths))

    def per_channel(self, widths):
        return [1] * self.edges


def test_a_plain_object_is_a_cost_everywhere() -> None:
    """In Pruner and in one_shot it is counted in the name of its class."""
    model, x = blocks(), torch.zeros(1, 3, 4, 4)
    graph = gator.trace(model, x)
    kept = gator.one_shot(model, graph, target="20 Plain", cost=Plain())
    assert sum(len(kept.get(edge.name, range(edge.width))) for edge in graph.edges) == 20
    pruner = gator.Pruner(model, x, cost=Plain(), target="20 Plain", steps=3)
    pruner.project()
    assert (pruner.unit, pruner.cost_left) == ("Plain", 20)
    pruner.detach()
    for wrong in (object(), type("NoPrices", (), {"on": lambda self, model, graph: 3})()):
        with pytest.raises(gator.GatorError, match=r"on\(model, graph\)"):
            gator.one_shot(model, graph, target=0.5, cost=wrong)
