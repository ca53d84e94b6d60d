"""From times of layers to the time of a network: factors fitted to whole networks of random widths.

A layer alone finds its inputs in another place than inside the network, and pays for its call and for changes of layout at
its borders. One factor for all layers and a constant take up most of that; a factor of its own for every group of
layers (1x1, 3x3, depthwise, ...) is drawn towards the common one, so that few networks are enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gator.cost.price import Floats

_PULL = 0.3  # how strongly a group's factor is drawn to the common one, against relative errors of single networks
Parts = Mapping[str, float]  # milliseconds by group of layers


def fitted(parts: Sequence[Parts], measured: Sequence[float]) -> tuple[dict[str, float], float]:
    """Factors by group and a constant, with small relative errors."""
    groups = sorted({group for part in parts for group in part})
    sums = np.array([[part.get(group, 0.0) for group in groups] for part in parts])
    times = np.asarray(measured, dtype=np.float64)
    common, rest = _line(sums.sum(1), times)
    # What is left after the common line, by group; an unknown is the change of a group's share of the whole time.
    scale = sums.mean(0) * common / times.mean()
    shares = sums * common / times[:, None] / np.maximum(scale, 1e-12)
    left = 1 - (common * sums.sum(1) + rest) / times
    count = len(groups)
    rows = np.vstack([shares, np.sqrt(_PULL * len(times)) * np.eye(count)])
    change = np.linalg.lstsq(rows, np.concatenate([left, np.zeros(count)]), rcond=None)[0] / np.maximum(scale, 1e-12)
    factors = common * np.clip(1 + change, 0.3, 3.0)
    return dict(zip(groups, factors.tolist(), strict=True)), rest


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
