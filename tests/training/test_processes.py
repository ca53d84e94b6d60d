"""Two processes (gloo), started by torchrun or by `accelerate launch`, finish a run, agree on every mask, and write once."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from training.small import set_options, tensors_of

# What each process closes, step by step, goes into a file of its own; so do the files it writes.
SPY = """
import hashlib, os, sys
from gator.gates.pruner import Pruner
from gator.files import save as files
folder, rank = sys.argv.pop(1), os.environ["RANK"]
log = open(f"{folder}/rank-{rank}.txt", "w")
real_step, real_write = Pruner.step, files.save_file
def step(self, *, lr):
    real_step(self, lr=lr)
    state = b"".join(value.numpy().tobytes() for value in self.gates.state().values())
    print("step", self.steps_taken, hashlib.sha256(state).hexdigest(), file=log, flush=True)
def write(tensors, path, metadata):
    print("write", path, file=log, flush=True)
    real_write(tensors, path, metadata=metadata)
Pruner.step, files.save_file = step, write
from gator.cli.main import app
app()
"""


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (
    "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no",
    "--dynamo_backend", "no", "--main_process_port", "0",
)  # fmt: skip


def torchrun(*args: str, folder, launcher: tuple[str, ...] = TORCHRUN, code: str = SPY) -> subprocess.CompletedProcess:
    script = folder / "script.py"
    script.write_text(code)
    command = [sys.executable, "-m", *launcher, str(script), str(folder)]
    return subprocess.run([*command, *args], capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.slow
@pytest.mark.trains
@pytest.mark.parametrize(
    ("per", "launcher", "precision"),
    [("batch", TORCHRUN, "no"), ("example", TORCHRUN, "no"), ("example", TORCHRUN, "bf16"), ("batch", ACCELERATE, "no")],
)
def test_two_processes_agree_on_every_mask(per, launcher, precision, tmp_path) -> None:
    if launcher is ACCELERATE and importlib.util.find_spec("accelerate") is None:
        pytest.skip("needs Accelerate for its launcher")
    changes = ("prune.epochs=3", f"prune.per={per}", "finetune.distill=0.5", "data.sub_batch=48", f"run.precision={precision}")
    args = ("prune", "digits", *set_options(*changes), "--out", str(tmp_path / "run"))
    done = torchrun(*args, folder=tmp_path, launcher=launcher)
    assert done.returncode == 0, done.stderr[-3000:]
    logs = [(tmp_path / f"rank-{rank}.txt").read_text().splitlines() for rank in (0, 1)]
    steps = [[line for line in log if line.startswith("step")] for log in logs]
    assert len(steps[0]) == 21
    assert steps[0] == steps[1]
    assert any(line.startswith("write") for line in logs[0])
    assert not any(line.startswith("write") for line in logs[1])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["rounds"][0]["figures"]["macs"] <= 0.5 * result["before"]["macs"]
    assert done.stdout.count("latency ms") == 1
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["processes"] == 2


@pytest.mark.trains
@pytest.mark.slow
def test_two_processes_resume_a_run(tmp_path) -> None:
    args = ("prune", "digits", *set_options("run.checkpoint_seconds=0"), "--out")
    for name in ("whole", "run"):
        done = torchrun(*args, str(tmp_path / name), folder=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())
    kept[-1].unlink()  # as if it had been killed in the last phase
    for name in ("result.json", "result.txt", "round-1.safetensors"):
        (tmp_path / "run" / name).unlink()
    done = torchrun("prune", "--resume", str(tmp_path / "run"), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert tensors_of(tmp_path / "run" / "round-1.safetensors") == tensors_of(tmp_path / "whole" / "round-1.safetensors")


@pytest.mark.slow
def test_another_number_of_processes_is_refused(tmp_path) -> None:
    from training.small import short_recipe

    import gator

    gator.run(short_recipe("run.checkpoint_seconds=0"), folder=tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    done = torchrun("prune", "--resume", str(tmp_path / "run"), folder=tmp_path)
    assert done.returncode != 0
    assert "was written by a run with 1 processes; resume with as many, not 2" in done.stderr


# A process group of the user's own stays; one that the run created is gone afterwards, and the next run creates another.
GROUPS = """
import sys
import torch
from torch import distributed as dist, nn
from gator.training.processes import Processes
from gator.training.recipe import RunSettings

def train(processes):
    network = nn.Linear(1, 1, bias=False)
    parallel = processes.data_parallel(network, some_unused=False)
    with processes.no_sync(parallel):
        parallel(torch.full((1, 1), 1.0 + processes.rank)).sum().backward()
    assert float(network.weight.grad) == 1.0 + processes.rank
    parallel(torch.full((1, 1), 1.0 + processes.rank)).sum().backward()
    assert float(network.weight.grad) == 3.0, "the mean of 1 + 1 and 2 + 2"

def use():
    processes = Processes(RunSettings(device="cpu", threads=1))
    assert torch.get_num_threads() == 1
    assert processes.count == 2
    train(processes)
    assert processes.gather(processes.rank) == [0, 1]
    assert processes.sums([1.0, float(processes.rank)]) == [2.0, 1.0]
    norm = nn.BatchNorm1d(2)
    norm.running_mean.fill_(float(processes.rank + 3))
    processes.broadcast_buffers_(norm)
    assert norm.running_mean.tolist() == [3.0, 3.0]
    processes.close()
    assert torch.get_num_threads() == 2

torch.set_num_threads(2)
for _ in range(2):
    use()
    assert not dist.is_initialized()
dist.init_process_group("gloo")
use()
assert dist.is_initialized()
dist.destroy_process_group()
"""


def test_a_process_group_is_destroyed_by_the_run_that_created_it(tmp_path) -> None:
    done = torchrun(folder=tmp_path, code=GROUPS)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_single_process_is_rank_zero_whatever_the_scheduler_sets(monkeypatch) -> None:
    from gator.training.processes import Processes
    from gator.training.recipe import RunSettings

    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    processes = Processes(RunSettings(device="cpu"))
    assert (processes.rank, processes.count) == (0, 1)
    processes.close()
