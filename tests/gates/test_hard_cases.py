"""Gates on every hard case: a draw computes what the mask of that draw computes, per example and per batch."""

from __future__ import annotations

import pytest
import torch
from networks import CASES
from small import SmallResNet, close, steady
from support import doubled, gap, randomised, run
from torch import nn
from torch.nn import functional

import gator

RANDOM = ("drop_path", "prelu_and_dropout", "transformer_encoder", "transformer_decoder")
COMPUTED = ("weight_norm", "old_weight_norm", "spectral_norm")  # their weights are computed: no gates


@pytest.mark.parametrize("name", [n for n in CASES if n not in RANDOM + COMPUTED])
def test_a_draw_is_a_mask(name):
    model, inputs, _ = CASES[name]()
    model, inputs = randomised(model), doubled(inputs)
    graph = gator.trace(model, inputs)
    model.train()
    for per in ("example", "batch"):
        pruner = gator.Pruner(model, graph=graph, alpha=1.0, per=per)
        noise = torch.randn(1, len(pruner.gates), generator=torch.Generator().manual_seed(3)).double() - 5.0
        noise[0, pruner.gates.starts[:-1]] = 50.0  # one of every edge is open
        pruner.gates.noise = lambda rows, n=noise: n.expand(rows, -1)
        with torch.enable_grad():
            result = call(model, inputs)
        drawn = pruner._forward.last.detach()
        assert 0 < float(drawn.mean()) < 1 or len(pruner.gates) < 6
        pruner.detach()
        kept = {e.name: drawn[0].bool()[graph.starts[i] : graph.starts[i + 1]] for i, e in enumerate(graph.edges)}
        with gator.masked(model, graph, kept):
            assert gap(result, run(model, inputs)) <= 1e-8


def call(model, inputs):
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def test_examples_of_different_draws_do_not_mix():
    """In a network without norms over the batch, every example is what it would be alone under its own mask."""
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(1, 6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 1))
    model = randomised(model).train()
    x = torch.randn(5, 2, 9, 9).double()
    graph = gator.trace(model, x)
    pruner = gator.Pruner(model, graph=graph, alpha=1.0)
    with torch.no_grad():
        pruner.gates.logits.fill_(0.7)
    result = model(x).detach()
    drawn = pruner._forward.last.detach().bool()
    pruner.detach()
    for row in range(5):
        kept = {e.name: drawn[row, graph.starts[i] : graph.starts[i + 1]] for i, e in enumerate(graph.edges)}
        if all(mask.any() for mask in kept.values()):
            with gator.masked(model, graph, kept):
                assert gap(result[row], model(x[row : row + 1])[0]) <= 1e-8


@pytest.mark.parametrize("per", ["example", "batch"])
def test_a_dead_bottleneck_is_the_same_in_training(per, torchvision):
    """One inner edge gone, the other narrowed: what is left of the block is a constant of the living channels."""
    model = randomised(torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [1, 2, 1, 1], num_classes=5))
    x = torch.randn(2, 3, 32, 32).double()
    pruner = gator.Pruner(model, x, alpha=1.0, per=per)
    names = [edge.name for edge in pruner.graph.edges]
    with torch.no_grad():
        pruner.gates.logits[pruner.gates.of_edge(names.index("layer2.1.conv1"))] = -1.0
        part = pruner.gates.of_edge(names.index("layer2.1.conv2"))
        pruner.gates.logits[part.start : part.start + 60] = -1.0
    pruner._close()
    steady(pruner)
    small = pruner.cut()
    assert gap(model.eval()(x), small.eval()(x)) <= 1e-8
    assert gap(model.train()(x), small.train()(x)) <= 1e-8


def test_what_a_limit_keeps_is_open_in_training_too():
    model, x = randomised(SmallResNet(8)), torch.randn(3, 1, 8, 8).double()
    pruner = gator.Pruner(model, x, alpha=1.0, min_width=4)
    with torch.no_grad():
        pruner.gates.logits.fill_(-3.0)
    pruner._close()
    assert (pruner.gates.widths() == 4).all()
    assert torch.equal(model.train()(x), model.train()(x))  # nothing is drawn any more
    assert gap(model.train()(x), pruner.cut().train()(x)) <= 1e-8
    assert pruner.gates.of_forward(5, 5).detach().sum(1).tolist() == [4.0 * len(pruner.graph.edges)] * 5


def test_round_to_holds_while_closing():
    model, x = SmallResNet(8), torch.randn(3, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0, round_to=4)
    with torch.no_grad():
        pruner.gates.logits[pruner.gates.of_edge(0)] = -3.0  # the highway cannot go: four of it stay
        part = pruner.gates.of_edge(1)
        pruner.gates.logits[part.start : part.start + 3] = -3.0  # three are not enough
    pruner._close()
    assert pruner.gates.widths()[:2].tolist() == [4, 8]
    with torch.no_grad():
        pruner.gates.logits[part.start + 3] = -3.0
    pruner._close()
    assert pruner.gates.widths()[:2].tolist() == [4, 4]


