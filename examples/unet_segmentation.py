"""A U-Net for segmentation, trained at two image sizes; the smaller network takes both sizes, and others, as the original does.

    pip install torch-gator
    python examples/unet_segmentation.py

The pictures are made up: bright discs on a noisy ground, and the mask says where the discs are.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

import gator

STEPS, GATED = 160, 90


def conv(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())


class UNet(nn.Module):
    """Two levels down and two up, with what was seen on the way down joined to what comes up."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.bottom = conv(1, width), conv(width, 2 * width), conv(2 * width, 4 * width)
        self.up_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up_first = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join_second, self.join_first = conv(4 * width, 2 * width), conv(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(functional.max_pool2d(first, 2))
        bottom = self.bottom(functional.max_pool2d(second, 2))
        up = self.join_second(torch.cat([self.up_second(bottom), second], 1))
        return self.out(self.join_first(torch.cat([self.up_first(up), first], 1)))


def pictures(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Discs of random places and radii, and where they are."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    center, radius = torch.rand(count, 2, 1, 1) * size, (0.1 + 0.2 * torch.rand(count, 1, 1)) * size
    mask = ((y - center[:, 0]) ** 2 + (x - center[:, 1]) ** 2 < radius**2).float()[:, None]
    return mask * 0.7 + 0.5 * torch.randn(count, 1, size, size), mask


@torch.no_grad()
def overlap(network: nn.Module, size: int) -> float:
    """Intersection over union on new pictures."""
    picture, mask = pictures(64, size)
    found = network.eval()(picture) > 0
    return float((found & mask.bool()).sum() / (found | mask.bool()).sum())


torch.manual_seed(0)
model = UNet()
example = torch.zeros(1, 1, 32, 32)
dense_macs = gator.measure(model, example).macs
pruner = gator.Pruner(model, example, target=0.4, steps=GATED, keep_class=True)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
model.train()
for step in range(STEPS):
    picture, mask = pictures(16, 32 if step % 2 else 48)  # the traced size, and another one
    loss = functional.binary_cross_entropy_with_logits(model(picture), mask)
    if step < GATED:
        loss = loss + pruner.loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < GATED:
        pruner.step()
    if step == GATED - 1:
        del loss
        optimizer.zero_grad()
        pruner.shrink_(optimizer)  # the rest of the training is of the smaller network
        pruner.detach()

small_macs = gator.measure(model, example).macs
overlaps = {size: overlap(model, size) for size in (32, 48, 64)}
print(pruner.summary())
print(f"MACs {dense_macs:,} -> {small_macs:,}; intersection over union by size: {overlaps}")

assert type(model) is UNet
assert small_macs <= 0.4 * dense_macs
assert min(overlaps.values()) > 0.6
