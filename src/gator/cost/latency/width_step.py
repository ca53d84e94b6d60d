"""How many channels a device's kernels process as one block, found by timing a few whole networks.

The times of single layers do not tell: a layer of a small network takes less than a tenth of a millisecond, and steps of one
layer may gain nothing because the layers beside it have none. In a whole network all edges can be narrowed at once: ResNet-20
with one channel less on every edge took 1.4 times as long on ONNX Runtime, and with eight channels less 0.67 of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gator.cost.axis_sizes import full_widths
from gator.cost.flops import macs_of
from gator.cost.prices import Widths
from gator.graph.hypergraph import Hypergraph

_STEPS = (16, 8, 4)  # that are tried, the largest first
_PAYS = 0.5  # of the average price of a MAC: less than that must be saved by channels that leave a step half filled
_LEAST = 0.06  # of the whole time: if they should save less than that, two measurements cannot tell


def paying_step(graph: Hypergraph, ms_of: Callable[[Sequence[Widths]], Sequence[float]]) -> int:
    """The largest step that is worth rounding widths to, given what networks of these widths take.

    1 if there is none, or if the network is so wide that half a step hardly changes its time.
    """
    full = np.array(full_widths(graph), dtype=np.int64)
    filled = np.array([max(width - width % max(s for s in (*_STEPS, 1) if s <= width), 1) for width in full])
    half_filled = [np.where(filled > step // 2, filled - step // 2, filled) for step in _STEPS]
    networks = [filled, np.maximum(filled // 2, 1), *half_filled]
    whole, half, *others = zip(ms_of(networks), map(macs_of(graph).total, networks), strict=True)
    per_mac = max(whole[0] - half[0], 0.0) / max(whole[1] - half[1], 1.0)
    for step, (ms, macs) in zip(_STEPS, others, strict=True):
        expected = per_mac * (whole[1] - macs)
        if expected > _LEAST * whole[0] and whole[0] - ms < _PAYS * expected:
            return step
    return 1
