"""The steps a device takes: how many channels it works on at a time, read off the times of neighbouring widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_BLOCKS = (4, 8, 16, 32)  # two neighbouring widths are too close to be told apart
_FREE = 0.4  # of what added channels would cost if each cost the same: rounding up for less counts as free
_EVENS = (1, 2, 4, 8, 16)
_AS_GOOD = 1.1  # times as long; what is uneven costs more than that, or it does not matter
FINE, _FROM = 32, 64  # neighbouring widths that are timed, at most so wide: a block more or less must be seen above the noise
Series = Mapping[int, float]  # times of one layer by its width on one side


@dataclass(frozen=True)
class Steps:
    """A multiple of `even` takes as long as the next multiple of `block`; what is no multiple of it may take longer."""

    block: int
    even: int

    def fills(self, size: int) -> bool:
        return size % self.even == 0

    def blocks(self, size: int) -> int:
        return -(-size // self.block)


def fine_widths(whole: int) -> list[int]:
    """The widths to time along one side of a layer."""
    last = min(whole, _FROM)
    return list(range(max(last - FINE + 1, 1), last + 1))


def steps_of(series: Sequence[Series]) -> Steps:
    """The block that three of four series show at least; and what within it is as good as all of it."""
    blocks = sorted(_block(one) for one in series)
    # A block that is too large would make narrow layers look alike; one that is too small costs little accuracy.
    block = blocks[(len(blocks) - 1) // 4] if blocks else 1
    return Steps(block, next(even for even in (*_EVENS, block) if even >= block or _as_good(series, even, block)))


def _block(one: Series) -> int:
    """The largest block that can be doubled up to for free, from one channel on."""
    block = 1
    for wider in _BLOCKS:
        pairs = _pairs(one, every=block, block=wider)
        if not pairs or float(np.median([(times - 1) / (channels - 1) for times, channels in pairs])) > _FREE:
            break
        block = wider
    return block


def _as_good(series: Sequence[Series], even: int, block: int) -> bool:
    """Whether multiples of `even` take no longer than full blocks, on any side of any layer."""
    slower = [[1 / times for times, _ in _pairs(one, every=even, block=block)] for one in series]
    return all(float(np.median(found)) <= _AS_GOOD for found in slower if found)


def _pairs(times: Series, *, every: int, block: int) -> list[tuple[float, float]]:
    """How many times longer the next full block takes, and how many times more channels it has, for multiples of `every`."""
    found = []
    for width in times:
        upper = -(-width // block) * block
        if width % every == 0 and width % block and upper in times:
            found.append((times[upper] / times[width], upper / width))
    return found
