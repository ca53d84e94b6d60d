"""A training step with gates beside a plain one: time, interleaved in one run, and peak memory, a process each.

    python benchmarks/gating.py [--rounds 12] [--eager]

SGD with momentum, on ResNet-56 (batch 128, 32x32) and ResNet-50 (batch 8, 128x128), eager and compiled. The ratio is the median
over rounds of the gated step over the plain step of the same round, the spread half the distance between the quartiles.
Memory is what the process takes at its peak beyond what it takes once torch is imported: weights, gradients, momentum and
activations; the median of three processes. `--eager` leaves the compiled part out.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stub_torchvision import make_importable
from torch import nn
from torch.nn import functional

import gator
from gator import zoo

NETWORKS = {
    "ResNet-56, batch 128, 32x32": ("cifar:resnet56", (128, 3, 32, 32)),
    "ResNet-50, batch 8, 128x128": ("torchvision:resnet50", (8, 3, 128, 128)),
}
VARIANTS = ("plain", "batch", "example")
LIMITS = {"batch": (1.03, 1.05), "example": (1.10, 1.25)}  # of time and memory
COMPILED_LIMIT = 1.05


def step_of(name: str, shape: tuple[int, ...], variant: str, *, compiled: bool = False) -> Callable[[], Any]:
    """One training step of a network, as a function to be called again and again."""
    torch.manual_seed(0)
    model = zoo.build(name).model.train()
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    pruner = None
    if variant != "plain":
        pruner = gator.Pruner(model, torch.randn(2, *shape[1:]), alpha=1.0, per=variant)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    network: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]

    def step() -> None:
        loss = functional.cross_entropy(network(x), y)
        if pruner is not None:
            loss = loss + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if pruner is not None:
            pruner.step(lr=1e-4)

    return step


def ratios(name: str, shape: tuple[int, ...], rounds: int, *, compiled: bool) -> tuple[float, dict[str, tuple[float, float]]]:
    """Seconds of the plain step, and for each kind of gate (median ratio, spread)."""
    steps = {variant: step_of(name, shape, variant, compiled=compiled) for variant in VARIANTS}
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for turn in range(rounds):
        for variant in VARIANTS[turn % 3 :] + VARIANTS[: turn % 3]:
            start = time.perf_counter()
            steps[variant]()
            times[variant].append(time.perf_counter() - start)
    found = {}
    for variant in VARIANTS[1:]:
        each = [a / b for a, b in zip(times[variant], times["plain"], strict=True)]
        quarters = statistics.quantiles(each, n=4)
        found[variant] = (statistics.median(each), (quarters[2] - quarters[0]) / 2)
    return statistics.median(times["plain"]), found


def peak_mb(name: str, shape: tuple[int, ...], variant: str) -> float:
    """In this process: what two steps take at their peak."""
    before = _peak_kb()
    step = step_of(name, shape, variant)
    step()
    step()
    return (_peak_kb() - before) / 1024


def _peak_kb() -> int:
    """Of this process alone: the figure of getrusage begins with that of the parent."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def memory(label: str, variant: str) -> float:
    command = [sys.executable, __file__, "--memory", label, variant]
    runs = [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(3)]
    return statistics.median(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    make_importable()
    if options.memory:
        label, variant = options.memory
        print(peak_mb(*NETWORKS[label], variant))
        return
    print(f"{torch.get_num_threads()} threads, {options.rounds} rounds, torch {torch.__version__}\n")
    print("| network | | plain step s | gates per | time | limit | peak MB | memory | limit |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for label, (name, shape) in NETWORKS.items():
        plain = memory(label, "plain")
        for compiled in (False,) if options.eager else (False, True):
            seconds, found = ratios(name, shape, options.rounds, compiled=compiled)
            for variant, (ratio, spread) in found.items():
                limit, limit_memory = (COMPILED_LIMIT, None) if compiled else LIMITS[variant]
                how = "compiled" if compiled else "eager"
                row = f"| {label} | {how} | {seconds:.2f} | {variant} | {ratio:.3f} +- {spread:.3f} | {limit} |"
                if compiled:
                    row += " | | |"
                else:
                    mb = memory(label, variant)
                    row += f" {mb:.0f} ({plain:.0f} plain) | {mb / plain:.3f} | {limit_memory} |"
                print(row, flush=True)


if __name__ == "__main__":
    main()
