"""Published sets fetched into a folder: checked against torchvision's checksums, and there as a whole or not at all.

The addresses are torchvision's own, so that none is kept here.
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
from gator.zoo.by_name import needs


def fetch_archive(kind: str, folder: Path) -> None:
    """The archive of the torchvision data set `kind`, unpacked in `folder`."""
    known = getattr(needs("torchvision", "zoo").datasets, kind)
    with _aside(folder, known.base_folder) as place:
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
    """The single files of the torchvision data set `kind`, in `inside` of the `folder`."""
    known = getattr(needs("torchvision", "zoo").datasets, kind)
    with _aside(folder, str(inside)) as place:
        fetched = place / "files"
        fetched.mkdir()
        for name, md5 in known.resources:
            _fetch(f"{known.mirrors[0]}{name}", fetched / name, md5, folder)
        _put(fetched, folder / inside)


@contextmanager
def _aside(folder: Path, target: str) -> Iterator[Path]:
    """A place beside the target on the same disk, gone afterwards whatever happened."""
    if (folder / target).exists():
        raise DataError(f"{folder / target} is there but not complete; remove it and run again to fetch the set")
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=".fetching-", dir=folder))
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
            f"{url} could not be fetched ({error}); nothing was written\n"
            f"  Check the network, or put the set in {folder} by hand."
        ) from error
    if digest.hexdigest() != md5:
        raise DataError(
            f"{url}: the checksum is {digest.hexdigest()}, expected {md5}\n"
            "  The download was cut short or is not the published file; nothing was written. Run again."
        )


def _put(made: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(made, target)
    except OSError:
        if not target.is_dir():  # else another process was quicker, with the same files
            raise
