"""Measuring a latency leaves the rest of the process alone: compiled networks, the allocator's settings, threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from gator.cost.latency.runtimes.pytorch import Compiled
from gator.cost.latency.runtimes.run_setup import checked_setup

SETUP = checked_setup("compile", "cpu", 1, "float32", False, None)
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")


def compiled(runtime: Compiled, width: int) -> None:
    network = nn.Sequential(nn.Linear(width, 2), nn.ReLU())
    result = runtime.prepare(network, ((torch.ones(1, width),), {}), SETUP)()
    assert torch.allclose(result, network(torch.ones(1, width)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile imports what torch deprecates
def test_compiled_networks_of_the_user_are_kept() -> None:
    compilations = []

    def backend(graph, example_inputs):
        compilations.append(graph)
        return graph.forward

    own = torch.compile(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), backend=backend)
    own(torch.ones(1, 3))
    compiled(Compiled(backend="eager"), 4)
    own(torch.ones(1, 3))
    assert len(compilations) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_any_number_of_networks_is_compiled() -> None:
    """torch.compile gives up on a function that it has compiled eight times; then the network would run in eager mode."""
    compilations = []

    def backend(graph, example_inputs):
        compilations.append(graph)
        return graph.forward

    for width in range(1, 13):
        compiled(Compiled(backend=backend), width)
    assert len(compilations) == 12


PRELUDE = """
import ctypes, resource
from gator.cost.latency.runtimes.run_setup import checked_setup
libc = ctypes.CDLL(None)
libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p

def used(count, size):
    "Allocate, write and free so many blocks; how much the heap then shrank, and how many pages were fetched."
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size))) for _ in range(count)]
    for block in blocks:
        libc.memset(block, 1, ctypes.c_size_t(size))
    end = libc.sbrk(0)
    for block in blocks:
        libc.free(block)
    print(end - libc.sbrk(0), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages)

setup = checked_setup("eager", "cpu", 1, "float32", False, None)
"""


def run_alone(code: str, **environment: str) -> list[list[int]]:
    """The lines of numbers that a fresh process prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


@glibc
def test_memory_is_kept_while_something_is_timed_and_returned_afterwards() -> None:
    """Six blocks of 24 MB: more than glibc keeps by itself, whatever it has learnt."""
    first, (kept, fetched), after = run_alone(
        "with setup.on():\n    used(6, 24 << 20)\n    used(6, 24 << 20)\nused(6, 24 << 20)"
    )
    assert first[1] > 30_000
    assert (kept, fetched < 100) == (0, True)
    assert after[0] > 100 << 20


@glibc
def test_the_allocator_keeps_the_settings_of_the_user() -> None:
    """Who asked for memory to be returned at once gets that after a measurement too."""
    ((returned, _),) = run_alone("with setup.on(): pass\nused(200, 64 << 10)", MALLOC_TRIM_THRESHOLD_="131072")
    assert returned > 10 << 20
