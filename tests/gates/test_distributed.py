"""Two processes agree on every mask, and with one process that has twice the batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional

import gator

pytestmark = pytest.mark.trains

STEPS, HALF = 50, 8


def network() -> nn.Module:
    """Group norms: batch norms see other statistics in half a batch."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 1, 1), nn.GroupNorm(1, 8), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.GroupNorm(1, 12), nn.ReLU(),
        nn.Conv2d(12, 8, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).double()  # fmt: skip


def train(model: nn.Module, part: slice, *, wrapped: bool) -> gator.Pruner:
    """Fifty steps on this part of every batch, with this part of every noise."""
    x = torch.randn(2 * HALF, 1, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    pruner = gator.Pruner(model, x[:2], alpha=30.0, gamma=1.0)
    running = nn.parallel.DistributedDataParallel(model) if wrapped else model
    optimizer = torch.optim.SGD(running.parameters(), lr=0.05, momentum=0.9)
    running.train()
    for step in range(STEPS):
        random = torch.Generator().manual_seed(100 + step)
        x = torch.randn(2 * HALF, 1, 8, 8, generator=random).double()
        y = torch.randint(0, 4, (2 * HALF,), generator=random)
        uniform = torch.rand(2 * HALF, len(pruner.gates), generator=random).double()
        noise = torch.log(uniform) - torch.log1p(-uniform)
        pruner.gates.noise = lambda rows, n=noise: n[part]
        loss = functional.cross_entropy(running(x[part]), y[part]) + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pruner.step(lr=0.05)
    return pruner


def worker(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    pruner = train(network(), slice(rank * HALF, (rank + 1) * HALF), wrapped=True)
    torch.save({"alive": pruner.gates.alive, "logits": pruner.gates.logits.detach()}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
def test_two_processes_and_one_with_twice_the_batch_agree(tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([p for p in sys.path if p])}
    started = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(port), str(tmp_path)], env=environment) for rank in (0, 1)
    ]
    pruner = train(network(), slice(0, 2 * HALF), wrapped=False)
    assert [process.wait(timeout=600) for process in started] == [0, 0]
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert torch.equal(one["alive"], two["alive"])
    assert torch.equal(one["logits"], two["logits"])  # bit for bit
    assert torch.equal(one["alive"], pruner.gates.alive)
    assert torch.allclose(one["logits"], pruner.gates.logits.detach(), rtol=1e-6)
    assert 0 < int(pruner.gates.alive.sum()) < len(pruner.gates)  # so the test can fail


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    worker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
