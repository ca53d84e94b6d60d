"""Is a pruned network faster on ONNX Runtime? A depthwise-separable network at 40 % of its MACs, dense and pruned interleaved.

    python benchmarks/never_slower.py [--rounds 200] [--threads 1]

With the default settings (`round_to="auto"`) and with single channels as steps; channels are chosen by L1.
"""

from __future__ import annotations

import argparse

import torch
from separable import separable_network

import gator
from gator.cost.latency.network_timer import NetworkTimer
from gator.cost.latency.runtimes.run_setup import checked_setup
from gator.graph.inputs import describe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    model, x = separable_network().eval(), torch.randn(1, 3, 64, 64)
    graph = gator.trace(model, x)
    networks = {"dense": model}
    for name, round_to in (('round_to="auto"', "auto"), ("round_to=1", 1)):
        networks[name] = gator.cut(model, graph, gator.one_shot(model, graph, "l1", target=0.4, round_to=round_to))
    print("| network | MACs | onnxruntime ms | of dense | eager ms | of dense |\n| --- | --- | --- | --- | --- | --- |")
    times = []
    for runtime in ("onnxruntime", "eager"):
        timer = NetworkTimer(checked_setup(runtime, "cpu", options.threads, "float32", False, 1), describe(x), options.rounds)
        times.append(timer.times([timer.prepare(network) for network in networks.values()]))
    for index, (name, network) in enumerate(networks.items()):
        cells = [f"{each[index].mean_ms:.3g} | {each[index].mean_ms / each[0].mean_ms:.3f}" for each in times]
        print(f"| {name} | {gator.measure(network, x).macs:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
