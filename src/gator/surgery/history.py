"""What was cut, carried along by the cut network itself, so that it can be saved and made again from the original class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from gator.graph.hypergraph import SavedGraph
from gator.surgery.fold import Folded
from gator.surgery.plan import Plan

ATTRIBUTE = "gator_plan"
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Step:
    """One cut: the graph it was made on (as plain data), the kept units, and the form of the result."""

    graph: SavedGraph
    kept: dict[str, tuple[int, ...]]
    form: str  # "class" or "graph"
    folded: dict[str, Folded]  # the constants that closed branches left behind


def remember(network: M, model: nn.Module, plan: Plan, form: str, folded: Mapping[str, Folded]) -> M:
    """Write the history of `model` plus this cut onto `network`."""
    kept = {name: tuple(mask.nonzero()[0].tolist()) for name, mask in plan.masks.items() if not mask.all()}
    step = Step(plan.graph.saved(), kept, form, dict(folded))
    setattr(network, ATTRIBUTE, (*steps_of(model), step))
    return network


def steps_of(model: nn.Module) -> tuple[Step, ...]:
    """The cuts a network has been through, oldest first."""
    steps: tuple[Step, ...] = getattr(model, ATTRIBUTE, ())
    return steps
