"""Random networks with random masks, empty edges included: masked equals cut."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import OPS, Op, RandomNetwork, draw_masks
from support import gap, randomised, run
from torch import Tensor, nn

import gator


@settings(deadline=None, derandomize=True)
@given(OPS, st.integers(2, 8), st.integers(0, 10_000), st.sampled_from([0.0, 0.0, 0.25]))
def test_masked_equals_cut(ops: list[Op], channels: int, seed: int, zero: float) -> None:
    torch.manual_seed(seed)
    model = randomised(RandomNetwork(ops, channels), seed)
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    graph = gator.trace(model, x)
    assert not graph.unsupported
    with gator.masked(model, graph, {}):
        assert gap(run(model, x), run(RandomNetworkCopy(model), x)) <= 1e-12
    kept = draw_masks(graph, seed, zero)
    try:
        with gator.masked(model, graph, kept):
            expected = run(model, x)
    except gator.KeptError as error:
        assert any(
            edge.name in str(error) for edge in graph.edges
        )  # no network can have these channels: the error names the edge
        assert any(not mask.any() for mask in kept.values()) or "disconnect" in str(error)
        return
    small = gator.cut(model, graph, kept)
    assert gap(expected, run(small, x)) <= 1e-8
    assert gap(expected, run(gator.cut(model, graph, kept, keep_class=False), x)) <= 1e-8
    assert gator.measure(small, x).macs == gator.predict_macs(graph, kept)
    model.train()
    small.train()
    with gator.masked(model, graph, kept):
        expected = run(model, x)
    assert gap(expected, run(small, x)) <= 1e-7


class RandomNetworkCopy(nn.Module):
    """The eager forward of a model whose own forward may be replaced."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, x: Tensor) -> Tensor:
        return type(self.inner).forward(self.inner, x)
