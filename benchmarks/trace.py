"""Trace plus cut of 20 networks beside Torch-Pruning's graph build plus prune, interleaved in one run.

    python benchmarks/trace.py [--rounds 3]

Both remove half of the channels of everything they can, in float32 at the network's own input size. Ours includes the
check that the cut network computes what the masked one computes; theirs checks nothing. A network they cannot prune has
no ratio. Median of the rounds; the spread is half the distance from the fastest to the slowest.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch_pruning
from stub_torchvision import make_importable
from torch import nn

import gator
from gator import zoo

NETWORKS = (
    "alexnet", "convnext_tiny", "densenet121", "densenet169", "efficientnet_b0", "efficientnet_b4", "efficientnet_v2_s",
    "googlenet", "inception_v3", "mnasnet1_0", "mobilenet_v2", "mobilenet_v3_large", "regnet_x_3_2gf", "regnet_y_1_6gf",
    "resnet18", "resnet50", "resnet101", "resnext50_32x4d", "shufflenet_v2_x1_0", "vgg16_bn",
)  # fmt: skip


def ours(model: nn.Module, x: torch.Tensor) -> None:
    graph = gator.trace(model, x)
    gator.cut(model, graph, {edge.name: range((edge.width + 1) // 2) for edge in graph.edges})


def theirs(model: nn.Module, x: torch.Tensor) -> None:
    heads = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d)) and 1000 in m.weight.shape[:1]]
    pruner = torch_pruning.pruner.MagnitudePruner(
        model, x, importance=torch_pruning.importance.MagnitudeImportance(p=1), pruning_ratio=0.5, ignored_layers=heads
    )
    pruner.step()
    model(x)


def seconds(prune: Callable[[nn.Module, torch.Tensor], None], model: nn.Module, x: torch.Tensor) -> float | str:
    model = copy.deepcopy(model)
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            prune(model, x)
    except Exception as error:  # a failure of either tool is a row of the table
        return type(error).__name__
    return time.perf_counter() - start


def shown(times: list[Any]) -> str:
    failed = [t for t in times if isinstance(t, str)]
    return failed[0] if failed else f"{statistics.median(times):.2f} +- {(max(times) - min(times)) / 2:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    make_importable()
    print(f"{torch.get_num_threads()} threads, {rounds} rounds, torch {torch.__version__}\n")
    print("| network | gator s | Torch-Pruning s | ratio |\n| --- | --- | --- | --- |")
    ratios = []
    for name in NETWORKS:
        network = zoo.build(f"torchvision:{name}")
        model, x = network.model.eval(), torch.randn(network.example_inputs.shape)
        times: tuple[list[Any], list[Any]] = ([], [])
        for _ in range(rounds):
            times[0].append(seconds(ours, model, x))
            times[1].append(seconds(theirs, model, x))
        if any(isinstance(t, str) for t in (*times[0], *times[1])):
            ratio = ""
        else:
            ratios.append(statistics.median(times[0]) / statistics.median(times[1]))
            ratio = f"{ratios[-1]:.2f}"
        print(f"| {name} | {shown(times[0])} | {shown(times[1])} | {ratio} |", flush=True)
    middle = statistics.median(ratios)
    print(f"\nmedian ratio {middle:.2f} over {len(ratios)} networks, from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
