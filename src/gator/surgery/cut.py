"""`cut`: a new, smaller network that computes what the masked network computes, which is checked before it is returned."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import nn

from gator.errors import CutError, GatorError
from gator.graph.global_state import collector_paused
from gator.graph.hypergraph import SavedGraph
from gator.graph.image_sizes import of_another_size
from gator.graph.program import MODES
from gator.graph.trace import for_any_image, named_tensors, retraced, sizes_free, small_inputs
from gator.surgery.attributes import size_attributes
from gator.surgery.branch_constants import ConstantFolder
from gator.surgery.carry_over import carry_over_
from gator.surgery.compare_calls import class_differs, fitting_attributes_
from gator.surgery.compare_outputs import agree
from gator.surgery.cut_network import CutNetwork, build_network
from gator.surgery.cut_plan import Constant, RemovedBranches
from gator.surgery.emit_cut import CutEmitter
from gator.surgery.history import remember, steps_of
from gator.surgery.masked import masked_by, signature_of
from gator.surgery.merge_into_bias import merge_into_bias_
from gator.surgery.plan import Kept, Plan
from gator.surgery.slice import canonical_names, sliced_copy

log = logging.getLogger("gator")


def cut(model: nn.Module, graph: SavedGraph, kept: Kept, *, keep_class: bool | None = None, verify: bool = True) -> nn.Module:
    """A smaller copy of `model` with only the kept channels; `model` is not changed.

    The copy has the class of `model` if that class works with the smaller layers; otherwise it is an `fx.GraphModule` over the
    same layers with the same state_dict names. Before the copy is returned, it is compared with the masked `model` on random
    inputs in eval mode.

    Args:
        model: the network.
        graph: of this model, from `gator.trace` (or read from JSON: then the model is traced again).
        kept: by edge name, the indices or a boolean mask of the channels to keep; edges that are not named keep all.
        keep_class: True raises if the class cannot be kept, False always gives the graph; True by default for a graph that
            was traced with `keep_class=True`.
        verify: False skips the check of the graph form (the class is always checked).

    Raises:
        KeptError: if `kept` does not fit the graph, or would disconnect the output from the input.
        CutError: if the result does not compute what the masked model computes; nothing is returned then.

    Examples:
        >>> small = gator.cut(model, graph, {"stem": [0, 1, 2]})
        >>> with gator.masked(model, graph, {"stem": [0, 1, 2]}):
        ...     torch.allclose(small(x), model(x), atol=1e-5)
        True
    """
    with collector_paused():
        return _cut(model, Plan(retraced(graph, model), kept), keep_class, verify)


def cut_for_measurement(model: nn.Module, graph: SavedGraph, kept: Kept) -> nn.Module:
    """A cut network in graph form, without any check: for networks that are only measured and not returned to the user."""
    return cut(model, graph, kept, keep_class=False, verify=False)


def _cut(model: nn.Module, plan: Plan, keep_class: bool | None, verify: bool) -> nn.Module:
    if keep_class is None and plan.graph.keep_class and not plan.emptied:
        keep_class = True
    sliced = sliced_copy(model, plan)
    if keep_class is not False:
        reason, attributes = in_own_class_(model, sliced, plan)
        if not reason:
            return remember(sliced, model, plan, "class", RemovedBranches(), attributes)
        if keep_class:
            raise CutError(
                f"the class {type(model).__name__} does not work after this cut: {reason}\n"
                "  Leave keep_class at None to get an fx.GraphModule over the same layers."
            )
        if not plan.emptied:
            log.info(
                "the cut is a graph, because %s does not work with it (%s); trace(..., keep_class=True) keeps the class",
                type(model).__name__,
                reason.splitlines()[0],
            )
    network, removed_branches = as_network(model, sliced, for_any_size(model, plan) if verify else plan)
    if verify:
        check_network(model, network, plan)
    return remember(network, model, plan, "graph", removed_branches)


def for_any_size(model: nn.Module, plan: Plan) -> Plan:
    """The plan with formulas for the size of images, if the graph form is right with them at another size."""
    if sizes_free(plan.graph, model):
        return plan
    graph = for_any_image(plan.graph, model)
    if isinstance(graph, str):
        log.info("the cut in graph form takes images of the traced size only: %s", graph)
        return plan
    found = Plan(graph, plan.masks)
    with suppress(GatorError, RuntimeError, ValueError, IndexError, AssertionError):  # what running at another size may raise
        network, _ = as_network(model, sliced_copy(model, plan), found)
        if agree(model, network, of_another_size(graph.inputs), graph.eval.program, lambda m: masked_by(plan, m, free=True))[0]:
            return found
    return plan


def check_network(model: nn.Module, network: nn.Module, plan: Plan) -> None:
    """Raise if the graph form of a cut does not compute what the masked model computes."""
    try:
        equal, found = _same_outputs(model, network, plan)
    except RuntimeError as error:  # an operator of torch that does not accept these sizes
        raise CutError(
            f"the cut network cannot run: {error}\n"
            "  Keep other widths, or fix the layers involved with trace(..., fixed=[...])."
        ) from error
    if not equal and draws_numbers(plan):
        raise CutError(
            f"the cut network cannot be compared with the masked one, which differs by {found:.2e}: the network draws random "
            f"numbers in eval mode, at {draws_numbers(plan)}\n"
            "  Pass verify=False if it draws them for channels that are removed, or fix that layer."
        )
    if not equal:
        raise CutError(
            f"the cut network differs from the masked one by {found:.2e} (relative); nothing is returned\n"
            "  This is a bug in gator: please report it with the model. Fixing the layers involved with "
            "trace(..., fixed=[...]) works around it."
        )


def _same_outputs(model: nn.Module, candidate: nn.Module, plan: Plan) -> tuple[bool, float]:
    """Whether `candidate` computes what the masked model computes, and the relative difference of the outputs.

    Small images are tried first if the model makes the same calls for them. If outputs differ there, the traced size decides.
    """
    small, program = small_inputs(plan.graph, model), plan.graph.eval.program
    if small is not plan.graph.inputs:
        with suppress(Exception):  # an error here is raised again below
            equal, found = agree(model, candidate, small, program, lambda m: masked_by(plan, m, free=True))
            if equal:
                return equal, found
    return agree(model, candidate, plan.graph.inputs, program, lambda m: masked_by(plan, m))


def draws_numbers(plan: Plan) -> str:
    """Where a call draws random numbers in eval mode; empty if there is none."""
    calls = plan.graph.eval.program.calls
    found = [call for call in calls if call.draws]
    return found[0].where() if found else ""


def in_own_class_(model: nn.Module, sliced: nn.Module, plan: Plan) -> tuple[str, dict[str, int]]:
    """Why the sliced copy of the user's class does not work (empty if it does), and the attributes that were changed in it.

    Attributes that are sizes are changed if the class works with that, needed or not: other methods may use them.
    """
    chosen = None if plan.emptied or plan.keeps_everything else fitting_attributes_(sliced, plan, size_attributes(model, plan))
    reason = class_problem(model, sliced, plan)
    return reason, {} if reason else chosen or {}


def class_problem(model: nn.Module, sliced: nn.Module, plan: Plan) -> str:
    """Why the sliced copy of the user's class does not compute what the masked model computes; empty if it does."""
    if plan.emptied:
        return f"edge {plan.emptied[0]!r} keeps no channel"
    if plan.keeps_everything:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            equal, found = _same_outputs(model, sliced, plan)
    except CutError:
        raise
    except Exception as error:  # anything that the user's code raises on sizes it did not expect
        return f"{type(error).__name__}: {error}"
    if not equal:
        return f"its output differs from the masked network's by {found:.2e} (relative)"
    return class_differs(sliced, plan)


