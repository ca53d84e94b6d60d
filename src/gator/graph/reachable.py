"""Which calls that read an edge can be reached while the user's own forward runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gator.graph.analysis import ProgramLabels
from gator.graph.program import MODES, Call

if TYPE_CHECKING:
    from gator.graph.hypergraph import Hypergraph


def unreachable(graph: Hypergraph, edge: int | None = None) -> list[Call]:
    """Calls that read an edge (this one, or any) and that no function of the user's code makes.

    A network whose weights are computed by hooks was recorded without the hooks, so none of its calls can be reached.
    """
    found = []
    for mode in MODES:
        labelled = graph.of(mode)
        for call in labelled.program.calls:
            reached = call.place is not None and call.place.module == call.module and not graph.baked
            if not reached and (edge in (edges := _edges_read(graph, labelled, call)) or (edge is None and edges)):
                found.append(call)
    return found


def _edges_read(graph: Hypergraph, labelled: ProgramLabels, call: Call) -> set[int]:
    axes = (labelled.axes[call.value_at(read.argument)][read.axis] for read in labelled.reads.get(call.index, ()))
    roots = {root for labels in axes if labels is not None for root in np.unique(graph.roots[labels]).tolist()}
    return {graph.edge_of[root][0] for root in roots if root in graph.edge_of}
