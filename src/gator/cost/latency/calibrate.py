"""From times of layers to the time of a network: factors fitted to whole networks of random widths.

A layer alone finds its inputs in another place than inside the network, and pays for changes of layout at its borders, which
a network does not where two neighbours agree. One factor for all layers, a constant and what borders save take up most of
that, as many of them as the networks bear out; a factor of its own for every group of layers (1x1, 3x3, depthwise, ...) is
drawn towards the common one, so that few networks are enough.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from gator.cost.prices import Floats

_NOISE = 0.05  # of a network's time, which the layers do not explain
_EXACT = 1e-6  # a mean square that is as good as none
_APART = 0.25  # how far a group's factor may well lie from the common one, as a share of it
_LEAST, _MOST = -0.95, 4.0  # of changes of factors
AT_LEAST = 0.2  # of the time of layers alone is there inside a network too, however small they are
BORDERS = "borders"  # among groups of layers: what they hand on in a layout they share, in millions of elements
UNEVEN = ", uneven"  # behind a group of layers: those whose widths fill no blocks
Parts = Mapping[str, float]  # milliseconds by group of layers; and of BORDERS


def fitted(parts: Sequence[Parts], measured: Sequence[float]) -> tuple[dict[str, float], float, float]:
    """Factors by group and a constant, and the mean square of the relative error they leave. BORDERS save time, if anything."""
    groups = sorted({group for part in parts for group in part} - {BORDERS})
    sums = np.array([[part.get(group, 0.0) for group in groups] for part in parts])
    borders = np.array([part.get(BORDERS, 0.0) for part in parts])
    times = np.asarray(measured, dtype=np.float64)
    rows = np.column_stack([sums.sum(1), -borders, np.ones(len(times))]) / times[:, None]
    common, saved, rest = numbers = _not_negative(rows)
    # What they leave is shared out among the groups; a group that is too small to tell keeps the common factor.
    shares, left = common * sums / times[:, None], 1 - rows @ numbers
    change = _shared_out(shares, left)
    factors = dict(zip(groups, (common * (1 + change)).tolist(), strict=True))
    return {**factors, BORDERS: -float(saved)}, float(rest), float(np.square(left - shares @ change).mean())


def _not_negative(rows: Floats) -> Floats:
    """Numbers, none negative, that make every row one; of the columns but the first only those that pay (Schwarz)."""
    count, columns = rows.shape
    found: list[tuple[float, int, Floats]] = []
    for more in itertools.product((False, True), repeat=columns - 1):
        chosen = np.array([True, *more])
        numbers = np.zeros(columns)
        numbers[chosen] = np.linalg.lstsq(rows[:, chosen], np.ones(count), rcond=None)[0]
        left = float(np.square(rows @ numbers - 1).mean())
        if (numbers >= 0).all():
            found.append((count * float(np.log(left + _EXACT)) + sum(more) * float(np.log(count)), len(found), numbers))
    return min(found)[2]


def _shared_out(shares: Floats, left: Floats) -> Floats:
    """The change of every group's factor that explains what is left best, as near to none as noise allows, within bounds."""
    count = shares.shape[1]
    change, free = np.zeros(count), np.ones(count, dtype=bool)
    while free.any():
        rows = np.vstack([shares[:, free], _NOISE / _APART * np.eye(int(free.sum()))])
        wanted = np.concatenate([left - shares[:, ~free] @ change[~free], np.zeros(int(free.sum()))])
        change[free] = np.linalg.lstsq(rows, wanted, rcond=None)[0]
        outside = free & ((change < _LEAST) | (change > _MOST))
        if not outside.any():
            break
        change, free = np.where(outside, np.clip(change, _LEAST, _MOST), change), free & ~outside
    return change


def applied(part: Parts, factors: Mapping[str, float], rest: float) -> float:
    layers = sum(factors.get(group, 1.0) * ms for group, ms in part.items() if group != BORDERS)
    saved = -factors.get(BORDERS, 0.0) * part.get(BORDERS, 0.0)
    return rest + max(layers - saved, AT_LEAST * layers)


def mape(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Mean absolute percentage error, as a share."""
    one, other = np.asarray(predicted), np.asarray(measured)
    return float(np.abs(one / other - 1).mean())


def spearman(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Rank correlation."""
    ranks = [np.argsort(np.argsort(np.asarray(values))).astype(np.float64) for values in (predicted, measured)]
    if len(ranks[0]) < 2:
        return 1.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
