"""Fashion-MNIST from its four idx files, plain or compressed with gzip.

An idx file has a magic number with the number of axes, then the size of each axis, then the bytes.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from gator.errors import DataError
from gator.zoo.in_memory import LabeledImages, labeled_images
from gator.zoo.loader import Part

SHAPE = (1, 28, 28)
INSIDE = Path("FashionMNIST") / "raw"
COUNTS = {"train": 60_000, "test": 10_000}
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def complete(folder: Path) -> bool:
    """Whether the folder has all four files."""
    names = [name for pair in _FILES.values() for name in pair]
    return any(all(_path(here, name) for name in names) for here in (folder, folder / INSIDE))


def read(folder: Path, part: Part, *, verify: bool) -> LabeledImages:
    """The images of one part."""
    images_file, labels_file = (_find(folder, name) for name in _FILES[part])
    images = _array(images_file, axes=3)
    found = labeled_images(images[:, None], _array(labels_file, axes=1), SHAPE, 10, str(images_file))
    if verify and len(found) != COUNTS[part]:
        raise DataError(
            f"{images_file}: {len(found):,} images, expected {COUNTS[part]:,}; verify = false accepts a changed data set"
        )
    return found


def _find(folder: Path, name: str) -> Path:
    for here in (folder, folder / INSIDE):
        if path := _path(here, name):
            return path
    raise DataError(
        f"fashion-mnist: no {name} (or {name}.gz) in {folder} or {folder / INSIDE}\n"
        "  Put the four files of the data set there, or set download = true."
    )


def _path(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _array(path: Path, axes: int) -> np.ndarray:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated ({error}); download the file again") from error
    head = 4 + 4 * axes
    if len(raw) < head or raw[:4] != bytes((0, 0, 8, axes)):
        raise DataError(f"{path}: expected an idx file of bytes with {axes} axes, found the beginning {raw[:4]!r}")
    sizes = struct.unpack(f">{axes}I", raw[4:head])
    if len(raw) - head != np.prod(sizes, dtype=object):
        raise DataError(f"{path}: {len(raw) - head:,} bytes, but its sizes are {sizes}; download the file again")
    return np.frombuffer(bytearray(raw[head:]), np.uint8).reshape(sizes)
