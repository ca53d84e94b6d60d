"""The step that widths are worth being multiples of, told by what whole networks take."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes import BLOCK, small
from torch import nn

import gator
from gator.cost.flops import macs_of
from gator.cost.latency.width_step import paying_step
from gator.gates.limits import Limits


@pytest.mark.parametrize(("unaligned", "step"), [(1.0, 1), (1.02, 1), (1.5, 16)])
def test_a_step_counts_only_if_filling_it_pays(unaligned, step) -> None:
    """Networks that take as long as they have MACs, and a little or a lot longer with a width that is no multiple of 16."""
    _, _, graph = small()
    macs = macs_of(graph)

    def ms(widths) -> float:
        return macs.total(widths) * (unaligned if (np.asarray(widths) % 16).any() else 1.0)

    assert paying_step(graph, lambda networks: [ms(widths) for widths in networks]) == step


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16])
def test_the_block_of_a_kernel_is_found(block) -> None:
    """Channels that leave a block half empty save nothing."""
    _, _, graph = small()
    macs = macs_of(graph)

    def ms(widths) -> float:
        return macs.total([-(-int(width) // block) * block for width in widths])

    assert paying_step(graph, lambda networks: [ms(widths) for widths in networks]) == (block if block >= 4 else 1)


@pytest.mark.parametrize("width", [8, 768])
def test_what_is_within_the_noise_gives_no_step(width) -> None:
    """Half a step of wide edges hardly takes any time; very narrow edges have none that could be left half empty."""
    model = nn.Sequential(nn.Conv2d(3, width, 1), nn.ReLU(), nn.Conv2d(width, width, 1), nn.ReLU(), nn.Conv2d(width, 3, 1))
    graph = gator.trace(model, torch.zeros(1, 3, 2, 2))
    macs, random = macs_of(graph), np.random.default_rng(0)

    def ms(widths) -> float:
        return macs.total(widths) * random.normal(1, 0.005)

    assert {paying_step(graph, lambda networks: [ms(widths) for widths in networks]) for _ in range(50)} == {1}


def test_edges_narrower_than_two_steps_have_a_smaller_one(fake) -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 12, 3), nn.ReLU(), nn.Conv2d(12, 3, 1), nn.Conv2d(3, 8, 1)).eval()
    graph = gator.trace(model, torch.zeros(1, 3, 8, 8))
    prices = gator.Latency("fake", threads=1).on(model, graph)
    assert prices.width_step == BLOCK
    limits = Limits.of(model, graph, 0, "auto", ()).resolved(prices, graph)
    assert dict(zip((edge.name for edge in graph.edges), limits.multiples.tolist(), strict=True)) == {
        "0": BLOCK,
        "1": 4,
        "3": 1,
    }
    assert Limits.of(model, graph, 0, 5, ()).resolved(prices, graph).multiples.tolist() == [5, 5, 5]


def test_the_step_is_measured_once_and_only_if_it_is_needed(fake) -> None:
    model, x, graph = small()
    cost = gator.Latency("fake", threads=1)
    prices = cost.on(model, graph)
    fake.prepared = 0
    Limits.of(model, graph, 0, 8, ()).resolved(prices, graph)
    assert fake.prepared == 0
    for _ in range(2):
        Limits.of(model, graph, 0, "auto", ()).resolved(prices, graph)
    assert fake.prepared == 5
    pruner = gator.Pruner(model, x, cost=cost, target=0.7, steps=10)
    state = pruner.state_dict()
    pruner.detach()
    fake.prepared = 0
    again = gator.Pruner(model, x, cost=cost, target=0.7, steps=10, state=state)
    assert again.budget.limits.multiples.tolist() == pruner.budget.limits.multiples.tolist()
    assert fake.prepared == 1  # the network as it is
