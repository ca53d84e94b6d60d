"""Where tables are kept: a file for every device, runtime and setup, in a cache folder or wherever a person says.

A table of another device, or of another version of the runtime, is refused unless the person insists.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gator.cost.latency.machine import device_name
from gator.cost.latency.runtime import runtime_of
from gator.cost.latency.setup import Setup
from gator.cost.latency.table import FORMAT, Key, Table
from gator.errors import FileError, GatorError

try:
    import fcntl
except ImportError:  # Windows: there nobody is kept waiting
    fcntl = None  # type: ignore[assignment]

CACHE = "GATOR_CACHE"
log = logging.getLogger("gator")


def key_here(setup: Setup) -> Key:
    """The key of tables made on this machine under this setup."""
    return Key(device_name(setup.device), setup, tuple(sorted(runtime_of(setup).versions().items())))


def cache_folder() -> Path:
    """$GATOR_CACHE, or the user's cache folder."""
    own = os.environ.get(CACHE)
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gator"


def usual_path(key: Key) -> Path:
    setup = key.setup
    words = [setup.runtime, setup.device, f"{setup.threads}t", setup.dtype, f"b{setup.batch}"]
    name = re.sub(r"[^A-Za-z0-9-]", "", "-".join([*words, *(["cl"] if setup.channels_last else [])]))
    return cache_folder() / "latency" / f"{name}-{hashlib.sha256(f'{FORMAT} {key}'.encode()).hexdigest()[:8]}.json"


def read(path: Path) -> Table:
    if not path.is_file():
        raise FileError(f"there is no latency table at {path}; gator latency build makes one")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read as a latency table: {error}") from error
    return Table.from_json(text, str(path))


def write(table: Table, path: Path) -> None:
    """All of it or nothing: whoever reads meanwhile gets the old one."""
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        beside.write_text(table.to_json(), encoding="utf-8")
        beside.replace(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(
            f"the latency table {path} cannot be written: {error.strerror or error}\n"
            f"  Set ${CACHE} to a folder of your own, or name another file with table=."
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time adds to a table: two would lose what the other timed, and disturb each other. Others wait."""
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(f"{path.name}.lock").open("w")
    with file:
        _wait_for(file, path)
        yield


def _wait_for(file: IO[str], path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("latency table: another process is building %s, waiting for it", path)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # a file system without locks
        return


def check_key(found: Key, here: Key, where: str) -> None:
    """Raise if a table's times are not times of what is asked about."""
    pairs = [
        ("device", found.device, here.device),
        ("runtime", found.setup.runtime, here.setup.runtime),
        ("versions", dict(found.versions), dict(here.versions)),
        *((name, getattr(found.setup, name), getattr(here.setup, name)) for name in _STATED),
    ]
    for name, theirs, ours in pairs:
        if theirs != ours:
            other = "pass other_device=True if its times are what you want"
            same = f"ask for what it is of (--{name.replace('_', '-')} {theirs}, {name}={theirs!r})"
            raise GatorError(
                f"the latency table {where} is of another {name}: {theirs}, here it is {ours}\n"
                f"  Build one here (gator latency build), or {same if name in _ASKED else other}."
            )


_ASKED = ("runtime", "threads", "dtype", "channels_last", "batch")  # as a person likes
_STATED = ("device", "threads", "dtype", "channels_last", "batch")
