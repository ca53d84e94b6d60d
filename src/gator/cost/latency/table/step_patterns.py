"""Step patterns: how many channels a device processes at a time, found from the times of neighbouring widths.

A kernel works on blocks of channels, so that 33 channels may take as long as 40. It may also process several blocks at once,
and then a single last block takes longer than its share: 3x3 convolutions on a CPU take 1.4 times as long for 40 channels as
for 32, but only 1.1 times as long for 64 as for 56. The pattern repeats after a period.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gator.cost.latency.layers.fused_layers import Point

_PERIOD = 32  # channels after which patterns repeat on all devices seen so far; a series is one period long
_UP_TO = 64  # channels at which a series ends: with more, one block is too small a share of the time to stand out of the noise
# A block of 2 is left out: times of neighbouring widths are too close to tell it from none.
_CANDIDATES = [(block, alignment) for block in (1, 4, 8, 16, 32) for alignment in (1, 2, 4, 8, 16) if alignment <= block]
_NOISE = 0.003  # relative error of a time; what fits better than that fits by chance
_VISIBLE = 0.1  # a period must take more than this share of the time, or its blocks cannot be told apart
_LEAST_COST = 0.1  # of a block, in average blocks: more blocks never cost the same or less, so that times can be interpolated
Series = Mapping[int, float]  # milliseconds of one layer by its width on one side, at full width on the other


@dataclass(frozen=True)
class StepPattern:
    """How the time of a layer depends on the channels on one side (read or written).

    A width that is a multiple of `alignment` takes as long as the next multiple of `block`. For other widths the runtime uses
    another kernel, whose time grows with every channel.
    """

    block: int = 1
    alignment: int = 1
    # What the first 1, 2, ... blocks of a period cost, in average blocks; () for 1, 2, ...
    period_costs: tuple[float, ...] = ()

    def aligned(self, width: int) -> bool:
        return width % self.alignment == 0

    def cost(self, width: int) -> float:
        """What a width costs, in average blocks."""
        if not self.aligned(width):
            return width / self.block
        blocks = math.ceil(width / self.block)
        if not self.period_costs:
            return blocks
        rest = blocks % len(self.period_costs)
        return blocks - rest + (self.period_costs[rest - 1] if rest else 0.0)


@dataclass(frozen=True)
class LayerSteps:
    """The patterns of one group of layers: of the channels they read, and of those they write."""

    read: StepPattern = StepPattern()
    written: StepPattern = StepPattern()

    @property
    def sides(self) -> tuple[StepPattern, StepPattern]:
        return self.read, self.written

    @property
    def block(self) -> int:
        """The number of channels that fills blocks on both sides."""
        return max(self.read.block, self.written.block)

    def aligned(self, point: Point) -> tuple[bool, bool]:
        return self.read.aligned(point[0]), self.written.aligned(point[1])

    def cost(self, point: Point) -> tuple[float, float]:
        return self.read.cost(point[0]), self.written.cost(point[1])


def series_widths(full: int) -> list[int]:
    """The widths to time on one side of a layer: one period, and the width before it."""
    last = min(full, _UP_TO)
    return list(range(max(last - _PERIOD, 1), last + 1))


def pattern_of(series: Sequence[Series]) -> StepPattern:
    """The pattern that explains the series of all layers best; the smallest of equally good ones.

    Layers of one group may be run by different kernels. Each counts by how much its time depends on the width.
    """
    rises = [max(times.values()) - min(times.values()) for times in series]
    patterns = [StepPattern(*candidate) for candidate in _CANDIDATES]
    best = min(patterns, key=lambda p: sum(rise * _criterion(one, p) for rise, one in zip(rises, series, strict=True)))
    return replace(best, period_costs=_period_costs(series, best))


def _criterion(times: Series, pattern: StepPattern) -> float:
    """The Bayesian information criterion of a pattern: the error it leaves, and a penalty for every number it fits.

    Aligned widths take what their blocks take, one fitted number per block. Widths that are not aligned, or all widths if there
    are no blocks, lie on a straight line.
    """
    error, parameters = 0.0, 0
    for aligned in (True, False):
        widths = np.array([width for width in times if pattern.aligned(width) == aligned])
        if not len(widths):
            continue
        ms = np.array([times[width] for width in widths])
        if aligned and pattern.block > 1:
            blocks = -(-widths // pattern.block)
            design = (blocks[:, None] == np.unique(blocks)).astype(np.float64)
        else:
            design = np.stack([np.ones(len(widths)), widths], 1)
        design /= ms[:, None]
        solution = np.linalg.lstsq(design, np.ones(len(ms)), rcond=None)[0]
        error += float(np.square(design @ solution - 1).sum())
        parameters += design.shape[1]
    return len(times) * math.log(error / len(times) + _NOISE**2) + parameters * math.log(len(times))


def _period_costs(series: Sequence[Series], pattern: StepPattern) -> tuple[float, ...]:
    """What the first blocks of a period cost, averaged over the layers that were timed over a whole period."""
    count = _PERIOD // pattern.block if pattern.block > 1 else 1  # blocks in a period
    sums, weights = np.zeros(count), np.zeros(count)
    for times in series:
        by_block: dict[int, list[float]] = {}
        for width, ms in times.items():
            if pattern.aligned(width):
                by_block.setdefault(math.ceil(width / pattern.block), []).append(ms)
        means = {block: float(np.mean(ms)) for block, ms in by_block.items()}
        last, start = max(means, default=0), max((block for block in means if block % count == 0), default=None)
        rise = means[last] - means[last - count] if last - count in means else 0.0  # of one period, wherever it begins
        if start is None or rise <= _VISIBLE * means[last]:
            continue
        for block, ms in means.items():
            cost = start + count * (ms - means[start]) / rise - block // count * count
            sums[block % count] += rise * cost
            weights[block % count] += rise
    if count == 1 or not weights.all():
        return ()
    least = _LEAST_COST * np.arange(1, count)
    rising = np.maximum.accumulate(sums[1:] / weights[1:] - least) + least  # noise must not put one block before another
    costs = np.clip(rising, least, count - least[::-1])
    return (*(round(float(cost), 3) for cost in costs), float(count))
