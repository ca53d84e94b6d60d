"""`cut_`: cut a network that is in training, in place, together with the state of its optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gator.errors import CutError
from gator.graph.bake import needs_baking
from gator.graph.hypergraph import SavedGraph
from gator.graph.trace import check_same, named_tensors, retraced, trace_inputs
from gator.private_torch import accumulated_shape, buffers_of, pytree
from gator.surgery.attributes import set_attributes_
from gator.surgery.cut import as_network, check_network, for_any_size, in_own_class_
from gator.surgery.cut_plan import CutPlan, RemovedBranches
from gator.surgery.history import remember
from gator.surgery.other_optimizers import watch_optimizers
from gator.surgery.plan import Kept, Mask, Plan
from gator.surgery.slice import canonical_names, narrowed, sliced_copy, update_layers_


def cut_(model: nn.Module, graph: SavedGraph, kept: Kept, *, optimizer: Optimizer | None = None) -> nn.Module:
    """Remove channels from `model` itself and from the optimizer's state.

    If the class of the model works with the smaller layers, every parameter stays the same object with sliced data. Otherwise
    the model becomes an fx.GraphModule over its own layers. Everything is checked on a copy first; if an error is raised,
    nothing has changed. Delete references to older losses before: they hold the old shapes.

    Args:
        model: the network, which is changed.
        graph: of this model, from `gator.trace`.
        kept: the channels to keep, as for `gator.cut`.
        optimizer: the optimizer of the parameters; its state is sliced as well, so that training can go on.

    Returns:
        `model`.

    Examples:
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> model is gator.cut_(model, graph, {"stem": [0, 1, 2]}, optimizer=optimizer)
        True
    """
    plan = Plan(retraced(graph, model), kept)
    if plan.keeps_everything:
        return model
    if needs_baking(model):
        raise CutError(
            "cut_ cannot cut a model with weight_norm or spectral_norm in place\n"
            "  Remove it first (torch.nn.utils.parametrize.remove_parametrizations), or use gator.cut."
        )
    if optimizer is not None:
        _check_optimizer(model, optimizer, plan)
    trial = sliced_copy(model, plan)
    reason, attributes = in_own_class_(model, trial, plan)
    if reason and plan.graph.keep_class and not plan.emptied:
        raise CutError(f"the class {type(model).__name__} does not work after this cut: {reason}")
    if reason:
        written = for_any_size(model, plan)
        check_network(model, as_network(model, trial, written)[0], plan)
    before = list(model.parameters())
    _shrink_(model, plan, optimizer)
    watch_optimizers(before)
    if not reason:
        set_attributes_(model, attributes)
        return remember(model, model, plan, "class", RemovedBranches(), attributes)
    network, removed_branches = as_network(model, model, written)
    remember(network, model, plan, "graph", removed_branches)
    model.__class__ = network.__class__
    model.__dict__.clear()
    model.__dict__.update(network.__dict__)
    if optimizer is not None:
        _update_parameters_(optimizer, before, list(model.parameters()))
    return model


def _shrink_(model: nn.Module, plan: Plan, optimizer: Optimizer | None) -> None:
    """Slice the data, gradient and optimizer state of every parameter. Parameter objects stay; buffers are replaced."""
    names = canonical_names(model)
    fresh: dict[str, torch.Tensor] = {}
    axes_of: dict[int, list[Mask | None]] = {}
    old: dict[nn.Parameter, tuple[torch.Tensor, torch.Tensor | None]] = {}
    buffers: list[tuple[str, torch.Tensor]] = []
    for name, tensor in named_tensors(model).items():
        axes = plan.attributes.get(names[name])
        if axes is None:
            continue
        if names[name] not in fresh:
            fresh[names[name]] = narrowed(tensor, axes)
        if not isinstance(tensor, nn.Parameter):
            buffers.append((name, fresh[names[name]]))
        elif tensor not in old:
            axes_of[id(tensor)] = axes
            old[tensor] = (tensor.data, tensor.grad)
            tensor.grad = None
            tensor.data = fresh[names[name]]
    stale = [parameter for parameter in old if _used_by_a_graph(parameter)]
    if stale:
        for parameter, (data, gradient) in old.items():
            parameter.data, parameter.grad = data, gradient
        name = next(n for n, p in model.named_parameters() if p is stale[0])
        raise CutError(
            f"an older loss still holds the shapes of {name!r}; nothing was changed\n"
            "  Delete references to losses and outputs of earlier steps (del loss), then cut."
        )
    for parameter, (data, gradient) in old.items():
        axes = axes_of[id(parameter)]
        if gradient is not None:
            parameter.grad = narrowed(gradient, axes)
        held = {} if optimizer is None else optimizer.state.get(parameter, {})
        for key, state in held.items():
            held[key] = pytree.tree_map(lambda x, shape=data.shape, axes=axes: _narrowed(x, shape, axes), state)
    for name, tensor in buffers:
        owner, _, attribute = name.rpartition(".")
        buffers_of(model.get_submodule(owner))[attribute] = tensor
    update_layers_(model, plan)


def _narrowed(held: Any, shape: torch.Size, axes: list[Mask | None]) -> Any:
    """State of an optimizer for a parameter of this shape: sliced like the parameter if it has the same shape."""
    return narrowed(held, axes) if isinstance(held, torch.Tensor) and held.shape == shape else held


def _check_optimizer(model: nn.Module, optimizer: Optimizer, plan: Plan) -> None:
    """Raise if the optimizer does not hold the model's parameters, or keeps state that cannot be sliced along with them."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    canonical = canonical_names(model)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(id(p) in names for p in held):
        raise CutError(f"this {type(optimizer).__name__} holds none of the model's parameters; pass the one that trains it")
    for parameter in held:
        name = names.get(id(parameter))
        if name is None or canonical[name] not in plan.attributes:
            continue
        for key, state in optimizer.state.get(parameter, {}).items():
            for tensor in pytree.tree_leaves(state):
                if isinstance(tensor, torch.Tensor) and tensor.numel() > 1 and tensor.shape != parameter.shape:
                    raise CutError(
                        f"{type(optimizer).__name__} keeps {key!r} of shape {tuple(tensor.shape)} for {name!r} of shape "
                        f"{tuple(parameter.shape)}, which cannot be cut along with it\n"
                        "  Use gator.cut and a new optimizer."
                    )


