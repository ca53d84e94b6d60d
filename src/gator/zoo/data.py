"""Data sets by name: `digits`, `cifar10`, `cifar100`, `fashion-mnist`, `imagefolder`, `path/to/file.py:function`.

Every training batch is a function of (seed, epoch, index, rank) alone, and the global generators are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gator.errors import DataError
from gator.zoo import cifar_files
from gator.zoo.by_name import is_file, needs, unknown
from gator.zoo.memory import Look, Pictures, TestPictures, TrainPictures, pictures_of
from gator.zoo.order import InOrder, Shuffle, random, split_off


class Loader(Protocol):
    """Batches of inputs and labels, the same for the same epoch however often they are asked for."""

    @property
    def examples(self) -> int:
        """In one epoch, over all processes."""

    def __len__(self) -> int:
        """Batches in one epoch of this process."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from number `start` on."""


@dataclass(frozen=True)
class Data:
    """A data set: what is trained on, what is tested on."""

    name: str
    train: Loader
    test: Loader
    classes: int  # 0 where it is not known
    shape: tuple[int, ...]  # of one example
    tested_on: str


@dataclass(frozen=True)
class InMemory:
    """A set of small pictures: what it looks like, and how a part of it ("train" or "test") is read."""

    shape: tuple[int, ...]
    classes: int
    look: Look
    read: Callable[[Path | None, str, bool], Pictures]
    tested_on: str
    fetch: Callable[[Path], None] | None = None


def load_data(
    name: str,
    *,
    folder: str | None = None,
    batch: int = 128,
    test_batch: int = 500,
    seed: int = 0,
    rank: int = 0,
    world: int = 1,
    augment: bool = True,
    hold_back: int = 0,
    workers: int = 0,
    image_size: int = 224,
    download: bool = False,
    verify: bool = True,
) -> Data:
    """The data set called `name`, in `folder` where it needs one. `batch` is of one process.

    With `hold_back`, so many training examples are tested on instead of the test set, which is not read."""
    for field, value, least in [
        ("batch", batch, 1), ("test_batch", test_batch, 1), ("seed", seed, 0), ("world", world, 1), ("rank", rank, 0),
        ("hold_back", hold_back, 0), ("workers", workers, 0), ("image_size", image_size, 1),
    ]:  # fmt: skip
        if value < least:
            raise DataError(f"{field} = {value}: expected at least {least}")
    if rank >= world:
        raise DataError(f"rank = {rank}: expected less than the number of processes, {world}")
    kind = _kind(name)
    if kind is None:
        raise NotImplementedError(image_size, workers)
    place = Path(folder).expanduser() if folder else None
    if download and kind.fetch is not None and place is not None:
        kind.fetch(place)
    train = kind.read(place, "train", verify)
    if hold_back:
        kept, held = split_off(len(train), hold_back)
        train, test, tested_on = train.at(kept), train.at(held), f"{hold_back:,} held-back training images"
    else:
        test, tested_on = kind.read(place, "test", verify), kind.tested_on
    return Data(
        name,
        TrainPictures(train, kind.look, Shuffle(len(train), batch, seed, rank, world), augment),
        TestPictures(test, kind.look, InOrder(len(test), test_batch, rank, world)),
        kind.classes,
        kind.shape,
        tested_on.format(len(test)),
    )


def shape_of(name: str, *, image_size: int = 224) -> tuple[tuple[int, ...], int] | None:  # noqa: ARG001
    """The shape of one example and the number of classes, without reading anything; None for a person's own data."""
    kind = _kind(name)
    return None if kind is None else (kind.shape, kind.classes)


@dataclass(frozen=True)
class MadeUp:
    """Noise with labels drawn by lot, as many batches as asked for."""

    shape: tuple[int, ...]
    classes: int
    batch: int
    count: int
    seed: int

    @property
    def examples(self) -> int:
        return self.batch * self.count

    def __len__(self) -> int:
        return self.count

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(start, self.count):
            generator = random(self.seed, epoch, index)
            x = generator.standard_normal((self.batch, *self.shape), dtype=np.float32)
            yield torch.from_numpy(x), torch.from_numpy(generator.integers(0, max(self.classes, 1), self.batch))


def made_up(shape: tuple[int, ...], classes: int, *, batch: int, batches: int = 2, seed: int = 0) -> Data:
    """Data of the right shape that means nothing, to try a run without the set it is for."""
    loader = MadeUp(tuple(shape), classes, batch, batches, seed)
    return Data("made-up", loader, loader, classes, tuple(shape), f"{loader.examples:,} made-up examples")


def _kind(name: str) -> InMemory | None:
    if is_file(name):
        return None
    if name not in _SETS:
        raise unknown("the zoo", name, list(_SETS), DataError)
    return _SETS[name]


def _digits(folder: Path | None, part: str, verify: bool) -> Pictures:  # noqa: ARG001
    found = needs("sklearn.datasets", "train").load_digits()
    tested = np.arange(len(found.target)) % 4 == 3
    chosen = tested if part == "test" else ~tested
    images = found.images[chosen][:, None].astype(np.uint8)
    return pictures_of(images, found.target[chosen], (1, 8, 8), 10, "digits")


def _folder(name: str, folder: Path | None) -> Path:
    if folder is None:
        raise DataError(f"{name} needs a folder: say where the set is, or where download = true may put it")
    return folder


def _cifar(layout: cifar_files.Layout, folder: Path | None, part: str, verify: bool) -> Pictures:
    return cifar_files.read(layout, _folder(layout.name, folder), part, verify=verify)


# The published checkpoints for CIFAR were trained with the means and deviations of ImageNet.
_CIFAR = Look((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), pad=4, flip=True)

_SETS: dict[str, InMemory] = {
    "digits": InMemory(
        (1, 8, 8), 10, Look((0.3053,), (0.3760,), pad=1, flip=False, white=16), _digits, "{:,} digits, every fourth of 1,797"
    ),
    "cifar10": InMemory((3, 32, 32), 10, _CIFAR, partial(_cifar, cifar_files.CIFAR10), "{:,} test images"),
    "cifar100": InMemory((3, 32, 32), 100, _CIFAR, partial(_cifar, cifar_files.CIFAR100), "{:,} test images"),
}
