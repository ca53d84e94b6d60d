"""Where tables are kept: a file for every device, runtime and setup, in a cache folder or wherever a person says.

A table of another device, or of another version of the runtime, is refused unless the person insists.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from gator.cost.latency.machine import device_name
from gator.cost.latency.runtime import runtime_of
from gator.cost.latency.setup import Setup
from gator.cost.latency.table import Key, Table
from gator.errors import FileError, GatorError

CACHE = "GATOR_CACHE"


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
    return cache_folder() / "latency" / f"{name}-{hashlib.sha256(str(key).encode()).hexdigest()[:8]}.json"


def read(path: Path) -> Table:
    if not path.is_file():
        raise FileError(f"there is no latency table at {path}; gator latency build makes one")
    return Table.from_json(path.read_text(), str(path))


def write(table: Table, path: Path) -> None:
    """All of it or nothing: whoever reads meanwhile gets the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    beside.write_text(table.to_json())
    beside.replace(path)


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
            raise GatorError(
                f"the latency table {where} is of another {name}: {theirs}, here it is {ours}\n"
                "  Build one here (gator latency build), or pass other_device=True if its times are what you want."
            )


_STATED = ("device", "threads", "dtype", "channels_last", "batch")
