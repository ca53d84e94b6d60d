"""Which layers are timed in turns: each once, and those whose weights are used seldom beside a network's worth of others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gator
from gator.cost.latency.segments import segments_of
from gator.cost.latency.turns import Turns


def turns(batch: int = 1) -> tuple[Turns, tuple]:
    """A network that looks at 32x32 pixels in its first layers and at 2x2 in the last."""
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(16)]
    late = [nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, *late, nn.Flatten(), nn.Linear(512, 10)).eval()
    graph = gator.trace(model, torch.zeros(1, 3, 32, 32))
    segments = segments_of(graph)
    return Turns(graph, segments, batch), segments


def test_weights_by_hand() -> None:
    """9 for every pair of channels, and a bias a channel, which shrinks with both sides as the rest does."""
    found, segments = turns()
    assert found.weights(segments[2], segments[2].whole) == 64 * 128 * 9 + 128
    assert found.weights(segments[2], (32, 64)) == pytest.approx((64 * 128 * 9 + 128) / 4)


@pytest.mark.parametrize(
    ("batch", "waiting"), [(1, [False, False, True, True, True]), (80, [False, False, False, False, True])]
)
def test_weights_that_are_used_seldom_are_waited_for(batch, waiting) -> None:
    """1,024 pixels, then 4 of every example: with 80 examples 320 of them; a linear layer uses them once an example."""
    found, segments = turns(batch)
    assert [found.waits(segment) for segment in segments] == waiting


def test_every_place_has_its_turn() -> None:
    found, segments = turns()
    places = list(
        dict.fromkeys((s, (a * bool(s.whole[0]), b * bool(s.whole[1]))) for s in segments for a in (8, 9) for b in (8, 9))
    )
    groups = list(found.of(places))
    assert sorted(map(repr, (place for some, _ in groups for place in some))) == sorted(map(repr, places))
    for some, beside in groups:
        assert len(some) <= 64
        if not found.waits(some[0][0]):
            assert len({segment for segment, _ in some}) == 1
            assert not beside
            assert len(some) <= 8


def test_a_network_s_worth_of_weights_takes_turns() -> None:
    """As nearly as a few layers can be dealt out."""
    found, segments = turns()
    late = [segment for segment in segments if found.waits(segment) and segment.whole[1]]
    places = [(segment, (segment.whole[0], segment.whole[1] - less)) for segment in late for less in range(12)]
    whole = sum(found.weights(segment, segment.whole) for segment in segments)
    groups = list(found.of(places))
    assert len(groups) == int(sum(found.weights(*place) for place in places) / whole) == 10
    assert all(sum(found.weights(*place) for place in some) > 0.8 * whole for some, _ in groups)
    assert all(len({segment for segment, _ in some}) > 1 for some, _ in groups)


def test_few_places_run_beside_the_rest_of_the_network() -> None:
    found, segments = turns()
    one = (segments[3], (8, 8))
    ((some, beside),) = found.of([one])
    assert some == [one]
    whole = sum(found.weights(segment, segment.whole) for segment in segments)
    assert sum(found.weights(*place) for place in (*some, *beside)) >= whole * (1 - 1e-9)
