"""What people get wrong around a pruner is answered by what to do instead."""

from __future__ import annotations

import io
import logging
import warnings

import numpy as np
import pytest
import torch
from networks import CASES
from small import SmallResNet, backward
from torch import nn
from torch.utils.checkpoint import checkpoint

import gator

X, Y = torch.randn(4, 1, 8, 8), torch.arange(4)


def test_a_wrapped_model_is_refused() -> None:
    with pytest.raises(gator.GatorError, match="wrapped in DataParallel; make the pruner first, then wrap"):
        gator.Pruner(nn.DataParallel(SmallResNet()), X, alpha=1.0)


def test_distributed_data_parallel_is_refused(tmp_path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(SmallResNet())
        with pytest.raises(gator.GatorError, match="DistributedDataParallel; make the pruner first, then wrap"):
            gator.Pruner(wrapped, X, alpha=1.0)
    finally:
        torch.distributed.destroy_process_group()


def test_a_cut_before_the_target_is_reached_warns() -> None:
    pruner = gator.Pruner(SmallResNet().train(), X, target=0.5, steps=100)
    backward(pruner, X, Y)
    pruner.step(lr=0.01)
    with pytest.warns(UserWarning, match=r"cut\(\) after 1 of 100 steps: the target is not reached yet"):
        small = pruner.cut()
    assert gator.measure(small, X).macs <= pruner.target
    pruner.project()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pruner.cut()


def test_after_detach_the_loss_is_not_to_blame() -> None:
    model = SmallResNet().train()
    pruner = gator.Pruner(model, X, alpha=1.0)
    backward(pruner, X, Y)
    pruner.detach()
    with pytest.raises(gator.GatorError, match=r"pruner.step\(\) was called after detach\(\): the gates are off"):
        pruner.step(lr=0.1)
    with pytest.raises(gator.GatorError, match=r"pruner.loss\(\) was called after detach\(\)"):
        pruner.loss()


def test_drawn_gates_need_the_learning_rate() -> None:
    pruner = gator.Pruner(SmallResNet().train(), X, alpha=1.0)
    backward(pruner, X, Y)
    with pytest.raises(gator.GatorError, match="lr=None; expected the learning rate of this step"):
        pruner.step()


def test_alpha_of_a_target_cannot_be_set() -> None:
    pruner = gator.Pruner(SmallResNet(), X, target=0.5, steps=3)
    with pytest.raises(gator.GatorError, match="alpha cannot be set"):
        pruner.alpha = 2.0
    pruner.detach()
    other = gator.Pruner(SmallResNet(), X, alpha=1.0)
    with pytest.raises(gator.GatorError, match="alpha=-1; expected zero or more"):
        other.alpha = -1
    other.alpha = 2.0
    assert other.alpha == 2.0


@pytest.mark.parametrize("setting", ["gamma", "momentum", "weight_decay", "temperature"])
def test_settings_of_drawn_gates_are_refused_with_a_target(setting: str) -> None:
    with pytest.raises(gator.GatorError, match=rf"{setting}=0.5 has no effect with target="):
        gator.Pruner(SmallResNet(), X, target=0.5, steps=3, **{setting: 0.5})


def test_a_detached_pruner_is_not_attached_by_another_one() -> None:
    model = SmallResNet().train()
    old = gator.Pruner(model, X, alpha=1.0)
    old.detach()
    new = gator.Pruner(model, X, alpha=1.0)
    with pytest.raises(gator.GatorError, match="after detach"):
        old.loss()
    new.detach()


def test_pickling_a_gated_model_says_what_to_save() -> None:
    model = SmallResNet()
    pruner = gator.Pruner(model, X, alpha=1.0)
    with pytest.raises(gator.GatorError, match=r"Save model.state_dict\(\) and pruner.state_dict\(\)"):
        torch.save(model, io.BytesIO())
    torch.save({"model": model.state_dict(), "pruner": pruner.state_dict()}, io.BytesIO())
    pruner.detach()
    torch.save(model, io.BytesIO())


class FixedBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)).reshape(4, 8))


