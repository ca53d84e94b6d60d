"""From a budget to the weight of the computational loss: the controller of `target=`.

Closings come late and in a rush, so it steers by the logits. The logit that must reach zero for the budget to be met is
known at any time (close the lowest first until the budget holds). Under a constant pull alpha a logit falls slowly at
first and then faster; in the coordinate `time_left` it falls evenly. So the pull that brings that logit to zero at the last
step is a division, made again every few steps with the time that is left.
"""

from __future__ import annotations

import math

import numpy as np

PULL = 4.0  # a moderate alpha: with a much larger one the task has no say, and all channels fall alike
_LARGEST_PULL = 8 * PULL


class _Fall:
    """How long a logit takes to fall to zero, in units of 1 / (rate * alpha)."""

    def __init__(self) -> None:
        self.logits = np.linspace(-2.0, 12.0, 1401)
        uniform = (np.arange(20000) + 0.5) / 20000
        noise = np.log(uniform) - np.log1p(-uniform)
        soft = 1 / (1 + np.exp(-(self.logits[:, None] + noise[None, ::20])))
        slope = (soft * (1 - soft)).mean(1)  # the expected derivative of a gate
        steps = np.diff(self.logits) / ((slope[1:] + slope[:-1]) / 2)
        times = np.concatenate([[0.0], np.cumsum(steps)])
        self.times = times - np.interp(0.0, self.logits, times)

    def time_left(self, logit: float) -> float:
        return max(float(np.interp(logit, self.logits, self.times)), 0.0)


class Controller:
    """Meets a budget in a given number of gate updates."""

    def __init__(self, steps: int, momentum: float, first_logit: float) -> None:
        self.steps = steps
        self.step = 0
        self._fall = _Fall()
        self._gain = 1 / (1 - momentum)  # how much further momentum carries one update
        self._first = self._fall.time_left(first_logit)
        self.every = max(1, steps // 200)

    @property
    def due(self) -> bool:
        return self.step >= self.steps

    def rate(self, learning_rate: float, gamma: float) -> float:
        """The rate of the gate updates: gamma * lr, or as much more as this few steps need at a moderate pull."""
        needed = self._first / (self._gain * PULL * self.steps)
        return max(gamma * learning_rate, needed)

    def alpha(self, deciding_logit: float, rate: float) -> float:
        """The pull that brings the deciding logit to zero at the last step."""
        left = max(self.steps - self.step, 1)
        wanted = self._fall.time_left(deciding_logit) / (self._gain * rate * left)
        return min(wanted, _LARGEST_PULL) if math.isfinite(wanted) else _LARGEST_PULL
