"""The steps a device takes: how many channels it works on at a time, read off the times of neighbouring widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

_CANDIDATES = (32, 16, 8, 4)  # two neighbouring widths are too close to be told apart
_FREE = 0.4  # of what the added channels would cost if each cost the same: rounding up for less counts as free
FINE = 32  # neighbouring widths that are timed


def fine_widths(whole: int) -> list[int]:
    """The widths to time along one side of a layer."""
    return list(range(max(whole - FINE + 1, 1), whole + 1))


def block_of(series: Sequence[Mapping[int, float]]) -> int:
    """The largest block to which widths can be rounded up for free, in all series of times by width; 1 if there is none."""
    for block in _CANDIDATES:
        paid = [share for times in series if (share := _paid(times, block)) is not None]
        if paid and max(paid) <= _FREE:
            return block
    return 1


def _paid(times: Mapping[int, float], block: int) -> float | None:
    """The added time of the next multiple of a block, as a share of its added channels; None if these widths do not tell."""
    pairs = [(width, -(-width // block) * block) for width in times if width % block]
    pairs = [(width, upper) for width, upper in pairs if upper in times]
    if len(pairs) < block // 2:
        return None
    added = float(np.median([times[upper] / times[width] - 1 for width, upper in pairs]))
    return added / float(np.median([upper / width - 1 for width, upper in pairs]))
