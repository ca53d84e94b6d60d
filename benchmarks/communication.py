"""Bytes that the processes of a training step send each other, by formula and as the network interface counts them.

    python benchmarks/communication.py          # needs root (or the right to use `unshare --net`) and iproute2

The processes (gloo) run in a network namespace of their own, in which nothing else uses the loopback interface; its counter is
read before and after some steps. It counts every byte that is sent, with the headers of gloo and TCP.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import multiprocessing, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import gator
from gator import zoo

NETWORKS = ("digits:resnet", "cifar:resnet56")
WARM_UP, STEPS = 3, 10


def sent() -> int:
    """Bytes that the loopback interface of this network namespace has sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (loopback,) = (line.split(":")[1].split() for line in lines if line.strip().startswith("lo:"))
    return int(loopback[8])


def expected(model: nn.Module, gates: int, count: int) -> float:
    """An all-reduce of b bytes sends 2 (n - 1) b in all, a broadcast (n - 1) b."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    reduced = sum(p.numel() * p.element_size() for p in parameters)
    copied = sum(b.numel() * b.element_size() for b in model.buffers())
    if gates:  # which parameters were used; then the gradients of the gates and the scale of the loss
        reduced += 4 * len(parameters) + 4 * (gates + 1)
        copied += 4 * (gates + 1)
    return (count - 1) * (2 * reduced + copied)


def worker(rank: int, count: int, name: str, gated: bool) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=count, timeout=timedelta(minutes=5))
    built = zoo.build(name)
    model, shape = built.model, built.example_inputs.shape[1:]
    pruner = gator.Pruner(model, torch.zeros(1, *shape), alpha=0.1) if gated else None
    parallel = DistributedDataParallel(model, find_unused_parameters=gated)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            dist.barrier()
            before = sent()
            dist.barrier()
        loss = functional.cross_entropy(parallel(torch.randn(4, *shape)), torch.zeros(4, dtype=torch.long))
        if pruner is not None:
            loss = loss + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if pruner is not None:
            pruner.step(lr=0.01)
    dist.barrier()
    if rank == 0:
        found, formula = (sent() - before) / STEPS, expected(model, 0 if pruner is None else len(pruner.gates), count)
        kind = "with gates" if gated else "plain"
        print(f"| {name} | {count} | {kind} | {formula:,.0f} | {found:,.0f} | {found / formula:.3f} |", flush=True)
    del parallel, loss  # a reducer that is the last to hold the group may wait for its threads forever
    dist.destroy_process_group()


def inside() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    print("| network | processes | step | bytes by formula | bytes measured | ratio |\n| --- | --- | --- | --- | --- | --- |")
    for name in NETWORKS:
        for count in (2, 4):
            for gated in (False, True):
                multiprocessing.spawn(worker, (count, name, gated), nprocs=count)


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        inside()
    else:
        sys.exit(subprocess.run(["unshare", "--net", sys.executable, __file__, "--inside"], check=False).returncode)
