"""Start a test file as several processes that form a process group (gloo)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import timedelta

import torch
from torch import distributed as dist


def start(file: str, count: int, *args: str) -> list[subprocess.Popen]:
    """One process for every rank; each finds its rank and the rest in the environment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    paths = os.pathsep.join([path for path in sys.path if path])
    here = os.environ | {"PYTHONPATH": paths, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    return [subprocess.Popen([sys.executable, file, *args], env=here | {"RANK": str(rank)}) for rank in range(count)]


def join(timeout_seconds: float = 600) -> int:
    """Called in such a process: create the process group; returns the rank."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
    return dist.get_rank()
