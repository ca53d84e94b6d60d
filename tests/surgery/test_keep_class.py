"""keep_class=True removes only what the user's class can lose, and sizes that a class keeps as attributes follow a cut."""

from __future__ import annotations

import copy

import pytest
import torch
from support import draw, gap, randomised, run
from torch import nn

import gator
from gator import zoo


class Halves(nn.Module):
    """Splits into equal halves (its code works for any width), into given widths (it does not), and by an attribute."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(4, 8, 1), nn.Conv2d(4, 10, 1)
        self.d, self.width, self.index = nn.Conv2d(5, 6, 1), 5, 4
        self.end = nn.Conv2d(6, 2, 1)

    def forward(self, x):
        left, right = self.a(x).chunk(2, 1)
        left, right = self.b(left * right).split((3, 5), 1)
        left, right = self.c(torch.cat([left, right[:, :1]], 1)).split((self.width, self.width), 1)
        return self.end(self.d(left + right)) * (self.index == 4)


class Heads(nn.Module):
    """Attention that knows its number of heads, and a weight of its own class."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads, self.embed, self.classes = heads, width, 8
        self.scale = nn.Parameter(torch.ones(8))
        self.qkv, self.out = Product(8, 3 * width), Product(width, 8)
        self.end = nn.Linear(8, 3)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5)
        return self.end(self.scale * self.out(y.transpose(1, 2).reshape(batch, tokens, -1)))


class Product(nn.Module):
    def __init__(self, into, out):
        super().__init__()
        self.into, self.width = into, out
        self.weight = nn.Parameter(torch.randn(into, out))

    def forward(self, x):
        return (x.reshape(-1, self.into) @ self.weight).view(*x.shape[:-1], self.width)


def x64(*shape):
    return torch.randn(shape).double()


@pytest.mark.parametrize("seed", range(2))
def test_every_cut_of_a_graph_for_the_class_has_the_class(seed):
    model, x = randomised(Halves()), x64(2, 3, 4, 4)
    free = gator.trace(model, x)
    graph = gator.trace(model, x, keep_class=True)
    assert graph.keep_class
    assert not free.keep_class
    assert {edge.name: edge.width for edge in graph.edges}.items() >= {"a": 4, "c": 5, "d": 6}.items()
    assert not any("b" in edge.producers for edge in graph.edges)
    kept = draw(graph, 0.5, seed)
    small = gator.cut(model, graph, kept)
    assert type(small) is Halves
    assert small.index == 4
    with gator.masked(model, graph, kept):
        assert gap(run(model, x), run(small, x)) <= 1e-9
    again = gator.apply(gator.CutPlan.from_json(gator.plan(small).to_json()), Halves().double())
    again.load_state_dict(small.state_dict())
    assert again.width == small.width
    assert gap(run(again, x), run(small, x)) == 0


def test_a_graph_for_the_class_survives_json_and_a_second_cut():
    model, x = randomised(Halves()), x64(2, 3, 4, 4)
    graph = gator.trace(model, x, keep_class=True)
    saved = gator.SavedGraph.from_json(graph.to_json())
    assert saved.keep_class
    small = gator.cut(model, saved, {"a": [0, 2, 3], "c": [1, 2]})
    assert small.width == 2
    smaller = gator.cut(small, gator.trace(small, x, keep_class=True), {"a": [1], "c": [0]})
    assert (type(smaller), smaller.width) == (Halves, 1)
    again = gator.apply(gator.plan(smaller), Halves().double())
    again.load_state_dict(smaller.state_dict())
    assert gap(run(again, x), run(smaller, x)) == 0


def test_attributes_follow_a_cut_of_heads_and_of_weights():
    model, x = randomised(Heads()), x64(2, 5, 8)
    graph = gator.trace(model, x)
    kept = {edge.name: range(edge.width // 2) for edge in graph.edges}
    small = gator.cut(model, graph, kept)
    assert type(small) is Heads
    assert small.classes == 8  # the size of a weight by chance, and nothing that forward needs
    assert (small.heads, small.qkv.width, small.out.into, small.qkv.into) == (2, 24, 8, 8)
    assert (model.heads, model.qkv.width) == (4, 48)
    with gator.masked(model, graph, kept):
        assert gap(run(model, x), run(small, x)) <= 1e-9
    other = copy.deepcopy(model)
    gator.cut_(other, graph, kept)
    assert other.heads == 2
    assert gap(run(other, x), run(small, x)) == 0


def test_a_pruner_for_the_class():
    model, x = Halves(), torch.randn(2, 3, 4, 4)
    pruner = gator.Pruner(model, x, target=0.6, steps=4, keep_class=True)
    model.train()
    for _ in range(4):
        (model(x).square().mean() + pruner.loss()).backward()
        pruner.step(lr=0.1)
    assert type(pruner.cut()) is Halves
    pruner.shrink_()
    assert type(model) is Halves
    assert pruner.graph.keep_class


def test_a_resumed_pruner_does_not_try_the_class_again(monkeypatch):
    model, x = Halves(), torch.randn(2, 3, 4, 4)
    settings = {"target": 0.6, "steps": 4, "keep_class": True}
    pruner = gator.Pruner(model, x, **settings)
    state = pruner.state_dict()
    edges = [(edge.name, edge.width) for edge in pruner.graph.edges]
    pruner.detach()
    monkeypatch.setattr("gator.surgery.keep_class.sliced_copy", None)
    again = gator.Pruner(model, x, state=state, **settings)
    assert [(edge.name, edge.width) for edge in again.graph.edges] == edges


def test_a_cut_in_graph_form_says_why(caplog):
    model, x = Halves(), torch.randn(2, 3, 4, 4)
    graph = gator.trace(model, x)
    edge = next(edge for edge in graph.edges if "b" in edge.producers)
    with caplog.at_level("INFO", logger="gator"):
        small = gator.cut(model, graph, {edge.name: range(edge.width - 1)})
    assert isinstance(small, torch.fx.GraphModule)
    assert "keep_class=True) keeps the class" in caplog.text


class CopiedHeads(nn.Module):
    """Attention heads on an axis of their own, which are copied into a layout that a single head has already."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(5, 8 * 2), nn.Linear(8 * 2, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.enter(x).view(*x.shape[:2], -1, 2).transpose(1, 2).contiguous().relu()
        return self.leave(heads.transpose(1, 2).contiguous().flatten(2))


@pytest.mark.parametrize("heads", [1, 3])
def test_a_single_head_keeps_the_class(heads: int) -> None:
    model, x = CopiedHeads().double().eval(), torch.randn(2, 7, 5).double()
    graph = gator.trace(model, x, keep_class=True)
    kept = {graph.edges[0].name: range(heads)}
    small = gator.cut(model, graph, kept, keep_class=True)
    assert type(small) is CopiedHeads
    with gator.masked(model, graph, kept):
        torch.testing.assert_close(model(x), small(x), rtol=1e-8, atol=1e-8)


def test_every_edge_keeps_a_channel() -> None:
    """A block that is worth nothing would go as a whole, and the class with it."""
    model, x = zoo.build("digits:resnet").model, torch.randn(2, 1, 8, 8)
    for keep_class in (False, True):
        pruner = gator.Pruner(model, x, target=0.6, steps=4, keep_class=keep_class)
        pruner.gates.worth.fill_(1.0)
        pruner.gates.worth[pruner.gates.of_edge(pruner.graph.index_of("blocks.1.conv1"))] = 0.0
        pruner.project()
        small = pruner.cut()
        pruner.detach()
        assert (0 in pruner.gates.widths()) is not keep_class
        assert (type(small) is type(model)) is keep_class
