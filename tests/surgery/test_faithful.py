"""With nothing removed the masked model equals the eager one: outputs, gradients, buffers, any batch size, any training flags.

A class that only seems to work after a cut is not returned.
"""

import collections
import copy
from typing import Any

import pytest
import torch
from networks import CASES, Run, conv
from support import doubled, draw, gap, randomised, run
from torch import Tensor, nn
from torch.nn import functional as F

import gator

COMPUTED = ("spectral_norm", "weight_norm", "old_weight_norm", "pruned_by_torch")  # their weights are computed in forward
RANDOM = ("drop_path", "prelu_and_dropout", "transformer_encoder", "transformer_decoder")


@pytest.mark.parametrize("name", [n for n in CASES if n not in (*RANDOM, *COMPUTED)])
def test_gradients_and_buffers_are_those_of_the_eager_model(name: str) -> None:
    model, inputs, _ = CASES[name]()
    model, inputs = randomised(model).train(), doubled(inputs)
    twin = copy.deepcopy(model)
    graph = gator.trace(twin, inputs)
    for network in (model, twin):
        with gator.masked(network, graph, {}) if network is twin else torch.enable_grad():
            out = (
                network(**inputs)
                if isinstance(inputs, dict)
                else network(*inputs)
                if isinstance(inputs, tuple)
                else network(inputs)
            )
        leaves = torch.utils._pytree.tree_leaves(out)
        sum((leaf**2).sum() for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad).backward()
    for (label, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), label
        assert one.grad is None or gap(one.grad, other.grad) <= 1e-9, label
    for (label, one), other in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert torch.equal(one, other) or gap(one.double(), other.double()) <= 1e-9, label


def linear(forward: Any, **parts: Any) -> nn.Module:
    return randomised(Run(forward, a=nn.Linear(4, 12), b=nn.Linear(12, 2), **parts))