def as_network(
    model: nn.Module, sliced: nn.Module, plan: Plan, given: RemovedBranches | None = None
) -> tuple[CutNetwork, RemovedBranches]:
    """The graph form of the cut, over the layers of `sliced`, and what removed branches leave behind.

    With `given`, the removed branches of a plan, exactly those constants are made.
    """
    reserved = [constant.name for step in steps_of(model) for constant in step.removed_branches.constants]
    folder = ConstantFolder(given, (*reserved, *named_tensors(sliced)))
    canonical = canonical_names(sliced)
    emitters = {mode: CutEmitter(plan, mode, sliced, canonical, folder) for mode in MODES}
    graphs = {mode: emitter.emit() for mode, emitter in emitters.items()}
    made = [constant for constant in folder.made.values() if constant.name in emitters[constant.mode].objects]
    objects: dict[str, Any] = {**emitters["train"].objects, **emitters["eval"].objects}
    wanted = [constant.name for constant in made if given is None or constant.absorbed]
    merged = merge_into_bias_(tuple(graphs.values()), objects, wanted)
    constants = tuple(replace(constant, absorbed=constant.name in merged) for constant in made)
    if given is not None:
        _check_constants(given, constants)
    persistent = frozenset(sliced.state_dict())
    free = plan.graph.takes_any_image or sizes_free(plan.graph, model)
    known = [reason for reason in plan.graph.for_any_image if isinstance(reason, str)]
    signature = signature_of(model.forward, plan, free=free, bound="".join(known))
    class_name = type(model).__name__ if isinstance(model, CutNetwork) else f"Cut{type(model).__name__}"
    network = build_network(objects, graphs["eval"], graphs["train"], signature, persistent, class_name)
    carry_over_(network, model, plan.graph)
    network.training = model.training
    flags = {name: module.training for name, module in sliced.named_modules()}
    for name, module in network.named_modules():
        module.training = flags.get(name, model.training)
    return network, given or RemovedBranches(constants, tuple(folder.omitted))


def _check_constants(given: RemovedBranches, made: Sequence[Constant]) -> None:
    """Raise if the constants of a plan are not those of this cut."""
    found = {(constant.mode, constant.made_by): constant for constant in made}
    for constant in given.constants:
        here = found.get((constant.mode, constant.made_by))
        if (here is None and not constant.absorbed) or (here is not None and here.absorbed != constant.absorbed):
            raise CutError(f"the plan has a constant {constant.name!r} of {constant.made_by}, which this cut does not have")
