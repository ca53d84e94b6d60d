"""How other methods choose channels, as functions for `gator.run(choose=)`, torch's own counter of multiply-adds, and which
blocks are gone."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import gator
from gator.report.removed_blocks import removed_blocks


def macs_of(network: nn.Module) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, 3, 32, 32, dtype=next(network.parameters()).dtype))
    return counter.get_total_flops() // 2


def blocks_removed(dense: nn.Module, network: nn.Module) -> list[str]:
    """Modules of the dense network none of whose convolutions is left."""
    before, after = ([name for name, m in each.named_modules() if isinstance(m, nn.Conv2d)] for each in (dense, network))
    return list(removed_blocks(before, set(before) - set(after)))


def by_torch_pruning(importance: str, batches: list[Any]) -> Any:
    """A function for `gator.run` with the channels that Torch-Pruning removes, until its network costs no more than allowed.

    It prunes as in its own CIFAR benchmarks: globally, in many small steps; only inside the blocks, because it cannot follow
    the zeros that these networks pad their shortcuts with. Its network is compared with the one that is cut.
    """

    def choose(model: nn.Module, graph: Any, cost: float) -> dict[str, list[int]]:
        import torch_pruning

        theirs = copy.deepcopy(model).to(memory_format=torch.contiguous_format).eval()
        x = torch.randn(2, 3, 32, 32)
        kind = torch_pruning.importance
        score = kind.MagnitudeImportance(p=1) if importance == "l1" else kind.TaylorImportance()
        pruner = torch_pruning.pruner.BasePruner(
            theirs, x, importance=score, global_pruning=True, pruning_ratio=1.0, max_pruning_ratio=0.95, iterative_steps=400,
            ignored_layers=[theirs.conv1, theirs.linear, *(m for name, m in theirs.named_modules() if name.endswith("conv2"))],
        )  # fmt: skip
        while macs_of(theirs) > cost:
            if importance == "taylor":
                theirs.zero_grad()
                for images, labels in batches:
                    nn.functional.cross_entropy(theirs(images), labels).backward()
            before = macs_of(theirs)
            for _ in range(400):
                pruner.step()
                if macs_of(theirs) < before or pruner.current_step >= 400:
                    break
            if macs_of(theirs) == before:
                raise RuntimeError(f"Torch-Pruning cannot reach {cost:,.0f} MACs; it ends at {before:,}")
        kept = _surviving(model, theirs, graph)
        cut = gator.cut(model, graph, kept).eval().float()
        torch.testing.assert_close(cut(x), theirs.eval()(x), rtol=1e-3, atol=1e-3)
        return kept

    return choose


def _surviving(model: nn.Module, pruned: nn.Module, graph: Any) -> dict[str, list[int]]:
    """Which channels of every edge are left, told by the statistics of the batch norms, no two of which are equal."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
    kept = {}
    for edge in (edge for edge in graph.edges if edge.name.endswith(".conv1")):
        name = edge.name.replace("conv", "bn")
        before, after = norms[name].running_var.tolist(), pruned.get_submodule(name).running_var.tolist()
        kept[edge.name] = [before.index(value) for value in after]
    return kept


def first_channels(model: nn.Module, graph: Any, cost: float) -> dict[str, list[int]]:  # noqa: ARG001
    """The first channels of every edge, of all the same share."""
    low, high = 0.0, 1.0
    for _ in range(40):
        share = (low + high) / 2
        kept = {edge.name: list(range(max(1, round(share * edge.width)))) for edge in graph.edges}
        low, high = (share, high) if gator.predict_macs(graph, kept) <= cost else (low, share)
    return {edge.name: list(range(max(1, round(low * edge.width)))) for edge in graph.edges}
