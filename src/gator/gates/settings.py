"""What a pruner may be asked for: wrong settings are refused before any work is done."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from torch import nn

from gator.errors import GatorError
from gator.gates.sharded import is_sharded
from gator.graph.bake import needs_baking

Per = Literal["example", "batch"]


@dataclass(frozen=True)
class GateSettings:
    """How gates are drawn and updated; all but `per` for an alpha only."""

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

    def check_for_target(self) -> None:
        """Raise if something is set that has no effect on the way to a target."""
        for each in fields(self):
            found = getattr(self, each.name)
            if each.name != "per" and found != each.default:
                raise GatorError(
                    f"{each.name}={found!r} has no effect with target=: a schedule says how much closes\n"
                    f"  Leave {each.name} out, or pass alpha= to train gates as in the paper."
                )


def check_goal(alpha: float | None, target: float | str | None, steps: int | None) -> None:
    """Raise unless there is an alpha, or a target with a number of steps."""
    if (alpha is None) == (target is None):
        raise GatorError("pass alpha= (the weight of the cost) or target= (what may be left of it): one of them, not both")
    if alpha is not None and not alpha >= 0:
        raise GatorError(f"alpha={alpha!r}; expected zero or more")
    if (target is None) != (steps is None):
        raise GatorError("target= and steps= go together: pass the number of steps with gates")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise GatorError(f"steps={steps!r}; expected a whole number of steps, 1 or more")


def check_model(model: nn.Module) -> None:
    """Raise for a model that cannot have gates: one inside a wrapper of torch's, or one that computes its weights."""
    if needs_baking(model):
        raise GatorError(
            "gates cannot be put on a model with weight_norm or spectral_norm, which computes its weights\n"
            "  Remove it first (torch.nn.utils.parametrize.remove_parametrizations, or torch.nn.utils.remove_weight_norm\n"
            "  for the old kind), or choose channels with gator.one_shot."
        )
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    if isinstance(model, wrappers):
        raise GatorError(
            f"the model is wrapped in {type(model).__name__}; make the pruner first, then wrap:\n"
            f"  pruner = gator.Pruner(model, ...); model = {type(model).__name__}(model)"
        )
    if "_orig_mod" in dict(model.named_children()):
        raise GatorError("the model is compiled; make the pruner first, then compile: model = torch.compile(model)")
    if is_sharded(model):
        raise GatorError("the model is sharded; make the pruner first, then shard: fully_shard(model)")
