"""`trace` with `keep_class=True`: only channels may go whose removal leaves the user's own class working.

A class breaks where its code has sizes of its own: a split into given widths, a number of heads. Which edges those are is found
by trying: a copy of the class with some channels of every edge is recorded, and where that fails, groups of edges are tried
until those that the class cannot lose channels of are known. They are fixed. (The parts of an equal split keep the same
positions, which a rule of the graph takes care of.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from gator.graph.analysis import Heads
from gator.graph.hypergraph import Edge, Hypergraph
from gator.graph.trace import named_tensors, trace_inputs
from gator.graph.trace import trace as trace_freely
from gator.surgery.attributes import size_attributes
from gator.surgery.compare_calls import class_differs, fitting_attributes_
from gator.surgery.plan import Plan
from gator.surgery.slice import sliced_copy


def trace(
    model: nn.Module,
    example_inputs: Any,
    *,
    fixed: Sequence[str | nn.Module] = (),
    heads: Heads | str | Mapping[str, Heads] = "whole",
    outputs: Sequence[str] = (),
    keep_class: bool = False,
) -> Hypergraph:
    """Find the channels of `model` that depend on each other.

    Args:
        model: the network; it is not changed, and may be on any device, the meta device included.
        example_inputs: a tensor, a tuple of positional or a dict of keyword arguments; only shapes and dtypes matter.
        fixed: layers or parameters that are not pruned: names, glob patterns ("layer1.*") or modules of the model.
        heads: whether attention is pruned by whole heads ("whole") or by dimensions inside all heads ("dims"): one value for
            all attention layers, or a dict by the name of the layer that writes the heads.
        outputs: the outputs that matter, by name ("logits") or, for a tuple, by position ("0"); all of them if it is empty.
            The others (returned hidden states, a cache of keys and values) may change their widths, and a cut network in graph
            form returns None for them.
        keep_class: True leaves out what the class of `model` cannot lose, so that a cut always has that class. By default all
            channels are found, and a cut that the class does not work with is an `fx.GraphModule`.

    Returns:
        The hypergraph: `print` it for a table, `graph.explain(name)` says why channels are tied or fixed.

    Raises:
        TraceError: if the network cannot be recorded with these inputs; the message says where.

    Examples:
        >>> graph = gator.trace(model, x)
        >>> graph.edges[0].name, graph.edges[0].width
        ('stem', 24)
    """
    graph = trace_freely(model, example_inputs, fixed=fixed, heads=heads, outputs=outputs)
    return kept_in_class(model, graph) if keep_class else graph


def kept_in_class(model: nn.Module, graph: Hypergraph, known: tuple[str, ...] | None = None) -> Hypergraph:
    """The graph of the same network with only what its class can lose; `known` is what has to be fixed, if that is known."""
    if known is not None:
        return trace_inputs(model, graph.inputs, fixed=known, heads=graph.heads, keep_class=True)
    while True:
        graph = trace_inputs(model, graph.inputs, fixed=graph.fixed, heads=graph.heads, keep_class=True)
        needed = _needed_by_class(model, graph, list(graph.edges))
        if not needed:
            return graph
        fixed = dict.fromkeys([*graph.fixed, *(name for edge in needed for name in _fixing(model, edge))])
        graph = trace_inputs(model, graph.inputs, fixed=tuple(fixed), heads=graph.heads, keep_class=True)


def _needed_by_class(model: nn.Module, graph: Hypergraph, edges: list[Edge]) -> list[Edge]:
    """The edges among these that the class cannot lose channels of."""
    if not edges or not _problem(model, graph, edges):
        return []
    if len(edges) == 1:
        return edges
    middle = len(edges) // 2
    found = [*_needed_by_class(model, graph, edges[:middle]), *_needed_by_class(model, graph, edges[middle:])]
    return found or edges  # if each half works alone, they only break the class together


def _fixing(model: nn.Module, edge: Edge) -> Sequence[str]:
    """What to fix so that an edge is, and no other one: a bias or a scale lies on one edge, a weight on two."""
    tensors = named_tensors(model)
    lines = [member.parameter for member in edge.members if tensors[member.parameter].ndim == 1]
    return lines[:1] or edge.producers


def _some(edge: Edge, share: float) -> list[int]:
    """A share of the units of an edge, spread over it. Every edge has another: a class may need two widths to be equal."""
    count = max(1, min(edge.width - 1, round(share * edge.width)))
    return [unit * edge.width // count for unit in range(count)]


def _problem(model: nn.Module, graph: Hypergraph, edges: list[Edge]) -> str:
    plan = Plan(graph, {edge.name: _some(edge, 0.2 + 0.6 * (0.618 * graph.edges.index(edge) % 1.0)) for edge in edges})
    sliced = sliced_copy(model, plan)
    if fitting_attributes_(sliced, plan, size_attributes(model, plan)) is not None:
        return ""
    return class_differs(sliced, plan)
