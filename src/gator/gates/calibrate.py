"""`calibrate_gamma`: how large may gamma be before channels close without any cost? (paper, section 3.4)"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from gator.cost.by_name import CostName
from gator.cost.prices import Cost, PlainCost
from gator.errors import GatorError
from gator.gates.pruner import Pruner
from gator.gates.settings import Per


@dataclass(frozen=True)
class SelfPruning:
    """What closed with alpha = 0 at one gamma."""

    gamma: float
    closed: int  # channels
    cost_gone: float  # share of the cost
    mean_pass: float  # mean probability to pass of the living channels


@dataclass(frozen=True)
class Calibration:
    """Self-pruning for several gammas, and the largest of them that stays within the tolerance."""

    rows: tuple[SelfPruning, ...]
    gamma: float

    def __str__(self) -> str:
        lines = ["  gamma  closed  cost gone  mean pass"]
        lines += [f"{r.gamma:7.3g}  {r.closed:6d}  {r.cost_gone:9.2%}  {r.mean_pass:9.4f}" for r in self.rows]
        return "\n".join([*lines, f"proposed: gamma={self.gamma:g}"])


def calibrate_gamma(
    model: nn.Module,
    example_inputs: Any,
    train: Callable[[nn.Module, Pruner], None],
    *,
    gammas: Sequence[float] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
    tolerance: float = 0.005,
    cost: CostName | Cost | PlainCost = "flops",
    per: Per = "example",
) -> Calibration:
    """Train copies of the model with gates but with alpha = 0, and see what closes anyway.

    Args:
        model: the network; it is not changed.
        example_inputs: as in `gator.Pruner`.
        train: `train(model, pruner)` runs the usual loop for as long as gates will be trained between two values of alpha,
            with `pruner.loss()` in the loss and `pruner.step(lr=...)` after the optimizer's step.
        gammas: the values to try.
        tolerance: the share of the cost that may close.
        cost, per: as in `gator.Pruner`.

    Returns:
        What closed for every gamma, and the largest gamma within the tolerance (or the smallest of all).

    Examples:
        >>> model, x = zoo.build("digits:resnet").model, torch.randn(8, 1, 8, 8)
        >>> def train(model, pruner):
        ...     (model(x).square().mean() + pruner.loss()).backward()
        ...     pruner.step(lr=0.01)
        >>> gator.calibrate_gamma(model, x, train, gammas=(0.2, 1.0)).gamma
        1.0
    """
    if not gammas:
        raise GatorError("gammas= is empty; pass the values to try")
    rows = []
    for gamma in sorted(gammas):
        trial = copy.deepcopy(model)
        pruner = Pruner(trial, example_inputs, cost=cost, alpha=0.0, per=per, gamma=gamma)
        train(trial, pruner)
        if pruner.steps_taken == 0:
            raise GatorError("train(model, pruner) never called pruner.step(lr=...); call it after every optimizer step")
        alive = pruner.gates.living()
        passing = float(pruner.gates.probabilities[pruner.gates.alive].mean()) if alive.any() else 0.0
        gone = 1 - pruner.cost_left / pruner.whole_cost
        rows.append(SelfPruning(gamma, int((~alive).sum()), gone, passing))
    fine = [row.gamma for row in rows if row.cost_gone <= tolerance]
    return Calibration(tuple(rows), max(fine) if fine else rows[0].gamma)
