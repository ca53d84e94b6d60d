"""How fast the cost pulls the logits down on the way to a target.

The schedule decides how many channels are closed, and the logits decide which. A logit tells little while it is far above zero,
where its gate never closes and has no gradient. So the gates learn at least as fast as it takes to bring a logit that nothing
holds up from its start to zero within the steps there are.
"""

from __future__ import annotations

import numpy as np

ALPHA = 4.0  # the weight of the cost in the loss; with a much larger one the task has no influence, and all channels fall alike


def least_rate(steps: int, momentum: float, first_logit: float, temperature: float) -> float:
    """The rate of the gate updates at which a logit falls from `first_logit` to zero in this many steps, by the cost alone."""
    logits = np.linspace(0.0, max(first_logit, 0.0), 1001)
    uniform = (np.arange(1000) + 0.5) / 1000
    noise = np.log(uniform) - np.log1p(-uniform)
    soft = 1 / (1 + np.exp(-(logits[:, None] + noise[None, :]) / temperature))
    slope = (soft * (1 - soft)).mean(1) / temperature  # the expected derivative of a gate
    time = float(np.sum(np.diff(logits) / ((slope[1:] + slope[:-1]) / 2)))
    gain = 1 / (1 - momentum)  # how much further momentum carries one update
    return time / (gain * ALPHA * steps)
