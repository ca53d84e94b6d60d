"""The learning rate of every step, as a function of the step alone: a resumed run needs no state for it."""

from __future__ import annotations

import math

from gator.training.recipe import Phase


def learning_rate(phase: Phase, step: int, steps_an_epoch: int) -> float:
    """The learning rate of step 0, 1, ... of a phase."""
    epoch = step / steps_an_epoch
    if epoch < phase.warmup:
        return phase.lr * (step + 1) / (phase.warmup * steps_an_epoch)
    if phase.schedule == "steps":
        return phase.lr * phase.factor ** sum(epoch >= boundary for boundary in phase.steps)
    if phase.schedule == "cosine":
        share = (epoch - phase.warmup) / max(phase.epochs - phase.warmup, 1e-12)
        return phase.lr * (1 + math.cos(math.pi * min(share, 1.0))) / 2
    return phase.lr
