"""What many tests need: randomised networks, drawn masks, and the comparison at the heart of the library."""

from __future__ import annotations

import os
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gator
from gator.private_torch import pytree

# torch.compile with its usual backend calls a C++ compiler.
needs_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler here")


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """In float64 and eval mode, with statistics, affines and constant weights away from 0 and 1, so that nothing hides."""
    model = model.double().eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "running_var" in name:
                buffer.copy_(torch.rand(buffer.shape, generator=random) + 0.5)
            elif "running_mean" in name:
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=random))
        for name, parameter in model.named_parameters():
            if parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
                noise = torch.randn(parameter.shape, generator=random)
                parameter.copy_(0.2 * noise if name.endswith("bias") else 1 + 0.3 * noise)
    return model


def doubled(inputs: Any) -> Any:
    return pytree.tree_map(lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, inputs)


def run(model: nn.Module, inputs: Any) -> Any:
    with torch.no_grad():
        if isinstance(inputs, dict):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def draw(graph: gator.Hypergraph, share: float, seed: int = 0, least: int = 1) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {e.name: np.sort(random.permutation(e.width)[: max(least, round(share * e.width))]) for e in graph.edges}


def gap(one: Any, other: Any) -> float:
    """The largest difference relative to the largest value; the structures must be the same."""
    left, structure = pytree.tree_flatten(one)
    right, same = pytree.tree_flatten(other)
    assert structure == same, f"{structure} is not {same}"
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor):
            assert a == b
            continue
        assert a.shape == b.shape, f"{tuple(a.shape)} is not {tuple(b.shape)}"
        assert torch.isfinite(a).all()
        assert torch.isfinite(b).all()
        if a.numel():
            a, b = a.detach(), b.detach()
            worst = max(worst, float((a - b).abs().max() / a.abs().max().clamp_min(1e-12)))
    return worst


def assert_masked_equals_cut(
    model: nn.Module, inputs: Any, graph: gator.Hypergraph, kept: Any, tolerance: float = 1e-8
) -> nn.Module:
    """`masked` against both forms of `cut`; returns what `cut` gives by default."""
    with gator.masked(model, graph, kept):
        expected = run(model, inputs)
    small = gator.cut(model, graph, kept)
    assert gap(expected, run(small, inputs)) <= tolerance
    graph_form = gator.cut(model, graph, kept, keep_class=False)
    assert gap(expected, run(graph_form, inputs)) <= tolerance
    assert gator.measure(small, inputs).macs == gator.predict_macs(graph, kept)
    return small
