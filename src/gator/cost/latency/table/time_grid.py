"""Times of one kind of layer over a grid of channels read and written, and interpolation between them.

A width that is aligned with the device's blocks may be faster than a smaller one that is not. So there is one grid for aligned
widths and one for the others, on either side. Between grid points time is linear in what the step patterns say a width costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gator.cost.latency.table.measurements import Point
from gator.cost.latency.table.step_patterns import LayerSteps, StepPattern
from gator.cost.prices import Floats

_SHARES = (1.0, 2 / 3, 1 / 3)  # of the full width, and a single block: enough for curves that are nearly straight
Aligned = tuple[bool, bool]  # the channels read, and those written
Surface = tuple[Floats, Floats, Floats]  # coordinates of the channels read, of those written, milliseconds


def grid_points(full: Point, steps: LayerSteps) -> Iterator[Point]:
    """The widths to time for layers of up to these widths, each point once."""
    seen = set()
    for aligned in itertools.product((True, False), repeat=2):
        axes = [_sizes(*side) for side in zip(full, steps.sides, aligned, strict=True)]
        for read, written in itertools.product(*axes):
            if (read, written) not in seen:
                seen.add((read, written))
                yield read, written


def _sizes(full: int, pattern: StepPattern, aligned: bool) -> list[int]:
    """Widths to time on one side, all aligned or none."""
    if full == 0:
        return [0]
    block, blocks = pattern.block, -(-full // pattern.block)
    counts = {1, *(max(round(blocks * share), 1) for share in _SHARES)}
    less = 0 if aligned else (3 * block) // 8 | 1  # an odd number of channels below a full block
    sizes = {min(count * block - less, full) for count in counts}
    return sorted(size for size in sizes if size > 0 and pattern.aligned(size) == aligned)


@dataclass
class TimeGrid:
    """What was timed of one kind of layer, up to the widths `full`."""

    kind: str
    title: str
    full: Point
    ms: dict[Point, float] = field(default_factory=dict)
    _surfaces: dict[tuple[LayerSteps, Aligned, bool], Surface] = field(default_factory=dict, repr=False, compare=False)

    def covers(self, full: Point) -> bool:
        """Whether its widths reach as far, with the same sides that pruning changes."""
        return all((own == 0) == (other == 0) and own >= other for own, other in zip(self.full, full, strict=True))

    def missing(self, steps: LayerSteps) -> list[Point]:
        """The points that are still to be timed."""
        return [point for point in grid_points(self.full, steps) if point not in self.ms]

    def at(self, point: Point, steps: LayerSteps) -> float:
        """Milliseconds at these widths."""
        return _interpolated(self._surface(steps.aligned(point), steps, by_channel=False), steps.cost(point))

    def smooth(self, point: tuple[float, float], steps: LayerSteps) -> float:
        """Milliseconds at these widths without steps, any real numbers: what the slope per channel is taken from."""
        return _interpolated(self._surface((True, True), steps, by_channel=True), point)

    def _surface(self, aligned: Aligned, steps: LayerSteps, *, by_channel: bool) -> Surface:
        key = steps, aligned, by_channel
        if key not in self._surfaces:
            axes = self._axes(aligned, steps)
            ms = np.array([[self.ms[read, written] for written in axes[1]] for read in axes[0]])
            places = [
                np.array([size if by_channel else pattern.cost(size) for size in axis], dtype=np.float64)
                for pattern, axis in zip(steps.sides, axes, strict=True)
            ]
            self._surfaces[key] = places[0], places[1], _monotone(_monotone(ms, 0), 1)
        return self._surfaces[key]

    def _axes(self, aligned: Aligned, steps: LayerSteps) -> tuple[list[int], list[int]]:
        """The widths of one grid, or of the nearest one if this has none: all widths may be aligned, or none."""
        timed = [point for point in grid_points(self.full, steps) if point in self.ms]
        read, written = aligned
        for wanted in ((read, written), (read, not written), (not read, written), (not read, not written)):
            points = [point for point in timed if steps.aligned(point) == wanted]
            if points:
                return sorted({point[0] for point in points}), sorted({point[1] for point in points})
        raise AssertionError(f"nothing was timed of {self.title}")


def _interpolated(surface: Surface, at: tuple[float, float]) -> float:
    """Bilinear; beyond the ends the last interval continues."""
    rows, columns, ms = surface
    (i, u), (j, v) = _interval(rows, at[0]), _interval(columns, at[1])
    right, below = min(j + 1, len(columns) - 1), min(i + 1, len(rows) - 1)
    above = ms[i, j] * (1 - v) + ms[i, right] * v
    return max(float(above * (1 - u) + (ms[below, j] * (1 - v) + ms[below, right] * v) * u), 0.0)


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
