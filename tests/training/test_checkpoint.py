"""Checkpoint files: written atomically, the last two kept, and everything in them restored."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from safetensors.torch import save_file as real_save_file
from torch import nn

import gator
from gator.training import checkpoint
from gator.training.checkpoint import State, read_latest, write_checkpoint


def state(value: float) -> State:
    return State({"a": torch.full((3,), value)}, {"value": value})


def test_the_last_two_are_kept(tmp_path) -> None:
    for step in (1, 2, 10):
        write_checkpoint(tmp_path, step, state(step))
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == [
        "step-000000002.safetensors",
        "step-000000010.safetensors",
    ]
    path, found = read_latest(tmp_path)
    assert path.name == "step-000000010.safetensors"
    assert found.content["value"] == 10
    assert found.tensors["a"].tolist() == [10, 10, 10]


def test_a_damaged_one_gives_way_to_the_one_before(tmp_path) -> None:
    write_checkpoint(tmp_path, 1, state(1))
    second = write_checkpoint(tmp_path, 2, state(2))
    second.write_bytes(second.read_bytes()[:-5])
    assert read_latest(tmp_path)[1].content["value"] == 1
    for path in checkpoint.checkpoints(tmp_path):
        path.write_bytes(b"nothing")
    with pytest.raises(gator.RunError, match="no checkpoint of this run can be read"):
        read_latest(tmp_path)


def test_no_checkpoint_yet(tmp_path) -> None:
    assert read_latest(tmp_path) is None


def test_a_full_disk_leaves_the_last_good_one(tmp_path, monkeypatch) -> None:
    write_checkpoint(tmp_path, 1, state(1))

    def full(tensors, path, metadata):
        real_save_file(tensors, path, metadata=metadata)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gator.files.save.save_file", full)
    with pytest.raises(gator.FileError, match="No space left on device"):
        write_checkpoint(tmp_path, 2, state(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.safetensors"]


def test_what_a_killed_writer_left_is_cleared_away(tmp_path) -> None:
    (tmp_path / ".step-000000001.safetensors.abc").write_bytes(b"half")
    assert read_latest(tmp_path) is None
    write_checkpoint(tmp_path, 1, state(1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.safetensors"]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_a_restored_optimizer_continues_exactly(kind) -> None:
    def step(model, optimizer) -> None:
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model = nn.Linear(3, 4)
    optimizer = kind([model.bias, model.weight])  # not the order of the network
    step(model, optimizer)
    kept = checkpoint.optimizer_state(optimizer, model)
    other = nn.Linear(3, 4)
    other.load_state_dict(model.state_dict())
    again = kind(checkpoint.parameters_in_order(kept, other))
    checkpoint.load_optimizer_(again, kept, other)
    assert again.param_groups[0]["params"][0] is other.bias
    for _ in range(3):
        step(model, optimizer)
        step(other, again)
    assert torch.equal(model.weight, other.weight)
    assert torch.equal(model.bias, other.bias)


def test_random_number_generators_are_restored() -> None:
    kept = checkpoint.random_state()

    def draw():
        return torch.rand(3).tolist(), random.random(), np.random.rand()  # noqa: NPY002

    first = draw()
    assert draw() != first
    checkpoint.set_random_state(kept)
    assert draw() == first
