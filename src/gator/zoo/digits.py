"""A small residual network for 8x8 images with one channel: two stages of blocks, the second at half the resolution."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class DigitsBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut, which is a convolution if there is a stride."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.shortcut(x))


class DigitsResNet(nn.Module):
    """Residual edges, edges inside blocks and a classifier: every kind of edge, in a network that trains in seconds."""

    def __init__(self, width: int = 24, depth: int = 2, classes: int = 10) -> None:
        super().__init__()
        wide = 2 * width
        self.stem = nn.Conv2d(1, width, 3, 1, 1)
        narrow = [DigitsBlock(width, width) for _ in range(depth)]
        self.blocks = nn.Sequential(*narrow, DigitsBlock(width, wide, 2), *[DigitsBlock(wide, wide) for _ in range(depth - 1)])
        self.head = nn.Linear(wide, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(functional.relu(self.stem(x))).mean((2, 3)))
        return scores
