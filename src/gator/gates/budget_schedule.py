"""What a network may cost at every step of the training with gates: from what it costs at the start down to the target."""

from __future__ import annotations

import math
from dataclasses import dataclass

START = 0.1  # share of the steps before anything has to close: the gates know nothing yet
END = 0.75  # share of the steps after which the target is reached: the rest trains the network as it will be cut
_POWER = 2  # most closes early, while the learning rate is high; the last channels, which matter most, close slowly


@dataclass(frozen=True)
class Schedule:
    """The way from `whole`, the cost at the start, to `target`, over `steps` steps."""

    whole: float
    target: float
    steps: int

    @property
    def last_step(self) -> int:
        """The step after which the target is reached."""
        return max(1, math.ceil(END * self.steps))

    def allowed(self, step: int) -> float:
        """What the network may cost after this step."""
        progress = (step / self.steps - START) / (END - START)
        left = (1 - min(max(progress, 0.0), 1.0)) ** _POWER
        return self.target + max(self.whole - self.target, 0.0) * left

    def acts_at(self, step: int) -> bool:
        """Whether channels close after this step: every `steps // 200` steps, or every step if there are fewer than 400."""
        return step % max(1, self.steps // 200) == 0
