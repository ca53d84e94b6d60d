"""Which machine this is, in the words that decide how fast a network runs on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def device_name(device: str) -> str:
    """The processor and how many of it there are, or the graphics card."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{_processor()}, {os.cpu_count()} cores"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()} ({platform.machine()})"
    except OSError:
        pass
    return f"{platform.processor() or platform.machine()} ({platform.system()})"
