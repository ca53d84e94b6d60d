"""What a network costs as a function of its living widths, and what one more channel of an edge adds.

Counts of multiply-adds and of memory are sums of products of axis sizes, and the size of an axis is linear in the widths
of the edges that lie on it. The cost of a channel (lambda of eq. 6 and 7) is the derivative of that sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gator.graph.hypergraph import Hypergraph
from gator.graph.labels import Axis
from gator.surgery.fate import Fate, decide
from gator.surgery.plan import Plan

Widths = Sequence[int] | NDArray[Any]  # living channels, one number an edge, in the order of graph.edges
Floats = NDArray[np.float64]


class Priced(Protocol):
    """The prices of one network, which a cost gives when it is put on it. Any object with these two methods will do.

    It may also have `measured(network)`, what a finished network really costs: a target is then met by that figure. With
    `tolerance`, a share of the target, the prediction is only an estimate, and every network is measured; `seen(widths,
    cost)` then gives prices that are right for a network of these widths, which was measured to cost so much.
    """

    def total(self, widths: Widths) -> float:
        """What the network costs with these living widths."""
        ...

    def per_channel(self, widths: Widths) -> Floats:
        """What one channel of every edge costs, given the living widths everywhere."""
        ...


class Cost(Protocol):
    """What is to be saved. `on` looks at a network once and says what its widths cost.

    A cost may also have `unit`, a word for people, and `again(model, graph, wholes)`, for a cost that depends on the first
    network it saw: `wholes` is an attribute of its prices, plain data that goes into checkpoints. Prices may also have
    `handed_on(model, graph)`: the `wholes` for a network cut from theirs, where those are not the same.
    """

    def on(self, model: nn.Module, graph: Hypergraph) -> Priced: ...


def priced_again(cost: Cost, model: nn.Module, graph: Hypergraph, wholes: Any) -> Priced:
    """Prices of a network that was priced before, or cut from one that was; `wholes` is what those prices had."""
    again = None if wholes is None else getattr(cost, "again", None)
    found: Priced = cost.on(model, graph) if again is None else again(model, graph, wholes)
    return found


def handed_on(priced: Priced, model: nn.Module, graph: Hypergraph) -> Any:
    """The `wholes` for a network cut from the one that has these prices."""
    hand_on = getattr(priced, "handed_on", None)
    return getattr(priced, "wholes", None) if hand_on is None else hand_on(model, graph)


@dataclass(frozen=True)
class Sum:
    """A term: `scale` times the sizes of these axes, present while one of `calls` (program, call) is still needed."""

    scale: float
    axes: tuple[Axis, ...]
    calls: tuple[tuple[int, int], ...]


class Polynomial:
    """A sum of products of axis sizes over the widths of a graph's edges."""

    def __init__(self, graph: Hypergraph, terms: Iterable[Sum]) -> None:
        assert graph.analysed is not None
        self.graph = graph
        self._roots, self._edge_of = graph.analysed.roots, graph.analysed.edge_of
        self._edge_at = np.full(len(self._roots), -1)
        for root, (edge, _) in self._edge_of.items():
            self._edge_at[root] = edge
        self._widths = np.array([edge.width for edge in graph.edges], dtype=np.float64)
        self._rows: list[Floats] = [np.zeros(len(graph.edges))]
        self._bases: list[float] = [1.0]  # row 0: an axis of size one
        self._row_of: dict[bytes, int] = {}
        merged: dict[tuple[int, ...], dict[tuple[tuple[int, int], ...], float]] = {}
        for term in terms:
            scale, rows = term.scale, []
            for axis in term.axes:
                row = self._row(axis)
                if row is None:
                    scale *= 1 if axis is None else len(axis)
                else:
                    rows.append(row)
            found = merged.setdefault(tuple(sorted(rows)), {})
            found[term.calls] = found.get(term.calls, 0.0) + scale
        flat = [(rows, calls, scale) for rows, parts in merged.items() for calls, scale in parts.items()]
        most = max((len(rows) for rows, _, _ in flat), default=0)
        self._index = np.array([[*rows, *[0] * (most - len(rows))] for rows, _, _ in flat], dtype=np.int64).reshape(
            len(flat), most
        )
        self._scale = np.array([scale for _, _, scale in flat], dtype=np.float64)
        self._calls = [calls for _, calls, _ in flat]
        self._matrix, self._base = np.stack(self._rows), np.array(self._bases)
        self._present: dict[tuple[int, ...], Floats] = {}

    def _row(self, axis: Axis) -> int | None:
        """The size of an axis as a linear function of the widths, None if it never changes."""
        if axis is None:
            return None
        edges = self._edge_at[self._roots[axis]]
        counts = np.bincount(edges[edges >= 0], minlength=len(self._widths)).astype(np.float64)
        if not counts.any():
            return None
        base = float((edges < 0).sum())
        key = np.append(counts, base).tobytes()
        if key not in self._row_of:
            self._row_of[key] = len(self._rows)
            self._rows.append(counts / self._widths)
            self._bases.append(base)
        return self._row_of[key]

    def _scales(self, widths: Floats) -> Floats:
        """The scale of every term, 0 for those of calls that a closed edge has made unnecessary."""
        empty = tuple(np.flatnonzero(widths == 0).tolist())
        if empty not in self._present:
            self._present[empty] = self._scale if not empty else self._scale * self._needed(empty)
        return self._present[empty]

    def _needed(self, empty: tuple[int, ...]) -> Floats:
        fates = fates_of(self.graph, [self.graph.edges[index].name for index in empty])
        live = {(program, call) for program, fate in enumerate(fates) for call in fate.live}
        return np.array([not calls or any(call in live for call in calls) for calls in self._calls], dtype=np.float64)

    def total(self, widths: Widths) -> float:
        w = np.asarray(widths, dtype=np.float64)
        sizes = self._matrix @ w + self._base
        return float((self._scales(w) * sizes[self._index].prod(axis=1)).sum())

    def per_channel(self, widths: Widths) -> Floats:
        w = np.asarray(widths, dtype=np.float64)
        factors = (self._matrix @ w + self._base)[self._index]
        scales = self._scales(w)
        result = np.zeros(len(w))
        for column in range(factors.shape[1]):
            others = scales * np.delete(factors, column, axis=1).prod(axis=1)
            result += others @ self._matrix[self._index[:, column]]
        return result


def fates_of(graph: Hypergraph, emptied: Iterable[str]) -> tuple[Fate, Fate]:
    """What becomes of every call, in train and eval mode, when these edges keep nothing."""
    plan = Plan(graph, {name: [] for name in emptied})
    return decide(plan, 0), decide(plan, 1)
