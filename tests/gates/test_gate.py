"""The gate itself: how often it passes, its gradient, and one draw for all who read an edge."""

from __future__ import annotations

import copy

import pytest
import torch
from small import SmallResNet, backward, steady
from torch import nn

import gator
from gator.gates.drawn_gates import DrawnGates, drawn_gates
from gator.gates.settings import GateSettings
from gator.zoo.digits import DigitsBlock


def test_the_pass_rate_is_the_sigmoid_of_the_logit():
    graph = gator.trace(nn.Sequential(nn.Conv2d(1, 7, 1), nn.Conv2d(7, 2, 1)), torch.randn(1, 1, 2, 2))
    gates = DrawnGates(graph, GateSettings(), device=torch.device("cpu"), dtype=torch.float64)
    logits = torch.tensor([-2.0, -0.5, 0.0, 0.3, 1.0, 2.5, 5.293], dtype=torch.float64)
    with torch.no_grad():
        gates.logits.copy_(logits)
    draws = 100_000
    rate = gates.of_forward(draws, draws).mean(0)
    expected = torch.sigmoid(logits)
    error = (expected * (1 - expected) / draws).sqrt()
    assert ((rate - expected).abs() <= 5 * error).all()


def test_gates_begin_with_a_probability_of_0995():
    pruner = gator.Pruner(SmallResNet(), torch.randn(2, 1, 8, 8), alpha=1.0)
    assert torch.allclose(pruner.gates.probabilities, torch.tensor(0.995))


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_the_straight_through_gradient_is_the_analytic_one(temperature):
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    noise, weight = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    alive = torch.tensor([True, True, False, True, True])
    drawn = drawn_gates(logits, noise, alive, ~alive, temperature)
    assert torch.equal(drawn, ((logits + noise >= 0) & alive).double())
    (drawn * weight).sum().backward()
    soft = torch.sigmoid((logits.detach() + noise) / temperature)
    assert torch.allclose(logits.grad, (weight * soft * (1 - soft) / temperature * alive).sum(0), rtol=1e-12)


@pytest.mark.parametrize("per", ["example", "batch"])
def test_every_member_of_an_edge_sees_the_same_draw(per):
    """The highway is read by two blocks and the head: where a channel is shut for one, it is shut for all."""
    model = SmallResNet(6).double().train()
    pruner = gator.Pruner(model, torch.randn(4, 1, 8, 8).double(), alpha=1.0, per=per)
    with torch.no_grad():
        pruner.gates.logits.fill_(0.3)
    x = torch.randn(4, 1, 8, 8).double()
    result = model(x)
    drawn = pruner._forward.last.detach()
    assert 0 < float(drawn.mean()) < 1
    expected = _by_hand(model, pruner, drawn, x)
    assert torch.allclose(result, expected, rtol=1e-10)


def _by_hand(model, pruner, drawn, x):
    """The same network with the gates written into its forward, one edge at a time."""
    names = [edge.name for edge in pruner.graph.edges]

    def gate(name, rank=4):
        part = drawn[:, pruner.gates.of_edge(names.index(name))]
        return part[:, :, None, None] if rank == 4 else part

    with torch.no_grad():
        copied = SmallResNet(6).double().train()
        copied.load_state_dict(model.state_dict())
        h, highway = torch.relu(copied.stem(x)), "stem"
        for index, block in enumerate(copied.blocks):
            inner = f"blocks.{index}.conv1"
            y = torch.relu(block.bn1(block.conv1(h * gate(highway))))
            y = block.bn2(block.conv2(y * gate(inner)))
            if isinstance(block.shortcut, nn.Conv2d):
                h, highway = torch.relu(y + block.shortcut(h * gate(highway))), f"blocks.{index}.conv2"
            else:
                h = torch.relu(y + h)
        return copied.head(h.mean((2, 3)) * gate(highway, 2))


def test_draws_differ_between_forwards_and_eval_is_deterministic():
    model = SmallResNet()
    x = torch.randn(4, 1, 8, 8)
    plain = model.eval()(x)
    pruner = gator.Pruner(model, x, alpha=1.0)
    with torch.no_grad():
        pruner.gates.logits.fill_(0.5)
    assert torch.equal(model(x), plain)  # nothing is closed for good, so eval is the network as it was
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_examples_have_draws_of_their_own_and_a_batch_has_one():
    x = torch.randn(16, 1, 8, 8)
    for per, rows in (("example", 16), ("batch", 1)):
        model = SmallResNet().train()
        pruner = gator.Pruner(model, x, alpha=1.0, per=per)
        with torch.no_grad():
            pruner.gates.logits.fill_(0.0)
        model(x)
        assert pruner._forward.last.shape[0] == rows
        pruner.detach()


def test_open_gates_leave_a_step_as_it_is():
    """Same loss, same gradients, with every gate open."""
    x, y = torch.randn(4, 1, 8, 8, dtype=torch.float64), torch.randint(0, 10, (4,))
    for per in ("example", "batch"):
        model = SmallResNet().double().train()
        plain = copy.deepcopy(model)
        pruner = gator.Pruner(model, x, alpha=0.0, per=per)
        steady(pruner)
        loss = backward(pruner, x, y)
        reference = nn.functional.cross_entropy(plain(x), y)
        reference.backward()
        assert torch.allclose(loss, reference.detach(), rtol=1e-12)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad, rtol=1e-9, atol=1e-12)
        pruner.detach()


def test_depthwise_convolutions_carry_a_gate_on_without_reading_it_twice():
    model = nn.Sequential(nn.Conv2d(1, 6, 1), nn.Conv2d(6, 6, 3, 1, 1, groups=6), nn.Conv2d(6, 2, 1)).double().train()
    x = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    pruner = gator.Pruner(model, x, alpha=1.0, per="batch")
    with torch.no_grad():
        pruner.gates.logits.fill_(0.0)
    result = model(x)
    drawn = pruner._forward.last.detach()
    result.sum().backward()
    pruner.detach()
    by_hand = model[2](model[1](model[0](x)) * drawn[0, :, None, None])
    assert torch.allclose(result, by_hand, rtol=1e-12)
    gate = drawn.clone().requires_grad_()
    model[2](model[1](model[0](x)) * gate[0, :, None, None]).sum().backward()
    logits = pruner.gates.logits
    assert logits.grad is not None
    # What reaches the logits is the gradient of that one product, through the slope of the draw.
    slope = logits.grad / gate.grad[0]
    assert ((slope > 0) & (slope <= 0.25 + 1e-9)).all()


def test_a_block_alone_can_be_gated():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), DigitsBlock(4, 4), nn.Flatten(), nn.Linear(4 * 64, 3)).train()
    x = torch.randn(2, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    backward(pruner, x, torch.tensor([0, 1]))
    assert float(pruner.gates.logits.grad.abs().sum()) > 0
