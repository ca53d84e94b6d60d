"""A budget in time against a budget in FLOPs, without training: what is left of ResNet-50's L1 importance at the same speed.

Both objectives close the channels that are worth least for what they cost; one asks a latency table, the other counts FLOPs.
For weights of several seeds, a network that meets the budget in time and networks by FLOPs that are predicted to be a little
faster and a little slower are timed interleaved, many times. What FLOPs keep at the latency of the first is read from a
line through the others; its slope is that of all seeds. The spread over seeds is the error of the difference.

The filters of an untrained network have nearly the same importance, those of a trained one do not: so every filter is scaled
by a random factor. `--spread 0` leaves them as they are.

    python benchmarks/latency_budget.py --runtime onnxruntime
"""

from __future__ import annotations

import argparse
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from stub_torchvision import make_importable

import gator
from gator import zoo
from gator.cost.latency.network_timer import NetworkTimer
from gator.cost.prices import Prices
from gator.cost.timing import undisturbed

SEEDS = (41, 42, 43, 44)  # of weights; take others after a change that was decided on these networks
SPREAD = 0.26  # of the logarithm of factors; in the median layer of a trained ResNet-56 L1 norms spread by 0.26 of their mean
APART = (0.98, 1.02)  # of the time of the network by latency: where networks by FLOPs are sought
AROUND_MACS, HALVINGS = 0.15, 7  # of its MACs: how far to either side, and how closely
REPEATS, ROUNDS = 16, 6
Kept = dict[str, list[int]]


@dataclass(frozen=True)
class Network:
    """A network to be timed, and the shares of MACs and importance that it keeps."""

    objective: str
    cut: torch.nn.Module
    macs: float
    importance: float


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


def spread_out_(model: torch.nn.Module, spread: float) -> None:
    """Filters of every convolution, each scaled by a factor of its own."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.weight.mul_(torch.randn(module.out_channels, 1, 1, 1).mul(spread).exp())


def networks(model: torch.nn.Module, graph: gator.Hypergraph, cost: gator.Latency, target: float) -> list[Network]:
    """One network by latency that meets the target, and two by FLOPs that are predicted to be about as fast."""
    settings = {"min_width": {edge.name: edge.width // 8 for edge in graph.edges}, "per_cost": True}
    priced = cost.on(model, graph)

    def made(objective: str, kept: Kept) -> Network:
        small = gator.cut(model, graph, kept, keep_class=False, verify=False)
        return Network(objective, small, gator.predict_macs(graph, kept) / graph.macs, importance(model, graph, kept))

    kept = gator.one_shot(model, graph, target=target, cost=cost, round_to="auto", **settings)
    found, middle = [made("latency", kept)], predicted(graph, priced, kept)
    for step, apart in itertools.product(dict.fromkeys((1, priced.width_step)), APART):
        low, high = found[0].macs - AROUND_MACS, min(found[0].macs + AROUND_MACS, 1.0)
        for _ in range(HALVINGS):
            share = (low + high) / 2
            by_flops = gator.one_shot(model, graph, target=share, round_to=step, **settings)
            low, high = (share, high) if predicted(graph, priced, by_flops) < apart * middle else (low, share)
        found.append(made("FLOPs" if step == 1 else f"FLOPs in steps of {step}", by_flops))
    return found


def predicted(graph: gator.Hypergraph, priced: Prices, kept: Kept) -> float:
    return priced.total([len(kept.get(edge.name, range(edge.width))) for edge in graph.edges])


def latencies(graph: gator.Hypergraph, cost: gator.Latency, model: torch.nn.Module, found: list[Network]) -> np.ndarray:
    """Milliseconds of the unpruned network and of these, by repeat, interleaved."""
    timer = NetworkTimer(cost.setup, graph.inputs, ROUNDS)
    unpruned = gator.cut(model, graph, {}, keep_class=False, verify=False)
    runs = [timer.prepare(network) for network in (unpruned, *(one.cut for one in found))]
    return np.array([[one.mean_ms for one in undisturbed(lambda: timer.times(runs))] for _ in range(REPEATS)])


def compared(found: list[list[Network]], shares: list[np.ndarray], other: str) -> str:
    """How much more the networks by latency keep than those of the other objective when they are as fast."""
    lines = []  # of every seed: what the others keep, and the logarithm of their latency
    for some, latency in zip(found, shares, strict=True):
        these = [index for index, one in enumerate(some) if one.objective == other]
        lines.append((np.array([some[index].importance for index in these]), np.log(latency[these])))
    centred = [(kept - kept.mean(), time - time.mean()) for kept, time in lines]
    slope = sum(kept @ time for kept, time in centred) / sum(time @ time for _, time in centred)
    more = [
        some[0].importance - kept.mean() - slope * (np.log(latency[0]) - time.mean())
        for some, latency, (kept, time) in zip(found, shares, lines, strict=True)
    ]
    mean, error = np.mean(more), np.std(more, ddof=1) / len(more) ** 0.5
    text = f"latency keeps {mean:+.4f} +- {error:.4f} against {other} at the same latency ({len(more)} seeds:"
    return f"{text} {', '.join(f'{one:+.4f}' for one in more)}); that is worth {mean / slope:+.1%} of time"


def shown(times: np.ndarray, unpruned: np.ndarray) -> str:
    """The share of all time, and its standard error by what the repeats say."""
    error = np.std(times / unpruned, ddof=1) / len(unpruned) ** 0.5
    return f"{times.mean() / unpruned.mean():.3f} +- {error:.3f}"


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
    cost = gator.Latency(options.runtime, threads=options.threads)
    found, shares = [], []
    print("| runtime | seed | objective | measured latency | MACs | L1 importance kept |")
    print("| --- | --- | --- | --- | --- | --- |")
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = zoo.build(options.name).model.eval()
        spread_out_(model, options.spread)
        graph = gator.trace(model, torch.zeros([int(size) for size in options.shape.split(",")]))
        found.append(networks(model, graph, cost, options.target))
        unpruned, *times = latencies(graph, cost, model, found[-1]).T
        shares.append(np.array([each.mean() for each in times]) / unpruned.mean())
        for one, each in zip(found[-1], times, strict=True):
            latency = shown(each, unpruned)
            print(
                f"| {cost.runtime} | {seed} | {one.objective} | {latency} | {one.macs:.3f} | {one.importance:.4f} |", flush=True
            )
    for other in dict.fromkeys(one.objective for one in found[0][1:]):
        print(f"\n{compared(found, shares, other)}")


if __name__ == "__main__":
    main()
