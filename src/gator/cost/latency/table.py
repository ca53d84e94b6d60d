"""A latency table: everything timed on one device under one setup, as data that goes to JSON and back.

Entries belong to kinds of layers, so networks with the same layers share them. How the layers of a network add up is
calibrated for each network, and how far off the sum is on networks it has not seen is part of the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gator.cost.latency.calibrate import UNEVEN
from gator.cost.latency.grid import Entry
from gator.cost.latency.segments import Segment
from gator.cost.latency.setup import Setup
from gator.cost.latency.steps import Point, Step, Steps
from gator.errors import FileError

FORMAT = 5  # 1 had no yardstick; 2 and 3 found steps otherwise; 4 had the same for all layers, and their weights at hand


@dataclass(frozen=True)
class Key:
    """What a table is of. Times of another key are times of something else."""

    device: str
    setup: Setup
    versions: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.device}; {self.setup}; {', '.join(f'{name} {version}' for name, version in self.versions)}"


@dataclass(frozen=True)
class Calibration:
    """How the layers of one network add up to its time: a factor for every group of layers, and what is there anyway."""

    factors: dict[str, float]  # and what is saved by borders
    rest_ms: float
    call_ms: float  # what a layer alone takes too much
    title: str  # of the network, for people
    whole_ms: float  # of the network as it is, when it was calibrated
    networks: int  # of random widths that it was fitted to
    unseen: int  # and those it was tested on
    mape: float  # mean absolute percentage error on those, as a share
    spearman: float  # rank correlation on those

    @property
    def groups(self) -> frozenset[str]:
        """Of the layers it adds up."""
        return frozenset(name.removesuffix(UNEVEN) for name in self.factors)

    def __str__(self) -> str:
        tested = f"off by {self.mape:.1%} on {self.unseen} others, rank correlation {self.spearman:.3f}"
        return f"fitted to {self.networks} networks; {tested}"


@dataclass
class Table:
    """Times of layers under one key, the steps the device takes with them, and calibrations by network."""

    key: Key
    steps: dict[str, Steps] = field(default_factory=dict)  # by group of layers
    yardstick_ms: float = 0.0  # of a network that is always the same: all times are said as of the moment it took this
    call_ms: float = 0.0  # of calling the runtime, which a layer alone takes too much
    entries: dict[tuple[str, Point], Entry] = field(default_factory=dict)
    timed: dict[str, list[tuple[list[int], float]]] = field(
        default_factory=dict
    )  # network -> widths and their share of its time
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    begun: dict[str, list[tuple[list[int], float, float]]] = field(
        default_factory=dict
    )  # network -> widths, milliseconds, and those of the network itself beside them; until all are measured

    def entry_for(self, segment: Segment) -> Entry | None:
        """A finished entry of this kind that reaches as far as the segment; of several the smallest."""
        steps = self.steps.get(segment.group)
        if steps is None:
            return None
        alike = [e for (kind, _), e in self.entries.items() if kind == segment.kind and e.covers(segment.whole)]
        return min((e for e in alike if not e.missing(steps)), key=lambda e: e.whole, default=None)

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "key": {"device": self.key.device, "setup": asdict(self.key.setup), "versions": dict(self.key.versions)},
                "steps": {group: asdict(steps) for group, steps in self.steps.items()},
                "yardstick_ms": self.yardstick_ms,
                "call_ms": self.call_ms,
                "entries": [
                    {"kind": e.kind, "title": e.title, "whole": e.whole, "ms": [[*point, ms] for point, ms in e.ms.items()]}
                    for e in self.entries.values()
                ],
                "timed": self.timed,
                "calibrations": {name: asdict(found) for name, found in self.calibrations.items()},
                "begun": self.begun,
            },
            indent=1,
        )

    @staticmethod
    def from_json(text: str, where: str) -> Table:
        try:
            data: Any = json.loads(text)
            if data["format"] > FORMAT:
                raise FileError(f"{where} has format {data['format']}, this version reads up to {FORMAT}; upgrade gator")
            if data["format"] < FORMAT:
                raise FileError(f"{where} was made by an older version of gator; remove it and build it again")
            key = data["key"]
            entries = [
                Entry(e["kind"], e["title"], (e["whole"][0], e["whole"][1]), {(a, b): float(ms) for a, b, ms in e["ms"]})
                for e in data["entries"]
            ]
            return Table(
                Key(key["device"], Setup(**key["setup"]), tuple(sorted(key["versions"].items()))),
                {group: Steps(**{side: _step(step) for side, step in found.items()}) for group, found in data["steps"].items()},
                float(data["yardstick_ms"]),
                float(data["call_ms"]),
                {(entry.kind, entry.whole): entry for entry in entries},
                {name: [(list(widths), float(share)) for widths, share in found] for name, found in data["timed"].items()},
                {name: Calibration(**found) for name, found in data["calibrations"].items()},
                {
                    name: [(list(w), float(ms), float(own)) for w, ms, own in found]
                    for name, found in data.get("begun", {}).items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise FileError(f"{where} is not a latency table: {type(error).__name__}: {error}") from error


def _step(data: Mapping[str, Any]) -> Step:
    return Step(data["block"], data["even"], tuple(data["levels"]), data["seen"])


def network_name(segments: Sequence[Segment]) -> str:
    """The same for networks that are divided alike and have the same widths."""
    return hashlib.sha256("\n".join(f"{s.kind} {s.whole}" for s in segments).encode()).hexdigest()[:16]
