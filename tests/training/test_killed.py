"""A run that is killed at any moment, in the middle of writing too, ends with the weights of one that never was."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from training.small import metrics_of, set_options, short_recipe, tensors_of

import gator
from gator.training.checkpoint import checkpoints

pytestmark = pytest.mark.trains

# The kills fall into every phase: 14, 28 and 14 steps, with a checkpoint after each.
CHANGES = ("train.epochs=2", "prune.epochs=4", "finetune.epochs=2", "run.checkpoint_seconds=0", "finetune.distill=0.3")
STEPS = 56
TIMEOUT = 600  # seconds; only a run that hangs takes as long

# Another thread kills the process once it has written N checkpoints: while the main thread goes on, a few switches later.
LATER = """
import os, signal, sys, threading, time
left, switches = int(sys.argv.pop(1)), int(sys.argv.pop(1))
real, written = os.replace, threading.Semaphore(0)
def replace(source, target, **kwargs):
    real(source, target, **kwargs)
    if "step-" in str(target):
        written.release()
os.replace = replace
def kill():
    for _ in range(left):
        written.acquire()
    for _ in range(switches):
        time.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill, daemon=True).start()
from gator.cli.main import app
app()
"""

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
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", code, *args], **quiet)


def same(folder: Path, whole: Path) -> None:
    assert tensors_of(folder / "round-1.safetensors") == tensors_of(whole / "round-1.safetensors")
    one, two = ([{**line, "seconds": 0} for line in metrics_of(path)] for path in (folder, whole))
    assert one == two


@pytest.mark.slow
def test_killed_at_ten_random_moments(whole, tmp_path) -> None:
    """Moments are counted in steps, so that a fast machine is killed as often as a slow one."""
    folder, dice = tmp_path / "run", random.Random(0)
    args = ["prune", "digits", *set_options(*CHANGES), "--out", str(folder)]
    for moment in sorted(dice.sample(range(1, STEPS - 10), 10)):
        done = max((int(path.stem[len("step-") :]) for path in checkpoints(folder / "checkpoints")), default=0)
        process = start(LATER, str(max(1, moment - done)), str(dice.randrange(20)), *args)
        assert process.wait(TIMEOUT) == -signal.SIGKILL
        args = ["prune", "--resume", str(folder)]
    gator.resume(folder)
    same(folder, whole)


@pytest.mark.slow
def test_killed_while_writing_a_checkpoint(whole, tmp_path) -> None:
    folder = tmp_path / "run"
    process = start(HALFWAY, "1", "prune", "digits", *set_options(*CHANGES), "--out", str(folder))
    assert process.wait(TIMEOUT) == -signal.SIGKILL
    for number in ("3", "25"):  # in the first epochs, and later with gates
        process = start(HALFWAY, number, "prune", "--resume", str(folder))
        assert process.wait(TIMEOUT) == -signal.SIGKILL
        assert list((folder / "checkpoints").glob(".step-*")), "it was to die in the middle of a file"
    gator.resume(folder)
    assert not list((folder / "checkpoints").glob(".step-*"))
    same(folder, whole)
