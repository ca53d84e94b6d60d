"""The residual networks of He et al. for 32x32 images: three stages of 16, 32 and 64 channels, 6n+2 layers.

Shortcuts between stages are those of option A, without parameters: every second pixel, padded with zero channels.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

DEPTHS = (20, 32, 44, 56, 110)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.stride = stride
        self.extra = out_channels - in_channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.stride != 1 or self.extra:
            half = self.extra // 2
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.extra - half))
        return functional.relu(out + x)


class CifarResNet(nn.Module):
    """ResNet-20, -32, -44, -56 or -110 for 32x32 images; ten classes by default."""

    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, 1)
        self.layer2 = _stage(16, 32, blocks, 2)
        self.layer3 = _stage(32, 64, blocks, 2)
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        logits: torch.Tensor = self.linear(x)
        return logits


def _stage(in_channels: int, out_channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(in_channels, out_channels, stride)
    return nn.Sequential(first, *(BasicBlock(out_channels, out_channels, 1) for _ in range(blocks - 1)))
