"""Criteria without training, on the same graph and with the same budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from digits import accuracy, digits, fit, recalibrate
from small import SmallResNet
from torch import nn
from torch.nn import functional

import gator


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = SmallResNet(8)
    fit(model, 1, 0.1, seed=0)
    return model


@pytest.mark.trains
@pytest.mark.parametrize("criterion", ["l1", "l2", "taylor", "bn_scale", "geometric_median", "random"])
def test_every_criterion_meets_the_budget_and_leaves_the_model(trained, criterion):
    x, y, _, _ = digits()
    graph = gator.trace(trained, x[:1])
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    gradients = [p.grad for p in trained.parameters()]
    loss = (lambda: functional.cross_entropy(trained(x[:256]), y[:256])) if criterion == "taylor" else None
    kept = gator.one_shot(trained, graph, criterion, target=0.5, loss=loss)
    macs = gator.measure(gator.cut(trained, graph, kept), x[:1]).macs
    dearest = max(gator.Flops().on(trained, graph).per_channel([edge.width for edge in graph.edges]))
    assert graph.macs / 2 - dearest < macs <= graph.macs / 2
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    assert all(p.grad is g for p, g in zip(trained.parameters(), gradients, strict=True))


def test_criteria_are_what_they_say():
    """Two layers by hand: the filter to go is known for each."""
    model = nn.Sequential(nn.Conv2d(1, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([3.0, -0.5, 2.0, 2.1]).reshape(4, 1, 1, 1))
        model[1].weight.copy_(torch.tensor([1.0, 0.9, -0.1, 0.8]))
    graph = gator.trace(model, torch.randn(1, 1, 2, 2))

    def gone(criterion, **settings):
        kept = gator.one_shot(model, graph, criterion, target=0.75, **settings)
        return set(range(4)) - set(kept["0"])

    assert gone("l1") == gone("l2") == {1}
    assert gone("bn_scale") == {2}
    assert gone("geometric_median") == {2}  # nearest to the others: 1.0 + 2.5 + 0.1 is the smallest sum of distances
    x = torch.randn(8, 1, 2, 2)
    model.eval()
    with torch.no_grad():
        model[2].weight.copy_(torch.tensor([0.0, 1.0, 1.0, 1.0]).reshape(1, 4, 1, 1))
    assert gone("taylor", loss=lambda: model(x).square().mean()) == {0}  # nobody reads it, so the loss does not feel it
    assert gone("random", seed=1) == gone("random", seed=1)
    assert len({frozenset(gone("random", seed=seed)) for seed in range(20)}) > 1


@pytest.mark.trains
@pytest.mark.slow
def test_a_criterion_beats_chance():
    """With new norm statistics, on average over three networks and three draws."""
    x, _, _, _ = digits()
    score = {"l1": [], "random": []}
    for seed in range(3):
        torch.manual_seed(seed)
        model = SmallResNet(8)
        fit(model, 6, 0.1, seed=seed)
        graph = gator.trace(model, x[:1])
        for criterion, draws in (("l1", 1), ("random", 3)):
            for draw in range(draws):
                kept = gator.one_shot(model, graph, criterion, target=0.5, seed=draw)
                score[criterion].append(accuracy(recalibrate(gator.cut(model, graph, kept))))
    assert np.mean(score["l1"]) > np.mean(score["random"]) + 10  # about 63 and 36


def test_mistakes_are_explained(trained):
    graph = gator.trace(trained, torch.randn(1, 1, 8, 8))
    for words, settings in [
        ("expected a function or one of l1", {"criterion": "l3"}),
        ("go together", {"criterion": "taylor"}),
        ("go together", {"criterion": "l1", "loss": lambda: None}),
        ("up to 1", {"target": 0}),
        ("cannot be reached", {"target": 0.001}),
        ("did you mean", {"keep": ["blocks.0.conv"]}),
    ]:
        with pytest.raises(gator.GatorError, match=words):
            gator.one_shot(trained, graph, **({"target": 0.5} | settings))


def test_per_cost_keeps_more_for_the_same_budget() -> None:
    """What is worth little for what it costs goes first, so more of the importance stays."""
    torch.manual_seed(0)
    model = SmallResNet(16).eval()
    graph = gator.trace(model, torch.zeros(1, 1, 8, 8))
    left = {}
    for per_cost in (False, True):
        kept = gator.one_shot(model, graph, "l1", target=0.5, min_width=2, per_cost=per_cost)
        assert gator.predict_macs(graph, kept) <= 0.5 * graph.macs
        left[per_cost] = sum(len(kept.get(edge.name, range(edge.width))) for edge in graph.edges)
    assert left[True] > left[False]


@pytest.mark.parametrize("why", ["frozen", "weight_norm"])
def test_taylor_needs_gradients_of_the_weights(why):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(4, 8)
    if why == "frozen":
        model[0].weight.requires_grad_(False)
    else:
        nn.utils.parametrizations.weight_norm(model[0])
    graph = gator.trace(model, x)

    def loss():
        return model(x).square().mean()

    with pytest.raises(gator.GatorError, match="needs the gradient of a weight that writes edge '0'"):
        gator.one_shot(model, graph, "taylor", ratios=0.5, loss=loss)
    kept = gator.one_shot(model, graph, "taylor", ratios={"2": 0.5}, loss=loss, keep=["0"])
    assert len(kept["2"]) == 8
