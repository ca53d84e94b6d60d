"""Compose two successive cuts into one cut of the network before the first.

Channels of the smaller network are traced back to the larger one through the axes of the parameters they share. If the second
cut removes complete units of the first graph, one cut does the same as both. Otherwise no such cut exists: for example if a
removed branch had tied channels that are independent now, or if the first cut removed whole heads and the second dimensions
inside heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gator.graph.hypergraph import SavedGraph
from gator.graph.inputs import Inputs, TensorSpec
from gator.surgery.cut_plan import Form, RemovedBranches

ParameterAxis = tuple[str, int]  # parameter, axis
Mask = NDArray[np.bool_]
Units = NDArray[np.int64]  # the unit of every position of an axis, numbered over all edges; -1 for none


@dataclass(frozen=True)
class Step:
    """One cut: the graph it was made on (as plain data), the kept units, and the form of the result."""

    graph: SavedGraph
    kept: dict[str, tuple[int, ...]]
    form: Form
    removed_branches: RemovedBranches
    tied: dict[str, str]  # other names of a tied tensor -> the name that the graph uses
    attributes: dict[str, int]  # sizes that modules hold as attributes, after the cut

    def __deepcopy__(self, memo: dict[int, object]) -> Step:
        return self  # it is immutable


def composed(one: Step, two: Step, *, before: Sequence[str], after: frozenset[str]) -> Step | None:
    """One cut with the effect of `one` followed by `two`; None if there is none.

    `before` and `after` are the names of the parameters and buffers before and after the second cut.
    """
    graph = one.graph
    if not _same_sizes(one, two):
        if not _same_edges(one, two):
            return None
        graph = replace(graph, inputs=two.graph.inputs)
    alive = alive_units(one.graph, one.kept)
    places = units_by_axis(one.graph)
    smaller = units_by_axis(two.graph)
    alive_later = alive_units(two.graph, two.kept)
    added = {constant.name for constant in one.removed_branches.constants}
    current_names = {one.tied.get(name, name): two.tied.get(name, name) for name in before}
    survives: dict[ParameterAxis, Mask] = {}  # which positions that the first cut keeps the second keeps too
    removed = np.zeros(len(alive), bool)
    for (name, axis), units in smaller.items():
        kept = _at_positions(alive_later, units)
        at = (one.tied.get(name, name), axis)
        survives[at] = kept
        if kept.all() or name in added:
            continue
        if at not in places:
            return None
        first = places[at][_at_positions(alive, places[at])]
        if len(first) != len(units) or (first[~kept] < 0).any():
            return None
        removed[first[~kept]] = True
    for (name, axis), units in places.items():
        if name in current_names:
            surviving = units[_at_positions(alive, units)]
            expected = ~_at_positions(removed, surviving, otherwise=False)
            if not np.array_equal(expected, survives.get((name, axis), np.ones(len(surviving), bool))):
                return None
    earlier, later = one.removed_branches, two.removed_branches
    constants = tuple(c for c in earlier.constants if c.absorbed or c.name in after) + later.constants
    removed_branches = RemovedBranches(constants, earlier.omitted + later.omitted)
    form: Form = "class" if one.form == two.form == "class" else "graph"
    return replace(
        one,
        graph=graph,
        kept=_kept(one.graph, alive & ~removed),
        form=form,
        removed_branches=removed_branches,
        attributes={**one.attributes, **two.attributes},
    )


def _at_positions(mask: Mask, units: Units, otherwise: bool = True) -> Mask:
    """The mask of units as a mask of positions; `otherwise` where a position belongs to no unit."""
    return np.where(units >= 0, np.append(mask, otherwise)[units], otherwise)


def alive_units(graph: SavedGraph, kept: Mapping[str, Sequence[int]]) -> Mask:
    """The mask of kept units over all edges."""
    alive = np.ones(int(graph.starts[-1]), bool)
    for edge, start in zip(graph.edges, graph.starts, strict=False):
        if edge.name in kept:
            alive[start : start + edge.width] = False
            alive[start + np.array(kept[edge.name], dtype=np.int64)] = True
    return alive


def _kept(graph: SavedGraph, alive: Mask) -> dict[str, tuple[int, ...]]:
    return {name: tuple(np.flatnonzero(mask).tolist()) for name, mask in graph.masks_of(alive).items()}


def units_by_axis(graph: SavedGraph) -> dict[ParameterAxis, Units]:
    """The unit of every position of every axis that lies on an edge."""
    found: dict[ParameterAxis, Units] = {}
    for edge, start in zip(graph.edges, graph.starts, strict=False):
        for member in edge.members:
            units = np.array(member.units, dtype=np.int64)
            place = found.setdefault((member.parameter, member.axis), np.full(len(units), -1, dtype=np.int64))
            place[units >= 0] = units[units >= 0] + start
    return found


def _same_sizes(one: Step, two: Step) -> bool:
    """Whether the inputs of both graphs have the same sizes, apart from the batch, or the forms do not depend on them."""
    if one.form == "graph" or two.form == "class":
        return True
    return _sizes(one.graph.inputs) == _sizes(two.graph.inputs)


def _sizes(inputs: Inputs) -> list[object]:
    leaves = [
        (leaf.dtype, leaf.shape[1:] if inputs.batched(leaf) else leaf.shape) if isinstance(leaf, TensorSpec) else leaf
        for leaf in inputs.leaves
    ]
    return [inputs.structure, leaves]


def _same_edges(one: Step, two: Step) -> bool:
    """Whether the smaller network has the same edges as the larger one, with the kept units."""
    widths = [(edge.name, len(one.kept.get(edge.name, range(edge.width)))) for edge in one.graph.edges]
    return widths == [(edge.name, edge.width) for edge in two.graph.edges]
