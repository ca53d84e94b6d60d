"""A projection corrected by what the finished network was measured to cost.

What is predicted steers; what is measured decides. The budget of the prediction is moved until the network that comes out
meets the real one: never above it, and below by no more than the tolerance, if there is such a network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gator.cost.budget import shown
from gator.cost.prices import Prices
from gator.errors import GatorError
from gator.gates.project import Alive
from gator.graph.hypergraph import Hypergraph

_MEASUREMENTS = 8
_ATTEMPTS = 24
Attempt = Callable[[float], Alive]  # the living channels whose predicted cost is at most this
Masks = dict[str, NDArray[np.bool_]]
log = logging.getLogger("gator")


def meeting(
    graph: Hypergraph, prices: Prices, attempt: Attempt, cut: Callable[[Masks], nn.Module], target: float, *, unit: str
) -> tuple[Alive, float | None]:
    """Living channels that meet the target; where the cost of the finished network can be measured, it is.

    Where prices are only estimates, also what it was measured to cost.
    """
    tolerance = prices.tolerance

    def cost(alive: Alive) -> float:
        kept = graph.masks_of(alive)
        widths = graph.widths_of(alive)
        if not tolerance and all(mask.any() for mask in kept.values()):
            return prices.total(widths)  # only a block that is gone may leave a constant behind, which is not counted
        found = prices.measure(cut(kept), widths)
        return prices.total(widths) if found is None else found

    alive, found = corrected(attempt, cost, target, tolerance=tolerance, unit=unit)
    return alive, found if tolerance else None


def corrected(
    attempt: Attempt, measure: Callable[[Alive], float], target: float, *, tolerance: float, unit: str
) -> tuple[Alive, float]:
    """As `meeting`, for any way to measure what is left."""
    below, above = 0.0, np.inf  # predicted costs that are too low or measured to meet the target, and those measured not to
    middle = target * (1 - tolerance / 2)  # of what is near enough: measurements err to either side
    known = {target: attempt(target)}  # raises what cannot be reached
    everything = attempt(np.inf) if tolerance else None
    met = everything is None or (known[target] == everything).all()  # exactly, or without closing anything
    wanted, best, tried = target if met else middle, None, dict[bytes, float]()

    def near(cost: float) -> bool:
        return cost <= target and (not tolerance or cost >= target * (1 - tolerance))

    for _ in range(_ATTEMPTS):
        try:
            alive = known[wanted] if wanted in known else attempt(wanted)
        except GatorError:  # nothing is predicted to be that low
            below = wanted
            wanted = (below + min(above, 2 * target - below)) / 2
            continue
        key = alive.tobytes()
        if key not in tried:
            if len(tried) == _MEASUREMENTS:
                break
            tried[key] = measure(alive)
            if tolerance and near(tried[key]):  # by luck, perhaps
                tried[key] = (tried[key] + measure(alive)) / 2
        cost = tried[key]
        if cost <= target and (best is None or cost > best[1]):
            best = (alive, cost)
        if near(cost):
            break
        below, above = (max(below, wanted), above) if cost <= target else (below, min(above, wanted))
        # What counts exactly misses a constant; what is estimated is off by a factor.
        wanted = wanted * middle / cost if tolerance else wanted - (cost - target)
        if not below < wanted < above:
            wanted = (below + above) / 2
    if best is None:
        raise GatorError(
            f"the target of {shown(target, unit)} was not met: the lowest measured of {len(tried)} networks tried was "
            f"{shown(min(tried.values()), unit)}\n  Raise the target, or loosen min_width, round_to, keep or fixed."
        )
    if everything is not None and not near(best[1]) and (best[0] != everything).any():
        log.warning(
            "the target of %s is met with %s: of %d networks that were measured none comes nearer",
            shown(target, unit), shown(best[1], unit), len(tried),
        )  # fmt: skip
    return best
