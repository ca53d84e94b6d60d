"""`plan` and `apply`: the plan of a cut network, and the same cut on a fresh instance of the original network."""

from __future__ import annotations

from torch import nn

from gator.errors import CutError
from gator.graph.global_state import collector_paused
from gator.graph.hypergraph import Hypergraph
from gator.graph.trace import check_same, trace_inputs
from gator.surgery.attributes import set_attributes_
from gator.surgery.compose_cuts import Step
from gator.surgery.cut import as_network, check_network, for_any_size
from gator.surgery.cut_plan import Cut, CutPlan, EdgeWidth
from gator.surgery.history import remember, steps_of
from gator.surgery.plan import Plan
from gator.surgery.slice import sliced_copy


def plan(model: nn.Module) -> CutPlan:
    """The plan of a cut network: what was cut, relative to the original architecture, as plain data without weights.

    Args:
        model: what `gator.cut`, `gator.cut_`, `gator.load` or `pruner.cut()` returned, or a deep copy of it.

    Returns:
        A `gator.CutPlan`.

    Raises:
        CutError: for a network that was never cut.

    Examples:
        >>> text = gator.plan(small).to_json()
        >>> again = gator.apply(gator.CutPlan.from_json(text), Network())
        >>> again.load_state_dict(small.state_dict())
        <All keys matched successfully>
    """
    steps = steps_of(model)
    if not steps:
        raise CutError(
            f"this {type(model).__name__} was never cut, so it has no plan\n"
            "  Pass what gator.cut, gator.cut_ or pruner.cut() returned, not a copy made by other means."
        )
    return CutPlan(tuple(_cut(step) for step in steps))


def _cut(step: Step) -> Cut:
    graph = step.graph
    edges = tuple(EdgeWidth(edge.name, edge.width) for edge in graph.edges)
    return Cut(
        inputs=graph.inputs,
        fixed=graph.fixed,
        heads=graph.heads,
        edges=edges,
        kept=step.kept,
        form=step.form,
        removed_branches=step.removed_branches,
        keep_class=graph.keep_class,
        attributes=step.attributes,
    )


def apply(plan: CutPlan, model: nn.Module, *, verify: bool = True) -> nn.Module:
    """The cut network that a plan describes, made from a fresh instance of the original architecture; `model` is untouched.

    The result has the class (or graph), the parameter names and the shapes of the network that the plan was taken from, with
    the sliced weights of `model`; load the trained weights with `load_state_dict`. The network is traced once.

    Args:
        plan: what was cut, from `gator.plan` or `gator.CutPlan.from_json`.
        model: a fresh instance of the original architecture.
        verify: False skips the check that the result computes what the masked `model` computes.

    Returns:
        The cut network.

    Raises:
        CutError: for a network of another architecture; and whatever `gator.trace` and `gator.cut` raise.

    Examples:
        >>> again = gator.apply(gator.plan(small), Network())
        >>> again.load_state_dict(small.state_dict())
        <All keys matched successfully>
    """
    if not isinstance(plan, CutPlan):
        raise CutError(f"plan is a {type(plan).__name__}; expected a gator.CutPlan (see CutPlan.from_json)")
    if not isinstance(model, nn.Module):
        raise CutError(f"apply needs an instance of the original network, not {model!r}; pass Network(), not Network")
    network = model
    with collector_paused():
        for each in plan.cuts:
            graph = trace_inputs(network, each.inputs, fixed=each.fixed, heads=each.heads, keep_class=each.keep_class)
            check_same(each.edges, graph.edges, CutError)
            network = _apply_cut(network, graph, each, verify)
    return network


def _apply_cut(model: nn.Module, graph: Hypergraph, cut: Cut, verify: bool) -> nn.Module:
    """One cut of a plan, made on another instance of the same architecture."""
    kept = Plan(graph, cut.kept)
    sliced = sliced_copy(model, kept)
    set_attributes_(sliced, cut.attributes)
    plan = for_any_size(model, kept) if verify and cut.form == "graph" else kept
    network = sliced if cut.form == "class" else as_network(model, sliced, plan, cut.removed_branches)[0]
    if verify:
        check_network(model, network, kept)
    return remember(network, model, kept, cut.form, cut.removed_branches, cut.attributes)
