"""An optimizer that was made before a cut and not passed along is told so at its next step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gator


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_an_optimizer_that_was_left_out_says_so(model) -> None:
    mine, other = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(model.parameters())
    step(model, mine)
    step(model, other)
    optimizer_of_another_network = torch.optim.AdamW((another := nn.Linear(4, 2)).parameters())
    model.zero_grad()
    gator.cut_(model, gator.trace(model, torch.randn(3, 4)), {"0": range(5)}, optimizer=mine)
    step(model, mine)
    step(another, optimizer_of_another_network)
    with pytest.raises(gator.CutError, match=r"AdamW was made before the network was cut.*\(8, 4\).*\(5, 4\)\n.*shrink_"):
        step(model, other)


def test_one_without_state_goes_on(model) -> None:
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, plain)
    model.zero_grad()
    gator.cut_(model, gator.trace(model, torch.randn(3, 4)), {"0": range(5)})
    before = model[0].weight.detach().clone()
    step(model, plain)
    assert not torch.equal(before, model[0].weight)
