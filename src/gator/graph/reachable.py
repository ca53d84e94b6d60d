"""Which calls that read an edge can be reached while the user's own forward runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gator.graph.analysis import ProgramLabels
from gator.graph.program import MODES, Call

if TYPE_CHECKING:
    from gator.graph.hypergraph import Hypergraph


def unreachable(graph: Hypergraph, edge: int | None = None) -> list[Call]:
    """Calls that read an edge (this one, or any) and cannot be told apart while the user's own forward runs.

    No function of the user's code makes them; or their module runs several times and reads other channels every time, so that
    it matters which run it is. A network whose weights are computed by hooks was recorded without the hooks, so none of its
    calls can be reached.
    """
    found = []
    for mode in MODES:
        labelled = graph.of(mode)
        differing = _modules_that_differ(graph, labelled)
        for call in labelled.program.calls:
            placed = call.place is not None and call.place.module == call.module
            if placed and call.module not in differing and not graph.baked:
                continue
            edges = _edges_read(graph, labelled, call)
            if edge in edges or (edge is None and edges):
                found.append(call)
    return found


def _modules_that_differ(graph: Hypergraph, labelled: ProgramLabels) -> set[str]:
    """Modules that run several times and do not read the same channels in all runs."""
    runs: dict[str, dict[int, list[Any]]] = {}
    for call in labelled.program.calls:
        if call.place is not None:
            reads = [
                (read, labels if labels is None else graph.roots[labels].tobytes())
                for read in labelled.reads.get(call.index, ())
                for labels in (labelled.axes[call.value_at(read.argument)][read.axis],)
            ]
            run = runs.setdefault(call.place.module, {}).setdefault(call.place.visit, [])
            run.append((call.place.function, call.place.ordinal, reads))
    return {name for name, found in runs.items() if any(run != found[0] for run in found.values())}


def _edges_read(graph: Hypergraph, labelled: ProgramLabels, call: Call) -> set[int]:
    axes = (labelled.axes[call.value_at(read.argument)][read.axis] for read in labelled.reads.get(call.index, ()))
    roots = {root for labels in axes if labels is not None for root in np.unique(graph.roots[labels]).tolist()}
    return {graph.edge_of[root][0] for root in roots if root in graph.edge_of}
