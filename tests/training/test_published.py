"""The published ResNet-20 through our own network, data and evaluation: 91.73 % of the 10,000 test images of CIFAR-10."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gator import zoo
from gator.training.evaluate import evaluate
from gator.training.processes import Processes
from gator.training.recipe import RunSettings
from gator.training.weights import with_weights
from gator.zoo.data import load_data

SHARED = Path(__file__).parents[3] / "shared"
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


def test_the_published_network_scores_what_it_scored(cifar) -> None:
    data = load_data("cifar10", folder=str(cifar))
    processes = Processes(RunSettings(device="cpu", threads=1))
    try:
        network = with_weights(zoo.build("cifar:resnet20").model, WEIGHTS)
        accuracy, _ = evaluate(network, data.test, processes, channels_last=False)
    finally:
        processes.close()
    assert data.tested_on == "10,000 test images"
    assert accuracy == pytest.approx(91.73, abs=0.005)
