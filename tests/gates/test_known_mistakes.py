"""Mistakes of the paper authors' code: each has a test that fails if it is made here."""

from __future__ import annotations

import pytest
import torch
from small import SmallResNet, backward, close, steady
from support import gap, randomised
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import gator


def pruned(model, x, share=0.5):
    pruner = gator.Pruner(model, x, alpha=1.0, round_to=1)
    close(pruner, share)
    return pruner


def test_the_bias_of_the_classifier_survives_a_cut():
    model = randomised(SmallResNet(6))
    small = pruned(model, torch.randn(2, 1, 8, 8).double()).cut()
    assert torch.equal(small.head.bias, model.head.bias)


def test_batch_norms_keep_their_settings_and_statistics():
    model = SmallResNet(6)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps, module.momentum = 3e-3, 0.37
    model = randomised(model)
    pruner = pruned(model, torch.randn(2, 1, 8, 8).double())
    small = pruner.cut()
    index = [edge.name for edge in pruner.graph.edges].index("blocks.0.conv1")
    alive = pruner.gates.alive[pruner.gates.of_edge(index)]
    assert 0 < int(alive.sum()) < 6
    one, two = small.blocks[0].bn1, model.blocks[0].bn1
    assert (one.eps, one.momentum, one.num_features) == (3e-3, 0.37, int(alive.sum()))
    for name in ("running_mean", "running_var", "weight", "bias"):
        assert torch.equal(getattr(one, name), getattr(two, name)[alive])


def test_grouped_convolutions_are_cut():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, groups=4), nn.ReLU(), nn.Conv2d(8, 2, 1))
    model = randomised(model)
    x = torch.randn(2, 3, 6, 6).double()
    pruner = pruned(model, x)
    small = pruner.cut()
    assert small[2].weight.numel() < model[2].weight.numel()
    assert gap(small(x), model.eval()(x)) <= 1e-8


def test_all_micro_batches_count():
    """Two micro-batches before a step: the gates move by the gradient of both, not of the last."""
    model = SmallResNet(6).double().train()
    x, y = torch.randn(8, 1, 8, 8).double(), torch.randint(0, 10, (8,))
    pruner = gator.Pruner(model, x, alpha=0.0, momentum=0.0)
    pruner.gates.noise = lambda rows: torch.full((rows, len(pruner.gates)), -5.0, dtype=torch.float64)
    parts = []
    for part in (slice(0, 4), slice(4, 8)):
        backward(pruner, x[part], y[part])
        parts.append(pruner.gates.logits.grad.clone())
        pruner.gates.logits.grad = pruner._scale.grad = None
    for part in (slice(0, 4), slice(4, 8)):
        backward(pruner, x[part], y[part])
    assert torch.allclose(pruner.gates.logits.grad, parts[0] + parts[1])


@pytest.mark.parametrize("block", [0, 2], ids=["inside a stage", "first of a stage"])
def test_any_block_can_go(block):
    model = randomised(SmallResNet(6))
    x = torch.randn(2, 1, 8, 8).double()
    pruner = gator.Pruner(model, x, alpha=1.0)
    index = [edge.name for edge in pruner.graph.edges].index(f"blocks.{block}.conv1")
    with torch.no_grad():
        pruner.gates.logits[pruner.gates.of_edge(index)] = -1.0
    pruner._close()
    assert pruner.gates.widths()[index] == 0
    small = pruner.cut()
    assert not any(f"blocks.{block}.conv" in name for name, _ in small.named_parameters())
    assert gap(small.eval()(x), model.eval()(x)) <= 1e-8
    with FlopCounterMode(display=False) as counter:
        small(x)
    assert gator.measure(small, x).macs == pruner.cost_left == counter.get_total_flops() // 2


@pytest.mark.parametrize("inner", [0, 1])
def test_one_inner_edge_of_a_bottleneck_alone_can_go(inner, torchvision):
    model = randomised(torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [1, 2, 1, 1], num_classes=5))
    x = torch.randn(1, 3, 32, 32).double()
    pruner = gator.Pruner(model, x, alpha=1.0)
    index = [edge.name for edge in pruner.graph.edges].index(f"layer2.1.conv{inner + 1}")
    with torch.no_grad():
        pruner.gates.logits[pruner.gates.of_edge(index)] = -1.0
    pruner._close()
    assert (pruner.gates.widths() == 0).sum() == 1
    small = pruner.cut()
    assert not any("layer2.1." in name and "weight" in name for name, _ in small.named_parameters())
    assert gap(small.eval()(x), model.eval()(x)) <= 1e-8
    with FlopCounterMode(display=False) as counter:
        small(x)
    assert pruner.cost_left == counter.get_total_flops() // 2


def test_a_highway_cannot_close_altogether():
    model, x = SmallResNet(6), torch.randn(2, 1, 8, 8)
    graph = gator.trace(model, x)
    with pytest.raises(gator.KeptError, match="edge 'stem' keeps no channel"):
        gator.cut(model, graph, {"stem": []})
    pruner = gator.Pruner(model, graph=graph, alpha=1.0)
    with torch.no_grad():
        pruner.gates.logits.fill_(-1.0)
    pruner._close()  # in training the last channel that holds the network together stays
    assert min(pruner.gates.widths()[[edge.name == "stem" for edge in graph.edges]]) == 1
    assert torch.isfinite(pruner._loss.lambda_hat).all()
    assert torch.isfinite(pruner.cut().eval()(x)).all()


def test_evaluation_has_no_noise():
    model, x = SmallResNet(6).eval(), torch.randn(2, 1, 8, 8)
    pruner = pruned(model, x)
    with torch.no_grad():
        pruner.gates.logits.clamp_(max=0.1)
    assert torch.equal(model(x), model(x))
    state = torch.get_rng_state()
    model(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_loading_restores_what_was_measured():
    """The state that is loaded gives the outputs, and so the accuracy, of the state that was saved."""
    torch.manual_seed(0)
    model, x = randomised(SmallResNet(6)), torch.randn(4, 1, 8, 8).double()
    pruner = pruned(model, x)
    steady(pruner)
    saved, weights, best = pruner.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}, model.eval()(x)
    fresh = SmallResNet(6).double()
    other = gator.Pruner(fresh, x, alpha=1.0)
    fresh.load_state_dict(weights)
    other.load_state_dict(saved)
    assert torch.equal(fresh.eval()(x), best)
