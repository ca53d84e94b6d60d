"""Closed channels leave the network, the gates and the optimizer in the middle of training, and nothing else changes."""

from __future__ import annotations

import copy

import pytest
import torch
from small import SmallResNet, backward, close, steady
from support import randomised
from torch import nn
from torch.nn import functional

import gator
from gator import zoo
from gator.gates.attach import is_attached, take_gates_off
from gator.gates.pruner_state import FORMAT


def loss_of(pruner, x, y):
    steady(pruner)
    buffers = copy.deepcopy(dict(pruner.model.named_buffers()))
    with torch.enable_grad():
        loss = functional.cross_entropy(pruner.model(x), y) + pruner.loss()
    for name, buffer in pruner.model.named_buffers():
        buffer.data.copy_(buffers[name])
    return float(loss.detach())


@pytest.mark.trains
@pytest.mark.parametrize("per", ["example", "batch"])
@pytest.mark.parametrize("build", [lambda: SmallResNet(8), lambda: zoo.build("cifar:resnet20").model], ids=["own", "option_a"])
@pytest.mark.parametrize("optimizer_of", [torch.optim.SGD, torch.optim.AdamW])
def test_the_loss_is_unchanged_and_training_goes_on(per, build, optimizer_of):
    torch.manual_seed(0)
    model = randomised(build()).train()
    channels = next(model.parameters()).shape[1]
    x, y = torch.randn(6, channels, 16, 16).double(), torch.randint(0, 10, (6,))
    pruner = gator.Pruner(model, x, alpha=0.8, per=per)
    settings = {"momentum": 0.9} if optimizer_of is torch.optim.SGD else {}
    optimizer = optimizer_of(model.parameters(), lr=0.01, **settings)
    for _ in range(2):
        optimizer.zero_grad()
        backward(pruner, x, y)
        optimizer.step()
        pruner.step(lr=0.01)
    close(pruner, 0.4)
    before, cost = loss_of(pruner, x, y), pruner.cost_left
    logits = pruner.gates.logits.detach()[pruner.gates.alive].clone()
    optimizer.zero_grad()
    pruner.shrink_(optimizer)
    assert pruner.gates.living().all()
    assert len(pruner.gates) == len(logits)
    assert sorted(pruner.gates.logits.tolist()) == pytest.approx(sorted(logits.tolist()))
    assert pruner.cost_left == cost
    assert loss_of(pruner, x, y) == pytest.approx(before, rel=1e-9)
    assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in build().parameters())
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for state in optimizer.state[parameter].values():
                assert not isinstance(state, torch.Tensor) or state.ndim == 0 or state.shape == parameter.shape
    for _ in range(2):
        optimizer.zero_grad()
        backward(pruner, x, y)
        optimizer.step()
        pruner.step(lr=0.01)
    close(pruner, 0.3, seed=1)
    before = loss_of(pruner, x, y)
    optimizer.zero_grad()
    pruner.shrink_(optimizer)
    assert loss_of(pruner, x, y) == pytest.approx(before, rel=1e-9)
    small = pruner.cut()
    assert gator.measure(small, x).macs == pruner.cost_left