def x64(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def scaled(y: Tensor) -> Tensor:
    """A scale that is computed from the width, so it changes with the cut."""
    return y * y.shape[-1] ** -0.5


SEEMS_RIGHT = {
    "infinities": lambda m, x: torch.cat([m.b(scaled(F.relu(m.a(x)))), x[:, :1] * 0 - float("inf")], 1),
    "not a number": lambda m, x: m.b(scaled(F.relu(m.a(torch.log(x))))),
    "batch of one": lambda m, x: m.b(scaled(F.relu(m.a(x))) - scaled(F.relu(m.a(x))).mean(0)),
    "one huge value": lambda m, x: torch.cat([m.b(scaled(F.relu(m.a(x)))), x[:, :1] * 1e12], 1),
    "in training": lambda m, x: m.b(scaled(m.a(x)) if m.training else m.a(x)),
}


@pytest.mark.parametrize("name", SEEMS_RIGHT)
def test_a_class_that_only_seems_right_is_not_returned(name: str) -> None:
    model = linear(SEEMS_RIGHT[name])
    graph = gator.trace(model, x64(3, 4).abs())
    small = gator.cut(model, graph, {"a": [0, 1, 2]})
    assert isinstance(small, torch.fx.GraphModule)
    with pytest.raises(gator.CutError, match="does not work after this cut"):
        gator.cut(model, graph, {"a": [0, 1, 2]}, keep_class=True)


def test_other_arguments_are_followed_by_a_mask_and_refused_by_a_graph() -> None:
    model = linear(lambda m, x, k=1, mask=None: m.b(F.relu(m.a(x))) * k + (0 if mask is None else mask))
    x = x64(2, 4)
    graph = gator.trace(model, (x, 2))
    small = gator.cut(model, graph, {"a": [0, 2]}, keep_class=False)
    own = gator.cut(model, graph, {"a": [0, 2]}, keep_class=True)
    assert gap(small(x, 2), own(x, 2)) <= 1e-9
    for args in ((x, 3), (x, 2, x64(2, 2)), (x, x64(2, 2))):
        with gator.masked(model, graph, {"a": [0, 2]}):
            assert gap(model(*args), own(*args)) <= 1e-9
        with pytest.raises(gator.GatorError, match="traced with other arguments"):
            small(*args)


@pytest.mark.parametrize("traced", [2, 3, 8])
@pytest.mark.parametrize("kind", ["half", "square", "reciprocal"])
def test_arithmetic_on_the_batch_is_followed_or_refused(kind: str, traced: int) -> None:
    forwards = {
        "half": lambda m, x: m.b(torch.cat([m.a(x)[: x.shape[0] // 2] * 2, m.a(x)[x.shape[0] // 2 :]])),
        "square": lambda m, x: m.b(m.a(x)) * x.shape[0] ** 2,
        "reciprocal": lambda m, x: m.b(F.relu(m.a(x))) * (1.0 / x.shape[0]),
    }
    model = linear(forwards[kind])
    graph = gator.trace(model, x64(traced, 4))
    for batch in (traced, 4, 5, 16):
        x = x64(batch, 4)
        expected = run(model, x)
        with gator.masked(model, graph, {}):
            assert gap(expected, run(model, x)) <= 1e-9
        try:
            assert gap(expected, run(gator.cut(model, graph, {}, keep_class=False), x)) <= 1e-9
        except gator.GatorError as error:
            assert batch != traced
            assert "traced with other arguments" in str(error)


def _follows(model, graph, kept, x):
    """A mask is right for this input too."""
    with gator.masked(model, graph, kept):
        found = run(model, x)
    assert gap(found, run(gator.cut(model, graph, kept, keep_class=True), x)) <= 1e-9


def test_other_sizes_are_followed_by_a_mask_and_followed_or_refused_by_a_graph() -> None:
    steps = Run(lambda m, x: m.b(sum(m.a(x[:, t]) for t in range(x.shape[1]))), a=nn.Linear(4, 6), b=nn.Linear(6, 2)).double()
    graph = gator.trace(steps, x64(2, 3, 4))
    small = gator.cut(steps, graph, {"a": [0, 3]}, keep_class=False)
    with pytest.raises(gator.GatorError, match=r"shape \(any, 3, 4\)"):
        small(x64(2, 5, 4))
    _follows(steps, graph, {"a": [0, 3]}, x64(2, 5, 4))
    resized = Run(lambda m, x: F.interpolate(m.b(m.a(x)), size=x.shape[-2:]), a=conv(3, 6, stride=2), b=conv(6, 2)).double()
    graph = gator.trace(resized, x64(2, 3, 8, 8))
    _follows(resized, graph, {"a": [0, 3]}, x64(2, 3, 16, 16))
    model, x, _ = CASES["unet"]()
    model = randomised(model)
    graph = gator.trace(model, x.double())
    small = gator.cut(model, graph, draw(graph, 0.5), keep_class=False)
    larger = x64(3, 3, 24, 16)
    with gator.masked(model, graph, draw(graph, 0.5)):
        assert gap(run(model, larger), run(small, larger)) <= 1e-9


class NormAndReLU(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))


class Dropping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training)


def test_frozen_layers_stay_frozen() -> None:
    """Layers in eval mode inside a network in train mode, with a forward of their own."""
    model = randomised(
        Run(lambda m, x: m.b(m.drop(m.norm(m.a(x)))), a=conv(3, 6), norm=NormAndReLU(6), drop=Dropping(), b=conv(6, 2))
    )
    model.train()
    model.norm.eval()
    model.drop.eval()
    x = x64(4, 3, 8, 8)
    graph = gator.trace(model, x)
    before = model.norm.running_mean.clone()
    with gator.masked(model, graph, {}):
        assert gap(_eager(model, x), run(model, x)) <= 1e-12
    assert torch.equal(before, model.norm.running_mean)
    small = gator.cut(model, graph, {"a": [0, 2, 5]}, keep_class=False)
    with gator.masked(model, graph, {"a": [0, 2, 5]}):
        assert gap(run(model, x), run(small, x)) <= 1e-12
    small.norm.train()
    assert gap(run(small, x), run(copy.deepcopy(small).eval(), x)) > 1e-3


def _eager(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return type(model).forward(model, x)


def test_no_grad_regions_are_kept() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = F.relu(m.a(x))
        return m.b(x)

    model = linear(forward)
    graph = gator.trace(model, x64(2, 4))
    for network in (gator.cut(model, graph, {"a": range(5)}, keep_class=False), model):
        with gator.masked(model, graph, {}) if network is model else torch.enable_grad():
            network(x64(2, 4)).sum().backward()
        assert network.a.weight.grad is None
        assert network.b.weight.grad is not None


def test_a_buffer_that_forward_replaces_is_replaced() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        if m.training:
            m.average = 0.9 * m.average + 0.1 * y.mean((0, 2, 3)).detach()
        return m.b(y - m.average[:, None, None])

    model = randomised(Run(forward, a=conv(3, 6), b=conv(6, 2), average=torch.zeros(6)))
    x = x64(2, 3, 8, 8)
    graph = gator.trace(model, x)
    assert float(model.average.abs().max()) == 0
    small = gator.cut(model, graph, {"a": [0, 3]}, keep_class=False)
    eager = copy.deepcopy(model).train()
    run(eager, x)
    run(small.train(), x)
    with gator.masked(model.train(), graph, {}):
        run(model, x)
    assert gap(eager.average, model.average) <= 1e-12
    assert gap(eager.average[[0, 3]], small.average) <= 1e-12


def test_containers_of_a_model_are_restored() -> None:
    model = linear(lambda m, x: (m.seen.append(m.a(x)), m.deep["k"].append(m.a(x)), m.b(m.a(x)))[-1])
    model.seen, model.deep = collections.deque(), {"k": []}
    graph = gator.trace(model, x64(2, 4))
    gator.cut(model, graph, {"a": range(4)})
    assert (list(model.seen), model.deep) == ([], {"k": []})


def test_a_hook_with_the_operator_of_its_layer_runs_once() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    weight = x64(6, 6)
    model[0].register_forward_hook(lambda module, inputs, output: F.linear(output, weight))
    x = x64(3, 4)
    graph = gator.trace(model, x)
    expected = run(model, x)
    with gator.masked(model, graph, {}):
        assert gap(expected, run(model, x)) <= 1e-12


def test_a_removed_branch_that_ends_in_dropout() -> None:
    parts = {"stem": conv(3, 6), "a": conv(6, 4), "n": nn.BatchNorm2d(6), "b": conv(4, 6), "head": conv(6, 2)}
    model = randomised(
        Run(lambda m, x: m.head((y := m.stem(x)) + F.dropout(m.n(m.b(F.relu(m.a(y)))), 0.5, m.training)), **parts)
    )
    x = x64(2, 3, 8, 8)
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, {"a": []})
    for network in (model, small):
        network.train()
    with gator.masked(model, graph, {"a": []}):
        assert gap(run(model, x), run(small, x)) <= 1e-9


def test_the_error_names_random_numbers_in_eval_mode() -> None:
    model = linear(lambda m, x: m.b(m.a(x) + torch.randn_like(m.a(x))))
    graph = gator.trace(model, x64(2, 4))
    with pytest.raises(gator.CutError, match="draws random numbers in eval mode, at randn_like"):
        gator.cut(model, graph, {"a": range(5)})
    assert gator.cut(model, graph, {"a": range(5)}, verify=False)(x64(2, 4)).shape == (2, 2)


def test_squeezing_traced_with_one_example() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.b(F.adaptive_avg_pool2d(m.a(x), 1).squeeze(3).squeeze(2))

    model = randomised(Run(forward, a=conv(3, 6), b=nn.Linear(6, 2)))
    graph = gator.trace(model, x64(1, 3, 8, 8))
    for form in (None, False):
        small = gator.cut(model, graph, {"a": [2]}, keep_class=form)
        assert small(x64(3, 3, 8, 8)).shape == (3, 2)


def test_a_zero_branch_whose_sum_is_written_in_place() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        out = m.two(F.relu(m.one(x)))
        out += x
        out = F.relu(out, inplace=True)
        return m.head(out) + m.other(x)

    parts = {"stem": conv(3, 6), "one": conv(6, 4), "two": conv(4, 6, bias=False), "head": conv(6, 2), "other": conv(6, 2)}
    model, x = randomised(Run(forward, **parts)), x64(2, 3, 8, 8)
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, {"one": []})
    with gator.masked(model, graph, {"one": []}):
        assert gap(run(model, x), run(small, x)) <= 1e-12


def test_constants_are_not_added_to_a_bias_that_two_layers_share() -> None:
    parts = {"one": conv(3, 4), "two": conv(4, 6), "short": conv(3, 6, 1), "again": conv(6, 6)}
    model = Run(lambda m, x: m.head(F.relu(m.again(F.relu(m.two(F.relu(m.one(x))) + m.short(x))))), head=conv(6, 2), **parts)
    model.again.bias = model.short.bias
    model, x = randomised(model), x64(2, 3, 8, 8)
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, {"one": []})
    with gator.masked(model, graph, {"one": []}):
        assert gap(run(model, x), run(small, x)) <= 1e-12


def test_an_operator_in_one_mode_and_its_layer_in_the_other() -> None:
    model = Run(
        lambda m, x: m.d(F.relu(m.c(x) if m.training else F.conv2d(x, m.c.weight, m.c.bias, padding=1))),
        c=conv(3, 6),
        d=conv(6, 2),
    )
    model, x = randomised(model), x64(2, 3, 8, 8)
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, {"c": [1, 4]}, keep_class=False)
    assert gap(run(small.eval(), x), run(small.train(), x)) <= 1e-12
