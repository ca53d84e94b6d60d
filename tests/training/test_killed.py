"""A run that is killed at any moment, in the middle of writing too, ends with the weights of one that never was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training.small import metrics_of, set_options, short_recipe, tensors_of

import gator
from gator.training.checkpoint import checkpoints

# Long enough that ten kills fall into every phase, with a checkpoint after every step.
CHANGES = ("prune.epochs=8", "train.epochs=4", "finetune.epochs=4", "run.checkpoint_seconds=0", "finetune.distill=0.3")
START = "from gator.cli.main import app; app()"

# Kills itself with half a checkpoint on disk, the Nth time it writes one.
HALFWAY = """
import os, signal, sys
from gator.files import save as files
real, left = files.save_file, [int(sys.argv.pop(1))]
def half(tensors, path, metadata):
    left[0] -= 1
    real(tensors, path, metadata=metadata)
    if left[0] == 0:
        content = open(path, "rb").read()
        open(path, "wb").write(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
files.save_file = half
from gator.cli.main import app
app()
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    gator.run(short_recipe(*CHANGES), folder=folder)
    return folder


def start(code: str, *args: str) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", code, *args], env=environment, **quiet)


def same(folder: Path, whole: Path) -> None:
    assert tensors_of(folder / "round-1.safetensors") == tensors_of(whole / "round-1.safetensors")
    one, two = ([{**line, "seconds": 0} for line in metrics_of(path)] for path in (folder, whole))
    assert one == two


def wait_for_steps(folder: Path, process: subprocess.Popen, before: set[str]) -> None:
    """Until it has written a checkpoint of its own, so that every start gets further."""
    for _ in range(1200):
        if {path.name for path in checkpoints(folder / "checkpoints")} - before or process.poll() is not None:
            return
        time.sleep(0.05)
    raise AssertionError("no checkpoint was written in a minute")


def test_killed_at_ten_random_moments(whole, tmp_path) -> None:
    folder, dice, kills = tmp_path / "run", random.Random(0), 0
    process = start(START, "prune", "digits", *set_options(*CHANGES), "--out", str(folder))
    while True:
        before = {path.name for path in checkpoints(folder / "checkpoints")}
        wait_for_steps(folder, process, before)
        if kills < 10:
            time.sleep(dice.uniform(0.0, 0.35))
        if kills == 10 or process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        process = start(START, "prune", "--resume", str(folder))
    assert process.wait(120) == 0
    assert kills == 10, "the run ended before it could be killed ten times: make it longer"
    same(folder, whole)


def test_killed_while_writing_a_checkpoint(whole, tmp_path) -> None:
    folder = tmp_path / "run"
    process = start(HALFWAY, "1", "prune", "digits", *set_options(*CHANGES), "--out", str(folder))
    assert process.wait(120) == -signal.SIGKILL
    for number in ("3", "40"):  # within the first epochs, and later with gates
        process = start(HALFWAY, number, "prune", "--resume", str(folder))
        assert process.wait(120) == -signal.SIGKILL
        assert list((folder / "checkpoints").glob(".step-*")), "it was to die in the middle of a file"
    gator.resume(folder)
    assert not list((folder / "checkpoints").glob(".step-*"))
    same(folder, whole)
