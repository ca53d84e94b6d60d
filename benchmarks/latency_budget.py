"""A budget in time against a budget in FLOPs, without training: what is left of ResNet-50's L1 importance at the same speed.

Both objectives close the channels that are worth least for what they cost; one asks a latency table, the other counts FLOPs.
Once the latency budget is met, the FLOPs budget is moved until its network, measured in turns with the other, is as fast; a
line through the networks near there says what it keeps at the same speed.

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

FLOPS_TRIES = 8
TRIES = 3  # measurements of what the budget is about; the middle one counts
AROUND = 0.08  # of the MACs, to either side: where FLOPs are looked for that are as fast


def importance(model: torch.nn.Module, graph: gator.Hypergraph, kept: dict[str, list[int]]) -> float:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runtime", default="eager")
    parser.add_argument("--name", default="torchvision:resnet50")
    parser.add_argument("--shape", default="1,3,224,224")
    parser.add_argument("--target", type=float, default=0.6)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--folder", default="runs/latency", help="where the tables are kept")
    options = parser.parse_args()
    os.environ["GATOR_CACHE"] = str(Path(options.folder) / "cache")
    make_importable()
    torch.manual_seed(0)
    model = zoo.build(options.name).model.eval()
    graph = gator.trace(model, torch.zeros([int(size) for size in options.shape.split(",")]))
    cost = gator.Latency(options.runtime, threads=options.threads, rounds=options.rounds)
    priced = cost.on(model, graph)
    whole = priced.reference.ms
    settings = {"min_width": {edge.name: edge.width // 8 for edge in graph.edges}, "per_cost": True}

    def small(kept: dict[str, list[int]]) -> torch.nn.Module:
        return gator.cut(model, graph, kept, keep_class=False, verify=False)

    def show(label: str, share: float, kept: dict[str, list[int]]) -> float:
        macs, left = gator.predict_macs(graph, kept) / graph.macs, importance(model, graph, kept)
        print(f"| {options.runtime} | {label} | {share:.3f} | {macs:.3f} | {left:.4f} |", flush=True)
        return left

    print(f"{options.name}, {whole:.2f} ms as it is, {priced.reference.stopwatch.conditions}\n")
    print("| runtime | objective | measured latency | MACs | L1 importance kept |")
    print("| --- | --- | --- | --- | --- |")
    kept = gator.one_shot(model, graph, target=options.target, cost=cost, round_to="auto", **settings)
    shares = sorted(priced.measured(small(kept)) / whole for _ in range(TRIES))
    own = show(f"latency {options.target}", shares[TRIES // 2], kept)
    # From here on networks are measured beside the one that was found: what they take of its time.
    beside = priced.reference.stopwatch.reference(small(kept))
    for steps, label in ((1, ""), (priced.block, ", in the same steps")):
        share = gator.predict_macs(graph, kept) / graph.macs
        low, high, tried = share - AROUND, share + AROUND, []
        for _ in range(FLOPS_TRIES):
            target = (low + high) / 2
            other = gator.one_shot(model, graph, target=target, cost="flops", round_to=steps, **settings)
            ratio = beside.measured(small(other)) / beside.ms
            tried.append((ratio, show(f"FLOPs {target:.3f}{label}", ratio * shares[TRIES // 2], other)))
            low, high = (low, target) if ratio > 1 else (target, high)
        _, level = np.polyfit([ratio - 1 for ratio, _ in tried], [left for _, left in tried], 1)
        print(f"at equal latency{label}: {own:.4f} kept for latency, {level:.4f} for FLOPs")


if __name__ == "__main__":
    main()
