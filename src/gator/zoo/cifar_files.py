"""CIFAR-10 and CIFAR-100 from the standard Python batches. They are pickles, and are read without running code from them.

The images and labels of CIFAR-10 are compared with published checksums; the pickle around them may differ.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from gator.errors import DataError
from gator.zoo.in_memory import LabeledImages, labeled_images
from gator.zoo.loader import Part

SHAPE = (3, 32, 32)
COUNTS = {"train": 50_000, "test": 10_000}


@dataclass(frozen=True)
class Layout:
    """The files of a data set: their folder, the files of each part, and the key of the labels in them."""

    name: str
    folder: str
    classes: int
    labels: str
    parts: dict[str, tuple[str, ...]]
    published: dict[str, str]  # file to checksum of its content


CIFAR10 = Layout(
    "cifar10",
    "cifar-10-batches-py",
    10,
    "labels",
    {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    {
        "data_batch_1": "ba52cb2d72c412975d7556bb26bd094956f1c002d1937053f6f1252f2ac17114",
        "data_batch_2": "350ff9000489d02f2568c0dcf4912ffdbae9e50932147905fb1b8159ad54f0ac",
        "data_batch_3": "a2b8653fc457df407af6c38b7e0d1a12530f3b5f81fce9f81516efd065daf722",
        "data_batch_4": "133e6292c377755074c305db8a684d48d5397372cb0aba34f52b4335eab35d97",
        "data_batch_5": "eb08cdc11fd1267ef871cf4790f193684b3f556d13317be68f4eb374a078ea87",
        "test_batch": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
    },
)
CIFAR100 = Layout("cifar100", "cifar-100-python", 100, "fine_labels", {"train": ("train",), "test": ("test",)}, {})


def complete(layout: Layout, folder: Path) -> bool:
    """Whether the folder has every file of the data set."""
    files = [file for part in layout.parts.values() for file in part]
    return any(all((here / file).is_file() for file in files) for here in (folder, folder / layout.folder))


def place(layout: Layout, folder: Path) -> Path:
    """The folder of the batches: `folder` itself, or the standard one inside it."""
    files = [file for part in layout.parts.values() for file in part]
    for candidate in (folder, folder / layout.folder):
        if any((candidate / file).is_file() for file in files):
            return candidate
    raise DataError(
        f"{layout.name}: no {files[0]} in {folder} or {folder / layout.folder}\n"
        f"  Unpack the Python version of the data set there, give the folder of {layout.folder}, or set download = true."
    )


def read(layout: Layout, folder: Path, part: Part, *, verify: bool) -> LabeledImages:
    """The images of one part, in the order of its files."""
    here = place(layout, folder)
    files = layout.parts[part]
    read = [read_file(layout, here / file, COUNTS[part] // len(files), verify=verify) for file in files]
    return LabeledImages(torch.cat([each.images for each in read]), torch.cat([each.labels for each in read]))


def checksum(found: LabeledImages) -> str:
    """The checksum of images and labels."""
    digest = hashlib.sha256(found.images.contiguous().numpy().data)
    digest.update(found.labels.to(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_file(layout: Layout, path: Path, count: int, *, verify: bool) -> LabeledImages:
    if not path.is_file():
        raise DataError(
            f"{layout.name}: {path} is missing; unpack the whole archive, or set download = true with an empty folder"
        )
    images, labels = _unpickle(path, layout.labels)
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
        raise DataError(f"{path}: expected bytes of shape (n, 3072) under 'data', found {images.dtype} {images.shape}")
    found = labeled_images(images.reshape(-1, *SHAPE), labels, SHAPE, layout.classes, str(path))
    if verify and len(found) != count:
        raise DataError(f"{path}: {len(found):,} images, expected {count:,}; verify = false accepts a changed data set")
    if verify and path.name in layout.published and checksum(found) != layout.published[path.name]:
        raise DataError(
            f"{path}: the images or labels are not the published ones (their checksum differs)\n"
            "  Download the file again; verify = false accepts a changed data set."
        )
    return found


def _unpickle(path: Path, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        with path.open("rb") as file:
            found = _Plain(file, encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{path}: damaged or truncated ({type(error).__name__}: {error}); download the file again") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a dictionary with 'data' and {label_key!r}, found {type(found).__name__}")
    named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in found.items()}
    images, labels = named.get("data"), named.get(label_key)
    if not isinstance(images, np.ndarray) or not isinstance(labels, (list, np.ndarray)):
        keys = ", ".join(map(str, named)) or "nothing"
        raise DataError(f"{path}: expected a dictionary with 'data' and {label_key!r}, found {keys}")
    listed = labels.ravel().tolist() if isinstance(labels, np.ndarray) else labels
    if not all(type(label) is int and abs(label) < 2**31 for label in listed):
        raise DataError(f"{path}: the labels under {label_key!r} are not a list of integers")
    return images, np.array(listed, np.int64)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"text encoded as {encoding!r}")
    return text.encode("latin1")


def _from_buffer(buffer: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> np.ndarray:
    return np.frombuffer(bytearray(buffer), dtype=dtype).reshape(shape, order=order)


_RECONSTRUCT: Callable[..., Any] = np.zeros(0).__reduce__()[0]  # type: ignore[assignment]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
    ("builtins", "bytes"): bytes,
    ("__builtin__", "bytes"): bytes,
    ("builtins", "bytearray"): bytearray,
    ("__builtin__", "bytearray"): bytearray,
}


class _Plain(pickle.Unpickler):
    """Reads arrays, numbers, text and lists; any other name in the pickle is refused before it is looked up."""

    def __init__(self, file: IO[bytes], *, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self._name = getattr(file, "name", "the file")

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise DataError(
                f"{self._name}: the pickle asks for {module}.{name}, which no CIFAR batch needs; refused to load it"
            ) from None
