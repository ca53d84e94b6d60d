"""Data sets of small images that are kept in memory as bytes; a batch is cropped, flipped and normalized as one tensor.

Crops and flips are drawn for the global batch over all processes, and each process takes its part of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gator.errors import DataError
from gator.files.preprocessing import Preprocessing
from gator.zoo.order import InOrder, Positions, Shuffle, random


@dataclass(frozen=True, eq=False)
class LabeledImages:
    """Bytes of shape (n, channels, height, width), and n labels."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def at(self, positions: Positions) -> LabeledImages:
        index = torch.from_numpy(positions)
        return LabeledImages(self.images[index], self.labels[index])


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied."""

    pad: int
    flip: bool

    def augmented(self, images: Tensor, draw: Draw) -> Tensor:
        """Pad each image with black by `pad` pixels, crop it at random, and flip every second one on average."""
        height, width = images.shape[2:]
        padded = functional.pad(images, (self.pad,) * 4)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (n, channels, shifts, shifts, height, width)
        cropped = windows[torch.arange(len(images)), :, draw.down, draw.right]
        return torch.where(draw.flipped[:, None, None, None], cropped.flip(3), cropped) if self.flip else cropped


@dataclass(frozen=True, eq=False)
class Draw:
    """The crop and the flip of each image of a batch."""

    down: Tensor
    right: Tensor
    flipped: Tensor

    @classmethod
    def of(cls, generator: np.random.Generator, count: int, pad: int, mine: slice) -> Draw:
        """Draw for all `count` images of a global batch, and keep `mine`, those of this process."""
        shifts = generator.integers(0, 2 * pad + 1, (2, count))[:, mine]
        flipped = generator.integers(0, 2, count, dtype=np.uint8)[mine].astype(bool)
        return cls(torch.from_numpy(shifts[0]), torch.from_numpy(shifts[1]), torch.from_numpy(flipped))


@dataclass(frozen=True, eq=False)
class TrainImages:
    """Shuffled batches of images, with augmentation or without."""

    data: LabeledImages
    preprocessing: Preprocessing
    shuffle: Shuffle
    augmentation: Augmentation | None

    @property
    def examples(self) -> int:
        return self.shuffle.examples

    def __len__(self) -> int:
        return len(self.shuffle)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        order = self.shuffle.epoch(epoch)
        for index in range(start, len(self)):
            batch = self.data.at(order[index, self.shuffle.mine])
            images = batch.images
            if self.augmentation is not None:
                generator = random(self.shuffle.seed, epoch, index)
                draw = Draw.of(generator, self.shuffle.global_batch, self.augmentation.pad, self.shuffle.mine)
                images = self.augmentation.augmented(images, draw)
            yield self.preprocessing.values(images), batch.labels


@dataclass(frozen=True, eq=False)
class TestImages:
    """Every image once, in the order of the files, in every epoch."""

    __test__ = False  # not a test for pytest

    data: LabeledImages
    preprocessing: Preprocessing
    order: InOrder

    @property
    def examples(self) -> int:
        return self.order.examples

    def __len__(self) -> int:
        return len(self.order)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: ARG002
        for index in range(start, len(self)):
            part = self.order.batch_at(index)
            images, labels = self.data.images[part.start : part.stop], self.data.labels[part.start : part.stop]
            yield self.preprocessing.values(images), labels


def labeled_images(images: np.ndarray, labels: np.ndarray, shape: tuple[int, ...], classes: int, where: str) -> LabeledImages:
    """Images and labels, checked: bytes of the right shape, one label per image, and every label below `classes`."""
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        raise DataError(
            f"{where}: expected bytes of shape (n, {', '.join(map(str, shape))}), found {images.dtype} {images.shape}"
        )
    if len(labels) != len(images):
        raise DataError(f"{where}: {len(images):,} images but {len(labels):,} labels; download the file again")
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(f"{where}: labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
    return LabeledImages(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))
