"""Trace ResNet-56, keep half of the channels of every edge, cut, check and measure. Runs in seconds, downloads nothing."""

import time
from pathlib import Path

import torch

import gator
from gator import zoo


def main() -> None:
    torch.manual_seed(0)
    network = zoo.build("cifar:resnet56")
    model, x = network.model.eval(), torch.randn(1, 3, 32, 32)

    start = time.perf_counter()
    graph = gator.trace(model, x)
    kept = {edge.name: strongest_half(model, edge) for edge in graph.edges}
    kept["layer1.4.conv1"] = []  # nothing is left inside this block: it disappears
    small = gator.cut(model, graph, kept)
    seconds = time.perf_counter() - start

    with gator.masked(model, graph, kept), torch.no_grad():
        difference = (model(x) - small(x)).abs().max() / model(x).abs().max()
    print(f"{len(graph.edges)} edges, traced, cut and checked in {seconds:.1f} s; masked against cut: {difference:.0e}\n")

    before, after = (gator.measure(net, x, latency=True) for net in (model, small))
    print(f"{'':12}{'before':>14}{'after':>14}{'ratio':>8}")
    for name in ("macs", "flops", "params", "bytes", "latency_ms"):
        one, two = getattr(before, name), getattr(after, name)
        form = ",.2f" if name == "latency_ms" else ",d"
        print(f"{name:12}{one:>14{form}}{two:>14{form}}{two / one:>8.2f}")
    path = Path("runs") / "resnet56-half.safetensors"
    path.parent.mkdir(exist_ok=True)
    gator.save(small, path)
    print(f"\nsaved {path}; gator.load(path, zoo.build('cifar:resnet56').model.eval()) reads it back")


def strongest_half(model: torch.nn.Module, edge: gator.Edge) -> torch.Tensor:
    """The half of an edge's units whose weights are largest in their first layer."""
    member = next(m for m in edge.members if m.parameter.endswith("weight"))
    weight = model.get_parameter(member.parameter).detach().transpose(0, member.axis).flatten(1)
    strength = torch.zeros(edge.width)
    for position, unit in enumerate(member.units):
        if unit >= 0:
            strength[unit] += weight[position].abs().sum()
    return strength.topk(max(1, edge.width // 2)).indices


if __name__ == "__main__":
    main()
