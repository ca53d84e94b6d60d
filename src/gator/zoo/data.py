"""Data sets by name: `digits`, `cifar10`, `cifar100`, `fashion-mnist`, `imagefolder`, `path/to/file.py:function`.

A training batch depends on (seed, epoch, index, rank) alone, and the global random number generators are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gator.errors import DataError
from gator.extras import optional_import
from gator.files.preprocessing import Preprocessing
from gator.zoo import cifar_files, idx_files, image_folder, user_data
from gator.zoo.by_name import unknown
from gator.zoo.class_names import CIFAR10, CIFAR100, DIGITS, FASHION
from gator.zoo.download import fetch_archive, fetch_files
from gator.zoo.in_memory import Augmentation, LabeledImages, TestImages, TrainImages, labeled_images
from gator.zoo.loader import Data, Loader, Part
from gator.zoo.order import Share, random, split_off
from gator.zoo.user_file import is_file

__all__ = ["Data", "Loader", "load_data", "made_up", "shape_of"]


@dataclass(frozen=True)
class InMemory:
    """A data set of small images: the names of its classes, preprocessing, and how one of its parts is read."""

    class_names: tuple[str, ...]
    preprocessing: Preprocessing
    augmentation: Augmentation
    read: Callable[[Path | None, Part, bool], LabeledImages]
    tested_on: str
    fetch: Callable[[Path], None] | None = None

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.preprocessing.shape


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
    """Load a data set by its name.

    name: "digits", "cifar10", "cifar100", "fashion-mnist", "imagefolder", or path/to/file.py:function.
    folder: where the data set is, or where `download` puts it; all but "digits" need one.
    batch, test_batch: examples per batch of this process.
    seed, rank, world: decide which examples this process takes, of `world` processes.
    hold_back: evaluate on this many training examples instead of the test set, which is then not read.
    verify: check the number of images and, for CIFAR-10, the published checksums.

    Returns a `Data` with the loaders `train` and `test`. Raises `gator.DataError` if the data set is unknown, not in the folder
    or damaged, and `gator.MissingExtraError` if a package that it needs is not installed.

    >>> data = zoo.load_data("digits", batch=64)
    >>> data.shape, data.classes, len(data.train)
    ((1, 8, 8), 10, 21)
    """
    for field, value, least in [
        ("batch", batch, 1), ("test_batch", test_batch, 1), ("seed", seed, 0), ("world", world, 1), ("rank", rank, 0),
        ("hold_back", hold_back, 0), ("workers", workers, 0), ("image_size", image_size, 1),
    ]:  # fmt: skip
        if value < least:
            raise DataError(f"{field} = {value}; expected {least} or more")
    if rank >= world:
        raise DataError(f"rank = {rank}; expected less than the number of processes, {world}")
    share = Share(batch, test_batch, seed, rank, world)
    place = Path(folder).expanduser() if folder else None
    if is_file(name) or name == "imagefolder":
        if hold_back:
            raise DataError(f"hold_back = {hold_back}: only {', '.join(_IN_MEMORY)} can hold examples back")
        if download:
            raise DataError(f"download = true: {name} cannot be downloaded; only published data sets can")
        if is_file(name):
            return user_data.load(name, share, folder=folder)
        return image_folder.load(_needed(name, place), share, augment=augment, workers=workers, image_size=image_size)
    kind = _known(name)
    if download and kind.fetch is not None:
        kind.fetch(_needed(name, place))
    train = kind.read(place, "train", verify)
    if hold_back:
        kept, held = split_off(len(train), hold_back)
        train, test, tested_on = train.at(kept), train.at(held), "{:,} held-back training images"
    else:
        test, tested_on = kind.read(place, "test", verify), kind.tested_on
    return Data(
        name,
        TrainImages(train, kind.preprocessing, share.shuffle(len(train)), kind.augmentation if augment else None),
        TestImages(test, kind.preprocessing, share.in_order(len(test))),
        kind.classes,
        kind.shape,
        tested_on.format(len(test)),
        kind.preprocessing,
        kind.class_names,
    )


def shape_of(name: str, *, image_size: int = 224, folder: str = "") -> tuple[tuple[int, ...], int] | None:
    """The shape of one example and the number of classes, without reading any examples; None for a user's own data.

    The classes of an image folder are those in `folder`, 0 if that does not exist.
    """
    if is_file(name):
        return None
    if name == "imagefolder":
        place = Path(folder).expanduser()
        return (3, image_size, image_size), len(image_folder.class_names(place)) if folder and place.is_dir() else 0
    kind = _known(name)
    return kind.shape, kind.classes


@dataclass(frozen=True)
class MadeUp:
    """Batches of noise with random labels."""

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
    """Noise of the given shape with random labels, to try a run without its data set."""
    loader = MadeUp(tuple(shape), classes, batch, batches, seed)
    return Data("made-up", loader, loader, classes, tuple(shape), f"{loader.examples:,} made-up examples")


def _known(name: str) -> InMemory:
    if name not in _IN_MEMORY:
        raise unknown("gator.zoo", name, [*_IN_MEMORY, "imagefolder", "path/to/file.py:function"], DataError)
    return _IN_MEMORY[name]


def _digits(folder: Path | None, part: Part, verify: bool) -> LabeledImages:  # noqa: ARG001
    found = optional_import("sklearn.datasets", extra="train", purpose="the data set digits").load_digits()
    tested = np.arange(len(found.target)) % 4 == 3
    chosen = tested if part == "test" else ~tested
    images = found.images[chosen][:, None].astype(np.uint8)
    return labeled_images(images, found.target[chosen], (1, 8, 8), 10, "digits")


def _needed(name: str, folder: Path | None) -> Path:
    if folder is None:
        raise DataError(f"{name} needs a folder: where the data set is, or where download = true puts it")
    return folder


def _cifar(layout: cifar_files.Layout) -> InMemory:
    def read(folder: Path | None, part: Part, verify: bool) -> LabeledImages:
        return cifar_files.read(layout, _needed(layout.name, folder), part, verify=verify)

    def fetch(folder: Path) -> None:
        if not cifar_files.complete(layout, folder):
            fetch_archive(layout.name.upper(), folder)

    # The published checkpoints were trained with the mean and deviation of ImageNet, and black padding.
    preprocessing = Preprocessing((32, 32), 32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    names = {10: CIFAR10, 100: CIFAR100}[layout.classes]
    return InMemory(names, preprocessing, Augmentation(pad=4, flip=True), read, "{:,} test images", fetch)


def _fashion(folder: Path | None, part: Part, verify: bool) -> LabeledImages:
    return idx_files.read(_needed("fashion-mnist", folder), part, verify=verify)


def _fetch_fashion(folder: Path) -> None:
    if not idx_files.complete(folder):
        fetch_files("FashionMNIST", idx_files.INSIDE, folder)


_IN_MEMORY: dict[str, InMemory] = {
    "digits": InMemory(
        DIGITS,
        Preprocessing((8, 8), 8, (0.3053,), (0.3760,), pixel_max=16, colors="L"),
        Augmentation(pad=1, flip=False),
        _digits,
        "{:,} digits, every fourth of 1,797",
    ),
    "cifar10": _cifar(cifar_files.CIFAR10),
    "cifar100": _cifar(cifar_files.CIFAR100),
    "fashion-mnist": InMemory(
        FASHION,
        Preprocessing((28, 28), 28, (0.2860,), (0.3530,), colors="L"),
        Augmentation(pad=2, flip=True),
        _fashion,
        "{:,} test images",
        _fetch_fashion,
    ),
}
