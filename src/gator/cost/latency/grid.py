"""Times of one kind of segment over a grid of channels read and written, and what lies between.

Processors work on blocks of channels: a width that fills its blocks may be faster than a smaller one that does not. So
there is a grid for widths that do and one for those that do not, on either side, and between its points the time is
linear in the number of blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gator.cost.price import Floats

Point = tuple[int, int]  # channels read, channels written; 0 where they never change
Side = tuple[bool, bool]  # whether the channels read, and those written, fill their blocks
_LEVELS = (1.0, 2 / 3, 1 / 3)
_COARSE = (1.0, 1 / 3)


def points_of(whole: Point, block: int) -> Iterator[Point]:
    """The grid for segments up to these widths, each point once."""
    seen = set()
    for side in itertools.product((True, False), repeat=2):
        levels = _LEVELS if side[0] == side[1] else _COARSE
        rows, columns = (_sizes(size, block, full, levels) for size, full in zip(whole, side, strict=True))
        for point in itertools.product(rows, columns):
            if point not in seen:
                seen.add(point)
                yield point


def _sizes(whole: int, block: int, full: bool, levels: tuple[float, ...]) -> list[int]:
    """Widths to time: shares of the whole, and a single block; full blocks, or somewhat less than full."""
    if whole == 0:
        return [0]
    blocks = -(-whole // block)
    counts = sorted({max(round(blocks * level), 1) for level in levels} | ({1} if levels is _LEVELS else set()))
    if full:
        return sorted({count * block for count in counts if count * block <= whole})
    return sorted({min(count * block - (3 * block) // 8, whole) for count in counts} - {0}) if block > 1 else []


@dataclass
class Entry:
    """What was timed of one kind of segment, up to the widths `whole`."""

    kind: str
    title: str
    whole: Point
    ms: dict[Point, float] = field(default_factory=dict)
    _grids: dict[tuple[int, Side], tuple[Floats, Floats, Floats]] = field(default_factory=dict, repr=False, compare=False)

    def covers(self, whole: Point) -> bool:
        return all((mine == 0) == (other == 0) and mine >= other for mine, other in zip(self.whole, whole, strict=True))

    def at(self, point: Point, block: int) -> float:
        """Milliseconds at these widths."""
        side = (_fills(point[0], block), _fills(point[1], block))
        return self._between(side, _blocks(point[0], block), _blocks(point[1], block), block)

    def smooth(self, point: tuple[float, float], block: int) -> float:
        """As `at` for full blocks, with parts of blocks counted as parts: what a channel costs on average."""
        return self._between((True, True), point[0] / block, point[1] / block, block)

    def _between(self, side: Side, into: float, out: float, block: int) -> float:
        rows, columns, ms = self._grid(side, block)
        i, u = _place(rows, into)
        j, v = _place(columns, out)
        upper = ms[i, j] * (1 - v) + ms[i, min(j + 1, len(columns) - 1)] * v
        if i + 1 >= len(rows):
            return float(upper)
        lower = ms[i + 1, j] * (1 - v) + ms[i + 1, min(j + 1, len(columns) - 1)] * v
        return float(upper * (1 - u) + lower * u)

    def _grid(self, side: Side, block: int) -> tuple[Floats, Floats, Floats]:
        if (block, side) not in self._grids:
            self._grids[block, side] = self._made(side, block)
        return self._grids[block, side]

    def _made(self, side: Side, block: int) -> tuple[Floats, Floats, Floats]:
        into, out = side
        # An axis may be too narrow for a full block, or all widths may fill theirs: then the nearest side there is.
        for wanted in ((into, out), (into, not out), (not into, out), (not into, not out)):
            points = [p for p in self.ms if (_fills(p[0], block), _fills(p[1], block)) == wanted]
            rows, columns = sorted({p[0] for p in points}), sorted({p[1] for p in points})
            if points:
                ms = np.array([[self.ms[row, column] for column in columns] for row in rows])
                return _all_blocks(rows, block), _all_blocks(columns, block), _rising(_rising(ms, 0), 1)
        raise AssertionError(f"nothing was timed of {self.title}")


def _rising(ms: Floats, axis: int) -> Floats:
    """More channels never take less time on the same side of a block; where they seem to, it is noise, and is shared out."""
    up = np.maximum.accumulate(ms, axis=axis)
    down = np.flip(np.minimum.accumulate(np.flip(ms, axis), axis=axis), axis)
    return np.asarray((up + down) / 2)


def _fills(size: int, block: int) -> bool:
    return size % block == 0


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _all_blocks(sizes: list[int], block: int) -> Floats:
    return np.array([_blocks(size, block) for size in sizes], dtype=np.float64)


def _place(axis: Floats, at: float) -> tuple[int, float]:
    """The interval a coordinate lies in, and where in it; beyond the ends the last interval goes on, never below zero."""
    if len(axis) == 1:
        return 0, 0.0
    index = int(np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2))
    return index, float((at - axis[index]) / (axis[index + 1] - axis[index]))
