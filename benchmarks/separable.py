"""A depthwise-separable network, for what kernels do with the widths of a pruned one."""

from __future__ import annotations

from torch import nn


class Separable(nn.Sequential):
    """A depthwise and a pointwise convolution, each with batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs), nn.ReLU(),
            nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        )  # fmt: skip


def separable_network() -> nn.Module:
    """Depthwise and pointwise convolutions in turn, 16 to 128 wide, for 64x64 images."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Separable(16, 24), Separable(24, 48, 2), Separable(48, 48), Separable(48, 96, 2), Separable(96, 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
