"""The steps a device takes: how many channels it works on at a time, read off the times of neighbouring widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

_CANDIDATES = (32, 16, 8, 4, 2)
_FREE = 1.05  # rounding up costs nothing if it costs no more than this, which is about what can be measured
FINE = 32  # neighbouring widths that are timed


def fine_widths(whole: int) -> list[int]:
    """The widths to time along one side of a layer."""
    return list(range(max(whole - FINE + 1, 1), whole + 1))


def block_of(series: Sequence[Mapping[int, float]]) -> int:
    """The largest block to which widths can be rounded up for free, in all series of times by width; 1 if there is none."""
    for block in _CANDIDATES:
        ratios = [_rounding_up(times, block) for times in series]
        known = [ratio for ratio in ratios if ratio is not None]
        if known and max(known) <= _FREE:
            return block
    return 1


def _rounding_up(times: Mapping[int, float], block: int) -> float | None:
    """How many times longer the next multiple of a block takes, in the middle; None if these widths do not tell."""
    pairs = [(width, -(-width // block) * block) for width in times if width % block]
    ratios = [times[upper] / times[width] for width, upper in pairs if upper in times]
    return float(np.median(ratios)) if len(ratios) >= block // 2 else None
