"""What a pruner saves and how it resumes: plain data and tensors, checked before anything is changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gator.cost.prices import restored_prices
from gator.errors import GatorError
from gator.gates.attach import gates_off

if TYPE_CHECKING:
    from gator.gates.pruner import Pruner

FORMAT = 9


def state_of(pruner: Pruner) -> dict[str, Any]:
    """Everything that is needed to resume: gates, closed channels, the budget and the position in the run."""
    gates = pruner.gates
    return {
        "format": FORMAT,
        "unit": pruner.unit,
        "fixed": list(pruner.graph.fixed),
        "edges": {edge.name: edge.width for edge in pruner.graph.edges},
        **gates.state(),
        "keep": list(pruner.keep),
        "budget": pruner.budget.state(),
        "loss_at_start": pruner._loss.at_start,
        "alpha": pruner._alpha,
        "finished": pruner.finished,
        "steps_taken": pruner.steps_taken,
        "steps_skipped": pruner.steps_skipped,
    }


_KEYS = (
    "format", "unit", "fixed", "edges", "alive", "keep", "budget", "loss_at_start", "alpha", "finished", "steps_taken",
    "steps_skipped",
)  # fmt: skip
_BUDGET_KEYS = ("whole", "target", "steps", "least", "multiples", "first_widths", "measured_at", "reached", "pricing_state")


def check_saved(state: Mapping[str, Any], unit: str) -> None:
    """Raise unless this is the state of a pruner that this version can read, with a cost in the same unit."""
    _need(["format"], state)
    found = state["format"]
    if found != FORMAT:
        hint = "upgrade gator" if isinstance(found, int) and found > FORMAT else "start the run again"
        raise GatorError(f"the state has format {found!r}, this version reads format {FORMAT}; {hint}")
    _need(_KEYS, state)
    _need(_BUDGET_KEYS, state["budget"] or {})
    if state["unit"] != unit:
        raise GatorError(f"the state was saved with a cost in {state['unit']}, this one is in {unit}; pass the same cost=")


def _need(keys: Iterable[str], state: Mapping[str, Any]) -> None:
    for key in keys:
        if key not in state:
            raise GatorError(f"this is not the state of a pruner: it has no {key!r}")


def load_state_(pruner: Pruner, state: Mapping[str, Any]) -> None:
    """Resume from a checkpoint of the same network, cut as it was then. On an error nothing has changed."""
    _check(pruner, state)
    budget = pruner.budget
    if state["budget"] != budget.state():
        prices = budget.prices
        if state["budget"]["pricing_state"] != prices.state():
            with gates_off(pruner._forward):
                prices = restored_prices(pruner.cost, pruner.model, pruner.graph, state["budget"]["pricing_state"])
        budget = budget.restored(prices, state["budget"])
    pruner._forget_gradients()
    pruner.gates.load_(state)
    pruner._alpha = state["alpha"]
    pruner.steps_taken, pruner.steps_skipped = state["steps_taken"], state["steps_skipped"]
    pruner._forward.learning = not state["finished"]
    pruner._use(budget, loss_at_start=state["loss_at_start"])
    pruner._forward.refresh()


def _check(pruner: Pruner, state: Mapping[str, Any]) -> None:
    check_saved(state, pruner.unit)
    here = [(edge.name, edge.width) for edge in pruner.graph.edges]
    for then, now in itertools.zip_longest(state["edges"].items(), here):
        if then != now:
            had, has = (f"edge {pair[0]!r} of width {pair[1]}" if pair else "no edge" for pair in (then, now))
            raise GatorError(
                f"the state is of another network: it had {had} where there is {has} here\n"
                "  Load the network as it was saved (gator.load after shrink_), make the pruner, then load its state."
            )
    if sorted(state["keep"]) != sorted(pruner.keep):
        raise GatorError(f"the state was saved with keep={state['keep']}; make the pruner with the same, not {pruner.keep}")
    if (pruner.target is None) != (state["budget"]["target"] is None):
        raise GatorError("the state was saved with target= and this pruner has alpha=, or the other way round")
    _need(pruner.gates.learned, state)
