"""A budget in time against a budget in FLOPs, without training: what is left of ResNet-50's L1 importance at the same speed.

Both objectives close the channels that are worth least for what they cost; one asks a latency table, the other counts FLOPs.
The network that meets the latency budget, the whole network and several networks by FLOPs, some faster, some slower, are then
timed in turns, time and again. A line through the networks by FLOPs says what they keep when they are as fast.

    python benchmarks/latency_budget.py --runtime onnxruntime
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from stub_torchvision import make_importable

import gator
from gator import zoo
from gator.cost.latency.quiet import undisturbed
from gator.cost.latency.stopwatch import Stopwatch

BELOW = (0.06, 0.045, 0.03, 0.015, 0.0)  # MACs that networks by FLOPs have less than the one that meets the latency budget
REPEATS, ROUNDS = 24, 8
SEED = 1  # of the weights; take another after a change that was decided on this network
Kept = dict[str, list[int]]


def importance(model: torch.nn.Module, graph: gator.Hypergraph, kept: Kept) -> float:
    """The share of L1 importance that is kept, every edge scaled to a mean of one (as the criterion does)."""
    weights = dict(model.named_parameters())
    total = left = 0.0
    for edge in graph.edges:
        values = np.zeros(edge.width)
        for member in edge.members:
            layer = member.parameter.rpartition(".")[0]
            if layer in edge.producers and member.axis == 0 and weights[member.parameter].ndim > 1:
                values[np.array(member.units)] += weights[member.parameter].detach().abs().flatten(1).sum(1).numpy()
        values /= values.mean()
        total += values.sum()
        left += values[kept.get(edge.name, list(range(edge.width)))].sum()
    return left / total


def networks(model: torch.nn.Module, graph: gator.Hypergraph, cost: gator.Latency, target: float) -> dict[str, list[Kept]]:
    """Channels to keep, by objective: one network by latency, several by FLOPs."""
    settings = {"min_width": {edge.name: edge.width // 8 for edge in graph.edges}, "per_cost": True}
    kept = gator.one_shot(model, graph, target=target, cost=cost, round_to="auto", **settings)
    share, block = gator.predict_macs(graph, kept) / graph.macs, cost.on(model, graph).block

    def by_flops(step: int) -> list[Kept]:
        targets = [share - less for less in BELOW]
        return [gator.one_shot(model, graph, target=some, round_to=step, **settings) for some in targets]

    found = {f"latency {target}": [kept], "FLOPs": by_flops(1)}
    return found if block == 1 else {**found, f"FLOPs in steps of {block}": by_flops(block)}


def report(model: torch.nn.Module, graph: gator.Hypergraph, cost: gator.Latency, found: dict[str, list[Kept]]) -> None:
    rows = [(label, kept) for label, some in found.items() for kept in some]
    left = np.array([importance(model, graph, kept) for _, kept in rows])
    watch = Stopwatch(cost.setup, graph.inputs, ROUNDS)
    cuts = (gator.cut(model, graph, kept, keep_class=False, verify=False) for kept in ({}, *(kept for _, kept in rows)))
    runs = [watch.prepare(network) for network in cuts]
    times = np.array([[one.mean_ms for one in undisturbed(lambda: watch.times(runs))] for _ in range(REPEATS)])
    whole, times = times[:, 0], times[:, 1:]
    print(f"{np.median(whole):.1f} ms as it is, {watch.conditions}; {REPEATS} times {ROUNDS} rounds in turns\n")
    print("| runtime | objective | measured latency | MACs | L1 importance kept |")
    print("| --- | --- | --- | --- | --- |")
    for index, (label, kept) in enumerate(rows):
        latency, macs = shown(times[:, index], whole), gator.predict_macs(graph, kept) / graph.macs
        print(f"| {cost.runtime} | {label} | {latency} | {macs:.3f} | {left[index]:.4f} |")
    for wanted in list(found)[1:]:
        these = [index for index, (label, _) in enumerate(rows) if label == wanted]
        draws = np.random.default_rng(0).integers(REPEATS, size=(1000, REPEATS))  # of the repeats, to see how certain it is
        levels = [level(left[these], times[some].mean(0)[these] / times[some, 0].mean()) for some in draws]
        best = level(left[these], times.mean(0)[these] / times[:, 0].mean())
        print(f"at equal latency {wanted}: {best:.4f} +- {np.std(levels):.4f} kept")


def level(left: np.ndarray, ratios: np.ndarray) -> float:
    """What is kept at a ratio of one, by a line through networks."""
    slope, constant = np.polyfit(left, ratios, 1)
    return float((1 - constant) / slope)


def shown(times: np.ndarray, whole: np.ndarray) -> str:
    """The share of all time, and its standard error by what the repeats say."""
    error = np.std(times / whole, ddof=1) / len(whole) ** 0.5
    return f"{times.mean() / whole.mean():.3f} +- {error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runtime", default="eager")
    parser.add_argument("--name", default="torchvision:resnet50")
    parser.add_argument("--shape", default="1,3,224,224")
    parser.add_argument("--target", type=float, default=0.6)
    parser.add_argument("--folder", default="runs/latency", help="where the tables are kept")
    options = parser.parse_args()
    os.environ["GATOR_CACHE"] = str(Path(options.folder) / "cache")
    make_importable()
    torch.manual_seed(SEED)
    model = zoo.build(options.name).model.eval()
    graph = gator.trace(model, torch.zeros([int(size) for size in options.shape.split(",")]))
    cost = gator.Latency(options.runtime, threads=options.threads)
    report(model, graph, cost, networks(model, graph, cost, options.target))


if __name__ == "__main__":
    main()
