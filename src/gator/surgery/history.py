"""The history of cuts, stored on the cut network itself, so that `gator.plan` can return it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import nn

from gator.graph.trace import named_tensors
from gator.surgery.compose_cuts import Step, composed
from gator.surgery.cut_plan import Form, RemovedBranches
from gator.surgery.plan import Plan
from gator.surgery.slice import canonical_names

ATTRIBUTE = "gator_plan"
M = TypeVar("M", bound=nn.Module)


def remember(
    network: M,
    model: nn.Module,
    plan: Plan,
    form: Form,
    removed_branches: RemovedBranches,
    attributes: Mapping[str, int] | None = None,
) -> M:
    """Store the history of `model` plus this cut on `network`, composed into one cut of the original if possible."""
    kept = {name: tuple(mask.nonzero()[0].tolist()) for name, mask in plan.masks.items() if not mask.all()}
    tied = {name: first for name, first in canonical_names(model).items() if name != first}
    step = Step(plan.graph.saved(), kept, form, removed_branches, tied, dict(attributes or {}))
    earlier = steps_of(model)
    if earlier:
        one = composed(earlier[-1], step, before=tuple(named_tensors(model)), after=frozenset(named_tensors(network)))
        if one is not None:
            earlier, step = earlier[:-1], one
    setattr(network, ATTRIBUTE, (*earlier, step))
    return network


def steps_of(model: nn.Module) -> tuple[Step, ...]:
    """The cuts that led to a network, oldest first; usually composed into one."""
    steps: tuple[Step, ...] = model.__dict__.get(ATTRIBUTE, ())
    return steps


def forget(model: nn.Module) -> None:
    """Take the history off: for a network that is pickled for programs without this library."""
    model.__dict__.pop(ATTRIBUTE, None)
