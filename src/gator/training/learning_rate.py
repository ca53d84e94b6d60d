"""The learning rate of every step, as a function of the step alone: a resumed run needs no state for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gator.training.recipe import FinetunePhase, Phase, Recipe

_SHORT = 12  # epochs of [prune] and [finetune] together, up to which one annealing over both is better than a restart


@dataclass(frozen=True)
class Span:
    """The epochs before and after a phase that belong to the same annealing."""

    before: int = 0
    after: int = 0


def spans(recipe: Recipe) -> tuple[FinetunePhase, Span, Span]:
    """The fine-tuning phase with its learning rate, and the spans of [prune] and of [finetune]."""
    prune, finetune = recipe.prune, recipe.finetune
    one_target = prune.target is not None and prune.max_drop is None
    short = one_target and prune.schedule == finetune.schedule == "cosine" and prune.epochs + finetune.epochs <= _SHORT
    if not prune.epochs or finetune.anneal == "restart" or (finetune.anneal == "auto" and not short):
        return finetune, Span(), Span()
    continued = replace(finetune, lr=prune.lr, schedule=prune.schedule, warmup=prune.warmup)
    return continued, Span(0, finetune.epochs), Span(prune.epochs, 0)


def learning_rate(phase: Phase, step: int, steps_an_epoch: int, span: Span) -> float:
    """The learning rate of step 0, 1, ... of a phase."""
    epoch = span.before + step / steps_an_epoch
    if epoch < phase.warmup:
        return phase.lr * (epoch + 1 / steps_an_epoch) / phase.warmup
    if phase.schedule == "steps":
        return phase.lr * phase.factor ** sum(epoch >= boundary for boundary in phase.steps)
    if phase.schedule == "cosine":
        share = (epoch - phase.warmup) / max(span.before + phase.epochs + span.after - phase.warmup, 1e-12)
        return phase.lr * (1 + math.cos(math.pi * min(share, 1.0))) / 2
    return phase.lr
