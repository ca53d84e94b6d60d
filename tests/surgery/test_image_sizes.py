"""A cut in graph form runs at other heights and widths, or says what binds it."""

from __future__ import annotations

import pytest
import torch
from networks import conv
from support import draw, gap, randomised, run
from torch import nn
from torch.nn import functional as F

import gator


class UNet(nn.Module):
    """Sizes that are read from a skip; a split that keeps its class from working."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = conv(3, 8), conv(8, 12, stride=2), conv(12, 8, stride=2), conv(8, 6)
        self.e = nn.Conv2d(6 + 8, 4, 1)

    def forward(self, x):
        a = F.relu(self.a(x))
        first, second = self.b(a).split((5, 7), 1)
        low = self.d(F.relu(self.c(torch.cat([second, first], 1))))
        return self.e(torch.cat([F.interpolate(low, size=a.shape[2:]), a], 1))


class Tokens(nn.Module):
    """The number of pixels as one axis, windows folded into the batch, and a size in a reshape."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = conv(3, 8, stride=2), nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x):
        y = self.a(x)
        batch, channels, height, width = y.shape
        tokens = y.reshape(batch, channels, height * width).transpose(1, 2)
        windows = tokens.reshape(batch, height // 4, 4, width // 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        windows = F.relu(self.b(windows.reshape(batch * (height // 4) * (width // 4), 16, channels)))
        back = windows.reshape(batch, height // 4, width // 4, 4, 4, -1).permute(0, 1, 3, 2, 4, 5)
        return self.c(back.reshape(batch, height, width, -1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("network", [UNet, Tokens])
@pytest.mark.parametrize("seed", range(1))
def test_a_graph_form_runs_at_other_sizes(network, seed):
    model, x = randomised(network()), torch.randn(2, 3, 16, 16).double()
    graph = gator.trace(model, x)
    kept = draw(graph, 0.5, seed)
    small = gator.cut(model, graph, kept, keep_class=False)
    again = gator.apply(gator.plan(small), network().double())
    again.load_state_dict(small.state_dict())
    for shape in ((2, 3, 16, 16), (1, 3, 24, 16), (3, 3, 16, 40), (2, 3, 48, 32)):
        y = torch.randn(shape).double()
        for training in (True, False):
            for each in (model, small, again):
                each.train(training)
            with gator.masked(model, graph, kept):
                expected = run(model, y)
            assert gap(expected, run(small, y)) <= 1e-9
            assert gap(expected, run(again, y)) <= 1e-9


def test_a_size_between_is_refused():
    model, x = randomised(Tokens()), torch.randn(2, 3, 16, 16).double()
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, draw(graph, 0.5), keep_class=False)
    with pytest.raises(gator.GatorError, match="cannot take images of 20 x 16"):
        small(torch.randn(2, 3, 20, 16).double())


def test_what_binds_a_network_is_named():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = conv(3, 8), conv(8, 2)

        def forward(self, x):
            y = self.a(x)
            return self.b(y + torch.arange(y.shape[3]).to(y.dtype).sqrt())

    model, x = randomised(Positions()), torch.randn(2, 3, 16, 16).double()
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, draw(graph, 0.5), keep_class=False)
    with pytest.raises(gator.GatorError, match="bound to this size: a constant depends on the size of the images, in"):
        small(torch.randn(2, 3, 32, 16).double())


def test_a_shrunk_network_runs_at_other_sizes():
    model, x = randomised(UNet()), torch.randn(2, 3, 16, 16).double()
    graph = gator.trace(model, x)
    edge = max(graph.edges, key=lambda e: "b" in e.producers)
    kept = {edge.name: range(edge.width - 2)}
    y = torch.randn(2, 3, 32, 24).double()
    with gator.masked(model, graph, kept):
        expected = run(model, y)
    gator.cut_(model, graph, kept)
    assert isinstance(model, torch.fx.GraphModule)
    assert gap(expected, run(model, y)) <= 1e-9


def test_a_number_that_is_computed_with_is_no_size():
    class Scaled(UNet):
        def forward(self, x):
            return super().forward(x) * (x.shape[2] // 3)

    model, x = randomised(Scaled()), torch.randn(2, 3, 16, 16).double()
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, draw(graph, 0.5), keep_class=False)
    with pytest.raises(gator.GatorError, match="a number that is computed with depends on the size of the images, in mul"):
        small(torch.randn(2, 3, 32, 16).double())
