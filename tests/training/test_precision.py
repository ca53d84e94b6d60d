"""Mixed precision: scaled losses give the same steps, an overflow skips one, and the scaler survives a checkpoint."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import gator
from gator.training.precision import Precision
from gator.training.processes import Processes
from gator.training.recipe import RunSettings

CPU = torch.device("cpu")


def trained(precision: Precision, steps: int, *, clip: float = 0.0, network: nn.Module | None = None) -> nn.Module:
    network = nn.Linear(3, 2) if network is None else network
    with torch.no_grad():
        network.weight.fill_(0.5)
        network.bias.zero_()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.125)
    for _ in range(steps):
        precision.backward(network(torch.ones(4, 3)).square().mean())
        precision.step(optimizer, list(network.parameters()), clip=clip)
        optimizer.zero_grad()
    return network


@pytest.mark.parametrize("clip", [0.0, 0.25])
def test_scaling_by_a_power_of_two_changes_no_step(clip: float) -> None:
    plain, scaled = (trained(Precision(name, CPU), 3, clip=clip) for name in ("no", "fp16"))
    assert torch.equal(plain.weight, scaled.weight)
    assert torch.equal(plain.bias, scaled.bias)


def test_clipping_limits_the_norm_of_the_unscaled_gradients() -> None:
    network = trained(Precision("fp16", CPU), 1, clip=0.25)
    moved = torch.cat([(network.weight - 0.5).flatten(), network.bias]).detach()
    assert float(moved.norm()) == pytest.approx(0.125 * 0.25, rel=1e-4)


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    precision, network = Precision("fp16", CPU), nn.Linear(3, 2)
    before, scale = network.weight.detach().clone(), precision.state_dict()["scale"]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    precision.backward(network(torch.full((1, 3), 3e38)).sum())
    precision.step(optimizer, list(network.parameters()), clip=0.0)
    assert torch.equal(network.weight, before)
    assert precision.state_dict()["scale"] == scale / 2


def test_the_scaler_goes_through_json() -> None:
    one, two = Precision("fp16", CPU), Precision("fp16", CPU)
    trained(one, 3)
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert two.state_dict() == one.state_dict()
    assert one.state_dict()["_growth_tracker"] == 3
    plain = Precision("no", CPU)
    plain.load_state_dict(plain.state_dict())
    assert plain.state_dict() == {}


@pytest.mark.parametrize(("name", "dtype"), [("no", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_the_forward_pass_computes_in_that_type(name: str, dtype: torch.dtype) -> None:
    with Precision(name, CPU).autocast():
        assert nn.Linear(3, 2)(torch.ones(1, 3)).dtype == dtype


def test_float16_is_refused_on_the_cpu() -> None:
    with pytest.raises(gator.RecipeError, match=r"run.precision = 'fp16' needs a GPU; on the CPU use 'bf16' or 'no'"):
        Processes(RunSettings(device="cpu", precision="fp16"))
