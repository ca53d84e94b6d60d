"""A projection corrected by what the finished network was measured to cost.

Predicted costs choose the channels, the measured cost decides whether the target is met. The budget of the prediction is moved
until the network that comes out meets the target: never above it, and below it by at most the tolerance, if there is such a
network.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gator.cost.target import shown
from gator.errors import BudgetError
from gator.gates.project import Alive

_MEASUREMENTS = 8
_ATTEMPTS = 24
Attempt = Callable[[float], Alive]  # the living channels whose predicted cost is at most this; BudgetError if there are none


def corrected(
    attempt: Attempt, measure: Callable[[Alive], float], target: float, *, tolerance: float, unit: str
) -> tuple[Alive, float]:
    """Living channels that meet the target by `measure`, and what they were measured to cost.

    Raises BudgetError if no network was measured to meet it.
    """
    below, above = 0.0, np.inf  # predicted costs that are too low or measured to meet the target, and those measured not to
    middle = target * (1 - tolerance / 2)  # of the accepted range: measurements err to either side
    known = {target: attempt(target)}  # raises if the target cannot be reached
    everything = attempt(np.inf) if tolerance else None
    met = everything is None or (known[target] == everything).all()  # exactly, or without closing anything
    wanted, best, tried = target if met else middle, None, dict[bytes, float]()

    def close_enough(cost: float) -> bool:
        return cost <= target and (not tolerance or cost >= target * (1 - tolerance))

    for _ in range(_ATTEMPTS):
        try:
            alive = known[wanted] if wanted in known else attempt(wanted)
        except BudgetError:  # no network is predicted to be that cheap
            below = wanted
            wanted = (below + min(above, 2 * target - below)) / 2
            continue
        key = alive.tobytes()
        if key not in tried:
            if len(tried) == _MEASUREMENTS:
                break
            tried[key] = measure(alive)
            if tolerance and close_enough(tried[key]):  # perhaps by chance
                tried[key] = (tried[key] + measure(alive)) / 2
        cost = tried[key]
        if cost <= target and (best is None or cost > best[1]):
            best = (alive, cost)
        if close_enough(cost):
            break
        below, above = (max(below, wanted), above) if cost <= target else (below, min(above, wanted))
        # An exact count misses a constant; an estimate is off by a factor.
        wanted = wanted * middle / cost if tolerance else wanted - (cost - target)
        if not below < wanted < above:
            wanted = (below + above) / 2
    if best is None:
        raise BudgetError(
            f"the target of {shown(target, unit)} was not met: the cheapest of {len(tried)} networks that were measured costs "
            f"{shown(min(tried.values()), unit)}\n  Raise the target, or loosen min_width, round_to, keep or fixed."
        )
    return best
