"""Training with gates on scikit-learn's digits: the budget is met, what the task does not need goes, the accuracy stays.

Another processor rounds differently, and after a hundred steps that is another network. So these tests assert what is
guaranteed, what is planted into the network so that the answer is known, or a wide margin over several seeds.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from digits import BATCH, accuracy, digits, fit, recalibrate
from small import SmallResNet
from torch import nn

import gator

pytestmark = pytest.mark.trains

X = torch.randn(1, 1, 8, 8)
SEEDS = (0, 1, 2)
EPOCH = 1347 // BATCH  # steps of one


def same_outputs(model: nn.Module, small: nn.Module) -> None:
    _, _, x, _ = digits()
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), small.eval()(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cost", ["flops", "memory"])
def test_half_of_the_cost_goes(cost):
    torch.manual_seed(0)
    model = SmallResNet(8)
    fit(model, 2, 0.1, seed=0)
    pruner = gator.Pruner(model, X, cost=cost, target=0.5, steps=3 * EPOCH)
    fit(model, 3, 0.05, seed=10, pruner=pruner, cosine=False)
    assert pruner.finished
    small = pruner.cut()
    same_outputs(model, small)  # what was trained is what was cut
    after, dense = gator.measure(small, X), gator.measure(SmallResNet(8), X)
    left, before = (after.macs, dense.macs) if cost == "flops" else (after.bytes, dense.bytes)
    unit = max(pruner.prices.per_channel([edge.width for edge in pruner.graph.edges]))
    assert before / 2 - unit < left <= before / 2


def test_channels_that_the_task_does_not_need_go_first():
    """Half of the channels inside every block are read by nobody: nearly all that are closed are among them."""
    idle_closed = needed_closed = 0
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = SmallResNet(8)
        idle = {f"blocks.{index}.conv1": _read_by_nobody_(block.conv2) for index, block in enumerate(model.blocks)}
        fit(model, 4, 0.1, seed=seed)
        pruner = gator.Pruner(model, X, target=0.6, steps=4 * EPOCH)
        fit(model, 4, 0.05, seed=seed, pruner=pruner, cosine=False)
        for edge, channels in idle.items():
            closed = set(range(2 * len(channels))) - set(pruner.kept.get(edge, range(2 * len(channels))))
            idle_closed += len(closed & channels)
            needed_closed += len(closed - channels)
    assert idle_closed > 20  # of 72
    assert needed_closed < idle_closed / 2  # as many, if the choice were left to chance


def _read_by_nobody_(reader: nn.Conv2d) -> set[int]:
    """Half of the channels that this layer reads, with weights of zero that stay zero in training."""
    idle = torch.randperm(reader.in_channels)[: reader.in_channels // 2]
    mask = torch.ones_like(reader.weight)
    mask[:, idle] = 0
    with torch.no_grad():
        reader.weight.mul_(mask)
    reader.weight.register_hook(lambda gradient: gradient * mask)
    return set(idle.tolist())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_that_the_task_does_not_need_goes_whole(seed):
    """Its output is zero and stays zero: under the pull of the cost alone all its inner channels close."""
    torch.manual_seed(seed)
    model = SmallResNet(8)
    norm = model.blocks[1].bn2
    for parameter in (norm.weight, norm.bias):
        nn.init.zeros_(parameter).requires_grad_(False)
    fit(model, 2, 0.1, seed=seed)
    pruner = gator.Pruner(model, X, alpha=4.0, gamma=1.0)
    fit(model, 6, 0.05, seed=seed, pruner=pruner, cosine=False)
    assert pruner.kept["blocks.1.conv1"] == []
    small = pruner.cut()
    assert not any(name.startswith(("blocks.1.conv", "blocks.1.bn")) for name, _ in small.named_parameters())
    assert gator.measure(small, X).macs == pruner.cost_left
    same_outputs(model, small)


@pytest.mark.slow
def test_half_the_network_is_nearly_as_good():
    """On average over the seeds: right after the cut with new norm statistics, and after a few epochs more."""
    dense, cut, tuned = [], [], []
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = SmallResNet(8)
        fit(model, 8, 0.1, seed=seed)
        dense.append(accuracy(model))
        pruner = gator.Pruner(model, X, target=0.5, steps=8 * EPOCH)
        fit(model, 8, 0.05, seed=seed + 10, pruner=pruner, cosine=False)
        small = recalibrate(pruner.cut())
        cut.append(accuracy(small))
        fit(small, 6, 0.05, seed=seed + 20)
        tuned.append(accuracy(small))
    assert np.mean(dense) > 90
    assert np.mean(cut) > 70
    assert np.mean(tuned) > np.mean(dense) - 2


def test_self_pruning_is_reported_and_a_gamma_proposed():
    torch.manual_seed(0)
    model = SmallResNet(8)
    fit(model, 2, 0.1, seed=0)
    before = copy.deepcopy(model.state_dict())

    def train(copied, pruner):
        fit(copied, 2, 0.05, seed=3, pruner=pruner, cosine=False)

    found = gator.calibrate_gamma(model, X, train, gammas=(0.1, 300.0))
    assert [row.gamma for row in found.rows] == [0.1, 300.0]
    assert found.rows[0].closed == 0
    assert found.rows[1].cost_gone > 0.005  # gates that move this fast close by themselves
    assert found.gamma == 0.1
    assert "proposed: gamma=0.1" in str(found)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(gator.GatorError, match=r"never called pruner.step"):
        gator.calibrate_gamma(model, X, lambda copied, pruner: None, gammas=(0.1,))