def test_gates_by_example_need_a_free_batch() -> None:
    x = torch.randn(4, 6)
    with pytest.raises(gator.GatorError, match='per="example" needs a network that runs at any batch size'):
        gator.Pruner(FixedBatch(), x, alpha=1.0)
    gator.Pruner(FixedBatch(), x, alpha=1.0, per="batch").detach()


def test_the_correction_near_the_target_is_saved() -> None:
    pruner = gator.Pruner(SmallResNet().train(), X, target=0.5, steps=10)
    pruner.budget.measured_at = 7.5
    state = pruner.state_dict()
    pruner.detach()
    again = gator.Pruner(pruner.model, X, target=0.5, steps=10, state=state)
    assert again.budget.measured_at == 7.5
    again.detach()


@pytest.mark.parametrize("target", ["50%", "0.5", 0.5, " 50 % "])
def test_shares_as_text(target) -> None:
    model = SmallResNet()
    pruner = gator.Pruner(model, X, target=target, steps=5)
    assert pruner.target == pruner.whole_cost / 2
    pruner.detach()
    with pytest.raises(gator.GatorError, match="expected a share of the cost above 0 and up to 1"):
        gator.Pruner(model, X, target="150%", steps=5)


def test_edges_are_named_by_layers_modules_and_patterns(caplog) -> None:
    model = SmallResNet()
    graph = gator.trace(model, X)
    for keep in (["blocks.3.conv1"], [model.blocks[3].conv1], ["*.3.conv1"]):
        kept = gator.one_shot(model, graph, target=0.5, keep=keep)
        assert "blocks.3.conv1" not in kept
    highway = next(edge for edge in graph.edges if len(edge.producers) > 1)
    other = next(layer for layer in highway.producers if layer != highway.name)
    with caplog.at_level(logging.WARNING):
        kept = gator.one_shot(model, graph, target=0.5, min_width={other: highway.width, "blocks.*.conv1": 2})
    assert highway.name not in kept
    assert f"min_width= names {other}, which is part of edge '{highway.name}'" in caplog.text
    assert all(len(channels) >= 2 for name, channels in kept.items() if name.endswith("conv1"))
    with pytest.raises(gator.GatorError, match=r"keep= names 'head', which writes no channels .* belong to edge"):
        gator.Pruner(model, X, alpha=1.0, keep=["head"])
    with pytest.raises(gator.GatorError, match=r"keep= names 'blocks\.9', which the model does not have"):
        gator.Pruner(model, X, alpha=1.0, keep=["blocks.9"])
    with pytest.raises(gator.GatorError, match="keep='stem' is a string"):
        gator.Pruner(model, X, alpha=1.0, keep="stem")


