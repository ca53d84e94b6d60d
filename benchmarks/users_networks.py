"""Networks that people have and the zoo lacks: a U-Net, YOLOv8n of Ultralytics, Segformer-B0 of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class UNet(nn.Module):
    """Four levels, two convolutions each; upsamples to the size of the skip."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.down = nn.ModuleList(_double(into, out) for into, out in zip((3, *widths[:-1]), widths, strict=True))
        pairs = zip(widths[:0:-1], widths[-2::-1], strict=True)
        self.up = nn.ModuleList(_double(low + skip, skip) for low, skip in pairs)
        self.head = nn.Conv2d(widths[0], 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            x = block(torch.cat([skip, functional.interpolate(x, size=skip.shape[2:])], 1))
        result: Tensor = self.head(x)
        return result


def _double(into: int, out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (into, out):
        layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def build(name: str) -> nn.Module:
    if name == "unet":
        return UNet()
    if name == "yolov8n":
        from ultralytics.nn.tasks import DetectionModel

        detector: nn.Module = DetectionModel("yolov8n.yaml", verbose=False)
        return detector
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    segmenter: nn.Module = SegformerForSemanticSegmentation(SegformerConfig())
    return segmenter


def size_of(output: Any) -> Tensor:
    """A loss for any output: the mean square of all its tensors."""
    if isinstance(output, Tensor):
        return output.float().square().mean()
    parts = output.values() if isinstance(output, dict) else output
    return torch.stack([size_of(part) for part in parts]).sum()
