"""Processes that die: torchrun starts them again, and the run ends as if nothing had happened; or all of them stop."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from training.small import set_options, tensors_of
from training.test_processes import TORCHRUN, torchrun

pytestmark = [pytest.mark.slow, pytest.mark.trains]

CHANGES = ("prune.epochs=3", "run.checkpoint_seconds=0")

# Rank 1 kills itself after the ninth step with gates, unless the file exists that it leaves behind.
KILLED = """
import os, signal, sys
from pathlib import Path
from gator.gates.pruner import Pruner
flag, real = Path(sys.argv.pop(1)) / "killed", Pruner.step
def step(self, *, lr):
    real(self, lr=lr)
    if os.environ["RANK"] == "1" and self.steps_taken == 9 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
Pruner.step = step
from gator.cli.main import app
app()
"""

# The loss of rank 1 is not a number in the fifth step.
NOT_A_NUMBER = """
import os, sys
from gator.training.loop import Loop
sys.argv.pop(1)
real = Loop._loss
def loss(self, x, y):
    bad = os.environ["RANK"] == "1" and self.steps_taken == 4
    return real(self, x, y) * (float("nan") if bad else 1.0)
Loop._loss = loss
from gator.cli.main import app
app()
"""

# Every process looks for the run folder in a folder of its own, as on nodes without a shared file system.
NOT_SHARED = """
import os, sys
own = sys.argv.pop(1) + "/node-" + os.environ["RANK"]
os.makedirs(own)
os.chdir(own)
from gator.cli.main import app
app()
"""


def without_times(result: dict) -> dict:
    """What a run ends with, apart from what was measured."""
    networks = [result["before"], *(one["figures"] for one in result["rounds"])]
    counts = [{key: network[key] for key in ("accuracy", "macs", "flops", "params", "bytes")} for network in networks]
    return {"networks": counts, "rounds": [{**one, "figures": None} for one in result["rounds"]]}


def test_a_killed_worker_is_started_again_and_the_result_is_the_same(tmp_path) -> None:
    args = ("prune", "digits", *set_options(*CHANGES), "--resume", "auto", "--out")
    launcher = (*TORCHRUN, "--max-restarts", "3")
    done = torchrun(*args, str(tmp_path / "run"), folder=tmp_path, launcher=launcher, code=KILLED)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "killed").exists()
    starts = [line for line in done.stdout.splitlines() if line.startswith(("no checkpoint", "resuming"))]
    assert starts[0] == "no checkpoint yet: starting from the beginning"
    assert len(starts) == 2
    assert starts[1].startswith(("resuming from step 22: ", "resuming from step 23: "))  # after the eighth step, or the ninth
    whole = torchrun(*args, str(tmp_path / "whole"), folder=tmp_path, launcher=launcher, code=KILLED)
    assert "resuming" not in whole.stdout
    one, other = ((tmp_path / name) for name in ("run", "whole"))
    assert tensors_of(one / "round-1.safetensors") == tensors_of(other / "round-1.safetensors")
    results = [without_times(json.loads((folder / "result.json").read_text())) for folder in (one, other)]
    assert results[0] == results[1]
    again = torchrun(*args, str(tmp_path / "run"), folder=tmp_path, launcher=launcher, code=KILLED)
    assert again.returncode == 0
    assert f"the run in {tmp_path / 'run'} is finished" in again.stdout
    assert (one / "result.txt").read_text() in again.stdout


def together(*args: str, folder, code: str) -> list[str]:
    """What two processes write to stderr that nobody ends or starts again; both must fail."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    here = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder), *args], env=here | {"RANK": rank, "LOCAL_RANK": rank}, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    said = [process.communicate(timeout=600)[1] for process in started]
    assert [process.returncode for process in started] == [2, 2], said
    return said


def test_a_loss_that_is_not_finite_on_one_rank_stops_all_with_one_message(tmp_path) -> None:
    args = ("prune", "digits", *set_options("run.checkpoint_seconds=0"), "--out", str(tmp_path / "run"))
    said = together(*args, folder=tmp_path, code=NOT_A_NUMBER)
    assert said[0] == said[1]
    assert said[0].startswith("gator: the loss is nan on rank 1 at step 5 of train (epoch 1), learning rate 0.")
    assert "The last good checkpoint is" in said[0]
    assert "step-000000003.safetensors" in said[0]  # no good step followed the one of step 4


def test_a_run_folder_that_the_nodes_do_not_share_is_refused(tmp_path) -> None:
    said = together("prune", "digits", *set_options(), "--out", "run", folder=tmp_path, code=NOT_SHARED)
    assert said[0] == said[1]
    assert said[0].startswith(f"gator: the run folder of rank 0, {tmp_path}/node-0/run, is not seen by rank 1 on ")
    assert "a file system that all nodes share" in said[0]
