"""The log of a latency table: what was measured on one device under one setup, in order. Measurements are only appended.

Everything else about a table (step patterns, grids, fits) is computed from its log; see table.py. A build that was interrupted
resumes where it stopped, because what is in the log is not measured again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gator.cost.latency.runtimes.run_setup import Setup
from gator.errors import FileError

FORMAT = 6  # formats 1 to 5 stored what is now computed from the log
Point = tuple[int, int]  # channels that a layer reads, channels that it writes; 0 where pruning never changes them
Purpose = Literal["grid", "read steps", "written steps"]


@dataclass(frozen=True)
class Key:
    """What the times of a table were measured on. Times under another key are times of something else."""

    device: str
    setup: Setup
    versions: tuple[tuple[str, str], ...]  # of the packages that run the network

    def __str__(self) -> str:
        return f"{self.device}; {self.setup}; {', '.join(f'{name} {version}' for name, version in self.versions)}"


@dataclass(frozen=True)
class ReferenceTime:
    """The reference workload (reference.py)."""

    ms: float


@dataclass(frozen=True)
class LayerTime:
    """A layer run alone, reading and writing the channels of `point`."""

    purpose: Purpose
    kind: str  # layers of one kind differ only in their widths
    group: str  # of kinds, such as "conv2d 3x3"
    title: str  # of the kind, for people
    full: Point  # the widths of the unpruned layer
    point: Point
    ms: float  # at the speed the device had when the reference workload was first measured


@dataclass(frozen=True)
class NetworkTime:
    """A network with fewer channels, interleaved with the unpruned network it comes from."""

    network: str
    title: str  # of the unpruned network, for people
    widths: tuple[int, ...]
    held_out: bool  # used to test the fit, not to make it
    ms: float
    unpruned_ms: float


Measurement = ReferenceTime | LayerTime | NetworkTime
Log = tuple[Measurement, ...]


def as_json(key: Key, log: Log) -> str:
    """A JSON document with one measurement per line."""
    header = {"device": key.device, "setup": asdict(key.setup), "versions": dict(key.versions)}
    lines = ",\n".join(json.dumps({"type": type(each).__name__, **asdict(each)}) for each in log)
    return f'{{"format": {FORMAT}, "key": {json.dumps(header)}, "log": [\n{lines}\n]}}\n'


def from_json(text: str, where: str) -> tuple[Key, Log]:
    """The key and the log of a document; FileError if it is of another format or not a latency table."""
    try:
        data: Any = json.loads(text)
        if data["format"] > FORMAT:
            raise FileError(f"{where} has format {data['format']}, this version reads format {FORMAT}; upgrade gator")
        if data["format"] < FORMAT:
            raise FileError(f"{where} was written by an older version of gator; remove it and build it again")
        versions = sorted((str(name), str(version)) for name, version in data["key"]["versions"].items())
        key = Key(data["key"]["device"], Setup(**data["key"]["setup"]), tuple(versions))
        return key, tuple(map(_measurement, data["log"]))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FileError(f"{where} is not a latency table: {type(error).__name__}: {error}") from error


def _measurement(data: Any) -> Measurement:
    ms = float(data["ms"])
    if not ms > 0:
        raise ValueError(f"a time of {ms} ms")
    if data["type"] == "ReferenceTime":
        return ReferenceTime(ms)
    if data["type"] == "LayerTime":
        purpose, kind, group, title = (data[name] for name in ("purpose", "kind", "group", "title"))
        return LayerTime(purpose, kind, group, title, _point(data["full"]), _point(data["point"]), ms)
    if data["type"] == "NetworkTime":
        widths, unpruned_ms = tuple(map(int, data["widths"])), float(data["unpruned_ms"])
        return NetworkTime(data["network"], data["title"], widths, bool(data["held_out"]), ms, unpruned_ms)
    raise ValueError(f"an unknown type of measurement, {data['type']!r}")


def _point(data: Iterable[Any]) -> Point:
    read, written = data
    return int(read), int(written)
