"""Small networks and steps for the tests of gates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import gator


class Block(nn.Module):
    """A basic residual block; with a stride its shortcut is a convolution."""

    def __init__(self, into: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(into, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.shortcut(x))


class SmallResNet(nn.Module):
    """Two stages of blocks on 8x8 pictures: highways, inner edges, and a classifier."""

    def __init__(self, width: int = 8, depth: int = 2) -> None:
        super().__init__()
        wide = 2 * width
        self.stem = nn.Conv2d(1, width, 3, 1, 1)
        narrow = [Block(width, width) for _ in range(depth)]
        self.blocks = nn.Sequential(*narrow, Block(width, wide, 2), *[Block(wide, wide) for _ in range(depth - 1)])
        self.head = nn.Linear(wide, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(functional.relu(self.stem(x))).mean((2, 3)))


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
