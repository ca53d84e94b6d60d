"""Files of latency tables: one for every device, runtime and setup, in a cache folder or wherever the user says.

A table of another device, or of another version of the runtime, is refused unless the user insists.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from gator.atomic_file import write_atomically
from gator.cost.latency.runtimes.by_name import runtime_of
from gator.cost.latency.runtimes.device_name import device_name
from gator.cost.latency.runtimes.run_setup import Setup
from gator.cost.latency.table.latency_table import Table
from gator.cost.latency.table.measurements import FORMAT, Key, as_json, from_json
from gator.errors import FileError, GatorError
from gator.extras import optional_import

CACHE = "GATOR_CACHE"


def key_here(setup: Setup) -> Key:
    """The key of tables that are made on this machine under this setup."""
    return Key(device_name(setup.device), setup, tuple(sorted(runtime_of(setup).versions().items())))


def cache_folder() -> Path:
    """The folder of all tables: in $GATOR_CACHE, or else in the user's cache folder."""
    own = os.environ.get(CACHE)
    if own:
        return Path(own) / "latency"
    platformdirs = optional_import("platformdirs", extra="latency", purpose="a latency table")
    return Path(platformdirs.user_cache_path("gator", appauthor=False)) / "latency"


def default_path(key: Key) -> Path:
    setup = key.setup
    words = [setup.runtime, setup.device, f"{setup.threads}t", setup.dtype, f"b{setup.batch}"]
    name = re.sub(r"[^A-Za-z0-9-]", "", "-".join([*words, *(["cl"] if setup.channels_last else [])]))
    return cache_folder() / f"{name}-{hashlib.sha256(f'{FORMAT} {key}'.encode()).hexdigest()[:8]}.json"


def read(path: Path) -> Table:
    if not path.is_file():
        raise FileError(f"there is no latency table at {path}; gator latency build makes one")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read as a latency table: {error}") from error
    return Table(*from_json(text, str(path)))


def write(table: Table, path: Path) -> None:
    """Write the file completely or not at all: whoever reads meanwhile gets the old one."""
    text = as_json(table.key, table.measurements)
    with _writing(path):
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time build a table; two would lose each other's measurements and disturb each other."""
    from filelock import FileLock, Timeout

    lock = FileLock(f"{path}.lock")
    with _writing(path):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logging.getLogger("gator").info("latency table: another process is building %s, waiting for it", path)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Make the folder of a file; an error when it is written names the ways out."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, NotImplementedError, FileError) as error:
        reason = error if isinstance(error, FileError) else f"cannot write {path}: {error}"
        raise FileError(f"{reason}\n  Set ${CACHE} to a folder of your own, or name another file with table=.") from error


def check_key(found: Key, here: Key, where: str) -> None:
    """Raise GatorError if a table was measured under other conditions than those that hold here."""
    theirs, ours = ({**asdict(key.setup), "device": key.device, "versions": dict(key.versions)} for key in (found, here))
    for name, value in theirs.items():
        if value != ours[name]:
            raise GatorError(
                f"the latency table {where} was measured with another {name}: {value}, here it is {ours[name]}\n"
                f"  Build one here (gator latency build), ask for the same {name}, or pass other_device=True to use it anyway."
            )
