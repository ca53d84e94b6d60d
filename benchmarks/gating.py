"""A training step with gates beside a plain one: time, interleaved in one run, and peak memory.

    python benchmarks/gating.py [--rounds 24] [--eager] [--only ResNet-56]

SGD with momentum, on ResNet-20 and ResNet-56 (batch 128, 32x32) in float32 and in bf16 with channels_last, on ResNet-50
(batch 8, 128x128), eager and (in float32) compiled, and on three networks of users, eager (they need ultralytics and
transformers).
The ratio is the median over rounds of the gated step over the plain step
of the same round, the spread half the distance between the quartiles. Memory is what torch holds at the peak of a step, counted
allocation by allocation: weights, gradients, momentum and activations. `--eager` leaves the compiled part out.

The allocator keeps its pages (two variables of glibc, set by starting again): left to its defaults it gives memory back and
takes it again within a step, more or less of it as the order of releases happens to be, which on ResNet-50 weighs more than
the gates themselves. Set MALLOC_TRIM_THRESHOLD_ yourself to see that.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import users_networks
from stub_torchvision import make_importable
from torch import nn
from torch.nn import functional

import gator
from gator import zoo

NETWORKS = {
    "ResNet-20, batch 128, 32x32": ("cifar:resnet20", (128, 3, 32, 32), False),
    "ResNet-20, batch 128, 32x32, bf16 channels_last": ("cifar:resnet20", (128, 3, 32, 32), True),
    "ResNet-56, batch 128, 32x32": ("cifar:resnet56", (128, 3, 32, 32), False),
    "ResNet-56, batch 128, 32x32, bf16 channels_last": ("cifar:resnet56", (128, 3, 32, 32), True),
    "ResNet-50, batch 8, 128x128": ("torchvision:resnet50", (8, 3, 128, 128), False),
    "U-Net, batch 4, 96x96": ("users:unet", (4, 3, 96, 96), False),
    "YOLOv8n, batch 4, 160x160": ("users:yolov8n", (4, 3, 160, 160), False),
    "Segformer-B0, batch 4, 128x128": ("users:segformer", (4, 3, 128, 128), False),
}
VARIANTS = ("plain", "batch", "example")
LIMITS = {"batch": (1.05, 1.05), "example": (1.10, 1.25)}  # of time and memory
COMPILED_LIMIT = 1.05
WARM_UP = 5  # rounds; the heap goes on growing for so long, plain steps and gated ones alike
KEEP_PAGES = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 40)}


def step_of(name: str, shape: tuple[int, ...], variant: str, low: bool, *, compiled: bool = False) -> Callable[[], Any]:
    """One training step of a network (`low`: in bf16 and channels_last), as a function to be called again and again."""
    torch.manual_seed(0)
    library, _, rest = name.partition(":")
    model = (users_networks.build(rest) if library == "users" else zoo.build(name).model).train()
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    if low:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    pruner = None
    if variant != "plain":
        pruner = gator.Pruner(model, torch.randn(2, *shape[1:]), alpha=1.0, per=variant)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    network: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            result = network(x)
            loss = users_networks.size_of(result) if library == "users" else functional.cross_entropy(result, y)
        if pruner is not None:
            loss = loss + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if pruner is not None:
            pruner.step(lr=1e-4)

    return step


def ratios(
    name: str, shape: tuple[int, ...], low: bool, rounds: int, *, compiled: bool
) -> tuple[float, dict[str, tuple[float, float]]]:
    """Seconds of the plain step, and for each kind of gate (median ratio, spread)."""
    steps = {variant: step_of(name, shape, variant, low, compiled=compiled) for variant in VARIANTS}
    for _ in range(WARM_UP):
        for step in steps.values():
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


def peak_mb(name: str, shape: tuple[int, ...], variant: str, low: bool) -> float:
    """What torch holds at the peak of a step: what lies there before it, and every allocation and release during it."""
    step = step_of(name, shape, variant, low)
    step()
    step()
    for parameter in [t for t in gc.get_objects() if type(t) is nn.Parameter]:
        parameter.grad = None  # the step would release it, which the profiler does not see
    gc.collect()
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in gc.get_objects() if type(t) in _KINDS}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    level = peak = sum(held.values())
    for event in sorted(events, key=lambda e: e.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak / 1e6


_KINDS = (torch.Tensor, nn.Parameter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--only", default="", help="networks whose name contains this")
    options = parser.parse_args()
    if not KEEP_PAGES.keys() & os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_PAGES)
    make_importable()
    print(f"{torch.get_num_threads()} threads, {options.rounds} rounds, torch {torch.__version__}\n")
    print("| network | | plain step s | gates per | time | limit | peak MB | memory | limit |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for label, (name, shape, low) in NETWORKS.items():
        if options.only not in label:
            continue
        plain = peak_mb(name, shape, "plain", low)
        for compiled in (False,) if options.eager or low or name.startswith("users:") else (False, True):
            seconds, found = ratios(name, shape, low, options.rounds, compiled=compiled)
            for variant, (ratio, spread) in found.items():
                limit, limit_memory = (COMPILED_LIMIT, None) if compiled else LIMITS[variant]
                how = "compiled" if compiled else "eager"
                row = f"| {label} | {how} | {seconds:.2f} | {variant} | {ratio:.3f} +- {spread:.3f} | {limit} |"
                if compiled:
                    row += " | | |"
                else:
                    mb = peak_mb(name, shape, variant, low)
                    row += f" {mb:.0f} ({plain:.0f} plain) | {mb / plain:.3f} | {limit_memory} |"
                print(row, flush=True)


if __name__ == "__main__":
    main()
