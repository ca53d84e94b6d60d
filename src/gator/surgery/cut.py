"""`cut`: a new, physically smaller network that computes what the masked one computes, checked before it is returned."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import nn

from gator.errors import CutError
from gator.graph.global_state import collector_paused
from gator.graph.hypergraph import SavedGraph
from gator.graph.program import MODES
from gator.graph.trace import named_tensors, retraced, sizes_free, small_inputs
from gator.surgery.branch_constants import Folder
from gator.surgery.compare_calls import class_differs
from gator.surgery.compare_outputs import agree
from gator.surgery.cut_network import CutNetwork, assembled
from gator.surgery.cut_plan import Constant, Remains
from gator.surgery.emit_cut import CutEmitter
from gator.surgery.history import remember, steps_of
from gator.surgery.masked import masked_by, signature_of
from gator.surgery.merge_into_bias import absorb_
from gator.surgery.plan import Kept, Plan
from gator.surgery.slice import canonical_names, sliced_copy


def cut(model: nn.Module, graph: SavedGraph, kept: Kept, *, keep_class: bool | None = None, verify: bool = True) -> nn.Module:
    """A smaller copy of `model` with only the kept channels; `model` is not changed.

    The copy is of the user's own class if that verifies, else an `fx.GraphModule` over the same layers with the same state_dict
    names. Both networks are run in eval mode on random inputs and compared before the copy is returned.

    Args:
        model: the network.
        graph: of this model, from `gator.trace` (or read from JSON: then the model is traced again).
        kept: by edge name, the indices or a boolean mask of the channels that stay; edges that are not named keep all.
        keep_class: True raises if the class cannot be kept, False always gives the graph.
        verify: False leaves the check of the graph form out (the class is only returned if it was checked).

    Raises:
        KeptError: if `kept` does not fit the graph, or would disconnect the output from the input.
        CutError: if the result does not compute what the masked model computes; nothing is returned then.

    Example:
        >>> small = gator.cut(model, graph, {"stem": [0, 1, 2]})
        >>> with gator.masked(model, graph, {"stem": [0, 1, 2]}):
        ...     torch.allclose(small(x), model(x), atol=1e-5)
        True
    """
    with collector_paused():
        return _cut(model, Plan(retraced(graph, model), kept), keep_class, verify)


def _cut(model: nn.Module, plan: Plan, keep_class: bool | None, verify: bool) -> nn.Module:
    sliced = sliced_copy(model, plan)
    if keep_class is not False:
        reason = class_problem(model, sliced, plan)
        if not reason:
            return remember(sliced, model, plan, "class", Remains())
        if keep_class:
            raise CutError(
                f"the class {type(model).__name__} cannot hold this cut: {reason}\n"
                "  Leave keep_class at None to get an fx.GraphModule over the same layers."
            )
    network, left = as_network(model, sliced, plan)
    if verify:
        check_network(model, network, plan)
    return remember(network, model, plan, "graph", left)


def check_network(model: nn.Module, network: nn.Module, plan: Plan) -> None:
    """Raise if the fx form of a cut does not compute what the masked model computes."""
    try:
        equal, seen = _same_outputs(model, network, plan)
    except RuntimeError as error:  # an operator of torch that refuses these sizes
        raise CutError(
            f"the cut network cannot run: {error}\n"
            "  Keep other widths, or fix the layers involved with trace(..., fixed=[...])."
        ) from error
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


def _same_outputs(model: nn.Module, candidate: nn.Module, plan: Plan) -> tuple[bool, float]:
    """Whether `candidate` computes what the masked model computes; also the difference that was seen.

    On small images where that is the same check. If they are in doubt, the traced size decides.
    """
    small = small_inputs(plan.graph, model)
    if small is not plan.graph.inputs:
        with suppress(Exception):  # whatever goes wrong here goes wrong again below
            equal, seen = agree(model, candidate, small, lambda m: masked_by(plan, m, free=True))
            if equal:
                return equal, seen
    return agree(model, candidate, plan.graph.inputs, lambda m: masked_by(plan, m))


def draws_numbers(plan: Plan) -> str:
    """A call that draws random numbers in eval mode, empty if there is none."""
    calls = plan.graph.eval.program.calls
    found = [call for call in calls if call.draws]
    return found[0].where() if found else ""


def class_problem(model: nn.Module, sliced: nn.Module, plan: Plan) -> str:
    """Why the sliced copy of the user's class does not compute what the masked model computes; empty if it does."""
    if plan.emptied:
        return f"edge {plan.emptied[0]!r} keeps no channel"
    if plan.whole:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            equal, seen = _same_outputs(model, sliced, plan)
    except CutError:
        raise
    except Exception as error:  # whatever the user's code raises on sizes it did not expect
        return f"{type(error).__name__}: {error}"
    if not equal:
        return f"its output differs from the masked network's by {seen:.2e} (relative)"
    return class_differs(sliced, plan)


def as_network(model: nn.Module, sliced: nn.Module, plan: Plan, given: Remains | None = None) -> tuple[CutNetwork, Remains]:
    """The fx form of the cut, over the layers of `sliced`, and what is left of closed branches: as a plan says, if given."""
    taken = [constant.name for step in steps_of(model) for constant in step.left.constants]
    folder = Folder(given, (*taken, *named_tensors(sliced)))
    canonical = canonical_names(sliced)
    emitters = {mode: CutEmitter(plan, mode, sliced, canonical, folder) for mode in MODES}
    graphs = {mode: emitter.emit() for mode, emitter in emitters.items()}
    made = [constant for constant in folder.made.values() if constant.name in emitters[constant.mode].objects]
    objects: dict[str, Any] = {**emitters["train"].objects, **emitters["eval"].objects}
    wanted = [constant.name for constant in made if given is None or constant.absorbed]
    absorbed = absorb_(tuple(graphs.values()), objects, wanted)
    constants = tuple(replace(constant, absorbed=constant.name in absorbed) for constant in made)
    if given is not None:
        _check_constants(given, constants)
    persistent = frozenset(sliced.state_dict())
    signature = signature_of(model.forward, plan, free=sizes_free(plan.graph, model))
    class_name = type(model).__name__ if isinstance(model, CutNetwork) else f"Cut{type(model).__name__}"
    network = assembled(objects, graphs["eval"], graphs["train"], signature, persistent, class_name)
    network.training = model.training
    flags = {name: module.training for name, module in sliced.named_modules()}
    for name, module in network.named_modules():
        module.training = flags.get(name, model.training)
    return network, given or Remains(constants, tuple(folder.omitted))


def _check_constants(given: Remains, made: Sequence[Constant]) -> None:
    """Raise if the constants of a plan are not those that the cut leaves behind."""
    found = {(constant.mode, constant.made_by): constant for constant in made}
    for constant in given.constants:
        here = found.get((constant.mode, constant.made_by))
        if (here is None and not constant.absorbed) or (here is not None and here.absorbed != constant.absorbed):
            raise CutError(f"the plan has a constant {constant.name!r}, made by {constant.made_by}, which this cut has not")
