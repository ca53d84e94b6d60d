"""From a target to alpha, the weight of the computational loss.

Most channels close in the last steps, so the logits are controlled instead of the cost. The logit that has to reach zero for
the target to be met is known at any time (close the lowest first until the target holds). Under a constant alpha a logit
falls slowly at first and then faster, but `time_left(logit)` falls at a constant rate. So the alpha that brings that logit to
zero at the last step is time_left / (gain * rate * steps left), computed again every few steps.
"""

from __future__ import annotations

import numpy as np

ALPHA = 4.0  # with a much larger alpha the task loss has no influence, and all channels fall alike
_LARGEST_ALPHA = 8 * ALPHA


class _FallTime:
    """How long a logit takes to fall to zero, in units of 1 / (rate * alpha)."""

    def __init__(self, temperature: float) -> None:
        self.logits = np.linspace(-2.0, 12.0, 1401)
        uniform = (np.arange(1000) + 0.5) / 1000
        noise = np.log(uniform) - np.log1p(-uniform)
        soft = 1 / (1 + np.exp(-(self.logits[:, None] + noise[None, :]) / temperature))
        slope = (soft * (1 - soft)).mean(1) / temperature  # the expected derivative of a gate
        steps = np.diff(self.logits) / ((slope[1:] + slope[:-1]) / 2)
        times = np.concatenate([[0.0], np.cumsum(steps)])
        self.times = times - np.interp(0.0, self.logits, times)

    def time_left(self, logit: float) -> float:
        return max(float(np.interp(logit, self.logits, self.times)), 0.0)


class Controller:
    """Chooses alpha so that a target is reached after `steps` gate updates. It has no state: the step is passed in."""

    def __init__(self, steps: int, momentum: float, first_logit: float, temperature: float = 1.0) -> None:
        self.steps = steps
        self._fall = _FallTime(temperature)
        self._gain = 1 / (1 - momentum)  # how much further momentum carries one update
        self._first = self._fall.time_left(first_logit)
        self.every = max(1, steps // 200)

    def acts_at(self, step: int) -> bool:
        """Whether alpha is computed again after this step."""
        return step % self.every == 0 or step == 1

    def rate(self, learning_rate: float, gamma: float) -> float:
        """The rate of the gate updates: gamma * lr, or more if so few steps need it at a moderate alpha."""
        needed = self._first / (self._gain * ALPHA * self.steps)
        return max(gamma * learning_rate, needed)

    def alpha(self, deciding_logit: float, rate: float, step: int) -> float:
        """The alpha that brings the deciding logit to zero at the last step."""
        left = max(self.steps - step, 1)
        wanted = self._fall.time_left(deciding_logit) / (self._gain * rate * left)
        return min(wanted, _LARGEST_ALPHA)
