"""What every round of a run aims at, as a function of the recipe and the rounds before it: a resumed run needs no state for it.

One target is one round. Several targets or alphas are one round each. With `max_drop` the run goes down the targets until one
loses too much accuracy, and then looks for a smaller network than the last good one by bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gator.training.recipe import PrunePhase
from gator.training.report import Outcome


@dataclass(frozen=True)
class Goal:
    """The target or the alpha of a round, and the round from whose gated weights it starts (None: from the dense network)."""

    target: float | str | None = None
    alpha: float | None = None
    start: int | None = None

    @property
    def name(self) -> str:
        if self.alpha is not None:
            return f"alpha {self.alpha:g}"
        return f"target {self.target:.3g}" if isinstance(self.target, float) else f"target {self.target}"


def next_goal(prune: PrunePhase, done: Sequence[Outcome], dense_accuracy: float) -> Goal | None:
    """The goal of the round after those that are done; None if there is none."""
    number = len(done)
    last = number - 1 if number else None
    if prune.alphas:
        return Goal(alpha=prune.alphas[number], start=last) if number < len(prune.alphas) else None
    targets = targets_of(prune)
    if prune.max_drop is None:
        return Goal(target=targets[number], start=last) if number < len(targets) else None
    going_down = done[: len(targets)]
    failed = next((i for i, outcome in enumerate(going_down) if not keeps(outcome, prune.max_drop, dense_accuracy)), None)
    if failed is None:
        return Goal(target=targets[number], start=last) if number < len(targets) else None
    if number - (failed + 1) >= prune.bisections:
        return None
    good: tuple[float, int | None] = (1.0, None) if failed == 0 else (done[failed - 1].share, failed - 1)
    bad = done[failed].share
    for index in range(failed + 1, number):
        if keeps(done[index], prune.max_drop, dense_accuracy):
            good = (done[index].share, index)
        else:
            bad = done[index].share
    return Goal(target=(good[0] + bad) / 2, start=good[1])


def may_go_on(prune: PrunePhase, number: int) -> bool:
    """Whether another round may follow round `number`, for which its gated weights are needed."""
    return prune.max_drop is not None or number + 1 < max(len(prune.alphas), len(targets_of(prune)))


def targets_of(prune: PrunePhase) -> tuple[float | str, ...]:
    return prune.targets if prune.target is None else (prune.target,)


def keeps(outcome: Outcome, max_drop: float, dense_accuracy: float) -> bool:
    """Whether a network is at most `max_drop` points worse than the dense one."""
    return outcome.figures.accuracy >= dense_accuracy - max_drop - 1e-9


def chosen_round(prune: PrunePhase, done: Sequence[Outcome], dense_accuracy: float) -> tuple[int, str]:
    """The round whose network is the result, and a line that says why (empty where it is simply the last)."""
    if prune.max_drop is None:
        return len(done) - 1, ""
    drops = [dense_accuracy - outcome.figures.accuracy for outcome in done]
    good = [i for i, outcome in enumerate(done) if keeps(outcome, prune.max_drop, dense_accuracy)]
    if good:
        index = min(good, key=lambda i: done[i].share)
        text = f"the smallest network within max_drop = {prune.max_drop:g} is that of round {index + 1}"
    else:
        index = min(range(len(done)), key=lambda i: drops[i])
        text = f"no network is within max_drop = {prune.max_drop:g}; the nearest is that of round {index + 1}"
    return index, f"{text}: {drops[index]:.2f} points lost"
