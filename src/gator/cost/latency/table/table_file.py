"""Files of latency tables: one for every device, runtime and setup, in a cache folder or wherever the user says.

A table of another device, or of another version of the runtime, is refused unless other_device=True.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gator.atomic_file import write_atomically
from gator.cost.latency.layers.fused_layers import Point
from gator.cost.latency.runtimes.by_name import runtime_of
from gator.cost.latency.runtimes.device_name import device_name
from gator.cost.latency.runtimes.run_setup import Setup
from gator.cost.latency.table.latency_table import Key, LayerTime, Measurement, NetworkTime, ReferenceTime, Table
from gator.errors import FileError, GatorError
from gator.extras import optional_import

CACHE = "GATOR_CACHE"
FORMAT = 7  # a table of another format is built again
_TYPES: dict[str, type[Measurement]] = {each.__name__: each for each in (ReferenceTime, LayerTime, NetworkTime)}


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
    return from_json(text, str(path))


def write(table: Table, path: Path) -> None:
    """Write the file completely or not at all: whoever reads meanwhile gets the old one."""
    text = as_json(table)
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


def as_json(table: Table) -> str:
    """A JSON document with one measurement per line."""
    key = table.key
    header = {"device": key.device, "setup": asdict(key.setup), "versions": dict(key.versions)}
    lines = ",\n".join(json.dumps({"type": type(each).__name__, **asdict(each)}) for each in table.measurements)
    return f'{{"format": {FORMAT}, "key": {json.dumps(header)}, "measurements": [\n{lines}\n]}}\n'


def from_json(text: str, where: str) -> Table:
    """The table in a document; FileError if it is of another format or not a latency table."""
    try:
        data: Any = json.loads(text)
        if data["format"] > FORMAT:
            raise FileError(f"{where} has format {data['format']}, this version reads format {FORMAT}; upgrade gator")
        if data["format"] < FORMAT:
            raise FileError(f"{where} was written by an older version of gator; remove it and build it again")
        versions = sorted((str(name), str(version)) for name, version in data["key"]["versions"].items())
        key = Key(data["key"]["device"], Setup(**data["key"]["setup"]), tuple(versions))
        return Table(key, tuple(map(_measurement, data["measurements"])))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FileError(f"{where} is not a latency table: {type(error).__name__}: {error}") from error


def _measurement(data: dict[str, Any]) -> Measurement:
    fields = {name: _READERS.get(name, str)(value) for name, value in data.items() if name != "type"}
    return _TYPES[data["type"]](**fields)


def _milliseconds(value: Any) -> float:
    ms = float(value)
    if not ms > 0:
        raise ValueError(f"a time of {ms} ms")
    return ms


def _point(value: Any) -> Point:
    read, written = value
    return int(read), int(written)


_READERS: dict[str, Callable[[Any], Any]] = {
    "ms": _milliseconds, "unpruned_ms": _milliseconds, "full": _point, "point": _point,
    "widths": lambda value: tuple(map(int, value)), "held_out": bool,
}  # fmt: skip
