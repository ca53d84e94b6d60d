"""Times of one kind of layer over a grid of channels read and written, and interpolation between them.

A width that is aligned with the device's blocks may be faster than a smaller one that is not. So there is one grid for aligned
widths and one for the others, on either side. Between grid points time is linear in what the step patterns say a width costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gator.cost.latency.layers.fused_layers import Point
from gator.cost.latency.table.step_patterns import LayerSteps, StepPattern
from gator.cost.prices import Floats

_SHARES = (1.0, 2 / 3, 1 / 3)  # of the full width, and a single block: enough for curves that are nearly straight
Aligned = tuple[bool, bool]  # the channels read, and those written


def covers(full: Point, other: Point) -> bool:
    """Whether a grid up to the widths `full` serves layers of up to `other`, with the same sides that pruning changes."""
    return all((own == 0) == (theirs == 0) and own >= theirs for own, theirs in zip(full, other, strict=True))


def grid_points(full: Point, steps: LayerSteps) -> list[Point]:
    """The widths to time for layers of up to these widths, each point once."""
    found: dict[Point, None] = {}
    for aligned in itertools.product((True, False), repeat=2):
        read, written = (_widths(*side) for side in zip(full, steps.sides, aligned, strict=True))
        found.update(dict.fromkeys(itertools.product(read, written)))
    return list(found)


def _widths(full: int, pattern: StepPattern, aligned: bool) -> list[int]:
    """Widths to time on one side, all aligned or none."""
    if full == 0:
        return [0]
    block, blocks = pattern.block, -(-full // pattern.block)
    counts = {1, *(max(round(blocks * share), 1) for share in _SHARES)}
    less = 0 if aligned else (3 * block) // 8 | 1  # an odd number of channels below a full block
    widths = {min(count * block - less, full) for count in counts}
    return sorted(width for width in widths if width > 0 and pattern.aligned(width) == aligned)


@dataclass(frozen=True)
class TimeGrid:
    """The times of one kind of layer, up to the widths `full`."""

    title: str
    full: Point
    steps: LayerSteps
    ms: Mapping[Point, float]

    def missing(self) -> list[Point]:
        """The points that are still to be timed."""
        return [point for point in grid_points(self.full, self.steps) if point not in self.ms]

    def at(self, point: Point) -> float:
        """Milliseconds at these widths."""
        return self._surface(self.steps.aligned(point), by_channel=False).at(*self.steps.cost(point))

    def smooth(self, read: float, written: float) -> float:
        """Milliseconds at these widths without steps, any real numbers: what the slope per channel is taken from."""
        return self._surface((True, True), by_channel=True).at(read, written)

    @cached_property
    def _surfaces(self) -> dict[tuple[Aligned, bool], _Surface]:
        return {}

    def _surface(self, aligned: Aligned, *, by_channel: bool) -> _Surface:
        if (aligned, by_channel) not in self._surfaces:
            points = self._nearest(aligned)
            widths = sorted({read for read, _ in points}), sorted({written for _, written in points})
            ms = np.array([[self.ms[read, written] for written in widths[1]] for read in widths[0]])
            rows, columns = (
                np.array([width if by_channel else pattern.cost(width) for width in axis], dtype=np.float64)
                for pattern, axis in zip(self.steps.sides, widths, strict=True)
            )
            self._surfaces[aligned, by_channel] = _Surface(rows, columns, _monotone(_monotone(ms, 0), 1))
        return self._surfaces[aligned, by_channel]

    def _nearest(self, aligned: Aligned) -> list[Point]:
        """The points of this grid, or of the nearest one if it has none: all widths may be aligned, or none."""
        timed = [point for point in grid_points(self.full, self.steps) if point in self.ms]
        read, written = aligned
        wanted = (aligned, (read, not written), (not read, written), (not read, not written))
        found = ([point for point in timed if self.steps.aligned(point) == each] for each in wanted)
        return next(points for points in found if points)


@dataclass(frozen=True)
class _Surface:
    """Milliseconds by coordinates of the channels read (rows) and written (columns)."""

    rows: Floats
    columns: Floats
    ms: Floats

    def at(self, row: float, column: float) -> float:
        """Bilinear; beyond the ends the last interval continues."""
        (i, u), (j, v) = _interval(self.rows, row), _interval(self.columns, column)
        below, right = min(i + 1, len(self.rows) - 1), min(j + 1, len(self.columns) - 1)
        first = self.ms[i, j] * (1 - v) + self.ms[i, right] * v
        second = self.ms[below, j] * (1 - v) + self.ms[below, right] * v
        return max(float(first * (1 - u) + second * u), 0.0)


def _interval(axis: Floats, at: float) -> tuple[int, float]:
    """The interval that a coordinate lies in, and where in it."""
    if len(axis) == 1:
        return 0, 0.0
    index = int(np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2))
    return index, float((at - axis[index]) / (axis[index + 1] - axis[index]))


def _monotone(ms: Floats, axis: int) -> Floats:
    """More channels never take less time on the same grid; where they seem to, that is noise, and is averaged out."""
    up = np.maximum.accumulate(ms, axis=axis)
    down = np.flip(np.minimum.accumulate(np.flip(ms, axis), axis=axis), axis)
    return np.asarray((up + down) / 2)
