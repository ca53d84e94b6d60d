"""A target is approached gradually, closing first the channels with the smallest squared gradients for their cost."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from small import SmallResNet
from torch import nn
from torch.nn import functional

import gator
from gator.gates.budget_schedule import Schedule


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
    assert pruner.steps_taken <= 225  # the last part trains the network as it will be cut
    assert len(set(cost)) > 20


class Gated(nn.Module):
    """Its loss is a sum over channels that are linear in their gates, so that all derivatives are known."""

    def __init__(self):
        super().__init__()
        self.write, self.read = nn.Conv2d(1, 6, 1), nn.Conv2d(6, 1, 1, bias=False)

    def forward(self, x):
        return self.read(self.write(x)).flatten(1)


def worths(scale, parts):
    """What the pruner takes the channels to be worth in one step, and their squared gradients by formula."""
    torch.manual_seed(0)
    model = Gated().double().train()
    x = torch.randn(8, 1, 1, 1).double()
    pruner = gator.Pruner(model, x[:2], target=0.5, steps=1000, round_to=1)
    expected = torch.zeros(6).double()
    for part in x.chunk(parts):
        loss = (model(part)[:, 0].square()).mean() + pruner.loss()
        (scale * loss / parts).backward()
        channels = (model.write(part)[:, :, 0, 0] * model.read.weight[0, :, 0, 0]).detach()
        each = 2 * channels.sum(1, keepdim=True) * channels  # the gradient of one example's loss by its gates
        expected += each.square().mean(0) / parts
    pruner.step(lr=0.1)
    return pruner.gates.worth, expected


@pytest.mark.parametrize(("scale", "parts"), [(1.0, 1), (1.0, 4), (1024.0, 1), (0.125, 2)])
def test_gates_learn_from_the_squared_gradients_of_the_examples(scale, parts):
    found, expected = worths(scale, parts)
    torch.testing.assert_close(found, expected / 100, rtol=1e-9, atol=1e-12)


class Folded(Gated):
    """A second reader sees the two pixels of an example as two examples: no axis tells it which belong together."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(6, 1, bias=False)

    def forward(self, x):
        written = self.write(x)
        pixels = written.permute(0, 2, 3, 1).reshape(-1, 6)
        return self.read(written).sum((2, 3)) + self.second(pixels).reshape(-1, 2).sum(1, keepdim=True)


class Bound(Gated):
    """Runs at one batch size only."""

    def forward(self, x):
        return self.read(self.write(x).reshape(8, 6, 1, 1)).flatten(1)


