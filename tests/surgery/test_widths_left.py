"""Widths on the edges of the original network, after one cut and after several."""

from __future__ import annotations

import torch

import gator
from gator import zoo
from gator.surgery.widths_left import widths_of_network


def test_widths_after_two_cuts_are_those_of_the_original_edges() -> None:
    model = zoo.build("digits:resnet").model.eval()
    x = torch.zeros(1, 1, 8, 8)
    graph = gator.trace(model, x)
    assert widths_of_network(model) == {}
    small = gator.cut(model, graph, {"stem": range(20), "blocks.0.conv1": [1, 2, 3]})
    widths = {edge.name: edge.width for edge in graph.edges}
    assert widths_of_network(small) == {**widths, "stem": 20, "blocks.0.conv1": 3}
    again = gator.trace(small, x)
    smaller = gator.cut(small, again, {"stem": range(5, 15), "blocks.3.conv1": range(7)})
    assert widths_of_network(smaller) == {**widths, "stem": 10, "blocks.0.conv1": 3, "blocks.3.conv1": 7}


def test_a_removed_block_has_no_width() -> None:
    model = zoo.build("digits:resnet").model.eval()
    graph = gator.trace(model, torch.zeros(1, 1, 8, 8))
    small = gator.cut(model, graph, {"blocks.1.conv1": []})
    assert widths_of_network(small)["blocks.1.conv1"] == 0
    assert widths_of_network(small)["stem"] == 24
