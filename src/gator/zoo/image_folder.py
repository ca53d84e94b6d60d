"""Images in folders: FOLDER/train/CLASS/*.jpg and FOLDER/val/CLASS/*.jpg, decoded as they are needed.

The crop and the flip of an example depend on (seed, epoch, its position in the epoch) alone: neither the number of workers
nor that of processes changes them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gator.errors import DataError
from gator.extras import optional_import
from gator.files.preprocessing import Preprocessing
from gator.zoo.loader import Data
from gator.zoo.order import InOrder, Share, Shuffle, random

SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}
log = logging.getLogger("gator")


def load(folder: Path, share: Share, *, augment: bool, workers: int, image_size: int) -> Data:
    """Training and validation images of every class that has a folder in `folder`/train."""
    optional_import("PIL", extra="images", purpose="a folder of images")
    train, test = _classes(folder, "train"), _classes(folder, "val")
    names = tuple(train)
    if extra := [name for name in test if name not in train]:
        raise DataError(
            f"imagefolder: {folder / 'val'} has classes that train does not have: {_first(extra)}\n"
            "  The folders in val must have the same names as those in train."
        )
    if missing := [name for name in names if name not in test]:
        log.warning(
            "imagefolder: %s has no folder for %d of %d classes (%s): the accuracy says nothing about them",
            folder / "val", len(missing), len(names), _first(missing),
        )  # fmt: skip
    preprocessing = Preprocessing((image_size, image_size), round(image_size * 256 / 224))
    seen, unseen = (_Decoded(_files(part, names), preprocessing) for part in (train, test))
    return Data(
        "imagefolder",
        TrainFiles(seen, share.shuffle(len(seen.files)), workers, augment),
        TestFiles(unseen, share.in_order(len(unseen.files)), workers),
        len(names),
        (3, image_size, image_size),
        f"{len(unseen.files):,} validation images",
        preprocessing,
        names,
    )


def class_names(folder: Path) -> tuple[str, ...]:
    """The classes in a folder of images, in the order of their labels."""
    return tuple(_classes(folder, "train"))


def count_images(folder: Path) -> int:
    """The number of training images in a folder of images."""
    return sum(map(len, _classes(folder, "train").values()))


def _first(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"


def _classes(folder: Path, part: str) -> dict[str, list[str]]:
    """The files of each class, both sorted by name."""
    here = folder / part
    if not here.is_dir():
        raise DataError(f"imagefolder: there is no folder {here}; expected train/CLASS/*.jpg and val/CLASS/*.jpg in {folder}")
    found = {
        each.name: sorted(str(file) for file in each.rglob("*") if file.suffix.lower() in SUFFIXES)
        for each in sorted(here.iterdir())
        if each.is_dir() and not each.name.startswith(".")
    }
    if not found:
        raise DataError(f"imagefolder: {here} has no folders in it; expected one per class")
    if empty := [name for name, files in found.items() if not files]:
        raise DataError(
            f"imagefolder: no images in {here / empty[0]}; add some, or remove the folder "
            f"(known types: {', '.join(sorted(SUFFIXES))})"
        )
    return found


def _files(classes: dict[str, list[str]], names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    number = {name: index for index, name in enumerate(names)}
    return tuple((file, number[name]) for name, files in classes.items() for file in files)


@dataclass(frozen=True)
class Wanted:
    """An example, and the key that its crop and flip are drawn from: (seed, epoch, position); None for the center crop."""

    index: int
    key: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class _Decoded(Dataset[Any]):
    """Batches by a list of examples. An error is returned as text and raised by the caller, outside the worker process."""

    files: tuple[tuple[str, int], ...]
    preprocessing: Preprocessing

    def __getitem__(self, wanted: list[Wanted]) -> tuple[Tensor, Tensor] | str:
        images = []
        for each in wanted:
            file, _ = self.files[each.index]
            try:
                images.append(self._image(file, each.key))
            except Exception as error:  # a damaged image can fail in any way
                return f"{file}: the image cannot be read ({type(error).__name__}: {error}); repair or remove it"
        batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
        labels = torch.tensor([self.files[each.index][1] for each in wanted])
        return self.preprocessing.values(batch).contiguous(), labels

    def _image(self, file: str, key: tuple[int, int, int] | None) -> np.ndarray:
        from PIL import Image

        image = self.preprocessing.decoded(file)
        if key is None:
            return self.preprocessing.pixels(image)
        generator = random(*key)
        box = random_box(generator, *image.size)
        image = image.crop(box).resize(self.preprocessing.crop, Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        return pixels[:, ::-1] if generator.random() < 0.5 else pixels


def random_box(generator: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """A random box with 8 to 100 % of the area and a ratio from 3:4 to 4:3; after ten tries that do not fit, a center crop."""
    for _ in range(10):
        area = width * height * generator.uniform(0.08, 1.0)
        ratio = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = (int(generator.integers(0, room + 1)) for room in (width - wide, height - high))
            return left, top, left + wide, top + high
    wide, high = min(width, max(1, round(height * 4 / 3))), min(height, max(1, round(width * 4 / 3)))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def _decoded(dataset: _Decoded, wanted: Iterable[list[Wanted]], workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    # The loader draws a seed for its workers; it must not take it from the global generator.
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(dataset, batch_size=None, sampler=wanted, num_workers=workers, generator=generator)
    for batch in loader:
        if isinstance(batch, str):
            raise DataError(batch)
        yield batch


@dataclass(frozen=True, eq=False)
class TrainFiles:
    """Shuffled batches of images from files."""

    dataset: _Decoded
    shuffle: Shuffle
    workers: int
    augment: bool

    @property
    def examples(self) -> int:
        return self.shuffle.examples

    def __len__(self) -> int:
        return len(self.shuffle)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        order, seed, size, mine = self.shuffle.epoch(epoch), self.shuffle.seed, self.shuffle.global_batch, self.shuffle.mine

        def row(index: int) -> list[Wanted]:
            places = range(index * size + mine.start, index * size + mine.stop)
            keys = [(seed, epoch, place) if self.augment else None for place in places]
            return [Wanted(int(each), key) for each, key in zip(order[index, mine], keys, strict=True)]

        yield from _decoded(self.dataset, map(row, range(start, len(self))), self.workers)


@dataclass(frozen=True, eq=False)
class TestFiles:
    """Every image once, in the order of classes and file names, in every epoch."""

    __test__ = False  # not a test for pytest

    dataset: _Decoded
    order: InOrder
    workers: int

    @property
    def examples(self) -> int:
        return self.order.examples

    def __len__(self) -> int:
        return len(self.order)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: ARG002
        wanted = ([Wanted(index) for index in self.order.batch_at(batch)] for batch in range(start, len(self)))
        yield from _decoded(self.dataset, wanted, self.workers)
