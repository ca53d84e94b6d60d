"""`gator.plan` and `gator.apply`: a plan is one composed cut of the original network, and applying it gives the cut network."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import CASES
from random_networks import OPS, Op, RandomNetwork, draw_masks
from support import draw, gap, randomised, run
from torch import Tensor, nn
from torch.nn import functional as F

import gator
from gator import zoo
from gator.graph.trace import trace_inputs
from gator.surgery import apply as applying

X = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def disturbed(network: nn.Module) -> nn.Module:
    """Change the weights, as some training would."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def made_again(network: nn.Module, fresh: nn.Module) -> nn.Module:
    """The same network, made from its plan as JSON and its weights."""
    plan = gator.CutPlan.from_json(gator.plan(network).to_json())
    before = copy.deepcopy(fresh.state_dict())
    again = gator.apply(plan, fresh)
    assert all(torch.equal(before[name], tensor) for name, tensor in fresh.state_dict().items())
    assert set(again.state_dict()) == set(network.state_dict())
    assert gator.plan(again) == plan
    again.load_state_dict(network.state_dict())
    return again.eval()


CUTS = st.lists(
    st.tuples(st.integers(0, 10_000), st.sampled_from([0.0, 0.25, 0.4]), st.sampled_from([None, None, False])),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, derandomize=True, max_examples=max(20, settings().max_examples // 2))
@given(OPS, st.integers(2, 8), st.integers(0, 10_000), CUTS, st.booleans())
def test_random_networks_cut_several_times(ops: list[Op], channels: int, seed: int, cuts: list, trains: bool) -> None:
    """The network that is made from the plan and the weights is the same in both modes."""
    torch.manual_seed(seed)
    original = randomised(RandomNetwork(ops, channels), seed)
    fresh = RandomNetwork(ops, channels).double().eval()
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    small = original
    for number, zero, keep_class in cuts:
        graph = gator.trace(small, x)
        try:
            small = gator.cut(small, graph, draw_masks(graph, number, zero), keep_class=keep_class)
        except gator.KeptError:
            continue  # no network can have these channels
        small = disturbed(small) if trains else small
    if small is original:
        return
    again = made_again(small, fresh)
    assert gap(run(small, x), run(again, x)) <= 1e-10
    if not trains:  # then the plan alone, on the original weights, gives the network
        assert gap(run(small, x), run(gator.apply(gator.plan(small), original), x)) <= 1e-8
    assert gap(run(small.train(), x), run(again.train(), x)) <= 1e-10


def counted(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The networks that are traced from now on to make one from a plan."""
    traced: list[nn.Module] = []

    def trace(model: nn.Module, *args, **kwargs) -> gator.Hypergraph:
        traced.append(model)
        return trace_inputs(model, *args, **kwargs)

    monkeypatch.setattr(applying, "trace_inputs", trace)
    return traced


def test_ten_shrinks_load_with_one_trace(monkeypatch, tmp_path) -> None:
    model = randomised(zoo.build("cifar:resnet20").model)
    pruner = gator.Pruner(model, X, alpha=0.0)
    random = torch.Generator().manual_seed(0)
    sizes = []
    for number in range(10):
        with torch.no_grad():
            pruner.gates.logits.copy_(torch.where(torch.rand(len(pruner.gates), generator=random) < 0.06, -9.0, 5.0))
            if number in (2, 5):  # a block goes as a whole
                edge = next(i for i, e in enumerate(pruner.graph.edges) if e.name == f"layer{number // 2}.1.conv1")
                pruner.gates.logits[pruner.graph.starts[edge] : pruner.graph.starts[edge + 1]] = -9.0
        (model.train()(X).mean() + pruner.loss()).backward()
        pruner.step(lr=0.0)  # what is below zero is closed for good
        model.zero_grad()
        pruner.shrink_()
        disturbed(model)
        gator.save(pruner.cut(), tmp_path / f"{number}.safetensors")
        sizes.append((tmp_path / f"{number}.safetensors").stat().st_size)
    assert sizes[-1] <= sizes[0]
    small = pruner.cut().eval()
    assert isinstance(small, torch.fx.GraphModule)
    assert len(gator.plan(small).cuts) == 1
    traced = counted(monkeypatch)
    loaded = gator.load(tmp_path / "9.safetensors", zoo.build("cifar:resnet20").model.eval())
    assert len(traced) == 1
    assert gap(run(small, X), run(loaded, X)) == 0
    assert set(loaded.state_dict()) == set(small.state_dict())
    gator.save(loaded, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").stat().st_size == sizes[-1]


def test_a_constant_is_sliced_and_merged_by_later_cuts() -> None:
    """The constant of a removed block loses channels; then the next block is removed and their constants are merged."""
    model = randomised(zoo.build("cifar:resnet20").model)
    small = gator.cut(model, gator.trace(model, X), {"layer2.1.conv1": []})
    (constant,) = {c.name for c in gator.plan(small).cuts[0].removed_branches.constants}
    assert small.get_parameter(constant).shape == (1, 32, 1, 1)
    graph = gator.trace(disturbed(small), X)
    edge = next(e for e in graph.edges if any(m.parameter == constant for m in e.members))
    small = gator.cut(small, graph, {edge.name: range(5)})
    assert small.get_parameter(constant).numel() < 32
    assert len(gator.plan(small).cuts) == 1
    assert gap(run(small, X), run(made_again(small, zoo.build("cifar:resnet20").model.double()), X)) <= 1e-10
    graph = gator.trace(disturbed(small), X)
    small = gator.cut(small, graph, {"layer2.0.conv1": [], "layer2.2.conv1": [], "layer3.1.conv1": [1]})
    assert len(gator.plan(small).cuts) == 1
    assert gap(run(small, X), run(made_again(small, zoo.build("cifar:resnet20").model.double()), X)) <= 1e-10


class Beside(nn.Module):
    """A branch next to a convolution whose bias takes the constant of the removed branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.inner, self.outer = nn.Conv2d(6, 4, 1), nn.Conv2d(4, 5, 1)
        self.shortcut = nn.Conv2d(6, 5, 1)
        self.head = nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.head(x.mean(1, keepdim=True) + (self.shortcut(x) + self.outer(F.relu(self.inner(x)))))


def test_a_constant_that_was_added_to_a_bias_stays_there() -> None:
    model, x = randomised(Beside()), X[:, :, :8, :8]
    once = gator.cut(model, gator.trace(model, x), {"inner": []})
    assert not any(name.startswith("folded") for name, _ in once.named_parameters())
    assert all(c.absorbed for c in gator.plan(once).cuts[0].removed_branches.constants)
    assert gap(run(once, x), run(gator.apply(gator.plan(once), model), x)) <= 1e-10
    shorter = gator.cut(once, gator.trace(once, x), {"shortcut": [0, 2]})
    assert gap(run(shorter, x), run(gator.apply(gator.plan(shorter), model), x)) <= 1e-10
    assert gap(run(shorter, x), run(made_again(shorter, randomised(Beside(), 1)), x)) <= 1e-10


class Crossed(nn.Module):
    """Two sums share a term, which ties the channels of both."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.inner = nn.Conv2d(6, 4, 1)
        self.shared = nn.Conv2d(4, 5, 1, bias=False)
        self.one, self.two = nn.Conv2d(6, 5, 1), nn.Conv2d(6, 5, 1)
        self.head, self.tail = nn.Conv2d(5, 2, 1), nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        shared = self.shared(F.relu(self.inner(x)))
        return self.head(shared + self.one(x)) + self.tail(self.two(x) + shared)


def test_channels_that_are_no_longer_tied_may_be_cut_separately() -> None:
    """No single cut of the original network can do that, so the plan has a second cut."""
    model, x = randomised(Crossed()), X[:, :, :8, :8]
    graph = gator.trace(model, x)
    assert set(graph["shared"].producers) == {"shared", "one", "two"}
    once = disturbed(gator.cut(model, graph, {"inner": []}))
    alike = gator.cut(once, gator.trace(once, x), {"one": [0, 1, 4], "two": [0, 1, 4]})
    assert len(gator.plan(alike).cuts) == 1
    apart = disturbed(gator.cut(once, gator.trace(once, x), {"one": [0, 1], "two": [1, 2, 4]}))
    assert len(gator.plan(apart).cuts) == 2
    last = gator.cut(apart, gator.trace(apart, x), {"one": [1], "stem": [0, 1, 2]})
    assert len(gator.plan(last).cuts) == 2
    for small in (once, alike, apart, last):
        assert gap(run(small, x), run(made_again(small, randomised(Crossed(), 1)), x)) <= 1e-10


def test_whole_heads_first_and_dimensions_inside_them_later() -> None:
    model, inputs, _ = CASES["transformer_encoder"]()
    model, inputs = randomised(model), inputs.double()
    graph = gator.trace(model, inputs)
    once = gator.cut(model, graph, draw(graph, 0.5))
    graph = gator.trace(once, inputs, heads="dims")
    twice = gator.cut(once, graph, draw(graph, 0.5))
    again = made_again(twice, CASES["transformer_encoder"]()[0].double().eval())
    assert gap(run(twice, inputs), run(again, inputs)) <= 1e-10


def test_the_form_is_that_of_the_network_that_was_cut() -> None:
    model = randomised(zoo.build("cifar:resnet20").model)
    once = gator.cut(model, gator.trace(model, X), {"layer1.0.conv1": range(3)}, keep_class=False)
    twice = gator.cut(once, gator.trace(once, X), {"layer1.0.conv1": range(2)})
    plan = gator.plan(twice)
    assert [cut.form for cut in plan.cuts] == ["graph"]
    assert isinstance(gator.apply(plan, model), torch.fx.GraphModule)
    of_class = gator.cut(model, gator.trace(model, X), {"layer1.0.conv1": range(3)})
    of_class = gator.cut(of_class, gator.trace(of_class, X[:, :, :16, :16]), {"layer1.0.conv1": range(2)})
    assert type(gator.apply(gator.plan(of_class), model)) is type(model)


def test_a_plan_goes_into_a_checkpoint(tmp_path) -> None:
    model = randomised(zoo.build("cifar:resnet20").model)
    small = gator.cut(model, gator.trace(model, X), {"layer1.0.conv1": [1, 2]})
    torch.save({"plan": gator.plan(small).to_json(), "weights": small.state_dict()}, tmp_path / "small.pt")
    held = torch.load(tmp_path / "small.pt", weights_only=True)
    again = gator.apply(gator.CutPlan.from_json(held["plan"]), zoo.build("cifar:resnet20").model.double().eval())
    again.load_state_dict(held["weights"])
    assert gap(run(small, X), run(again, X)) == 0
    assert json.loads(held["plan"])["cuts"][0]["kept"] == {"layer1.0.conv1": [1, 2]}


def test_what_has_no_plan_and_what_it_does_not_fit() -> None:
    model = zoo.build("cifar:resnet20").model.double()
    with pytest.raises(gator.CutError, match="this CifarResNet was never cut"):
        gator.plan(model)
    small = gator.cut(model, gator.trace(model, X), {"layer1.0.conv1": [1, 2]})
    assert gator.plan(copy.deepcopy(small)) == gator.plan(small)
    with pytest.raises(gator.CutError, match="another architecture: expected edge"):
        gator.apply(gator.plan(small), zoo.build("cifar:resnet32").model)
    with pytest.raises(gator.CutError, match=r"plan is a str; expected a gator\.CutPlan"):
        gator.apply(gator.plan(small).to_json(), model)  # type: ignore[arg-type]
    with pytest.raises(gator.CutError, match="an instance of the original network"):
        gator.apply(gator.plan(small), nn.Linear)  # type: ignore[arg-type]
    for text in ("", "[]", "{}", '{"format": 9, "cuts": []}', '{"format": 1, "cuts": []}', "[" * 100_000):
        with pytest.raises(gator.FileError, match="the plan"):
            gator.CutPlan.from_json(text)
