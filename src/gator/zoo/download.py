"""Downloads of published data sets, checked against torchvision's checksums; a data set appears completely or not at all.

The addresses are those in torchvision.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from gator.errors import DataError
from gator.extras import optional_import


def fetch_archive(kind: str, folder: Path) -> None:
    """Download the archive of the torchvision data set `kind` and unpack it in `folder`."""
    known = getattr(optional_import("torchvision", extra="zoo", purpose="a download").datasets, kind)
    with _temporary(folder, known.base_folder) as place:
        archive = place / "archive"
        _fetch(known.url, archive, known.tgz_md5, folder)
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(place, filter="data")
            if not (place / known.base_folder).is_dir():
                raise tarfile.TarError(f"there is no {known.base_folder} in it")
        except (tarfile.TarError, OSError, EOFError) as error:
            raise DataError(f"{known.url} could not be unpacked ({error}); nothing was written to {folder}") from error
        _put(place / known.base_folder, folder / known.base_folder)


def fetch_files(kind: str, inside: Path, folder: Path) -> None:
    """Download the files of the torchvision data set `kind` to `folder`/`inside`."""
    known = getattr(optional_import("torchvision", extra="zoo", purpose="a download").datasets, kind)
    with _temporary(folder, str(inside)) as place:
        fetched = place / "files"
        fetched.mkdir()
        for name, md5 in known.resources:
            _fetch(f"{known.mirrors[0]}{name}", fetched / name, md5, folder)
        _put(fetched, folder / inside)


@contextmanager
def _temporary(folder: Path, target: str) -> Iterator[Path]:
    """A temporary folder beside the target, on the same disk; it is always removed afterwards."""
    if (folder / target).exists():
        raise DataError(f"{folder / target} exists but is not complete; remove it and run again to download the data set")
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=".download-", dir=folder))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if new and not any(folder.iterdir()):
            folder.rmdir()


def _fetch(url: str, file: Path, md5: str, folder: Path) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, file.open("wb") as out:
            while block := answer.read(1 << 20):
                digest.update(block)
                out.write(block)
    except (OSError, HTTPException) as error:
        raise DataError(
            f"{url} could not be downloaded ({error}); nothing was written\n"
            f"  Check the network, or put the data set in {folder} by hand."
        ) from error
    if digest.hexdigest() != md5:
        raise DataError(
            f"{url}: the checksum is {digest.hexdigest()}, expected {md5}\n"
            "  The download was truncated or is not the published file; nothing was written. Run again."
        )


def _put(made: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(made, target)
    except OSError:
        if not target.is_dir():  # otherwise another process has downloaded the same files meanwhile
            raise
