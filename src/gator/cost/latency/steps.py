"""The steps a device takes: how many channels it works on at a time, read off the times of neighbouring widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_BLOCKS = (1, 4, 8, 16, 32)  # two neighbouring widths are too close to be told apart
_EVENS = (1, 2, 4, 8, 16)
_NOISE = 0.003  # of a time: what fits better than that fits by chance
_FINE, _FROM = 32, 64  # neighbouring widths that are timed, at most so wide: a block more or less must be seen above the noise
Series = Mapping[int, float]  # times of one layer by its width on one side
Point = tuple[int, int]  # channels read, channels written; 0 where they never change
Side = tuple[bool, bool]  # whether the channels read, and those written, fill their blocks


@dataclass(frozen=True)
class Step:
    """A multiple of `even` takes as long as the next multiple of `block`; others may take longer, channel by channel."""

    block: int
    even: int

    def fills(self, size: int) -> bool:
        return size % self.even == 0

    def blocks(self, size: int) -> float:
        """How many blocks are worked on; of what is not even, parts of blocks count as parts."""
        return -(-size // self.block) if self.fills(size) else size / self.block


@dataclass(frozen=True)
class Steps:
    """The steps of the channels a layer reads and of those it writes: a runtime may need the ones even and pad the others."""

    read: Step
    written: Step

    @property
    def block(self) -> int:
        """Channels that fill blocks wherever they are read and written."""
        return max(self.read.block, self.written.block)

    @property
    def sides(self) -> tuple[Step, Step]:
        return self.read, self.written

    def fills(self, point: Point) -> Side:
        return self.read.fills(point[0]), self.written.fills(point[1])

    def blocks(self, point: Point) -> tuple[float, float]:
        return self.read.blocks(point[0]), self.written.blocks(point[1])


def fine_widths(whole: int) -> list[int]:
    """The widths to time along one side of a layer."""
    last = min(whole, _FROM)
    return list(range(max(last - _FINE, 1), last + 1))  # one full block of the largest, and what comes before


def step_of(series: Sequence[Series]) -> Step:
    """The step that explains the times of all layers best; of those that are as good the smallest."""
    found = [Step(block, even) for block in _BLOCKS for even in _EVENS if even <= block]
    return min(found, key=lambda step: sum(_unlikely(one, step) for one in series))


def _unlikely(times: Series, step: Step) -> float:
    """What the step leaves unexplained, and how many numbers it needs for the rest, as one figure (Schwarz's criterion).

    Even widths take what their blocks take, whatever that is: a runtime may work on several blocks at a time. Where there are
    no blocks, and for widths that are not even, times are a line over channels.
    """
    left, numbers = 0.0, 0
    for even in (True, False):
        widths = np.array([width for width in times if step.fills(width) == even])
        if len(widths):
            ms = np.array([times[width] for width in widths])
            if even and step.block > 1:
                blocks = -(-widths // step.block)
                known = (blocks[:, None] == np.unique(blocks)).astype(np.float64)
            else:
                known = np.stack([np.ones(len(widths)), widths], 1)
            known /= ms[:, None]
            fit = np.linalg.lstsq(known, np.ones(len(ms)), rcond=None)[0]
            left += float(np.square(known @ fit - 1).sum())
            numbers += known.shape[1]
    return len(times) * float(np.log(left / len(times) + _NOISE**2)) + numbers * float(np.log(len(times)))