@pytest.mark.parametrize(("kind", "per"), [(Gated, "batch"), (Folded, "example"), (Bound, "batch")])
def test_examples_that_cannot_be_told_apart_are_squared_together(kind, per):
    torch.manual_seed(0)
    model, x = kind().double().train(), torch.randn(8, 1, 2 if kind is Folded else 1, 1).double()
    pruner = gator.Pruner(model, x, target=0.5, steps=1000, per=per, round_to=1)
    output = model(x)[:, 0]
    (output.square().mean() + pruner.loss()).backward()
    expected = torch.zeros(6).double()
    for weight in (model.read.weight[0, :, 0, 0], *([model.second.weight[0]] if kind is Folded else [])):
        channels = (model.write(x).sum((2, 3)) * weight).detach()
        expected += 8 * (2 * output.detach()[:, None] * channels).mean(0).square() / 100
    pruner.step()
    torch.testing.assert_close(pruner.gates.worth, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("per", ["example", "batch"])
def test_every_reader_has_a_square_of_its_own(per):
    """In the sum of their gradients two readers may cancel; without the channel both change."""

    class Cancelling(Gated):
        def __init__(self):
            super().__init__()
            self.other = copy.deepcopy(self.read)

        def forward(self, x):
            written = self.write(x)
            return (self.read(written) - self.other(written)).flatten(1)

    torch.manual_seed(0)
    model, x = Cancelling().double().train(), torch.randn(8, 1, 1, 1).double()
    pruner = gator.Pruner(model, x, target=0.5, steps=1000, per=per, round_to=1)
    (model(x).mean() + pruner.loss()).backward()
    pruner.step()
    each = (model.write(x)[:, :, 0, 0] * model.read.weight[0, :, 0, 0]).detach()
    square = each.square().mean(0) if per == "example" else 8 * each.mean(0).square()
    torch.testing.assert_close(pruner.gates.worth, 2 * square / 100, rtol=1e-9, atol=1e-12)


def test_a_channel_counts_more_the_narrower_its_edge_has_become():
    """Channels that are worth about the same leave edges of about the same width; by their sums one edge would close first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    pruner = gator.Pruner(model, torch.randn(2, 4), target=0.4, steps=1000, round_to=1)
    pruner.gates.worth = torch.ones(64) + 1e-3 * torch.arange(64)
    pruner.project()
    first, second = (len(channels) for channels in pruner.kept.values())
    assert abs(first - second) <= 2


def test_the_dearest_of_equals_goes_first():
    model, x = SmallResNet(8), torch.randn(2, 1, 8, 8)
    pruner = gator.Pruner(model, x, target=0.5, steps=10, round_to=1)
    pruner.gates.worth.fill_(1.0)
    prices = pruner.prices.per_channel(pruner.gates.widths())
    alive = pruner.budget.on_schedule(pruner.gates.living(), np.ones(len(pruner.gates)), 2)
    assert list(pruner.graph.masks_of(alive)) == [pruner.graph.edges[int(prices.argmax())].name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
def test_the_scale_of_the_loss_does_not_matter(scale, dtype):
    """A loss of another kind (a distance between embeddings, say) has another size and chooses by the same rule."""
    kept = []
    for factor in (1.0, scale):
        torch.manual_seed(0)
        model, x = SmallResNet(8).to(dtype).train(), torch.randn(8, 1, 8, 8).to(dtype)
        pruner = gator.Pruner(model, x, target=0.5, steps=10, round_to=1)
        while not pruner.finished:
            (factor * model(x).square().mean() + pruner.loss()).backward()
            pruner.step()
        kept.append(pruner.kept)
    assert kept[0] == kept[1]


def test_closed_channels_are_worth_nothing():
    model, x = SmallResNet(8).train(), torch.randn(8, 1, 8, 8)
    pruner = gator.Pruner(model, x, target=0.5, steps=10, round_to=1)
    while not pruner.finished:
        (model(x).square().mean() + pruner.loss()).backward()
        pruner.step()
        assert not pruner.gates.worth[~pruner.gates.alive].any()
    assert pruner.gates.worth[pruner.gates.alive].any()


@pytest.mark.parametrize("per", ["example", "batch"])
def test_on_the_way_to_a_target_the_network_computes_what_its_living_channels_compute(per):
    """In train mode too: no noise disturbs it."""
    model, x = SmallResNet(8).double().train(), torch.randn(4, 1, 8, 8).double()
    plain = copy.deepcopy(model)
    pruner = gator.Pruner(model, x, target=0.5, steps=10, per=per, round_to=1)
    assert torch.equal(model(x), plain(x))
    for _ in range(4):
        (model(x).square().mean() + pruner.loss()).backward()
        pruner.step(lr=0.1)
    assert pruner.kept
    assert not pruner.finished
    torch.testing.assert_close(model(x), pruner.cut_so_far().train()(x), rtol=1e-8, atol=1e-8)


def test_with_an_alpha_gates_learn_from_the_first_derivative_as_in_the_paper():
    model, x = SmallResNet(6).train(), torch.randn(4, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    (model(x).square().mean() + pruner.loss()).backward()
    before, gradient = pruner.gates.logits.detach().clone(), pruner.gates.logits.grad.clone()
    price = pruner._loss.lambda_hat
    pruner.step(lr=0.1)
    torch.testing.assert_close(before - pruner.gates.logits.detach(), 0.2 * 0.1 * gradient / price)
