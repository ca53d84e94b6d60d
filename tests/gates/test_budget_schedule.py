"""A target is approached gradually, by what the gates have learned to first and second order."""

from __future__ import annotations

import pytest
import torch
from small import SmallResNet
from torch import nn
from torch.nn import functional

import gator
from gator.gates.budget_schedule import Schedule
from gator.gates.gate import drawn_gates


def test_the_schedule_falls_from_the_whole_cost_to_the_target():
    schedule = Schedule(whole=10.0, target=4.0, steps=100)
    allowed = [schedule.allowed(step) for step in range(101)]
    assert allowed[:10] == [10.0] * 10
    assert allowed[schedule.last_step :] == [4.0] * (101 - schedule.last_step)
    assert allowed == sorted(allowed, reverse=True)
    assert schedule.last_step == 75
    assert Schedule(10.0, 4.0, 1).last_step == 1


@pytest.mark.trains
@pytest.mark.parametrize("per", ["example", "batch"])
def test_channels_close_throughout_the_gated_phase(per):
    torch.manual_seed(0)
    model = SmallResNet(16).train()
    x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))
    pruner = gator.Pruner(model, x, target=0.5, steps=300, per=per)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule, cost = pruner.budget.schedule, [1.0]
    for step in range(1, 301):
        loss = functional.cross_entropy(model(x), y) + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pruner.step(lr=0.02)
        cost.append(pruner.cost_left / pruner.whole_cost)
        assert pruner.cost_left <= schedule.allowed(step)
        assert pruner.finished or step < schedule.last_step
    assert cost[150] < 0.9
    assert cost[270] <= 0.5
    assert pruner.steps_taken <= 225  # the last part trains without noise
    assert len(set(cost)) > 20


class Gated(nn.Module):
    """Its loss is a sum over channels that are linear in their gates, so that all derivatives are known."""

    def __init__(self):
        super().__init__()
        self.write, self.read = nn.Conv2d(1, 6, 1), nn.Conv2d(6, 1, 1, bias=False)

    def forward(self, x):
        return self.read(self.write(x)).flatten(1)


def gradients(scale, parts):
    """The gradient that the logits learn from, and what it should be by formula."""
    torch.manual_seed(0)
    model = Gated().double().train()
    x = torch.randn(8, 1, 1, 1).double()
    pruner = gator.Pruner(model, x[:2], target=0.5, steps=1000, momentum=0.0, gamma=1.0, round_to=1)
    gates, noise = pruner.gates, torch.logit(torch.rand(8, 6).double() * 0.98 + 0.01) - 4
    expected, rows = torch.zeros(6).double(), iter(noise.chunk(parts))
    gates.noise = lambda _: next(rows)
    for part, drawn_noise in zip(x.chunk(parts), noise.chunk(parts), strict=True):
        loss = (model(part)[:, 0].square()).mean() + pruner.loss()
        (scale * loss / parts).backward()
        logits = gates.logits.detach()
        gate = drawn_gates(logits, drawn_noise, gates.alive, gates.held, 1.0)
        channels = (model.write(part)[:, :, 0, 0] * model.read.weight[0, :, 0, 0]).detach()
        each = 2 * (channels * gate).sum(1, keepdim=True) * channels  # the gradient of one example's loss by its gates
        soft = torch.sigmoid(logits + drawn_noise)
        worth = each - (gate - 0.5) * each.square()
        expected += ((worth + pruner.alpha * pruner._loss.lambda_hat) * soft * (1 - soft)).mean(0) / parts
    found = []
    update = gator.gates.pruner.update_
    try:
        gator.gates.pruner.update_ = lambda gates, gradient, *_, **__: found.append(gradient)
        pruner.step(lr=0.1)
    finally:
        gator.gates.pruner.update_ = update
    return found[0], expected


@pytest.mark.parametrize(("scale", "parts"), [(1.0, 1), (1.0, 4), (1024.0, 1), (0.125, 2)])
def test_gates_learn_from_first_and_second_derivatives(scale, parts):
    found, expected = gradients(scale, parts)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_with_an_alpha_gates_learn_from_the_first_derivative_as_in_the_paper():
    model, x = SmallResNet(6).train(), torch.randn(4, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    (model(x).square().mean() + pruner.loss()).backward()
    assert pruner.gates.curvature.grad is None
    assert pruner.gates.logits.grad.abs().sum() > 0
