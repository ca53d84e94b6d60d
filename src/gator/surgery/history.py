"""What was cut, carried along by the cut network itself, so that it can be made again from a fresh original."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from gator.graph.trace import named_tensors
from gator.surgery.compose_cuts import Step, composed
from gator.surgery.cut_plan import Form, Remains
from gator.surgery.plan import Plan
from gator.surgery.slice import canonical_names

ATTRIBUTE = "gator_plan"
M = TypeVar("M", bound=nn.Module)


def remember(network: M, model: nn.Module, plan: Plan, form: Form, left: Remains) -> M:
    """Write the history of `model` plus this cut onto `network`, as one cut of the original architecture if possible."""
    kept = {name: tuple(mask.nonzero()[0].tolist()) for name, mask in plan.masks.items() if not mask.all()}
    tied = {name: first for name, first in canonical_names(model).items() if name != first}
    step = Step(plan.graph.saved(), kept, form, left, tied)
    earlier = steps_of(model)
    if earlier:
        one = composed(earlier[-1], step, before=tuple(named_tensors(model)), after=frozenset(named_tensors(network)))
        if one is not None:
            earlier, step = earlier[:-1], one
    setattr(network, ATTRIBUTE, (*earlier, step))
    return network


def steps_of(model: nn.Module) -> tuple[Step, ...]:
    """The cuts a network has been through, oldest first; usually composed into one."""
    steps: tuple[Step, ...] = model.__dict__.get(ATTRIBUTE, ())
    return steps
