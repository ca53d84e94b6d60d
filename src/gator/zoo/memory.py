"""Sets of small pictures that live in memory as bytes; a batch is shifted, mirrored and normalised as a whole.

Shifts and mirrors are drawn for the whole batch over all processes, and each process takes its part of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gator.errors import DataError
from gator.zoo.order import InOrder, Positions, Shuffle, random


@dataclass(frozen=True, eq=False)
class Pictures:
    """Bytes of shape (n, channels, height, width), and n labels."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def at(self, positions: Positions) -> Pictures:
        index = torch.from_numpy(positions)
        return Pictures(self.images[index], self.labels[index])


@dataclass(frozen=True)
class Look:
    """How the bytes become what a network sees: `white` is 1, then normalised; `pad` and `flip` are for training."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flip: bool
    white: int = 255

    def normalised(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(each).reshape(-1, 1, 1) for each in (self.mean, self.std))
        return images.float().div_(self.white).sub_(mean).div_(std)

    def augmented(self, images: Tensor, draw: Draw) -> Tensor:
        """A window of each picture on a black ground `pad` pixels wider on every side, every second one mirrored."""
        height, width = images.shape[2:]
        ground = functional.pad(images, (self.pad,) * 4)
        windows = ground.unfold(2, height, 1).unfold(3, width, 1)  # a view: (n, channels, shifts, shifts, height, width)
        moved = windows[torch.arange(len(images)), :, draw.down, draw.right]
        return torch.where(draw.mirrored[:, None, None, None], moved.flip(3), moved) if self.flip else moved


@dataclass(frozen=True, eq=False)
class Draw:
    """What happens to each picture of a batch."""

    down: Tensor
    right: Tensor
    mirrored: Tensor

    @classmethod
    def of(cls, generator: np.random.Generator, count: int, pad: int, mine: slice) -> Draw:
        """Drawn for all `count` pictures of a batch over all processes, of which `mine` are kept."""
        shifts = generator.integers(0, 2 * pad + 1, (2, count))[:, mine]
        mirrored = generator.integers(0, 2, count, dtype=np.uint8)[mine].astype(bool)
        return cls(torch.from_numpy(shifts[0]), torch.from_numpy(shifts[1]), torch.from_numpy(mirrored))


@dataclass(frozen=True, eq=False)
class TrainPictures:
    """Shuffled batches of pictures, with augmentation or without."""

    pictures: Pictures
    look: Look
    shuffle: Shuffle
    augment: bool

    @property
    def examples(self) -> int:
        return self.shuffle.examples

    def __len__(self) -> int:
        return len(self.shuffle)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        order = self.shuffle.epoch(epoch)
        for index in range(start, len(self)):
            batch = self.pictures.at(order[index, self.shuffle.mine])
            images = batch.images
            if self.augment:
                generator = random(self.shuffle.seed, epoch, index)
                images = self.look.augmented(images, Draw.of(generator, self.shuffle.whole, self.look.pad, self.shuffle.mine))
            yield self.look.normalised(images), batch.labels


@dataclass(frozen=True, eq=False)
class TestPictures:
    """Every picture once, in the order of the file; the epoch changes nothing."""

    __test__ = False  # to pytest

    pictures: Pictures
    look: Look
    order: InOrder

    @property
    def examples(self) -> int:
        return self.order.examples

    def __len__(self) -> int:
        return len(self.order)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: ARG002
        for index in range(start, len(self)):
            part = self.order.batch_at(index)
            images, labels = self.pictures.images[part.start : part.stop], self.pictures.labels[part.start : part.stop]
            yield self.look.normalised(images), labels


def pictures_of(images: np.ndarray, labels: np.ndarray, shape: tuple[int, ...], classes: int, where: str) -> Pictures:
    """Checked: bytes of the right shape, one label a picture, and no label beyond the classes."""
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        raise DataError(
            f"{where}: expected bytes of shape (n, {', '.join(map(str, shape))}), found {images.dtype} {images.shape}"
        )
    if len(labels) != len(images):
        raise DataError(f"{where}: {len(images):,} pictures but {len(labels):,} labels; fetch the file again")
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(f"{where}: labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
    return Pictures(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))
