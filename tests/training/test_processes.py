"""Two processes (gloo) finish a run, agree on every mask, and write each file once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from training.small import set_options, tensors_of

pytestmark = pytest.mark.trains

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
    alive = self.gates.alive.numpy().tobytes()
    logits = self.gates.logits.detach().numpy().tobytes()
    print("step", self.steps_taken, hashlib.sha256(alive + logits).hexdigest(), file=log, flush=True)
def write(tensors, path, metadata):
    print("write", path, file=log, flush=True)
    real_write(tensors, path, metadata=metadata)
Pruner.step, files.save_file = step, write
from gator.cli.main import app
app()
"""


def torchrun(*args: str, folder) -> subprocess.CompletedProcess:
    script = folder / "spy.py"
    script.write_text(SPY)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), str(folder)]
    return subprocess.run([*command, *args], capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize("per", ["batch", "example"])
def test_two_processes_agree_on_every_mask(per, tmp_path) -> None:
    changes = ("prune.epochs=3", f"prune.per={per}", "finetune.distill=0.5", "data.sub_batch=48")
    done = torchrun("prune", "digits", *set_options(*changes), "--out", str(tmp_path / "run"), folder=tmp_path)
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


def test_two_processes_take_a_run_up_again(tmp_path) -> None:
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


def test_another_number_of_processes_is_refused(tmp_path) -> None:
    from training.small import short_recipe

    import gator

    gator.run(short_recipe("run.checkpoint_seconds=0"), folder=tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    done = torchrun("prune", "--resume", str(tmp_path / "run"), folder=tmp_path)
    assert done.returncode != 0
    assert "was written by 1 processes; go on with as many, not 2" in done.stderr
