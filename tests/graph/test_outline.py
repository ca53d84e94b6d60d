"""The outline of a network: its layers in order, and which edges are highways."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gator
from gator.errors import FileError
from gator.graph.outline import Outline, outline_of


class Gated(nn.Module):
    """Two layers that a product ties, a bias that is added, and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Linear(3, 6), nn.Linear(6, 5), nn.Linear(6, 5)
        self.back, self.head = nn.Linear(5, 6), nn.Linear(6, 2)
        self.bias = nn.Parameter(torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(x + self.back(self.one(x) * torch.sigmoid(self.two(x)) + self.bias))


def test_only_additions_of_results_make_a_highway() -> None:
    outline = outline_of(gator.trace(Gated(), torch.zeros(2, 3)))
    found = {edge.name: (edge.producers, edge.highway) for edge in outline.edges}
    assert found["stem"] == (("stem", "back"), True)
    assert found["one"][0][:2] == ("one", "two")
    assert found["one"][1] is False
    assert [layer for layer in outline.layers if layer != "bias"] == ["stem", "one", "two", "back", "head"]


def test_an_outline_is_plain_data() -> None:
    outline = outline_of(gator.trace(Gated(), torch.zeros(2, 3)))
    data = outline.to_data()
    assert Outline.from_data({**data, "layers": list(outline.layers), "edges": _lists(data["edges"])}) == outline
    with pytest.raises(FileError, match="format 9"):
        Outline.from_data({**data, "format": 9})
    with pytest.raises(FileError, match="'edges' is missing"):
        Outline.from_data({"format": 1, "layers": []})


def _lists(edges: tuple[dict[str, object], ...]) -> list[dict[str, object]]:
    """As JSON gives them back."""
    return [{key: list(value) if isinstance(value, tuple) else value for key, value in edge.items()} for edge in edges]
