"""Open channels again where a measured cost ended too far below its target.

On a small network one step of one edge is several per cent of the time, so the networks that a projection gives for one
predicted budget after the other may all miss the target by more than the tolerance. Their neighbours, in which one edge is a
step wider, lie closer together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from gator.gates.limits import Limits
from gator.gates.project import Alive, Scores
from gator.graph.hypergraph import Hypergraph

_MEASUREMENTS = 16
Cost = Callable[[Alive], float]


def widened(
    graph: Hypergraph, limits: Limits, living: Alive, scores: Scores, alive: Alive, measured: float, *, target: float,
    tolerance: float, predict: Cost, measure: Cost,
) -> tuple[Alive, float]:  # fmt: skip
    """Channels at least as many as in `alive`, and what they were measured to cost, which is at most `target`.

    Steps that are predicted to fit are tried, those first that are worth most for their cost, until the cost is within the
    tolerance of the target or nothing more fits. Only channels in `living` can open.
    """
    left, refused = _MEASUREMENTS, set[bytes]()
    while measured < target * (1 - tolerance) and left > 0:
        factor = measured / predict(alive)  # how far the prediction is off here
        options = [one for one in _one_step_wider(graph, limits, living, scores, alive) if one[1].tobytes() not in refused]
        options = [(worth, one) for worth, one in options if factor * predict(one) <= target * (1 + tolerance)]
        if not options:
            break
        now = predict(alive)
        _, wider = max(options, key=lambda option: option[0] / max(predict(option[1]) - now, 1e-3 * target))
        found, left = measure(wider), left - 1
        if found <= target:  # perhaps by chance
            found = (found + measure(wider)) / 2
        if found <= target:
            alive, measured = wider, found
        else:
            refused.add(wider.tobytes())
    return alive, measured


def _one_step_wider(
    graph: Hypergraph, limits: Limits, living: Alive, scores: Scores, alive: Alive
) -> list[tuple[float, Alive]]:
    """For every edge that can be wider, the total score of the channels that open, and all channels that are open then."""
    result = []
    for index, (start, end) in enumerate(itertools.pairwise(graph.starts)):
        width, most = int(alive[start:end].sum()), int(living[start:end].sum())
        wider = [w for w in (most, *limits.widths_down(index, most)) if w > width]
        if not width or not wider:
            continue
        closed = start + np.flatnonzero(living[start:end] & ~alive[start:end])
        opened = closed[np.argsort(scores[closed], kind="stable")[::-1][: min(wider) - width]]
        option = alive.copy()
        option[opened] = True
        result.append((float(scores[opened].sum()), option))
    return result
