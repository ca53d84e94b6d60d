"""Two cuts, one after the other, as one cut of the network before the first.

Channels of the smaller network are followed back to the larger one through the axes of the parameters they share. If the
second cut removes whole units of the first graph, one cut does the same as both. If it does not (channels that a closed
branch had tied are free now; whole heads went first and dimensions inside heads later), there is no such cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gator.graph.hypergraph import SavedGraph
from gator.graph.inputs import Inputs, TensorSpec
from gator.surgery.cut_plan import Form, Remains

Place = tuple[str, int]  # parameter, axis
Mask = NDArray[np.bool_]
Units = NDArray[np.int64]  # a unit for every position of an axis, counted through all edges; -1 for none


@dataclass(frozen=True)
class Step:
    """One cut: the graph it was made on (as plain data), the kept units, and the form of the result."""

    graph: SavedGraph
    kept: dict[str, tuple[int, ...]]
    form: Form
    left: Remains  # of branches that were closed
    tied: dict[str, str]  # further names of a tensor -> the name that the graph uses

    def __deepcopy__(self, memo: dict[int, object]) -> Step:
        return self  # nothing in it ever changes


def composed(one: Step, two: Step, *, before: Sequence[str], after: frozenset[str]) -> Step | None:
    """The cut that does what `one` and then `two` do; None if there is none.

    `before` and `after` are the names of the parameters and buffers before and after the second cut.
    """
    graph = one.graph
    if not _same_sizes(one, two):
        if not _same_edges(one, two):
            return None
        graph = replace(graph, inputs=two.graph.inputs)
    alive = _alive(one.graph, one.kept)
    places = _units(one.graph)
    smaller = _units(two.graph)
    alive_later = _alive(two.graph, two.kept)
    added = {constant.name for constant in one.left.constants}
    now_called = {one.tied.get(name, name): two.tied.get(name, name) for name in before}
    survive: dict[Place, Mask] = {}  # of the positions that the first cut leaves: which the second leaves too
    removed = np.zeros(len(alive), bool)
    for (now, axis), units in smaller.items():
        kept = _on(alive_later, units)
        at = (one.tied.get(now, now), axis)
        survive[at] = kept
        if kept.all() or now in added:
            continue
        if at not in places:
            return None
        first = places[at][_on(alive, places[at])]
        if len(first) != len(units) or (first[~kept] < 0).any():
            return None
        removed[first[~kept]] = True
    for (name, axis), units in places.items():
        if name in now_called:
            surviving = units[_on(alive, units)]
            expected = ~_on(removed, surviving, otherwise=False)
            if not np.array_equal(expected, survive.get((name, axis), np.ones(len(surviving), bool))):
                return None
    constants = tuple(c for c in one.left.constants if c.absorbed or c.name in after) + two.left.constants
    remains = Remains(constants, one.left.omitted + two.left.omitted)
    form: Form = "class" if one.form == two.form == "class" else "graph"
    return replace(one, graph=graph, kept=_kept(one.graph, alive & ~removed), form=form, left=remains)


def _on(marked: Mask, units: Units, otherwise: bool = True) -> Mask:
    """What is marked, position by position; `otherwise` where a position belongs to no unit."""
    return np.where(units >= 0, np.append(marked, otherwise)[units], otherwise)


def _alive(graph: SavedGraph, kept: dict[str, tuple[int, ...]]) -> Mask:
    """The units that are kept, counted through all edges."""
    alive = np.ones(int(graph.starts[-1]), bool)
    for edge, start in zip(graph.edges, graph.starts, strict=False):
        if edge.name in kept:
            alive[start : start + edge.width] = False
            alive[start + np.array(kept[edge.name], dtype=np.int64)] = True
    return alive


def _kept(graph: SavedGraph, alive: Mask) -> dict[str, tuple[int, ...]]:
    return {name: tuple(np.flatnonzero(mask).tolist()) for name, mask in graph.masks_of(alive).items()}


def _units(graph: SavedGraph) -> dict[Place, Units]:
    """The unit of every position of every axis that lies on an edge."""
    found: dict[Place, Units] = {}
    for edge, start in zip(graph.edges, graph.starts, strict=False):
        for member in edge.members:
            units = np.array(member.units, dtype=np.int64)
            place = found.setdefault((member.parameter, member.axis), np.full(len(units), -1, dtype=np.int64))
            place[units >= 0] = units[units >= 0] + start
    return found


def _same_sizes(one: Step, two: Step) -> bool:
    """Whether both graphs describe the same sizes, batches aside, or the result of the first cut takes any size anyway."""
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
