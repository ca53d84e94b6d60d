"""Which layers are timed together: each place once, and layers with cold weights beside a network's worth of others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gator
from gator.cost.latency.layers.fused_layers import FusedLayer, fused_layers_of
from gator.cost.latency.measuring.interleave import Interleaving


def interleaving(batch: int = 1) -> tuple[Interleaving, tuple[FusedLayer, ...]]:
    """Of a network that computes 32x32 pixels in its first layers and 2x2 in the last."""
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(16)]
    late = [nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, *late, nn.Flatten(), nn.Linear(512, 10)).eval()
    graph = gator.trace(model, torch.zeros(1, 3, 32, 32))
    layers = fused_layers_of(graph)
    return Interleaving(graph, layers, batch), layers


def test_weights_by_hand() -> None:
    """9 for every pair of channels, and a bias per channel, which is counted as if it shrank with both sides."""
    found, layers = interleaving()
    assert found.weights(layers[2], layers[2].full) == 64 * 128 * 9 + 128
    assert found.weights(layers[2], (32, 64)) == pytest.approx((64 * 128 * 9 + 128) / 4)


@pytest.mark.parametrize(("batch", "cold"), [(1, [False, False, True, True, True]), (80, [False, False, False, False, True])])
def test_weights_that_are_used_few_times_are_cold(batch, cold) -> None:
    """1,024 pixels, then 4 of every example: with 80 examples 320 of them; a linear layer uses a weight once per example."""
    found, layers = interleaving(batch)
    assert [found.has_cold_weights(layer) for layer in layers] == cold


def test_every_place_is_timed_once() -> None:
    found, layers = interleaving()
    places = list(
        dict.fromkeys((s, (a * bool(s.full[0]), b * bool(s.full[1]))) for s in layers for a in (8, 9) for b in (8, 9))
    )
    sessions = list(found.sessions(places))
    assert sorted(map(repr, (place for some, _ in sessions for place in some))) == sorted(map(repr, places))
    for some, beside in sessions:
        assert len(some) <= 64
        if not found.has_cold_weights(some[0][0]):
            assert len({layer for layer, _ in some}) == 1
            assert not beside
            assert len(some) <= 8


def test_a_session_has_the_weights_of_a_network() -> None:
    """As nearly as a few layers can be distributed."""
    found, layers = interleaving()
    late = [layer for layer in layers if found.has_cold_weights(layer) and layer.full[1]]
    places = [(layer, (layer.full[0], layer.full[1] - less)) for layer in late for less in range(12)]
    network = sum(found.weights(layer, layer.full) for layer in layers)
    sessions = list(found.sessions(places))
    assert len(sessions) == int(sum(found.weights(*place) for place in places) / network) == 10
    assert all(sum(found.weights(*place) for place in some) > 0.8 * network for some, _ in sessions)
    assert all(len({layer for layer, _ in some}) > 1 for some, _ in sessions)


def test_a_single_place_runs_beside_the_rest_of_the_network() -> None:
    found, layers = interleaving()
    one = (layers[3], (8, 8))
    ((some, beside),) = found.sessions([one])
    assert some == [one]
    network = sum(found.weights(layer, layer.full) for layer in layers)
    assert sum(found.weights(*place) for place in (*some, *beside)) >= network * (1 - 1e-9)
