"""One thread a worker (two spin against each other), and torchvision importable where it has no compiled operators."""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def torchvision():
    from stub_torchvision import make_importable

    make_importable()
    import torchvision

    return torchvision


from hypothesis import settings  # noqa: E402

settings.register_profile("default", max_examples=100)
settings.register_profile("ci", max_examples=300)
settings.register_profile("long", max_examples=3000)