def test_a_function_as_criterion_and_ratios_by_edge() -> None:
    model = SmallResNet()
    graph = gator.trace(model, X)
    own = gator.one_shot(model, graph, lambda rows, gradient: rows.abs().sum(1), target=0.5)
    assert own == gator.one_shot(model, graph, "l1", target=0.5)
    kept = gator.one_shot(model, graph, "l1", ratios={"blocks.*.conv1": 0.5, "stem": 0.25})
    for edge in graph.edges:
        gone = edge.width - len(kept.get(edge.name, range(edge.width)))
        assert gone == (edge.width // 4 if edge.name == "stem" else edge.width // 2 if edge.name.endswith("conv1") else 0)
    rounded = gator.one_shot(model, graph, "l1", ratios=0.4, round_to=4)
    assert all(len(channels) % 4 == 0 for channels in rounded.values())
    weights = np.abs(model.stem.weight.detach().numpy()).sum((1, 2, 3))
    assert set(kept["stem"]).isdisjoint(np.argsort(weights)[:1]) or len(graph["stem"].producers) > 1
    with pytest.raises(gator.KeptError, match="which disconnects the output from the input"):
        gator.one_shot(model, graph, ratios=1.0, min_width=0)
    with pytest.raises(gator.GatorError, match="ratios= does not depend on a cost"):
        gator.one_shot(model, graph, ratios=0.5, cost="memory")
    with pytest.raises(gator.GatorError, match=r"pass target= .* or ratios="):
        gator.one_shot(model, graph)
    with pytest.raises(gator.GatorError, match="expected one score per channel, 0 or more"):
        gator.one_shot(model, graph, lambda rows, gradient: rows, target=0.5)
    with pytest.raises(gator.GatorError, match=r"scores for .*, expected one for each"):
        gator.one_shot(model, graph, lambda rows, gradient: rows.abs().sum(1)[:1], target=0.5)
    with pytest.raises(gator.GatorError, match=r"ratios of 'stem' is 1\.5; expected a share from 0 to 1"):
        gator.one_shot(model, graph, ratios={"stem": 1.5})


@pytest.mark.parametrize("name", ["weight_norm", "old_weight_norm", "spectral_norm"])
def test_a_model_that_computes_its_weights_is_refused_by_gates_and_scored_by_criteria(name):
    model, x, _ = CASES[name]()
    message = r"weight_norm or spectral_norm.*\n.*remove_parametrizations.*remove_weight_norm"
    with pytest.raises(gator.GatorError, match=message):
        gator.Pruner(model, x, alpha=1.0)
    graph = gator.trace(model, x)
    kept = gator.one_shot(model, graph, "l1", ratios=0.5)
    assert [len(kept[edge.name]) for edge in graph.edges] == [edge.width // 2 for edge in graph.edges]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_model_is_refused() -> None:
    with pytest.raises(gator.GatorError, match="make the pruner first, then compile"):
        gator.Pruner(torch.compile(SmallResNet()), X, target=0.5, steps=5)


@pytest.mark.parametrize("changed", [{"format": "8"}, {"format": None}, {"budget": None}])
def test_a_damaged_state_is_refused(changed) -> None:
    pruner = gator.Pruner(SmallResNet(), X, target=0.5, steps=5)
    state = {**pruner.state_dict(), **changed}
    with pytest.raises(gator.GatorError, match=r"state has format|not the state of a pruner"):
        pruner.load_state_dict(state)


class Priced:
    """A cost of a user's own that returns what it is told."""

    def __init__(self, total, per_channel):
        self.total, self.per_channel = total, per_channel

    def on(self, model, graph):
        return self


@pytest.mark.parametrize(
    ("total", "per_channel", "message"),
    [
        (lambda widths: float("nan"), lambda widths: [1.0] * len(widths), "expected a finite number above zero"),
        (lambda widths: 0.0, lambda widths: [1.0] * len(widths), "expected a finite number above zero"),
        (lambda widths: float(sum(widths)), lambda widths: [1.0], "one for every edge"),
        (lambda widths: float(sum(widths)), lambda widths: 1.0, "one for every edge"),
    ],
)
def test_prices_of_a_user_are_checked(total, per_channel, message) -> None:
    model = SmallResNet()
    with pytest.raises(gator.GatorError, match=message):
        gator.Pruner(model, X, cost=Priced(total, per_channel), target=0.5, steps=5)
    with pytest.raises(gator.GatorError, match=message):
        gator.one_shot(model, gator.trace(model, X), cost=Priced(total, per_channel), target=0.5)


def test_prices_may_be_tensors_with_gradients() -> None:
    def total(widths):
        return torch.as_tensor(np.asarray(widths)).sum() * torch.ones((), requires_grad=True)

    cost = Priced(total, lambda widths: torch.ones(len(widths), requires_grad=True))
    pruner = gator.Pruner(SmallResNet(), X, cost=cost, target=0.5, steps=5)
    assert type(pruner.whole_cost) is float


def test_gates_of_a_forward_stay_for_its_checkpoints_when_the_model_is_evaluated_in_between() -> None:
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x):
            return self.c(checkpoint(self.b, self.a(x).relu(), use_reentrant=False).relu())

    torch.manual_seed(0)
    model, x = Recomputed(), torch.randn(4, 8)
    pruner = gator.Pruner(model, x, alpha=1.0)
    loss = model.train()(x).square().mean() + pruner.loss()
    with torch.no_grad():
        model.eval()(x)
    model.train()
    loss.backward()
    pruner.step(lr=0.1)
    assert pruner.steps_taken == 1
