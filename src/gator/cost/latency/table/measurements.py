"""What a latency table stores: the measurements of one device under one setup, in the order they were made.

Measurements are only appended. Everything else about a table is computed from them (latency_table.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gator.cost.latency.layers.fused_layers import Point
from gator.cost.latency.runtimes.run_setup import Setup
from gator.errors import FileError

FORMAT = 7  # a table of another format is built again
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
    """The reference workload (measuring/reference.py)."""

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
_TYPES: dict[str, type[Measurement]] = {each.__name__: each for each in (ReferenceTime, LayerTime, NetworkTime)}


def as_json(key: Key, measurements: tuple[Measurement, ...]) -> str:
    """A JSON document with one measurement per line."""
    header = {"device": key.device, "setup": asdict(key.setup), "versions": dict(key.versions)}
    lines = ",\n".join(json.dumps({"type": type(each).__name__, **asdict(each)}) for each in measurements)
    return f'{{"format": {FORMAT}, "key": {json.dumps(header)}, "measurements": [\n{lines}\n]}}\n'


def from_json(text: str, where: str) -> tuple[Key, tuple[Measurement, ...]]:
    """The key and the measurements of a document; FileError if it is of another format or not a latency table."""
    try:
        data: Any = json.loads(text)
        if data["format"] > FORMAT:
            raise FileError(f"{where} has format {data['format']}, this version reads format {FORMAT}; upgrade gator")
        if data["format"] < FORMAT:
            raise FileError(f"{where} was written by an older version of gator; remove it and build it again")
        versions = sorted((str(name), str(version)) for name, version in data["key"]["versions"].items())
        key = Key(data["key"]["device"], Setup(**data["key"]["setup"]), tuple(versions))
        return key, tuple(map(_measurement, data["measurements"]))
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
