"""Small networks and steps for the tests of gates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import gator
from gator.zoo.digits import DigitsResNet


class SmallResNet(DigitsResNet):
    """The zoo's network for digits, half as wide."""

    def __init__(self, width: int = 8, depth: int = 2) -> None:
        super().__init__(width, depth)


def steady(pruner: gator.Pruner) -> None:
    """No noise: every living gate is open."""
    pruner.gates.noise = lambda rows: torch.full((rows, len(pruner.gates)), 50.0, dtype=pruner.gates.logits.dtype)


def close(pruner: gator.Pruner, share: float, seed: int = 0) -> None:
    """Close a share of every edge's channels for good, by way of their logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for index, edge in enumerate(pruner.graph.edges):
            part = pruner.gates.of_edge(index)
            gone = torch.randperm(edge.width, generator=generator)[: int(share * edge.width)]
            pruner.gates.logits[part.start + gone] = -1.0
    pruner._close()


def backward(pruner: gator.Pruner, x: Tensor, y: Tensor) -> Tensor:
    loss = functional.cross_entropy(pruner.model(x), y) + pruner.loss()
    loss.backward()
    return loss.detach()
