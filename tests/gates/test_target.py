"""A budget is met exactly: never above, less than one unit below, with every limit kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import SmallResNet
from torch import nn
from torch.nn import functional

import gator
from gator.cost.target import parse_target, shown
from gator.gates.limits import Limits
from gator.gates.project import project


@pytest.fixture(scope="module")
def graph():
    return gator.trace(SmallResNet(8), torch.randn(1, 1, 8, 8))


@settings(deadline=None, max_examples=60)
@given(
    share=st.floats(0.05, 1.0),
    seed=st.integers(0, 10_000),
    round_to=st.sampled_from([1, 2, 3, 4]),
    least=st.integers(0, 3),
    memory=st.booleans(),
)
def test_the_projection_is_never_above_and_less_than_one_unit_below(share, seed, round_to, least, memory):
    model = SmallResNet(8)
    graph = gator.trace(model, torch.randn(1, 1, 8, 8))
    priced = (gator.Memory() if memory else gator.Flops()).on(model, graph)
    limits = Limits.of(model, graph, least, round_to, ["blocks.3.conv1"])
    scores = np.random.default_rng(seed).normal(size=int(graph.starts[-1]))
    widths = np.array([edge.width for edge in graph.edges])
    target = share * priced.total(widths)
    try:
        found = project(graph, priced, limits, np.ones(len(scores), bool), scores, target)
    except gator.GatorError as error:
        assert "cannot be reached" in str(error)
        return
    left = np.array([found[a:b].sum() for a, b in zip(graph.starts[:-1], graph.starts[1:], strict=True)])
    assert priced.total(left) <= target
    assert left[[e.name for e in graph.edges].index("blocks.3.conv1")] == 16
    for edge, width in zip(graph.edges, left, strict=True):
        assert width >= min(least, edge.width)
        assert width == edge.width or width % round_to == 0
    # The dearest single unit that could be given back would break the budget.
    gaps = []
    for index, edge in enumerate(graph.edges):
        if left[index] < edge.width:
            more = left.copy()
            more[index] = min(edge.width, (left[index] // round_to + 1) * round_to)
            gaps.append(priced.total(more) - priced.total(left))
    assert not gaps or target - priced.total(left) < max(gaps)
    kept = {e.name: found[graph.starts[i] : graph.starts[i + 1]] for i, e in enumerate(graph.edges)}
    if not memory:
        assert gator.predict_macs(graph, kept) == priced.total(left)


@pytest.mark.trains
@pytest.mark.parametrize("steps", [1, 7, 60])
@pytest.mark.parametrize("settings_", [{}, {"round_to": 4}, {"min_width": 3}, {"keep": ["stem"]}, {"cost": "memory"}])
def test_a_target_is_met_in_the_given_steps(steps, settings_):
    torch.manual_seed(0)
    model = SmallResNet(8).train()
    x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))
    pruner = gator.Pruner(model, x, target=0.5, steps=steps, **settings_)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen = []
    for _ in range(steps):
        assert not pruner.finished or pruner.cost_left <= pruner.target
        loss = functional.cross_entropy(model(x), y) + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pruner.step(lr=0.05)
        seen.append(pruner.cost_left)
    assert pruner.finished
    assert seen == sorted(seen, reverse=True)  # what is closed stays closed
    assert pruner.cost_left <= pruner.target
    dearest = max(pruner.prices.per_channel([e.width for e in pruner.graph.edges])) * settings_.get("round_to", 1)
    assert pruner.target - pruner.cost_left < dearest
    footprint = gator.measure(pruner.cut(), x)
    assert (footprint.bytes if settings_.get("cost") == "memory" else footprint.macs) == pruner.cost_left
    widths = dict(zip([e.name for e in pruner.graph.edges], pruner.gates.widths(), strict=True))
    if "keep" in settings_:
        assert widths["stem"] == 8
    assert min(widths.values()) >= settings_.get("min_width", 0)
    assert all(width % settings_.get("round_to", 1) == 0 for width in widths.values())


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("300 MMACs", "MACs", 3e8), ("0.6 GFLOPs", "MACs", 3e8), ("4 MB", "bytes", 4e6), ("4 MiB", "bytes", 4 * 2**20),
        ("1,000 macs", "MACs", 1000), ("2.5e6MACs", "MACs", 2.5e6), ("512 bytes", "bytes", 512),
    ],
)  # fmt: skip
def test_figures_with_units(text, unit, value):
    assert parse_target(text, 1e12, unit) == pytest.approx(value)


def test_figures_for_people():
    assert shown(162_204_160, "MACs") == "162.2 MMACs"
    assert shown(4_200_000, "bytes") == "4.2 MB"
    assert shown(0.5, "share") == "50.0%"


def test_a_weighted_sum_of_costs():
    model, x = SmallResNet(8), torch.randn(1, 1, 8, 8)
    graph = gator.trace(model, x)
    whole = [edge.width for edge in graph.edges]
    cost = gator.WeightedCost((gator.Flops(), 0.7), (gator.Memory(), 0.3)).on(model, graph)
    assert cost.total(whole) == pytest.approx(1.0)
    half = [max(1, width // 2) for width in whole]
    flops, memory = gator.Flops().on(model, graph), gator.Memory().on(model, graph)
    expected = 0.7 * flops.total(half) / flops.total(whole) + 0.3 * memory.total(half) / memory.total(whole)
    assert cost.total(half) == pytest.approx(expected)
    pruner = gator.Pruner(model, x, target=0.5, steps=1, cost=gator.WeightedCost((gator.Flops(), 0.5), (gator.Memory(), 0.5)))
    pruner.project()
    assert 0.45 < pruner.cost_left <= 0.5
    with pytest.raises(gator.GatorError, match="above zero"):
        gator.WeightedCost((gator.Flops(), 0.0))


def test_a_price_is_the_derivative_of_the_total():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 1), nn.Flatten(), nn.Linear(288, 4))
    x = torch.randn(1, 3, 8, 8)
    graph = gator.trace(model, x)
    for cost in (gator.Flops(), gator.Memory()):
        priced = cost.on(model, graph)
        widths = np.array([5.0, 7.0])
        for index in range(2):
            step = np.zeros(2)
            step[index] = 1e-3
            slope = (priced.total(widths + step) - priced.total(widths - step)) / 2e-3
            assert priced.per_channel(widths)[index] == pytest.approx(slope, rel=1e-6)
    # 3x3 windows over 3 channels on 36 places, and one weight for each of 8 outputs there.
    assert gator.Flops().on(model, graph).per_channel([6, 8])[0] == 36 * (27 + 8)
    # 27 weights and a bias, four numbers of the norm, 8 weights of the next: four bytes each.
    assert gator.Memory().on(model, graph).per_channel([6, 8])[0] == 4 * (27 + 1 + 4 + 8)


REFERENCES = ["alexnet", "resnet18", "mobilenet_v2", "densenet121", "convnext_tiny", "vit_b_32", "efficientnet_b0", "googlenet"]


@pytest.mark.parametrize("name", REFERENCES)
def test_flops_are_those_torch_counts(name, torchvision):
    from torch.utils.flop_counter import FlopCounterMode

    settings = {"init_weights": False} if name == "googlenet" else {}
    with torch.device("meta"):
        model = torchvision.models.get_model(name, **settings).eval()
        x = torch.empty(1, 3, 224, 224)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(x)
    model = torchvision.models.get_model(name, **settings).eval()
    x = torch.randn(1, 3, 224, 224)
    graph = gator.trace(model, x)
    total = gator.Flops().on(model, graph).total([edge.width for edge in graph.edges])
    assert total == counter.get_total_flops() // 2 == gator.measure(model, x).macs
    pruner = gator.Pruner(model, graph=graph, alpha=1.0, per="batch")
    with torch.no_grad():
        pruner.gates.logits.fill_(50.0)
    assert pruner.computational_loss() == pytest.approx(1.0, rel=1e-5)


def test_bytes_of_a_network_without_a_block_are_within_the_target():
    """A block that is gone leaves a constant behind, which takes memory too."""
    torch.manual_seed(0)
    model = SmallResNet(8)
    x = torch.randn(2, 1, 8, 8)
    pruner = gator.Pruner(model, x, cost="memory", target=0.6, steps=10)
    names = [edge.name for edge in pruner.graph.edges]
    pruner.gates.worth.fill_(1.0)
    for block in (0, 3):
        pruner.gates.worth[pruner.gates.of_edge(names.index(f"blocks.{block}.conv1"))] = 0.0
    pruner.project()
    small = pruner.cut()
    assert 0 in pruner.gates.widths()
    assert any(name.startswith("folded_") for name, _ in small.named_parameters())
    assert gator.measure(small, x).bytes <= pruner.target
