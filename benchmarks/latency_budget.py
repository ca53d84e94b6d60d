"""A budget in time against a budget in FLOPs, without training: what is left of ResNet-50's L1 importance at the same speed.

Both objectives close the channels that are worth least for what they cost; one asks a latency table, the other counts FLOPs.
Networks of either objective around the budget, on weights of several seeds, and the whole network are timed in turns, time and
again. Lines through the networks of each objective, all with one slope, say how far the objectives are apart.

The filters of an untrained network are worth nearly the same. Those of a trained one are not: so every filter is scaled by a
random factor, spread as in a trained ResNet-56. `--spread 0` leaves them as they are.

    python benchmarks/latency_budget.py --runtime onnxruntime
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from stub_torchvision import make_importable

import gator
from gator import zoo
from gator.cost.latency.quiet import undisturbed
from gator.cost.latency.stopwatch import Stopwatch
from gator.cost.price import Priced

SEEDS = (11, 12)  # of weights; take others after a change that was decided on these networks
SPREAD = 0.28  # of the L1 norms of filters in an edge, over their mean: the median of ResNet-56 trained on CIFAR-10
AROUND = (-0.03, 0.0, 0.03)  # the target
AROUND_MACS, HALVINGS = 0.15, 7  # where networks by FLOPs are sought that are predicted to be as fast
REPEATS, ROUNDS = 24, 6
Kept = dict[str, list[int]]


@dataclass(frozen=True)
class Network:
    """A network to be timed, and what it keeps."""

    objective: str
    target: float
    cut: torch.nn.Module
    macs: float
    kept: float


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


def spread_out(model: torch.nn.Module, spread: float) -> None:
    """Filters of every convolution, each scaled by a factor of its own."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.weight.mul_(torch.randn(module.out_channels, 1, 1, 1).mul(spread).exp())


def networks(model: torch.nn.Module, graph: gator.Hypergraph, cost: gator.Latency, target: float) -> list[Network]:
    """One network by latency that meets the target, and networks by FLOPs that are predicted to be as fast."""
    settings = {"min_width": {edge.name: edge.width // 8 for edge in graph.edges}, "per_cost": True}
    priced = cost.on(model, graph)

    def made(objective: str, kept: Kept) -> Network:
        small = gator.cut(model, graph, kept, keep_class=False, verify=False)
        return Network(objective, target, small, gator.predict_macs(graph, kept) / graph.macs, importance(model, graph, kept))

    kept = gator.one_shot(model, graph, target=target, cost=cost, round_to="auto", **settings)
    found, wanted = [made("latency", kept)], predicted(graph, priced, kept)
    for step in dict.fromkeys((1, priced.block)):
        low, high = found[0].macs - AROUND_MACS, found[0].macs + AROUND_MACS
        for _ in range(HALVINGS):
            share = (low + high) / 2
            by_flops = gator.one_shot(model, graph, target=share, round_to=step, **settings)
            low, high = (share, high) if predicted(graph, priced, by_flops) < wanted else (low, share)
        found.append(made("FLOPs" if step == 1 else f"FLOPs in steps of {step}", by_flops))
    return found


def predicted(graph: gator.Hypergraph, priced: Priced, kept: Kept) -> float:
    return priced.total([len(kept.get(edge.name, range(edge.width))) for edge in graph.edges])


def report(graph: gator.Hypergraph, cost: gator.Latency, model: torch.nn.Module, found: list[Network]) -> None:
    watch = Stopwatch(cost.setup, graph.inputs, ROUNDS)
    itself = gator.cut(model, graph, {}, keep_class=False, verify=False)
    runs = [watch.prepare(network) for network in (itself, *(one.cut for one in found))]
    times = np.array([[one.mean_ms for one in undisturbed(lambda: watch.times(runs))] for _ in range(REPEATS)])
    whole, times = times[:, 0], times[:, 1:]
    print(f"{np.median(whole):.1f} ms as it is, {watch.conditions}; {REPEATS} times {ROUNDS} rounds in turns\n")
    print("| runtime | objective | target | measured latency | MACs | L1 importance kept |")
    print("| --- | --- | --- | --- | --- | --- |")
    for index, one in enumerate(found):
        latency = shown(times[:, index], whole)
        print(f"| {cost.runtime} | {one.objective} | {one.target:.2f} | {latency} | {one.macs:.3f} | {one.kept:.4f} |")
    first, *others = dict.fromkeys(one.objective for one in found)
    kept, latency = np.array([one.kept for one in found]), times.mean(0) / whole.mean()
    for other in others:
        these = np.array([one.objective in (first, other) for one in found])
        by_first = np.array([one.objective == first for one in found])
        ratio, error, slope = apart(kept[these], latency[these], by_first[these])
        print(f"\n{first} against {other}: x {np.exp(ratio):.4f} +- {error:.4f} of the time at equal importance,", end=" ")
        print(f"{-ratio / slope:+.4f} +- {error / slope:.4f} of the importance at equal latency")


def apart(kept: np.ndarray, latency: np.ndarray, first: np.ndarray) -> tuple[float, float, float]:
    """How far two lines of one slope are apart, in the logarithm of time, with its standard error; and the slope."""
    rows = np.column_stack([first, kept - kept.mean(), np.ones(len(kept))])
    numbers, *_ = np.linalg.lstsq(rows, np.log(latency), rcond=None)
    left = np.log(latency) - rows @ numbers
    variance = left @ left / (len(kept) - 3) * np.linalg.inv(rows.T @ rows)
    return float(numbers[0]), float(variance[0, 0] ** 0.5), float(numbers[1])


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
    parser.add_argument("--spread", type=float, default=SPREAD)
    parser.add_argument("--folder", default="runs/latency", help="where the tables are kept")
    options = parser.parse_args()
    os.environ["GATOR_CACHE"] = str(Path(options.folder) / "cache")
    make_importable()
    cost, found = gator.Latency(options.runtime, threads=options.threads), []
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = zoo.build(options.name).model.eval()
        spread_out(model, options.spread)
        graph = gator.trace(model, torch.zeros([int(size) for size in options.shape.split(",")]))
        for more in AROUND:
            found += networks(model, graph, cost, options.target + more)
    report(graph, cost, model, sorted(found, key=lambda one: one.objective != "latency"))


if __name__ == "__main__":
    main()