def test_an_old_hole_is_not_blamed_for_a_new_one():
    """A late block is gone already; a target that would close the stem ends, and leaves the block gone."""
    model, x = SmallResNet(4), torch.randn(2, 1, 8, 8)
    pruner = gator.Pruner(model, x, target=0.02, steps=10)
    names = [edge.name for edge in pruner.graph.edges]
    alive = pruner.gates.living().copy()
    alive[pruner.gates.of_edge(names.index("blocks.3.conv1"))] = False
    pruner._keep_only(alive)
    pruner.gates.worth.fill_(1.0)
    pruner.gates.worth[pruner.gates.of_edge(0)] = 0.0
    pruner.project()
    assert pruner.gates.widths()[names.index("blocks.3.conv1")] == 0
    assert pruner.gates.widths()[0] >= 1
    assert pruner.cost_left <= pruner.target
    assert gator.measure(pruner.cut(), x).macs == pruner.cost_left


class HandMadeNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


@pytest.mark.trains
def test_a_target_on_a_network_that_averages_over_channels():
    model = nn.Sequential(nn.Linear(5, 8), HandMadeNorm(8), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)).train()
    x, y = torch.randn(4, 5), torch.randint(0, 2, (4,))
    pruner = gator.Pruner(model, x, target=0.3, steps=12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        loss = functional.cross_entropy(model(x), y) + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pruner.step(lr=0.1)
    assert pruner.finished
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert gator.measure(pruner.cut(), x).macs == pruner.cost_left <= pruner.target


def test_all_gates_of_an_example_shut_is_a_number():
    model = nn.Sequential(nn.Linear(5, 4), HandMadeNorm(4), nn.Softmax(-1), nn.Linear(4, 2)).train()
    x = torch.randn(3, 5)
    pruner = gator.Pruner(model, x, alpha=1.0)
    pruner.gates.noise = lambda rows: torch.full((rows, len(pruner.gates)), -50.0)
    result = model(x)
    result.sum().backward()
    assert torch.isfinite(result).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_cut_on_the_way_to_a_target_ends_nothing():
    model, x = SmallResNet(8).train(), torch.randn(4, 1, 8, 8)
    pruner = gator.Pruner(model, x, target=0.5, steps=100)
    with pytest.warns(UserWarning, match="not reached yet"):
        small = pruner.cut()
    assert gator.measure(small, x).macs <= pruner.target
    assert not pruner.finished
    assert pruner.gates.living().all()


def test_a_target_above_the_cost_is_met_at_once():
    pruner = gator.Pruner(SmallResNet(4), torch.randn(1, 1, 8, 8), target="4 GMACs", steps=10)
    assert pruner.finished
    assert not pruner.kept


def test_a_last_batch_of_one_example():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 2, 1)).train()
    pruner = gator.Pruner(model, torch.randn(4, 3, 6, 6), alpha=1.0)
    with torch.no_grad():
        pruner.gates.logits.fill_(1.0)
    model(torch.randn(1, 3, 6, 6)).sum().backward()
    assert torch.isfinite(pruner.gates.logits.grad).all()


def test_a_forward_in_eval_mode_is_no_forward_to_learn_from():
    model, x = SmallResNet(4).train(), torch.randn(2, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    model(x)
    model.eval()(x)
    with pytest.raises(gator.GatorError, match="in train mode first"):
        pruner.loss()


def test_gates_stay_off_once_they_are_taken_off():
    model, x = SmallResNet(4), torch.randn(2, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    close(pruner, 0.5)
    with pytest.raises(gator.TraceError, match=r"pruner.cut\(\)"):
        gator.cut(model, pruner.graph, pruner.kept)
    pruner.detach()
    pruner.cut()
    assert "forward" not in model.__dict__
    pruner.shrink_()
    assert "forward" not in model.__dict__
    again = gator.Pruner(model, x, alpha=1.0)
    ours = model.head.forward
    model.head.forward = lambda *args: ours(*args)
    with pytest.raises(gator.GatorError, match=r"replaced the forward of head(.|\n)*unwrap_model"):
        again.cut()


def test_shrinking_a_weighted_cost_and_a_group_norm():
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 2, 1)
    )
    model = randomised(model).train()
    x = torch.randn(3, 1, 8, 8).double()
    cost = gator.WeightedCost((gator.Flops(), 0.7), (gator.Memory(), 0.3))
    pruner = gator.Pruner(model, x, alpha=1.0, cost=cost)
    assert pruner.cost_left == pytest.approx(1.0)
    close(pruner, 0.3)
    steady(pruner)
    before, expected = pruner.cost_left, model(x).detach()
    pruner.shrink_()
    steady(pruner)
    assert pruner.cost_left == pytest.approx(before, rel=1e-12)
    assert gap(expected, model(x)) <= 1e-8
    state = pruner.state_dict()
    again = gator.Pruner((pruner.detach(), model)[1], x, alpha=1.0, cost=cost)
    again.load_state_dict(state)
    assert again.cost_left == pytest.approx(before, rel=1e-12)
