"""What successive cuts leave of every edge of the original network, whatever the edges are called in between."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np
from torch import nn

from gator.graph.hypergraph import SavedGraph
from gator.graph.trace import named_tensors
from gator.surgery.compose_cuts import alive_units, units_by_axis
from gator.surgery.history import steps_of

Cuts = Sequence[tuple[SavedGraph, Mapping[str, Sequence[int]]]]  # the graph of each cut, and the kept units of its edges


def widths_of_network(network: nn.Module) -> dict[str, int]:
    """The widths that a cut network has on the edges of the original network; empty if it was never cut."""
    cuts = [(step.graph, step.kept) for step in steps_of(network)]
    return widths_left(cuts, named_tensors(network)) if cuts else {}


def widths_left(cuts: Cuts, tensors: Container[str]) -> dict[str, int]:
    """The width of every edge of the first graph after all cuts.

    tensors: the names of the parameters and buffers that still exist. An edge none of whose tensors exists has width 0: its
    layers were removed, because of it or because of another edge.
    """
    first = cuts[0][0]
    places = units_by_axis(first)  # the original unit at every surviving position of every axis
    for graph, kept in cuts:
        alive = np.append(alive_units(graph, kept), True)  # the last for positions of no unit
        for at, units in units_by_axis(graph).items():
            if at in places and len(places[at]) == len(units):
                places[at] = places[at][alive[units]]
    found = {}
    for edge, start in zip(first.edges, first.starts, strict=False):
        axes = {(member.parameter, member.axis) for member in edge.members if member.parameter in tensors}
        left = [np.unique(places[at][(places[at] >= start) & (places[at] < start + edge.width)]) for at in axes]
        found[edge.name] = max((len(units) for units in left), default=0)
    return found
