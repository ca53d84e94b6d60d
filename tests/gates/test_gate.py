"""The gate itself: how often it passes, its gradient, and one draw for all who read an edge."""

from __future__ import annotations

import copy

import pytest
import torch
from small import SmallResNet, backward, steady
from torch import nn

import gator
from gator.gates.gate import Gates, drawn_gates
from gator.gates.read import conv_of_gated, gated_conv
from gator.zoo.digits import DigitsBlock


def test_the_pass_rate_is_the_sigmoid_of_the_logit():
    graph = gator.trace(nn.Sequential(nn.Conv2d(1, 7, 1), nn.Conv2d(7, 2, 1)), torch.randn(1, 1, 2, 2))
    gates = Gates(graph, device=torch.device("cpu"), dtype=torch.float64, shared=frozenset())
    logits = torch.tensor([-2.0, -0.5, 0.0, 0.3, 1.0, 2.5, 5.293], dtype=torch.float64)
    with torch.no_grad():
        gates.logits.copy_(logits)
    draws = 100_000
    rate = gates.draw(draws).mean(0)
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
        copied = copy.deepcopy(model)
        del copied.forward
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


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("share", [0.05, 0.6])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("small", [0, 1 << 16], ids=["large", "small"])
def test_the_quick_convolution_is_the_plain_one(rows, share, groups, channels_last, small, monkeypatch):
    """Closed slices set to zero for a moment give what multiplication gives, forward and backward, and are put back."""
    monkeypatch.setattr("gator.gates.read._SMALL", small)
    channels = 12
    x = torch.randn(5, channels, 6, 6, dtype=torch.float64)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(8, channels // groups, 3, 3, dtype=torch.float64)
    bias, gate = torch.randn(8, dtype=torch.float64), torch.ones(rows, channels if rows > 1 else channels // groups).double()
    gate.view(-1)[: max(1, int(share * gate.numel()))] = 0
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias, gate)]
    plain = [t.clone().requires_grad_() for t in (x, weight, bias, gate)]
    for tensor in leaves[:2]:
        assert tensor.grad_fn is None
    before = [t.detach().clone() for t in leaves]
    quick = gated_conv(*leaves, rows == 1, [2], [1], [1], groups)
    assert type(quick.grad_fn).__name__ == "_GatedConvBackward"
    a, b, c, g = plain
    if rows == 1:
        expected = nn.functional.conv2d(a, b * g[0][None, :, None, None], c, 2, 1, 1, groups)
    else:
        expected = nn.functional.conv2d(a * g[:, :, None, None], b, c, 2, 1, 1, groups)
    assert torch.allclose(quick, expected, rtol=1e-12)
    slope = torch.randn_like(expected)
    (quick * slope).sum().backward()
    (expected * slope).sum().backward()
    for one, other, held in zip(leaves, plain, before, strict=True):
        assert torch.equal(one.detach(), held)
        assert torch.allclose(one.grad, other.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tiny", [0, 1 << 16], ids=["in_rows", "broadcast"])
@pytest.mark.parametrize("shape", [(8, 12, 3, 3), (8, 12, 1, 1), (80, 12, 3, 3)], ids=["3x3", "1x1", "weight_larger_than_x"])
def test_a_small_convolution_is_a_product(shape, tiny, monkeypatch):
    monkeypatch.setattr("gator.gates.read._TINY", tiny)
    leaves = [torch.randn(s, dtype=torch.float64) for s in ((5, 12, 6, 6), shape)]
    gate = torch.ones(1, 12, dtype=torch.float64)
    gate[0, :3] = 0
    leaves = [t.requires_grad_() for t in (*leaves, gate)]
    plain = [t.detach().clone().requires_grad_() for t in leaves]
    found = conv_of_gated(*leaves[:2], None, leaves[2], True, [2], [1], [1], 1)
    assert type(found.grad_fn).__name__ == "ConvolutionBackward0"
    x, weight, g = plain
    expected = nn.functional.conv2d(x, weight * g[0][None, :, None, None], None, 2, 1)
    slope = torch.randn_like(expected)
    (found * slope).sum().backward()
    (expected * slope).sum().backward()
    assert torch.allclose(found, expected, rtol=1e-12)
    for one, other in zip(leaves, plain, strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-10, atol=1e-12)


def test_depthwise_convolutions_carry_a_gate_on_without_reading_it_twice():
    model = nn.Sequential(nn.Conv2d(1, 6, 1), nn.Conv2d(6, 6, 3, 1, 1, groups=6), nn.Conv2d(6, 2, 1)).double().train()
    x = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    pruner = gator.Pruner(model, x, alpha=1.0, per="batch")
    with torch.no_grad():
        pruner.gates.logits.fill_(0.0)
    result = model(x)
    drawn = pruner._forward.last.detach()
    by_hand = model[2](model[1](model[0](x)) * drawn[0, :, None, None])
    assert torch.allclose(result, by_hand, rtol=1e-12)
    result.sum().backward()
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
