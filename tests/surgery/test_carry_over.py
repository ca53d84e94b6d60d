"""A network in graph form keeps what belongs to the model and does not depend on its forward."""

from __future__ import annotations

import copy

import pytest
import torch
from support import gap
from torch import nn

import gator


class Criterion:
    def __init__(self, model):
        self.model = model


class Detector(nn.Module):
    kind = "detector"

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(4, 2, 1)
        self.auxiliary = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.stride, self.names, self.hidden = [8, 16], {0: "cat", 1: "dog"}, [self.a]
        self.criterion, self.bound = Criterion(self), self.name_of

    def forward(self, x):
        left, right = self.a(x).split((3, 5), 1)
        return self.b(torch.cat([left, right[:, :1]], 1))

    def name_of(self, index):
        return self.names[index]

    @property
    def classes(self):
        return len(self.names)

    @staticmethod
    def helper():
        return "help"


def cut_detector():
    model, x = Detector().double(), torch.randn(2, 3, 4, 4).double()
    graph = gator.trace(model, x)
    edge = max(graph.edges, key=lambda e: e.width)
    return model, gator.cut(model, graph, {edge.name: range(edge.width - 1)}, keep_class=False), x


def test_attributes_methods_and_unused_modules_are_kept():
    model, small, _ = cut_detector()
    assert isinstance(small, torch.fx.GraphModule)
    for network in (small, copy.deepcopy(small), gator.apply(gator.plan(small), Detector().double())):
        assert network.stride == [8, 16]
        assert network.name_of(1) == "dog"
        assert network.classes == 2
        assert network.helper() == "help"
        assert network.kind == "detector"
        assert not any(hasattr(network, name) for name in ("hidden", "criterion", "bound"))
        assert network.state_dict().keys() == model.state_dict().keys()
    small.names[0] = "bird"
    assert model.names[0] == "cat"
    with pytest.raises(AttributeError, match="nothing"):
        _ = small.nothing


def test_a_copy_computes_the_same():
    _, small, x = cut_detector()
    assert gap(small(x), copy.deepcopy(small)(x)) == 0
