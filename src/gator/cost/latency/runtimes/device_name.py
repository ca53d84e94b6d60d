"""The name of the device that a network runs on: tables of different devices are told apart by it."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

_CPUINFO, _BOARD = Path("/proc/cpuinfo"), Path("/proc/device-tree/model")


def device_name(device: str) -> str:
    """The processor and its number of cores, or the GPU."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    if device == "mps":
        return f"{processor()}, integrated GPU"
    return f"{processor()}, {os.cpu_count()} cores"


def processor() -> str:
    """The processor's model name; on Arm, where there may be none, the board and the part numbers."""
    if platform.system() == "Darwin":
        found = _answer("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        fields = _fields()
        parts = [fields.get(key, "") for key in ("CPU implementer", "CPU part")]
        found = fields.get("model name") or " ".join(filter(None, [_text(_BOARD).strip("\0 \n"), *parts]))
    return f"{found or platform.processor() or platform.system()} ({platform.machine()})"


def _fields() -> dict[str, str]:
    """The fields of /proc/cpuinfo, of the last processor: where processors differ, that is a fast one."""
    lines = (line.partition(":") for line in _text(_CPUINFO).splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _answer(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