def test_a_block_goes_in_the_middle_of_training():
    torch.manual_seed(0)
    model = randomised(SmallResNet(8)).train()
    x, y = torch.randn(6, 1, 8, 8).double(), torch.randint(0, 10, (6,))
    pruner = gator.Pruner(model, x, alpha=0.5, keep=["blocks.3.conv1"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer.zero_grad()
    backward(pruner, x, y)
    optimizer.step()
    pruner.step(lr=0.01)
    index = [edge.name for edge in pruner.graph.edges].index("blocks.0.conv1")
    with torch.no_grad():
        pruner.gates.logits[pruner.gates.of_edge(index)] = -1.0
    pruner._close()
    before = loss_of(pruner, x, y)
    optimizer.zero_grad()
    pruner.shrink_(optimizer)
    assert not any(name.startswith("blocks.0.conv") for name, _ in model.named_parameters())
    assert loss_of(pruner, x, y) == pytest.approx(before, rel=1e-9)
    assert "blocks.3.conv1" not in pruner.kept
    optimizer.zero_grad()
    backward(pruner, x, y)
    optimizer.step()
    pruner.step(lr=0.01)
    assert gator.measure(pruner.cut(), x).macs == pruner.cost_left


@pytest.mark.trains
def test_a_target_is_met_across_shrinking():
    torch.manual_seed(0)
    model = SmallResNet(8).train()
    x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))
    pruner = gator.Pruner(model, x, target=0.4, steps=40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(40):
        loss = functional.cross_entropy(model(x), y) + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pruner.step(lr=0.05)
        if step % 10 == 9:
            del loss
            optimizer.zero_grad()
            pruner.shrink_(optimizer)
    assert pruner.finished
    pruner.detach()
    assert gator.measure(model, x).macs == pruner.cost_left <= pruner.target


def test_nothing_closed_nothing_changed():
    model, x = SmallResNet(4), torch.randn(2, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    parameters = list(model.parameters())
    pruner.shrink_()
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_a_failed_shrink_leaves_the_gates_on():
    model, x = SmallResNet(4).train(), torch.randn(2, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    close(pruner, 0.5)
    held = backward_held(pruner, x)
    with pytest.raises(gator.CutError, match="older loss"):
        pruner.shrink_()
    assert is_attached(pruner._forward)
    del held
    pruner.shrink_()


def backward_held(pruner, x):
    return functional.cross_entropy(pruner.model(x), torch.tensor([0, 1]))


@pytest.mark.trains
@pytest.mark.parametrize("mode", ["alpha", "target"])
def test_state_goes_into_a_checkpoint_and_back(mode, tmp_path):
    def start():
        torch.manual_seed(0)
        model = SmallResNet(6).train()
        settings = {"alpha": 2.0} if mode == "alpha" else {"target": 0.5, "steps": 20}
        return model, gator.Pruner(model, torch.randn(8, 1, 8, 8), **settings)

    def train(model, pruner, optimizer, steps):
        torch.manual_seed(7)
        for _ in range(steps):
            x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 10, (8,))
            loss = functional.cross_entropy(model(x), y) + pruner.loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pruner.step(lr=0.05)

    model, pruner = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, pruner, optimizer, 8)
    state = {"model": model.state_dict(), "pruner": pruner.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "state.pt")
    train(model, pruner, optimizer, 12)

    other, again = start()
    second = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    loaded = torch.load(tmp_path / "state.pt")
    other.load_state_dict(loaded["model"])
    second.load_state_dict(loaded["optimizer"])
    again.load_state_dict(loaded["pruner"])
    train(other, again, second, 12)
    assert all(torch.equal(value, again.gates.state()[name]) for name, value in pruner.gates.state().items())
    assert (pruner.steps_taken, pruner.alpha, pruner.finished) == (again.steps_taken, again.alpha, again.finished)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_state_of_something_else_is_refused():
    pruner = gator.Pruner(SmallResNet(6), torch.randn(2, 1, 8, 8), alpha=1.0)
    other = gator.Pruner(SmallResNet(4), torch.randn(2, 1, 8, 8), alpha=1.0)
    before = pruner.gates.logits.detach().clone()
    with pytest.raises(gator.GatorError, match="it had edge 'stem' of width 4 where there is edge 'stem' of width 6 here"):
        pruner.load_state_dict(other.state_dict())
    with pytest.raises(gator.GatorError, match="has no 'logits'"):
        pruner.load_state_dict({k: v for k, v in pruner.state_dict().items() if k != "logits"})
    with pytest.raises(gator.GatorError, match="upgrade"):
        pruner.load_state_dict(pruner.state_dict() | {"format": 99})
    with pytest.raises(gator.GatorError, match=f"format {FORMAT - 1}, this version reads format {FORMAT}; start the run"):
        pruner.load_state_dict(pruner.state_dict() | {"format": FORMAT - 1})
    with pytest.raises(gator.GatorError, match="other way round"):
        pruner.load_state_dict(pruner.state_dict() | {"budget": pruner.budget.state() | {"target": 0.5}})
    with pytest.raises(gator.GatorError, match="has no 'whole'"):
        gator.Pruner(SmallResNet(6), torch.randn(2, 1, 8, 8), alpha=1.0, state=pruner.state_dict() | {"budget": {}})
    assert torch.equal(pruner.gates.logits, before)


def test_summary_and_live_view(capsys):
    model, x = SmallResNet(4).train(), torch.randn(4, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    close(pruner, 0.5)
    text = pruner.summary()
    assert "blocks.0.conv1" in text
    assert "2/4" in text
    assert "0.995" in text
    shares = [float(line.split()[-1].rstrip("%")) for line in text.splitlines()[2:-1]]
    assert sum(shares) == pytest.approx(100, abs=1)
    with pruner.live():
        backward(pruner, x, torch.tensor([0, 1, 2, 3]))
        pruner.step(lr=0.1)
    assert "blocks.0.conv1" in capsys.readouterr().out


def test_summary_on_the_way_to_a_target():
    """What channels are worth is shown as a multiple of the average."""
    model, x = SmallResNet(4).train(), torch.randn(4, 1, 8, 8)
    pruner = gator.Pruner(model, x, target=0.5, steps=10, round_to=1)
    lines = pruner.summary().splitlines()
    assert lines[0].split()[:3] == ["edge", "living", "worth"]
    assert {line.split()[2] for line in lines[2:-1]} == {"-"}  # nothing is known yet
    pruner.gates.worth.copy_(pruner._loss.lambda_hat)
    pruner.gates.worth[pruner.gates.of_edge(0)] *= 3
    worth = [float(line.split()[2]) for line in pruner.summary().splitlines()[2:-1]]
    assert worth[0] == pytest.approx(3 * worth[1], abs=2e-3)
    assert "alpha" not in lines[-1]


def test_a_copy_of_a_gated_model_is_on_its_own():
    model, x = SmallResNet(4).train(), torch.randn(4, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    close(pruner, 0.25)
    model(x)
    twin = copy.deepcopy(model)
    assert twin.forward is not model.forward
    assert torch.equal(twin.eval()(x), model.eval()(x))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert float(twin(x).detach().abs().sum()) == 0
    assert float(model(x).detach().abs().sum()) > 0
    assert isinstance(twin.stem, nn.Conv2d)


@pytest.mark.parametrize("made", ["before the gates", "with gates on"])
@pytest.mark.parametrize("kind", ["AveragedModel", "ModelEmaV3", "copy"])
def test_averages_of_weights_follow(kind, made, torchvision):
    from timm.utils import ModelEmaV3
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    def average(model):
        if kind == "copy":
            return copy.deepcopy(model)
        if kind == "ModelEmaV3":
            return ModelEmaV3(model, decay=0.5)
        return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)

    def update(averaged):
        if kind == "ModelEmaV3":
            averaged.update(model)
        elif kind == "AveragedModel":
            averaged.update_parameters(model)

    model, x = SmallResNet(4).train(), torch.randn(2, 1, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    averaged = average(model) if made == "before the gates" else None
    pruner = gator.Pruner(model, x, alpha=1.0)
    averaged = averaged or average(model)
    for _ in range(2):
        optimizer.zero_grad()
        backward(pruner, x, torch.tensor([0, 1]))
        optimizer.step()
        update(averaged)
    close(pruner, 0.5)
    network = averaged if kind == "copy" else averaged.module
    network.eval()
    take_gates_off(network)
    with gator.masked(network, pruner.graph, pruner.kept), torch.no_grad():
        expected = network(x)
    pruner.shrink_(optimizer, averaged)
    assert torch.allclose(network(x), expected, atol=1e-5)
    assert [p.shape for p in network.parameters()] == [p.shape for p in model.parameters()]
    optimizer.zero_grad()
    backward(pruner, x, torch.tensor([0, 1]))
    optimizer.step()
    update(averaged)
    pruner.shrink_(optimizer, averaged)


def test_something_else_is_no_average():
    model, x = SmallResNet(4).train(), torch.randn(2, 1, 8, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    close(pruner, 0.5)
    for wrong in (nn.Linear(2, 2), model):
        with pytest.raises(gator.GatorError, match="no average of this"):
            pruner.shrink_(None, wrong)


class Attention(nn.Module):
    """Heads of eight dimensions; the class knows the dimensions and not the number of heads."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        q, k, v = (layer(x).view(x.shape[0], x.shape[1], -1, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.trains
def test_a_single_head_that_is_left_keeps_the_class():
    torch.manual_seed(0)
    model, x = nn.Sequential(Attention(), nn.Linear(16, 4)), torch.randn(4, 5, 16)
    pruner = gator.Pruner(model, x, target=0.3, steps=20, round_to=1, keep_class=True, min_width=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        (model(x).square().mean() + pruner.loss()).backward()
        optimizer.step()
        pruner.step()
        pruner.shrink_(optimizer)
    assert model[0].q.out_features == 8
    assert type(model[0]) is Attention
    assert pruner.cost_left <= pruner.target


@pytest.mark.parametrize("made", [torch.optim.swa_utils.AveragedModel, copy.deepcopy])
def test_averages_follow_again_after_a_block_is_gone(made):
    """A network in graph form has a class of its own after every cut."""
    torch.manual_seed(0)
    model, x = SmallResNet(4).train(), torch.randn(2, 1, 8, 8)
    average, optimizer = made(model), torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = gator.Pruner(model, x, alpha=1.0)
    inner = next(index for index, edge in enumerate(pruner.graph.edges) if edge.name.endswith("conv1"))
    with torch.no_grad():
        pruner.gates.logits[pruner.gates.of_edge(inner)] = -1.0
    pruner._close()
    pruner.shrink_(optimizer, average)
    close(pruner, 0.5)
    pruner.shrink_(optimizer, average)
    network = average if made is copy.deepcopy else average.module
    assert [p.shape for p in network.parameters()] == [p.shape for p in model.parameters()]
    assert torch.equal(network.eval()(x), model.eval()(x))


def test_gradients_of_before_are_gone_after_a_state_is_loaded():
    pruner = gator.Pruner(SmallResNet(4).train(), torch.randn(2, 1, 8, 8), target=0.5, steps=10)
    state = pruner.state_dict()
    backward(pruner, torch.randn(2, 1, 8, 8), torch.tensor([0, 1]))
    pruner.load_state_dict(state)
    with pytest.raises(gator.GatorError, match="found no gradient"):
        pruner.step()


def test_a_finished_pruner_without_gated_edges_resumes():
    torch.manual_seed(0)
    model, x = SmallResNet(4, depth=1).train(), torch.randn(2, 1, 8, 8)
    inner = [edge.name for edge in gator.trace(model, x).edges if edge.name.endswith("conv1")]
    others = [edge.name for edge in gator.trace(model, x).edges if edge.name not in inner]
    pruner = gator.Pruner(model, x, alpha=1.0, keep=others)
    with torch.no_grad():
        pruner.gates.logits[:] = -1.0
    pruner._close()
    pruner.shrink_()
    state = pruner.state_dict()
    pruner.detach()
    again = gator.Pruner(model, x, alpha=1.0, keep=state["keep"], state=state)
    assert again.cost_left == pruner.cost_left
