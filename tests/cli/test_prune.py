"""`gator prune` as it is typed: what it prints, and its messages when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support import needs_compiler
from training.small import set_options


def gator(*args: str, folder) -> subprocess.CompletedProcess:
    command = [sys.executable, "-W", "error", "-c", "from gator.cli.main import app; app()", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.trains
def test_the_default_ends_with_a_table_and_says_where_everything_is(tmp_path) -> None:
    done = gator("prune", *set_options(), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("train  ") for line in lines) == 2
    assert "run folder: runs/digits; network: runs/digits/round-1.safetensors" in done.stdout
    assert lines[-1] == "report: runs/digits/report.html"
    assert (tmp_path / "runs" / "digits" / "report.html").is_file()
    assert (tmp_path / "runs" / "digits" / "result.txt").read_text() in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_errors_are_one_clear_message(tmp_path) -> None:
    for args, words in [
        (("prune", "nowhere.toml"), "there is no recipe 'nowhere.toml'"),
        (("prune", "--set", "prune.tarjet=1"), "did you mean prune.target?"),
        (("prune", "--resume", "nothing"), "nothing is not a run folder"),
        (("prune", "digits", "--resume", "x", "--dry-run"), "give the folder, and --set for what shall change"),
        (("prune", "digits", "--resume", "auto"), "give a recipe and --out"),
        (("prune", "cifar10-resnet20-cpu"), "data"),
    ]:
        done = gator(*args, folder=tmp_path)
        assert done.returncode == 2, args
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_dry_run_writes_nothing(tmp_path) -> None:
    done = gator("prune", "cifar10-resnet20-cpu", "--dry-run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cifar10-resnet20-cpu: two steps of every phase done on made-up data of shape 3x32x32")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.trains
@needs_compiler
def test_a_compiled_run_shrinks(tmp_path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    convolutions = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()\n"
        "    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(128, 10))\n"
    )
    changes = ("model.name=net.py:net", "run.compile=true", "train.epochs=0", "prune.target=0.8", "prune.per=example")
    command = [sys.executable, "-m", "gator", "prune", "digits", *set_options(*changes), "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    last = [line for line in lines if line["phase"] == "prune"][-1]
    assert last["cost_left"] <= 0.8
