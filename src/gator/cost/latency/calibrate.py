"""From times of layers to the time of a network: factors fitted to whole networks of random widths.

A layer alone finds its inputs in another place than inside the network, and pays for its call and for changes of layout at
its borders. One factor for all layers and a constant take up most of that; a factor of its own for every group of
layers (1x1, 3x3, depthwise, ...) is drawn towards the common one, so that few networks are enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gator.cost.price import Floats

_NOISE = 0.05  # of a network's time, which the layers do not explain
_APART = 0.25  # how far a group's factor may well lie from the common one, as a share of it
_LEAST, _MOST = -0.95, 4.0  # of changes of factors
Parts = Mapping[str, float]  # milliseconds by group of layers


def fitted(parts: Sequence[Parts], measured: Sequence[float]) -> tuple[dict[str, float], float]:
    """Factors by group and a constant, with small relative errors."""
    groups = sorted({group for part in parts for group in part})
    sums = np.array([[part.get(group, 0.0) for group in groups] for part in parts])
    times = np.asarray(measured, dtype=np.float64)
    common, rest = _line(sums.sum(1), times)
    # What the common line leaves is shared out among the groups; a group that is too small to tell keeps the common factor.
    shares = common * sums / times[:, None]
    left = 1 - shares.sum(1) - rest / times
    factors = common * (1 + _shared_out(shares, left))
    return dict(zip(groups, factors.tolist(), strict=True)), rest


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


def _line(sums: Floats, times: Floats) -> tuple[float, float]:
    """a and b of a * sum + b with the least relative error; b is not negative, a is above zero."""
    rows = np.stack([sums / times, 1 / times], axis=1)
    (a, b), *_ = np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)
    if b < 0 or a <= 0:
        return float((sums / times).sum() / ((sums / times) ** 2).sum()), 0.0
    return float(a), float(b)


def applied(part: Parts, factors: Mapping[str, float], rest: float) -> float:
    return rest + sum(factors.get(group, 1.0) * ms for group, ms in part.items())


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
