"""Two and four processes have the same masks after every step; if one dies, the others stop."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from gates.processes import join, start
from torch import distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import gator
from gator import zoo

pytestmark = [pytest.mark.trains, pytest.mark.slow, pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")]

STEPS, SHRINK_AT, DIE_AT = 100, 50, 10
TIMEOUT = 10  # seconds: that of the process group in the tests in which a rank dies


def train(folder: Path, rank: int, end: str) -> None:
    """Every rank has its own data. After every step a line about the masks is written."""
    torch.manual_seed(0)
    model = zoo.build("digits:resnet").model
    pruner = gator.Pruner(model, torch.zeros(2, 1, 8, 8), target=0.4, steps=STEPS)
    torch.manual_seed(1 + rank)
    parallel: nn.Module = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model.train()
    with (folder / f"{rank}.txt").open("w") as log:
        for step in range(STEPS):
            x, y = torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,))
            loss = functional.cross_entropy(parallel(x), y) + pruner.loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pruner.step(lr=0.02)
            state = b"".join(value.numpy().tobytes() for value in pruner.gates.state().values())
            print(step, int(pruner.gates.alive.sum()), hashlib.sha256(state).hexdigest(), file=log, flush=True)
            if end and rank == 1 and step == DIE_AT:
                os.kill(os.getpid(), signal.Signals[end])
            if step == SHRINK_AT:
                del loss, parallel
                optimizer.zero_grad()
                pruner.shrink_(optimizer)
                parallel = DistributedDataParallel(model, find_unused_parameters=True)


@pytest.mark.parametrize("count", [2, 4])
def test_the_masks_are_the_same_on_all_ranks_after_every_step(count, tmp_path) -> None:
    started = start(__file__, count, str(tmp_path), "")
    assert [process.wait(600) for process in started] == [0] * count
    logs = [(tmp_path / f"{rank}.txt").read_text().splitlines() for rank in range(count)]
    assert len(logs[0]) == STEPS
    assert all(log == logs[0] for log in logs)
    living = [int(line.split()[1]) for line in logs[0]]
    assert living[0] > living[SHRINK_AT] > living[-1]  # so masks did change, before and after the network was made smaller


@pytest.mark.parametrize(("count", "end"), [(2, "SIGKILL"), (4, "SIGKILL"), (2, "SIGSTOP")])
def test_the_others_stop_if_a_rank_dies(count, end, tmp_path) -> None:
    """SIGSTOP stands for a host that does not answer any more: no connection is closed, only the timeout ends the wait."""
    started = start(__file__, count, str(tmp_path), end)
    dead, others = started[1], [process for rank, process in enumerate(started) if rank != 1]
    try:
        log, deadline = tmp_path / "1.txt", time.monotonic() + 600
        while not (log.exists() and len(log.read_text().splitlines()) > DIE_AT):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        died = time.monotonic()
        codes = [process.wait(600) for process in others]
        # Python takes a moment to end; that is not part of the timeout.
        assert time.monotonic() - died < TIMEOUT + 30
        assert all(code not in (0, None) for code in codes), codes
    finally:
        dead.kill()
        dead.wait(60)


if __name__ == "__main__":
    folder, end = sys.argv[1:]
    try:
        train(Path(folder), join(TIMEOUT if end else 600), end)
    except RuntimeError:
        traceback.print_exc()
        os._exit(1)  # torch may hang if Python ends in the usual way with DistributedDataParallel still alive
    dist.destroy_process_group()
