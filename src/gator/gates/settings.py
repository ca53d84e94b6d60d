"""What a pruner may be asked for: wrong settings are refused before any work is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

from gator.errors import GatorError

Per = Literal["example", "batch"]


@dataclass(frozen=True)
class GateSettings:
    """How gates are drawn and updated."""

    per: Per = "example"
    gamma: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 0.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.per not in get_args(Per):
            raise GatorError(f'per={self.per!r}; expected "example" or "batch"')
        for name, value in (("gamma", self.gamma), ("temperature", self.temperature)):
            if not value > 0:
                raise GatorError(f"{name}={value!r}; expected more than zero")
        if not 0 <= self.momentum < 1:
            raise GatorError(f"momentum={self.momentum!r}; expected 0 or more and less than 1")
        if not self.weight_decay >= 0:
            raise GatorError(f"weight_decay={self.weight_decay!r}; expected zero or more")


def check_goal(alpha: float | None, target: float | str | None, steps: int | None) -> None:
    """Raise unless there is an alpha, or a target with a number of steps."""
    if (alpha is None) == (target is None):
        raise GatorError("pass alpha= (the weight of the cost) or target= (what may be left of it): one of them, not both")
    if alpha is not None and not alpha >= 0:
        raise GatorError(f"alpha={alpha!r}; expected zero or more")
    if (target is None) != (steps is None):
        raise GatorError("target= and steps= go together: pass the number of steps after which the target is reached")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise GatorError(f"steps={steps!r}; expected a whole number of steps, 1 or more")


def check_not_wrapped(model: nn.Module) -> None:
    """Raise for a model inside a wrapper of torch's: gates go on the model itself."""
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    if isinstance(model, wrappers):
        raise GatorError(
            f"the model is wrapped in {type(model).__name__}; make the pruner first, then wrap:\n"
            f"  pruner = gator.Pruner(model, ...); model = {type(model).__name__}(model)"
        )
