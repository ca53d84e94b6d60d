"""`cut`: a new, physically smaller network that computes what the masked one computes, checked before it is returned."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from gator.errors import CutError
from gator.graph.hypergraph import Hypergraph, SavedGraph
from gator.graph.program import MODES
from gator.graph.record import collector_paused
from gator.graph.trace import retraced, sizes_free
from gator.surgery.absorb import absorb_
from gator.surgery.compare import class_differs
from gator.surgery.emit_cut import CutEmitter
from gator.surgery.fold import Folded, Folder
from gator.surgery.history import Step, remember
from gator.surgery.masked import masked_by, signature_of
from gator.surgery.network import CutNetwork, assembled
from gator.surgery.plan import Kept, Plan
from gator.surgery.slice import canonical_names, sliced_copy
from gator.surgery.verify import agree


def cut(model: nn.Module, graph: SavedGraph, kept: Kept, *, keep_class: bool | None = None, verify: bool = True) -> nn.Module:
    """A smaller copy of `model` with only the kept channels; `model` is untouched.

    The copy is of the user's own class if that verifies, else an fx.GraphModule over the same layers with the same
    state_dict names. `keep_class=True` insists on the class, `False` on the graph. The check runs both networks in eval mode
    on made-up inputs; `verify=False` leaves it out for the graph (the class is only ever returned checked).
    """
    with collector_paused():
        return _cut(model, Plan(retraced(graph, model), kept), keep_class, verify)


def _cut(model: nn.Module, plan: Plan, keep_class: bool | None, verify: bool) -> nn.Module:
    sliced = sliced_copy(model, plan)
    if keep_class is not False:
        reason = class_problem(model, sliced, plan)
        if not reason:
            return remember(sliced, model, plan, "class", {})
        if keep_class:
            raise CutError(
                f"the class {type(model).__name__} cannot hold this cut: {reason}\n"
                "  Leave keep_class at None to get an fx.GraphModule over the same layers."
            )
    network, folded = as_network(model, sliced, plan)
    if verify:
        check_network(model, network, plan)
    return remember(network, model, plan, "graph", folded)


def check_network(model: nn.Module, network: nn.Module, plan: Plan) -> None:
    """Raise if the fx form of a cut does not compute what the masked model computes."""
    equal, seen = agree(model, network, plan.graph.inputs, lambda m: masked_by(plan, m))
    if not equal and draws_numbers(plan):
        raise CutError(
            f"the cut network cannot be compared with the masked one, which differs by {seen:.2e}: the network draws random "
            f"numbers in eval mode, at {draws_numbers(plan)}\n"
            "  Pass verify=False if it draws them for channels that are removed, or fix that layer."
        )
    if not equal:
        raise CutError(
            f"the cut network differs from the masked one by {seen:.2e} (relative); nothing is returned\n"
            "  This is a bug in gator: please report it with the model. Fixing the layers involved with "
            "trace(..., fixed=[...]) works around it."
        )


def draws_numbers(plan: Plan) -> str:
    """A call that draws random numbers in eval mode, empty if there is none."""
    calls = plan.graph.eval.program.calls
    found = [call for call in calls if call.draws]
    return found[0].where() if found else ""


def rebuild(model: nn.Module, graph: Hypergraph, step: Step) -> nn.Module:
    """The cut of a step that was made and checked before, on another instance of the same architecture."""
    plan = Plan(graph, step.kept)
    sliced = sliced_copy(model, plan)
    if step.form == "class":
        return remember(sliced, model, plan, "class", {})
    network, folded = as_network(model, sliced, plan, step.folded)
    return remember(network, model, plan, "graph", folded)


def class_problem(model: nn.Module, sliced: nn.Module, plan: Plan) -> str:
    """Why the sliced copy of the user's class does not compute what the masked model computes; empty if it does."""
    if plan.emptied:
        return f"edge {plan.emptied[0]!r} keeps no channel"
    if plan.whole:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            equal, seen = agree(model, sliced, plan.graph.inputs, lambda m: masked_by(plan, m))
    except CutError:
        raise
    except Exception as error:  # whatever the user's code raises on sizes it did not expect
        return f"{type(error).__name__}: {error}"
    if not equal:
        return f"its output differs from the masked network's by {seen:.2e} (relative)"
    return class_differs(sliced, plan)


def as_network(
    model: nn.Module, sliced: nn.Module, plan: Plan, folded: Mapping[str, Folded] | None = None
) -> tuple[CutNetwork, dict[str, Folded]]:
    """The fx form of the cut, over the layers of `sliced`, and what became of the constants that were folded."""
    folder = Folder(folded)
    canonical = canonical_names(sliced)
    emitters = [CutEmitter(plan, mode, sliced, canonical, folder) for mode in MODES]
    train_graph, eval_graph = (emitter.emit() for emitter in emitters)
    objects: dict[str, Any] = {**emitters[0].objects, **emitters[1].objects}
    absorb_((train_graph, eval_graph), objects, [name for name, _ in folder.made.values()])
    persistent = frozenset(sliced.state_dict())
    signature = signature_of(model.forward, plan, free=sizes_free(plan.graph, model))
    network = assembled(objects, eval_graph, train_graph, signature, persistent, f"Cut{type(model).__name__}")
    network.training = model.training
    flags = {name: module.training for name, module in sliced.named_modules()}
    for name, module in network.named_modules():
        module.training = flags.get(name, model.training)
    return network, folder.made
