"""The published ResNet-20, and the half of it that is shipped, through our own network, data and evaluation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from gator import zoo
from gator.cli import main
from gator.files.save import read_about
from gator.training.evaluate import evaluate
from gator.training.processes import Processes
from gator.training.recipe import RunSettings
from gator.training.weights import with_weights
from gator.zoo.data import load_data

SHARED = Path(__file__).parents[3] / "shared"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
NETWORKS = sorted(RESULTS.rglob("*.safetensors"))
WEIGHTS = SHARED / "weights" / "cifar10-resnet20.safetensors"


@pytest.fixture(scope="module")
def cifar(tmp_path_factory) -> Path:
    script = SHARED / "data" / "get-cifar10"
    if not script.is_file() or not WEIGHTS.is_file():
        pytest.skip(f"needs {script} and {WEIGHTS}, which are not here")
    folder = tmp_path_factory.mktemp("cifar")
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"CIFAR-10 cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    return folder


def score(network: nn.Module, folder: Path) -> float:
    data = load_data("cifar10", folder=str(folder))
    assert data.tested_on == "10,000 test images"
    processes = Processes(RunSettings(device="cpu", threads=1))
    try:
        return evaluate(network, data.test, processes, channels_last=False)[0]
    finally:
        processes.close()


@pytest.mark.slow
def test_the_published_network_scores_what_it_scored(cifar) -> None:
    network = with_weights(zoo.build("cifar:resnet20").model, WEIGHTS)
    assert score(network, cifar) == pytest.approx(91.73, abs=0.05)  # another processor may flip a few of 10,000


@pytest.mark.slow
@pytest.mark.parametrize("path", NETWORKS[:: max(1, len(NETWORKS) // 4)], ids=lambda path: path.stem)
def test_gator_eval_reproduces_the_figure(path: Path, cifar) -> None:
    """Of some of the shipped networks: each takes ten seconds. The figure is in the file."""
    command = ["eval", str(path), "--data", "cifar10", "--folder", str(cifar), "--json"]
    done = CliRunner().invoke(main.commands(), command)
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert found["accuracy"] == pytest.approx(found["recorded"]["accuracy"], abs=0.05)  # as above


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
def test_the_file_of_a_network_and_the_table_agree(path: Path) -> None:
    recorded, figures = read_about(path).figures, json.loads(path.with_suffix(".json").read_text())
    assert recorded["accuracy"] > 50
    assert figures["accuracy"] == pytest.approx(recorded["accuracy"])
    assert figures["params"] == recorded["params"]
    if figures["cost"] == "flops":
        assert figures["macs"] <= figures["target"] * figures["dense_macs"]