def _used_by_a_graph(parameter: nn.Parameter) -> bool:
    """Whether an autograd graph still exists that accumulates into this parameter with its old shape."""
    if not parameter.requires_grad:
        return False
    with torch.enable_grad():
        node: Any = parameter.view_as(parameter).grad_fn
    accumulator = node.next_functions[0][0]
    return accumulated_shape(accumulator) != tuple(parameter.shape)


def _update_parameters_(optimizer: Optimizer, before: list[nn.Parameter], after: list[nn.Parameter]) -> None:
    """Remove parameters that no longer exist from the optimizer, and add new ones to the group that lost some."""
    gone = {id(p) for p in before} - {id(p) for p in after}
    known = {id(p) for p in before}
    lost_some = [any(id(p) in gone for p in group["params"]) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in gone:
                optimizer.state.pop(parameter, None)
        group["params"] = [p for p in group["params"] if id(p) not in gone]
    candidates = [group for group, lost in zip(optimizer.param_groups, lost_some, strict=True) if lost]
    (candidates or optimizer.param_groups)[0]["params"].extend(p for p in after if id(p) not in known)


def apply_(plan: CutPlan, model: nn.Module) -> nn.Module:
    """Like `gator.apply`, but `model` itself becomes smaller; returns `model`. For plans of networks that kept their class."""
    for each in plan.cuts:
        graph = trace_inputs(model, each.inputs, fixed=each.fixed, heads=each.heads, keep_class=each.keep_class)
        check_same(each.edges, graph.edges, CutError)
        cut_(model, graph, each.kept)
    return model
