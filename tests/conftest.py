"""One thread a worker (two spin against each other), and torchvision importable where it has no compiled operators."""

import os
import sys
from pathlib import Path

import pytest

THREADS = os.environ.get("GATOR_TEST_THREADS", "1")  # benchmarks/machines.py runs the tests that train with two as well
os.environ["OMP_NUM_THREADS"] = THREADS  # of the processes that tests start

import torch  # noqa: E402

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

torch.set_num_threads(int(THREADS))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def torchvision():
    from stub_torchvision import make_importable

    make_importable()
    import torchvision

    return torchvision


from hypothesis import HealthCheck, settings  # noqa: E402

# No limits of time: a slow machine is no failure. The profiles that a change has to pass draw the same examples every time.
ANY_TIME = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", ANY_TIME, max_examples=100)
settings.register_profile("quick", ANY_TIME, max_examples=30, derandomize=True)
settings.register_profile("ci", ANY_TIME, max_examples=200, derandomize=True)
settings.register_profile("long", ANY_TIME, max_examples=3000)
