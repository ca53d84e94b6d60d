"""Shrinking between epochs, and resuming from a checkpoint that was written afterwards: it holds the plan of the cut."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from gator.errors import CutError, FileError
from gator.gates.pruner import Pruner
from gator.surgery.apply import plan
from gator.surgery.cut_plan import CutPlan
from gator.surgery.history import steps_of
from gator.surgery.inplace import apply_
from gator.surgery.keep_class import kept_in_class, trace
from gator.surgery.masked import masked
from gator.training.loop import LEAST_SAVING


def should_shrink(pruner: Pruner) -> bool:
    """Whether removing the closed channels saves enough, and leaves a network of the same class, whose plan rebuilds it."""
    keeps_class = pruner.graph.keep_class and all(pruner.kept.values())
    return keeps_class and pruner.saved_by_shrinking >= LEAST_SAVING


def plan_of(model: nn.Module) -> str | None:
    """What was cut so far, as text for a checkpoint."""
    return plan(model).to_json() if steps_of(model) else None


def cut_as_saved_(model: nn.Module, text: str | None) -> None:
    """Cut a fresh model as the network of a checkpoint was cut. Raises FileError if it is not fresh, or of another class."""
    wanted = None if text is None else CutPlan.from_json(text)
    if (plan(model) if steps_of(model) else None) == wanted:
        return
    if steps_of(model):
        raise FileError(
            f"the checkpoint is of another plan: this {type(model).__name__} was cut in another way\n"
            "  Load it into a fresh instance of the original network."
        )
    assert wanted is not None
    try:
        apply_(wanted, model)
    except CutError as error:
        raise FileError(f"the checkpoint is of another network than this {type(model).__name__}: {error}") from error


def without_closed_channels(
    model: nn.Module, example_inputs: Any, state: Mapping[str, Any], *, keep_class: bool
) -> AbstractContextManager[nn.Module]:
    """Inside, the model computes without the channels that were closed when a pruner saved this state for it."""
    graph = trace(model, example_inputs)
    if keep_class:
        graph = kept_in_class(model, graph, tuple(state["fixed"]))
    return masked(model, graph, graph.masks_of(state["alive"].cpu().numpy()))
