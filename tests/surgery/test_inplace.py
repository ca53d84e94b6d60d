"""`cut_` during training: parameters stay the same objects, the optimizer is updated, and training continues."""

import copy

import pytest
import torch
from networks import CASES
from support import draw, gap, run
from torch import nn
from torch.nn import functional as F

import gator
from gator import zoo

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", ["unet", "class_token_and_positions"])
def test_training_continues_like_that_of_the_masked_network(name: str, kind: str) -> None:
    """A step after the in-place cut changes the kept weights exactly as a step of the masked network does."""
    model, x, _ = CASES[name]()
    model, x = model.double(), x.double()
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, optimizer, x, 3)
    graph = gator.trace(model, x)
    kept = draw(graph, 0.5)

    twin = copy.deepcopy(model)
    twin_optimizer = OPTIMIZERS[kind](twin.parameters())
    twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with gator.masked(twin, graph, kept):
        train(twin, twin_optimizer, x, 1)
        expected = run(twin.eval(), x)

    identities = {id(p) for p in model.parameters()}
    same = gator.cut_(model, graph, kept, optimizer=optimizer)
    assert same is model
    assert {id(p) for p in model.parameters()} == identities
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == identities
    for parameter, state in optimizer.state.items():
        for value in state.values():
            assert not isinstance(value, torch.Tensor) or value.ndim == 0 or value.shape == parameter.shape
    train(model, optimizer, x, 1)
    assert gap(expected, run(model.eval(), x)) <= 1e-8


def test_a_removed_block_is_removed_from_the_optimizer() -> None:
    model = zoo.build("cifar:resnet20").model
    x = torch.randn(4, 3, 32, 32)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    train(model, optimizer, x, 1)
    graph = gator.trace(model, x)
    gator.cut_(model, graph, {"layer2.1.conv1": []}, optimizer=optimizer)
    assert isinstance(model, torch.fx.GraphModule)
    assert "folded_layer2_1_bn2" in dict(model.named_parameters())
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    before = model.folded_layer2_1_bn2.detach().clone()
    train(model, optimizer, x, 1)
    assert not torch.equal(before, model.folded_layer2_1_bn2)


def test_an_older_loss_is_an_error_and_nothing_changes() -> None:
    model, x, _ = CASES["unet"]()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    train(model, optimizer, x, 1)
    graph = gator.trace(model, x)
    loss = (model(x) ** 2).mean()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(gator.CutError, match=r"an older loss still holds the shapes of '.*'; nothing was changed"):
        gator.cut_(model, graph, draw(graph, 0.5), optimizer=optimizer)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    loss.backward()
    del loss
    gator.cut_(model, graph, draw(graph, 0.5), optimizer=optimizer)
    train(model, optimizer, x, 1)


def test_gradients_are_sliced() -> None:
    model, x, _ = CASES["unet"]()
    F.relu(model(x)).sum().backward()
    graph = gator.trace(model, x)
    full = model.down1.weight.grad.clone()
    gator.cut_(model, graph, {"down1": [0, 5]})
    assert torch.equal(model.down1.weight.grad, full[[0, 5]])


def test_an_unsupported_optimizer_is_refused_before_anything_changes() -> None:
    model, x, _ = CASES["unet"]()
    graph = gator.trace(model, x)
    before = copy.deepcopy(model.state_dict())
    other_optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(gator.CutError, match="holds none of the model's parameters"):
        gator.cut_(model, graph, draw(graph, 0.5), optimizer=other_optimizer)
    factored = torch.optim.Adafactor(model.parameters())
    train(model, factored, x, 1)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(gator.CutError, match=r"Adafactor keeps '\w+' of shape"):
        gator.cut_(model, graph, draw(graph, 0.5), optimizer=factored)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_new_parameters_join_the_group_that_lost_some() -> None:
    model = zoo.build("cifar:resnet20").model
    x = torch.randn(2, 3, 32, 32)
    rest = [p for n, p in model.named_parameters() if not n.startswith("linear")]
    optimizer = torch.optim.SGD([{"params": list(model.linear.parameters()), "lr": 1.0}, {"params": rest}], lr=0.1)
    gator.cut_(model, gator.trace(model, x), {"layer2.1.conv1": []}, optimizer=optimizer)
    assert any(p is model.folded_layer2_1_bn2 for p in optimizer.param_groups[1]["params"])


def test_nothing_to_cut_and_normalised_weights() -> None:
    model, x, _ = CASES["unet"]()
    graph = gator.trace(model, x)
    assert gator.cut_(model, graph, {}) is model
    model, x, _ = CASES["weight_norm"]()
    graph = gator.trace(model, x)
    with pytest.raises(gator.CutError, match="weight_norm"):
        gator.cut_(model, graph, draw(graph, 0.5))


class Averages(torch.optim.SGD):
    """Keeps copies of each parameter in containers, as quasi-Newton and averaging optimizers do."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state.setdefault("recent", []).append(parameter.detach().clone())
            state["pair"] = (parameter.detach().clone(), 3)
            state["by_name"] = {"mean": sum(state["recent"]) / len(state["recent"])}


def test_optimizer_state_in_containers_is_sliced() -> None:
    model, x, _ = CASES["unet"]()
    optimizer = Averages(model.parameters(), lr=0.1)
    train(model, optimizer, x, 2)
    before = optimizer.state[model.down1.weight]["recent"][0].clone()
    gator.cut_(model, gator.trace(model, x), {"down1": [0, 5]}, optimizer=optimizer)
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        held = [*state["recent"], state["pair"][0], state["by_name"]["mean"]]
        assert all(tensor.shape == parameter.shape for tensor in held)
    assert torch.equal(optimizer.state[model.down1.weight]["recent"][0], before[[0, 5]])
    train(model, optimizer, x, 1)


def test_optimizer_state_in_containers_must_fit_the_parameter() -> None:
    model, x, _ = CASES["unet"]()
    optimizer = Averages(model.parameters(), lr=0.1)
    train(model, optimizer, x, 1)
    optimizer.state[model.down1.weight]["by_name"]["flat"] = torch.zeros(7)
    with pytest.raises(gator.CutError, match=r"Averages keeps 'by_name' of shape \(7,\) for 'down1.weight'"):
        gator.cut_(model, gator.trace(model, x), {"down1": [0, 5]}, optimizer=optimizer)


def test_a_plan_is_applied_in_place() -> None:
    """`apply_` gives the network that the plan is of, in the same object; another network is refused and left as it was."""
    from gator.surgery.inplace import apply_

    def network(width: int = 8) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2, 3))

    first = network()
    gator.cut_(first, gator.trace(first, torch.randn(1, 3, 8, 8), keep_class=True), {"0": [0, 2, 5]})
    second, other = network(), network(6)
    assert apply_(gator.plan(first), second) is second
    assert gator.plan(second) == gator.plan(first)
    second.load_state_dict(first.state_dict())
    with pytest.raises(gator.CutError):
        apply_(gator.plan(first), other)
    assert other[0].out_channels == 6
