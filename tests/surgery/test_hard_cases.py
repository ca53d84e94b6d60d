"""Every network of tests/networks.py: the cut network computes what the masked one computes, in float64, at several widths."""

import pytest
import torch
from networks import CASES
from support import assert_masked_equals_cut, doubled, draw, gap, randomised, run

import gator


@pytest.mark.parametrize("name", CASES)
def test_masked_equals_cut(name: str) -> None:
    model, inputs, expected = CASES[name]()
    model, inputs = randomised(model), doubled(inputs)
    before = run(model, inputs)
    graph = gator.trace(model, inputs)
    assert not graph.unsupported
    written = {layer for edge in graph.edges for layer in edge.producers}
    assert written >= set(expected), f"not prunable: {set(expected) - written}"
    with gator.masked(model, graph, {}):
        assert gap(before, run(model, inputs)) <= 1e-12
    changed = 0.0
    for share in (0.25, 0.5, 0.75):
        kept = draw(graph, share, seed=int(100 * share))
        with gator.masked(model, graph, kept):
            changed = max(changed, gap(before, run(model, inputs)))
        assert_masked_equals_cut(model, inputs, graph, kept)
    assert changed > 1e-3
    assert gap(before, run(model, inputs)) == 0.0


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in CASES
        if n not in ("drop_path", "prelu_and_dropout", "transformer_encoder", "transformer_decoder", "spectral_norm")
    ],
)
def test_train_mode_too(name: str) -> None:
    """Same batch statistics, same outputs, same running statistics afterwards."""
    model, inputs, _ = CASES[name]()
    model, inputs = randomised(model), doubled(inputs)
    graph = gator.trace(model, inputs)
    kept = draw(graph, 0.5)
    small = gator.cut(model, graph, kept)
    model.train()
    small.train()
    with gator.masked(model, graph, kept):
        expected = run(model, inputs)
    assert gap(expected, run(small, inputs)) <= 1e-8
    for name_, module in small.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            (edge, member), *_ = [(e, m) for e in graph.edges for m in e.members if m.parameter == f"{name_}.running_mean"]
            alive = [i for i, unit in enumerate(member.units) if unit in kept[edge.name]]
            if all(unit >= 0 for unit in member.units):
                full = model.get_submodule(name_).running_mean
                assert torch.allclose(full[alive], module.running_mean, rtol=1e-8)
