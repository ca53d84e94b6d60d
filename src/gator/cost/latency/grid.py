"""Times of one kind of segment over a grid of channels read and written, and what lies between.

Processors work on blocks of channels: a width that fills its blocks may be faster than a smaller one that does not. So
there is a grid for widths that do and one for those that do not, on either side. Between its points the time is linear in
what blocks take, which may be several at a time or, for widths that do not fill any, in channels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gator.cost.latency.steps import Point, Side, Step, Steps
from gator.cost.prices import Floats

Grid = tuple[Floats, Floats, Floats]  # places of the channels read, of those written, milliseconds
_LEVELS = (1.0, 2 / 3, 1 / 3)
_COARSE = (1.0, 1 / 3)


def points_of(whole: Point, steps: Steps) -> Iterator[Point]:
    """The grid for segments up to these widths, each point once."""
    seen = set()
    for side in itertools.product((True, False), repeat=2):
        rare = side[0] != side[1] and all(step.even > 1 for step in steps.sides)
        levels = _COARSE if rare else _LEVELS
        rows, columns = (_sizes(*one, levels) for one in zip(whole, steps.sides, side, strict=True))
        for point in itertools.product(rows, columns):
            if point not in seen:
                seen.add(point)
                yield point


def _sizes(whole: int, step: Step, full: bool, levels: tuple[float, ...]) -> list[int]:
    """Widths to time: shares of the whole, and a single block; full blocks, or somewhat less than full."""
    if whole == 0:
        return [0]
    block, blocks = step.block, -(-whole // step.block)
    counts = sorted({max(round(blocks * level), 1) for level in levels} | ({1} if levels is _LEVELS else set()))
    less = 0 if full else (3 * block) // 8 | 1  # an odd number fills no block
    sizes = [min(count * block - less, whole) for count in counts]
    return sorted({size for size in sizes if size > 0 and step.fills(size) == full})


@dataclass
class Entry:
    """What was timed of one kind of segment, up to the widths `whole`."""

    kind: str
    title: str
    whole: Point
    ms: dict[Point, float] = field(default_factory=dict)
    _grids: dict[tuple[Steps, Side, bool], Grid] = field(default_factory=dict, repr=False, compare=False)

    def covers(self, whole: Point) -> bool:
        return all((mine == 0) == (other == 0) and mine >= other for mine, other in zip(self.whole, whole, strict=True))

    def missing(self, steps: Steps) -> list[Point]:
        """Points of the grid that are still to be timed."""
        return [point for point in points_of(self.whole, steps) if point not in self.ms]

    def at(self, point: Point, steps: Steps) -> float:
        """Milliseconds at these widths."""
        return _between(self._grid(steps.fills(point), steps, smooth=False), *steps.blocks(point))

    def smooth(self, point: tuple[float, float], steps: Steps) -> float:
        """As `at` for full blocks, with parts of blocks counted as parts: what a channel costs on average."""
        return _between(self._grid((True, True), steps, smooth=True), *point)

    def _grid(self, side: Side, steps: Steps, *, smooth: bool) -> Grid:
        """The grid of one side, placed by what its widths take or, smooth, by the widths themselves."""
        if (steps, side, smooth) not in self._grids:
            sizes = self._sizes(side, steps)
            ms = np.array([[self.ms[row, column] for column in sizes[1]] for row in sizes[0]])
            places = [
                np.array([size if smooth else step.blocks(size) for size in axis], dtype=np.float64)
                for step, axis in zip(steps.sides, sizes, strict=True)
            ]
            self._grids[steps, side, smooth] = places[0], places[1], _rising(_rising(ms, 0), 1)
        return self._grids[steps, side, smooth]

    def _sizes(self, side: Side, steps: Steps) -> tuple[list[int], list[int]]:
        """The widths of the grid of one side."""
        into, out = side
        timed = [point for point in points_of(self.whole, steps) if point in self.ms]  # there may be those of older steps, too
        # An axis may be too narrow for a full block, or all widths may fill theirs: then the nearest side there is.
        for wanted in ((into, out), (into, not out), (not into, out), (not into, not out)):
            points = [p for p in timed if steps.fills(p) == wanted]
            if points:
                return sorted({p[0] for p in points}), sorted({p[1] for p in points})
        raise AssertionError(f"nothing was timed of {self.title}")


def _between(grid: Grid, into: float, out: float) -> float:
    rows, columns, ms = grid
    i, u = _place(rows, into)
    j, v = _place(columns, out)
    upper = ms[i, j] * (1 - v) + ms[i, min(j + 1, len(columns) - 1)] * v
    if i + 1 >= len(rows):
        return max(float(upper), 0.0)
    lower = ms[i + 1, j] * (1 - v) + ms[i + 1, min(j + 1, len(columns) - 1)] * v
    return max(float(upper * (1 - u) + lower * u), 0.0)


def _rising(ms: Floats, axis: int) -> Floats:
    """More channels never take less time on the same side of a block; where they seem to, it is noise, and is shared out."""
    up = np.maximum.accumulate(ms, axis=axis)
    down = np.flip(np.minimum.accumulate(np.flip(ms, axis), axis=axis), axis)
    return np.asarray((up + down) / 2)


def _place(axis: Floats, at: float) -> tuple[int, float]:
    """The interval a coordinate lies in, and where in it; beyond the ends the last interval goes on."""
    if len(axis) == 1:
        return 0, 0.0
    index = int(np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2))
    return index, float((at - axis[index]) / (axis[index + 1] - axis[index]))
