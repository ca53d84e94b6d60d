"""The steps a device takes: how many channels it works on at a time, read off the times of neighbouring widths.

A kernel may take several blocks at a time, and a last block by itself takes longer than its share: convolutions of 3x3 on a
CPU take 1.4 times as long for 40 channels as for 32, and 1.1 times as long for 64 as for 56. After a period it begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

_BLOCKS = (1, 4, 8, 16, 32)  # two neighbouring widths are too close to be told apart
_EVENS = (1, 2, 4, 8, 16)
_RISE = 0.1  # of a time: a period must take more than that to be divided
_LEAST = 0.1  # of a block: what another one takes at least
_NOISE = 0.003  # of a time: what fits better than that fits by chance
_PERIOD = 32  # channels after which blocks that are taken several at a time begin anew; so many neighbouring widths are timed
_FROM = 64  # they are at most so wide: a block more or less must be seen above the noise
Series = Mapping[int, float]  # times of one layer by its width on one side
Point = tuple[int, int]  # channels read, channels written; 0 where they never change
Side = tuple[bool, bool]  # whether the channels read, and those written, fill their blocks


@dataclass(frozen=True)
class Step:
    """A multiple of `even` takes as long as the next multiple of `block`; others may take longer, channel by channel."""

    block: int
    even: int
    levels: tuple[float, ...] = ()  # what the first blocks of a period take, in blocks as they take on average; none: as many
    seen: int = 0  # the widest width that was timed to find it; 0: nothing was

    def fills(self, size: int) -> bool:
        return size % self.even == 0

    def blocks(self, size: int) -> float:
        """What it takes, in blocks as they take on average; of what is not even, parts of blocks count as parts."""
        if not self.fills(size):
            return size / self.block
        blocks = -(-size // self.block)
        if not self.levels:
            return blocks
        rest = blocks % len(self.levels)
        return blocks - rest + (self.levels[rest - 1] if rest else 0.0)


@dataclass(frozen=True)
class Steps:
    """Of one group of layers: the step of the channels they read, and that of the channels they write."""

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
    return list(range(max(last - _PERIOD, 1), last + 1))  # a period, and the width before


def step_of(series: Sequence[Series]) -> Step:
    """The step that explains the times of all layers best; of those that are as good the smallest.

    Layers of one group may run by different kernels. Those that gain most from fewer channels have most to say.
    """
    found = [Step(block, even) for block in _BLOCKS for even in _EVENS if even <= block]
    rises = [max(times.values()) - min(times.values()) for times in series]
    best = min(found, key=lambda step: sum(rise * _unlikely(one, step) for rise, one in zip(rises, series, strict=True)))
    return replace(best, levels=_levels(series, best), seen=max((width for times in series for width in times), default=0))


def _levels(series: Sequence[Series], step: Step) -> tuple[float, ...]:
    """What blocks of a period take, by layers that were timed over a whole one; those that rise most say most."""
    count = _PERIOD // step.block if step.block > 1 else 1
    sums, weights = np.zeros(count), np.zeros(count)
    for times in series:
        by_block: dict[int, list[float]] = {}
        for width, ms in times.items():
            if step.fills(width):
                by_block.setdefault(-(-width // step.block), []).append(ms)
        means = {block: float(np.mean(ms)) for block, ms in by_block.items()}
        last, full = max(means, default=0), max((block for block in means if block % count == 0), default=None)
        rise = means[last] - means[last - count] if last - count in means else 0.0  # of a whole period, wherever it begins
        if full is not None and rise > _RISE * means[last]:
            for block, ms in means.items():
                # As many blocks as there are full periods before it, and what is left of the difference.
                level = count * (ms - means[full]) / rise + full - block // count * count
                sums[block % count] += rise * level
                weights[block % count] += rise
    if count == 1 or not weights.all():
        return ()
    # Times rise with every block, be it by little: noise must not put one before another.
    least = _LEAST * np.arange(1, count)
    rising = np.maximum.accumulate(sums[1:] / weights[1:] - least) + least
    levels = np.clip(rising, least, count - least[::-1])
    return (*(round(float(level), 3) for level in levels), float(count))


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
