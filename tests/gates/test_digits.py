"""A small residual network on scikit-learn's digits: half of it goes, and it is as good as before."""

from __future__ import annotations

import copy

import pytest
import torch
from digits import BATCH, accuracy, fit
from small import SmallResNet

import gator

X = torch.randn(1, 1, 8, 8)


@pytest.fixture(scope="module")
def trained():
    """Dense networks by seed, trained once."""
    found = {}

    def get(seed):
        if seed not in found:
            torch.manual_seed(seed)
            model = SmallResNet(8)
            fit(model, 15, 0.1, seed=seed)
            found[seed] = (model, accuracy(model))
        model, dense = found[seed]
        return copy.deepcopy(model), dense

    return get


@pytest.mark.parametrize("cost", ["flops", "memory"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_half_of_the_cost_goes_and_the_accuracy_stays(seed, cost, trained):
    model, dense = trained(seed)
    assert dense > 97
    epochs = 12
    pruner = gator.Pruner(model, X, cost=cost, target=0.5, steps=epochs * (1347 // BATCH))
    fit(model, epochs, 0.05, seed=seed + 10, pruner=pruner, cosine=False)
    assert pruner.finished
    small = pruner.cut()
    assert accuracy(small) == accuracy(model)  # what was trained is what was cut
    footprint, whole = gator.measure(small, X), gator.measure(SmallResNet(8), X)
    left, before = (footprint.macs, whole.macs) if cost == "flops" else (footprint.bytes, whole.bytes)
    unit = max(pruner.prices.per_channel([edge.width for edge in pruner.graph.edges]))
    assert before / 2 - unit < left <= before / 2
    fit(small, 12, 0.05, seed=seed + 20)
    assert accuracy(small) >= dense - 0.5


def test_a_rising_alpha_takes_a_whole_block():
    torch.manual_seed(0)
    model = SmallResNet(8, depth=4)
    fit(model, 10, 0.1, seed=0)
    pruner = gator.Pruner(model, X, alpha=1.0, gamma=1.0)
    for alpha in (1, 2, 4, 8, 16, 32, 64):
        pruner.alpha = float(alpha)
        fit(model, 4, 0.05, seed=alpha, pruner=pruner, cosine=False)
        if 0 in pruner.gates.widths():
            break
    closed = [edge.name for edge, width in zip(pruner.graph.edges, pruner.gates.widths(), strict=True) if width == 0]
    assert closed
    small = pruner.cut()
    names = [name for name, _ in small.named_parameters()]
    for edge in closed:
        block = edge.rpartition(".")[0]
        assert not any(name.startswith((f"{block}.conv", f"{block}.bn")) for name in names)
    assert gator.measure(small, X).macs == pruner.cost_left
    fit(small, 8, 0.05, seed=1)
    assert accuracy(small) > 90


def test_self_pruning_is_reported_and_a_gamma_proposed(trained):
    model, _ = trained(0)
    before = copy.deepcopy(model.state_dict())

    def train(copied, pruner):
        fit(copied, 2, 0.05, seed=3, pruner=pruner, cosine=False)

    found = gator.calibrate_gamma(model, X, train, gammas=(0.1, 50.0))
    assert [row.gamma for row in found.rows] == [0.1, 50.0]
    assert found.rows[0].closed == 0
    assert found.rows[1].cost_gone > 0.005  # gates that move this fast close by themselves
    assert found.gamma == 0.1
    assert "proposed: gamma=0.1" in str(found)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(gator.GatorError, match=r"never called pruner.step"):
        gator.calibrate_gamma(model, X, lambda copied, pruner: None, gammas=(0.1,))
