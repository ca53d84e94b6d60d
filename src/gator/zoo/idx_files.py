"""Fashion-MNIST from the four idx files, packed with gzip or not.

An idx file is a magic number that tells the number of axes, the size of each, and the bytes in a row.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from gator.errors import DataError
from gator.zoo.memory import Pictures, pictures_of

SHAPE = (1, 28, 28)
INSIDE = Path("FashionMNIST") / "raw"
COUNTS = {"train": 60_000, "test": 10_000}
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def complete(folder: Path) -> bool:
    """Whether all four files are there."""
    names = [name for pair in _FILES.values() for name in pair]
    return any(all(_path(here, name) for name in names) for here in (folder, folder / INSIDE))


def read(folder: Path, part: str, *, verify: bool) -> Pictures:
    """The pictures of one part."""
    images_file, labels_file = (_find(folder, name) for name in _FILES[part])
    images = _array(images_file, axes=3)
    pictures = pictures_of(images[:, None], _array(labels_file, axes=1), SHAPE, 10, str(images_file))
    if verify and len(pictures) != COUNTS[part]:
        raise DataError(
            f"{images_file}: {len(pictures):,} pictures, expected {COUNTS[part]:,}; verify = false reads a changed set"
        )
    return pictures


def _find(folder: Path, name: str) -> Path:
    for here in (folder, folder / INSIDE):
        if path := _path(here, name):
            return path
    raise DataError(
        f"fashion-mnist: no {name} (or {name}.gz) in {folder} or {folder / INSIDE}\n"
        "  Put the four files of the set there, or set download = true."
    )


def _path(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _array(path: Path, axes: int) -> np.ndarray:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or cut short ({error}); fetch the file again") from error
    head = 4 + 4 * axes
    if len(raw) < head or raw[:4] != bytes((0, 0, 8, axes)):
        raise DataError(f"{path}: expected an idx file of bytes with {axes} axes, found the beginning {raw[:4]!r}")
    sizes = struct.unpack(f">{axes}I", raw[4:head])
    if len(raw) - head != np.prod(sizes, dtype=object):
        raise DataError(f"{path}: {len(raw) - head:,} bytes, but its sizes are {sizes}; fetch the file again")
    return np.frombuffer(bytearray(raw[head:]), np.uint8).reshape(sizes)
